"""One look's deadline, and what went wrong in it.

Problem: a look asks many brokers about thousands of groups; each may fail or hang for itself, and
none may take the whole look along. Choice: one deadline over all; what failed becomes one sentence
for each reason, with a few names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet.clock import Clock

LEAST: Final = 0.1
_NAMED: Final = 5
"""Groups or topics named in one sentence about a failure."""


@dataclass(slots=True)
class Poll:
    """The deadline of one look and what went wrong during it."""

    clock: Clock
    timeout: float
    began: float = field(init=False)
    problems: list[str] = field(default_factory=list)
    partial: bool = False
    """Some broker did not list its groups."""

    def __post_init__(self) -> None:
        self.began = self.clock.monotonic()

    def left(self) -> float:
        """Seconds left, at least a little: what is already there can still be taken."""
        return max(LEAST, self.began + self.timeout - self.clock.monotonic())

    def part(self, brokers: int) -> float:
        """Seconds for one of several rounds of questions, where some of many brokers may be silent
        and the others be asked more.
        """
        return self.left() if brokers == 1 else max(LEAST, self.left() / 3)

    def tell(self, failed: Mapping[str, str], what: str) -> None:
        """One sentence for each reason, from name → reason; `what` failed, as "group(s) ..."."""
        by_reason: dict[str, list[str]] = {}
        for name, why in failed.items():
            by_reason.setdefault(why, []).append(name)
        for why, names in by_reason.items():
            named = ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            self.problems.append(f"{len(names)} {what} ({why}): {named}")
