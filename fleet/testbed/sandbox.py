"""One home with a declared group, whose entrypoint keeps the journal.

Problem: the benchmarks and the tests of a whole fleet need the same: a home, an entrypoint that
can be changed as its author would, a fleet.yaml, a journal, a change that has to end well. Choice:
these stand here once; who starts the broker, how long is waited, and what is declared beyond the
entrypoint is its user's. Cost: a declaration replaces the one before.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from fleet.errors import FleetError
from fleet.slots import Change, ChangeState
from fleet.system.home import write_whole
from fleet.testbed.journal import FOLDER_VARIABLE

_VERSION: Final = re.compile(r"^VERSION = (\d+)$", re.MULTILINE)


class Sandbox:
    """Its files. config: the name of its fleet.yaml, where a home has several."""

    def __init__(self, home: Path, *, module: str, config: str = "fleet.yaml") -> None:
        self.home = home
        self.module = module
        self.config = home / config
        self.code = home / "code" / f"{module}.py"

    def write_code(self, text: str) -> None:
        """Replace the entrypoint's source."""
        write_whole(self.code, text)

    def new_code(self) -> None:
        """Raise the number in its line `VERSION = …`, as its author would: the next plan is a roll.

        FleetError where there is no such line, or more than one.
        """
        text, count = _VERSION.subn(_raised, self.code.read_text(encoding="utf-8"))
        if count != 1:
            raise FleetError(f"{self.code} has {count} lines VERSION = NUMBER, and has to have one")
        self.write_code(text)

    def journal_of(self, group: str) -> Path:
        """The folder to which the group's workers write what they process."""
        return self.home / "journal" / group

    def job(self, group: str, **environ: str) -> dict[str, Any]:
        """What a `worker` section has to say: the code, and where its journal is."""
        return {
            "entrypoint": f"{self.module}:process",
            "python_path": [str(self.code.parent)],
            "env": {FOLDER_VARIABLE: str(self.journal_of(group)), **environ},
        }

    def write_spec(self, cluster: Mapping[str, Any], *groups: Mapping[str, Any]) -> None:
        """Write fleet.yaml: these groups, acted on."""
        spec = {"cluster": dict(cluster), "mode": "act", "fleets": [dict(each) for each in groups]}
        write_whole(self.config, yaml.safe_dump(spec, sort_keys=False))


def _raised(found: re.Match[str]) -> str:
    return f"VERSION = {int(found[1]) + 1}"


def terms(protocol: str) -> dict[str, str]:
    """Keys of a `worker` section: `consumer` (KIP-848), or an assignor of the classic protocol."""
    if protocol == "consumer":
        return {"protocol": "consumer"}
    return {"protocol": "classic", "assignor": protocol}


def ended_well(change: Change) -> Change:
    """The change, done. Raises FleetError with its sentence where it is not."""
    if change.state is not ChangeState.DONE:
        group = change.plan.group
        raise FleetError(f"group {group}: the change is {change.state}: {change.sentence}")
    return change
