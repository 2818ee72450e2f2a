"""One planted fault, and the whole table of them.

A fault is written as the line that it changes, with the change in it as `git diff --word-diff`
shows it: `return [-all-]{+any+}(done)`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LONGEST_TEST = 60.0
"""Seconds that one test of the table may take: a fault that only longer ones find goes unseen."""
ENOUGH = 0.95
"""Share of the faults that has to be killed."""


class Stale(ValueError):
    """The table names a text that its file does not hold exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A defect that somebody could make."""

    name: str
    file: str
    """From the root of the repository."""
    old: str
    """Stands exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """What has to fail on it: files, folders or single tests, as pytest names them."""
    judged: str = ""
    """Of one that survives: why that may be. Empty: it has to be killed."""

    def planted(self, root: Path) -> str:
        """The file's text with the fault in it. Raises Stale."""
        path = root / self.file
        if not path.is_file():
            raise Stale(f"{self.name}: {self.file} is not there; {_ADVICE}")
        text = path.read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            found = "not there" if count == 0 else f"there {count} times"
            raise Stale(f"{self.name}: its text is {found} in {self.file}; {_ADVICE}:\n{self.old}")
        return text.replace(self.old, self.new)


_ADVICE = (
    "the code has changed: plant the same fault in what stands there now (tests/mutants/table_*.py,"
    " longer text where it is not alone), or take the fault out where the rule is no more"
)


_GONE = re.compile(r"\[-(.*?)-\]", re.DOTALL)
_COME = re.compile(r"\{\+(.*?)\+\}", re.DOTALL)


Place = tuple[str, tuple[str, ...]]
"""A file, and the tests that have to notice its faults."""


def faults(
    places: Mapping[Place, Mapping[str, str]], *, judged: Mapping[str, str] | None = None
) -> tuple[Mutant, ...]:
    """Of each place: name → the code and its change. judged: name → why it may survive."""
    return tuple(
        Mutant(
            name=name,
            file=file,
            old=_COME.sub("", _GONE.sub(r"\1", change)),
            new=_COME.sub(r"\1", _GONE.sub("", change)),
            tests=tests,
            judged=(judged or {}).get(name, ""),
        )
        for (file, tests), changes in places.items()
        for name, change in changes.items()
    )


def table() -> tuple[Mutant, ...]:
    """All planted faults."""
    from tests.mutants import (
        table_act,
        table_decide,
        table_k8s,
        table_observe,
        table_owning,
        table_schedules,
        table_sim,
        table_sim_consumer,
        table_sim_members,
        table_slot_lease,
        table_slots,
        table_worker,
    )

    rooms = (
        table_sim,
        table_owning,
        table_worker,
        table_slot_lease,
        table_slots,
        table_act,
        table_decide,
        table_k8s,
        table_observe,
        table_sim_consumer,
        table_schedules,
        table_sim_members,
    )
    return tuple(mutant for room in rooms for mutant in room.MUTANTS)
