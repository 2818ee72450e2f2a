"""Quarantined partitions, kept beside the slots: they outlive a handover, not a revision [9].

Problem: in a roll two revisions run side by side, and the store's marks are of both. Choice: a
revision ends another one's mark where it is assigned that partition, and is the one to try it; a
mark of a partition that others own is theirs. A mark that is not about code but about the log
(records that are gone or damaged, a commit beyond the end) outlives revisions, too: by the next
roll the log may have grown beyond the commit, and nothing else tells that what came before was
never read. `skip` reads on at a damaged record batch, and passes over it if it still is.
Cost: a mark stays until its partition is assigned.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.model import TopicPartition
from fleet.slots import Quarantine
from fleet.slots.store import Store
from fleet.worker.events import Events
from fleet.worker.offsets.start_positions import Start


class Marked(NamedTuple):
    """What marks say of partitions that were just assigned."""

    stopped: frozenset[TopicPartition]
    skipped: frozenset[TopicPartition]
    """Those whose committed offset lay beyond the end: they go on at the log's start."""


class QuarantinedPartitions:
    """One worker's view of its group's marks; a silent store leaves what is known."""

    def __init__(
        self, store: Store, *, group: str, revision: str, clock: Clock, events: Events
    ) -> None:
        self._store = store
        self._group = group
        self._revision = revision
        self._clock = clock
        self._events = events
        self._known: frozenset[TopicPartition] = frozenset()

    def on_assign(self, starts: Sequence[Start], *, skip: bool) -> Marked:
        """What of these is stopped under this revision; marks that are over end here.

        skip: what the log does not hold is skipped (`worker.on_truncated`).
        """
        at, skipped = {start.tp: start for start in starts}, set[TopicPartition]()
        try:
            marks = self._store.quarantines(self._group)
            self._known = frozenset(m.tp for m in marks if m.revision == self._revision)
            for mark in marks:
                start = at.get(mark.tp)
                if start is None:
                    continue
                why = self._over(mark, start, skip=skip)
                if why is not None:
                    self._events.log(f"{mark.tp} is read again: {why}")
                    self._store.lift(self._group, mark.tp)
                    self._known -= {mark.tp}
                    if mark.attempts == 0 and start.lost is None and start.committed == mark.offset:
                        skipped.add(mark.tp)
                elif mark.revision != self._revision:
                    self._store.quarantine(replace(mark, revision=self._revision))
                    self._known |= {mark.tp}
        except Unreachable as error:
            self._events.log_rarely(str(error))
        return Marked(self._known & at.keys(), frozenset(skipped))

    def _over(self, mark: Quarantine, start: Start, *, skip: bool) -> str | None:
        """Why a mark ends; None: it stands.

        New code may process a record that the code before could not. It changes nothing about
        what the log does not hold: there a person decides, by another commit or by `skip`.
        """
        if not mark.of_log:
            return None if mark.revision == self._revision else "this revision tries it"
        if start.committed != mark.offset:
            return f"offset {start.committed} was committed since it was stopped at {mark.offset}"
        return "worker.on_truncated is skip" if skip else None

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
