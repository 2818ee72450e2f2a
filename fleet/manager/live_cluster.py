"""Keeps the log and the snapshot of one cluster current between refreshes.

Problem: a process that opens a cluster reads all of `__consumer_offsets`, or asks every
coordinator. At 5,000 groups of 48 partitions that is 2 s of CPU. Choice: a program that stays keeps
one tail and one watcher open, and each refresh takes only what is new. Cost: a thread, and 40 MB
for each 1,000 groups of 48 partitions.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.decide.storms import watch_most, watch_reach
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.log_view import KEEP, MOST
from fleet.log.readers.tail import CoordinatorPoller, Tail
from fleet.manager.lag_assessment import find_still_rows
from fleet.model.rebalances import CoordinatorMove
from fleet.observe.watcher import GroupWatcher
from fleet.system.closing import Closing

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


def live_readers(
    fleet: "Fleet", *, groups: Callable[[str], bool], beat: float
) -> tuple[Tail, GroupWatcher]:
    """Creates the tail of these groups, which is not started, and the watcher that uses it.

    beat: seconds between two readings that nobody waits for.
    """
    spec, client = fleet.spec, fleet.client
    tail = Tail(
        client,
        cluster=spec.cluster.name,
        clock=fleet.clock,
        groups=groups,
        keep=max(KEEP, watch_reach(spec)),
        most=max(MOST, 2 * watch_most(spec)),
        beat=beat,
    )
    watcher = GroupWatcher(
        cluster=spec.cluster.name, config=client, clock=fleet.clock, tail=tail, ends=fleet.ends
    )
    return tail, watcher


class LiveCluster(Closing):
    """Refreshes one cluster. `refresh` and `poll_move` are for one thread each."""

    def __init__(self, fleet: "Fleet", *, groups: Callable[[str], bool], beat: float) -> None:
        self.fleet = fleet
        self.tail, self._watcher = live_readers(fleet, groups=groups, beat=beat)
        self._coordinators = CoordinatorPoller(fleet.client, clock=fleet.clock)
        fleet.tail = self.tail.start()

    def close(self) -> None:
        """Stops reading."""
        self.tail.close()
        self._watcher.close()
        self._coordinators.close()

    def refresh(self) -> Snapshot:
        """Takes a snapshot of all groups, and reads the waiting records of groups that stand still.

        Parts that could not be read are named in its problems. Raises Unreachable if no broker
        answers.
        """
        seen = self._watcher.refresh()
        seen = self._watcher.read_on(seen, find_still_rows(seen))
        hidden = self.fleet.hidden(self.fleet.spec.fleets, seen)
        return replace(seen, problems=(*seen.problems, *hidden))

    def poll_move(self) -> CoordinatorMove | None:
        """Returns what coordinators moved since the last poll; None if none did."""
        return self._coordinators.poll()
