"""Quarantined partitions, kept beside the slots: they outlive a handover, not a revision [9].

Problem: in a roll two revisions run side by side, and the store's marks are of both. Choice: a
revision ends another one's mark where it is assigned that partition, and is the one to try it; a
mark of a partition that others own is theirs. Cost: a mark stays until its partition is assigned.
"""

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.model import TopicPartition
from fleet.slots import Quarantine, SlotStore
from fleet.worker.events import Events


class QuarantinedPartitions:
    """One worker's view of its group's marks; a silent store leaves what is known."""

    def __init__(
        self, store: SlotStore, *, group: str, revision: str, clock: Clock, events: Events
    ) -> None:
        self._store = store
        self._group = group
        self._revision = revision
        self._clock = clock
        self._events = events
        self._known: frozenset[TopicPartition] = frozenset()

    def on_assign(self, tps: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of these are stopped under this revision; marks of other revisions end here."""
        try:
            marks = self._store.quarantines(self._group)
            for mark in marks:
                if mark.revision != self._revision and mark.tp in tps:
                    self._events.log(f"{mark.tp} is tried again by this revision")
                    self._store.lift(self._group, mark.tp)
        except Unreachable as error:
            self._events.log_rarely(str(error))
            return self._known & tps
        self._known = frozenset(m.tp for m in marks if m.revision == self._revision)
        return self._known & tps

    def poisoned(self, tp: TopicPartition, offset: int, error: str, attempts: int) -> None:
        """Store a mark: the record at `offset` or one soon after it cannot be processed."""
        self._known |= {tp}
        mark = Quarantine(
            group=self._group,
            tp=tp,
            offset=offset,
            error=error,
            attempts=attempts,
            revision=self._revision,
            at=self._clock.now(),
        )
        try:
            self._store.quarantine(mark)
        except Unreachable as unreachable:
            self._events.log(f"the mark of {tp} could not be stored: {unreachable}")

    def lifted(self, stopped: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of the stopped partitions are marked no more (by command)."""
        if not stopped:
            return stopped
        try:
            marks = self._store.quarantines(self._group)
        except Unreachable:
            return frozenset()
        gone = stopped - {mark.tp for mark in marks}
        self._known -= gone
        return gone
