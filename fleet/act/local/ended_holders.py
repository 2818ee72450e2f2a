"""Tells the store that a worker's process has ended, so that nobody waits for its lease [13].

Problem: a lease is 10 s because a holder may only be slow; for all of it a killed worker's
partitions stand still, though its supervisor has seen the process end. Choice: whoever saw it end
says so at its slots (`Store.end_holder`), before the worker's next life starts under the same
name and only where nothing of it runs, in its process group or out of it: Spark's Python daemon
makes a group of its own and ends a moment after its JVM. Whoever takes the slot cures it as one
whose lease has expired. Cost: a look through /proc and a read of the group's slots for each end of
a process. What a shared Spark server still runs of it is ended by the taker [3].
"""

import logging
from pathlib import Path
from typing import Final

from fleet.act.local.process_table import ProcessRow
from fleet.clock import Clock
from fleet.slots.database import DATABASE
from fleet.slots.sqlite import SqliteStore
from fleet.system.home_processes import home_processes

_GRACE: Final = 1.0
"""Seconds for what a worker left behind to be gone."""
_POLL: Final = 0.02
_log = logging.getLogger("fleet.supervisor")


class EndedHolders:
    """The stores of one home's clusters, opened when the first process ends."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._stores: dict[str, SqliteStore] = {}

    def tell(self, row: ProcessRow) -> None:
        """The worker's process has ended: none of its slots has a holder.

        Raises FleetError where the store does not answer; leases decide then.
        """
        held = [slot for slot in self._of(row).slots(row.group) if slot.holder == row.name]
        if not held:
            return
        if not self._is_gone(row.name):
            _log.warning("%s left processes that do not end: its lease decides", row.name)
            return
        for slot in held:
            if self._of(row).end_holder(slot):
                _log.info("slot %d of group %s lost %s", slot.number, slot.group, row.name)

    def _of(self, row: ProcessRow) -> SqliteStore:
        store = self._stores.get(row.cluster)
        if store is None:
            store = SqliteStore(self._home / DATABASE, cluster=row.cluster, clock=self._clock)
            self._stores[row.cluster] = store
        return store

    def _is_gone(self, worker: str) -> bool:
        """Whether nothing that carries its mark runs any more, waited for a moment."""
        deadline = self._clock.monotonic() + _GRACE
        while any(found.worker == worker for found in home_processes(self._home)):
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_POLL)
        return True

    def close(self) -> None:
        """Close what was opened."""
        for store in self._stores.values():
            store.close()
