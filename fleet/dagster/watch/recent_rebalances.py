"""The last rebalances of all groups from the history's tables, where these are fresh enough.

Problem: sensors and checks want to know what happened in the last minutes; the tables answer
for every group at once, and the log for one group at a read each. But tables may be old, leave
groups out, or be in the middle of catching up with a long log. Choice: they are asked only
while their last manifest is young and was no batch with a log still before it, and only for
groups that they record; whoever asks for another group, or while they cannot be read, is told
to read the log. Cost: what tables tell is up to one interval of `fleet history tail` old.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fleet.errors import FleetError
from fleet.manager.recent import INTERVALS
from fleet.model.rebalances import Rebalance

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet

FRESH: Final = 60.0
"""Seconds after which the history is too old to tell of storms that begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentRebalances:
    """Rebalances of the last minutes, by group."""

    takes: Callable[[str], bool]
    """Whether a group is recorded at all."""
    groups: dict[str, list[Rebalance]]
    as_of: float
    problem: str = ""
    """Why tables that are there tell of no group."""

    def of(self, group: str) -> list[Rebalance] | None:
        """Those of one group, maybe none; None where the tables leave it out."""
        return self.groups.get(group, []) if self.takes(group) else None

    def all(self) -> list[Rebalance]:
        """Those of all groups that are recorded."""
        return [each for group, mine in self.groups.items() if self.takes(group) for each in mine]


def from_tables(cycle: "Fleet", *, since: float, now: float) -> RecentRebalances | None:
    """What the tables hold since a wall time; None where there are none, or old ones.

    Raises nothing: tables that cannot be read leave every group out, with the reason.
    """
    from fleet.history.tables import Tables  # noqa: PLC0415  pyarrow, only where it is used

    history = cycle.spec.history
    try:
        tables = Tables(cycle.history_path)  # asks S3 for the bucket's region
        manifest = tables.manifest()
        if manifest is None or now - manifest.at > max(FRESH, INTERVALS * history.every):
            return None
        if manifest.behind:
            return None
        found = tables.rebalances(since=since)
    except FleetError as error:  # away, damaged, of a newer release: the log tells as well
        problem = f"the history's tables cannot be read: {error}"
        return RecentRebalances(takes=lambda _: False, groups={}, as_of=now, problem=problem)
    groups: dict[str, list[Rebalance]] = {}
    for rebalance in found:
        groups.setdefault(rebalance.group, []).append(rebalance)
    return RecentRebalances(takes=history.groups.takes, groups=groups, as_of=manifest.at)
