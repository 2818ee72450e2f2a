"""Partitions that cannot simply go on: deleted records, poison records, a fetch that stopped.

Problem: retention or a recreated topic may remove records before they were read. Then librdkafka
stops fetching that partition for good. Choice: the loss is named with its offsets, and the settings
decide [7]: `stop` stops just that partition, `skip` goes on at the log start. A stopped fetch is
assigned again once no batch is in hand. A partition that had no leader when it was assigned begins
as soon as one answers. Cost: with the eager protocol, the second assignment makes the other
partitions read again from their committed offsets (their prepared rows are read twice, never
processed twice).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.model import TopicPartition
from fleet.slots import DAMAGED, StoppedPartition
from fleet.slots.store import Store
from fleet.worker.batch.executor import Damage
from fleet.worker.batch.ranges import listed_or_none
from fleet.worker.events import WorkerContext, list_names
from fleet.worker.member.assigning import Assigner, Start, TopicDescription, absent
from fleet.worker.member.member_state import MemberState
from fleet.worker.member.pipeline import Pipeline
from fleet.worker.member.protocols import MemberProtocol

_EVERY: Final = 1.0
_GRACE: Final = 3.0
"""Seconds: a fetch without data is answered within half a second (fetch.wait.max.ms)."""
Ask = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Any]]
"""Requests the ends of partitions; futures by partition."""


class FetchWatch:
    """Notices partitions of a recreated topic that are not fetched although records wait [50].

    Only a new consumer can read such a partition: its topic has another id than at this consumer's
    begin, nothing has come for three seconds, and its leader reports records after its start. For
    one consumer, on its thread.
    """

    def __init__(self, ask: Ask, *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._due = 0.0
        self._since: dict[TopicPartition, float] = {}
        self._asked: Mapping[TopicPartition, Any] = {}

    def find_stalled(self, silent: Callable[[], Mapping[TopicPartition, int]]) -> str | None:
        """Returns a sentence on a partition that is not fetched; None if none is known.

        silent: see AdaptiveReader; called once a second at most.
        """
        now = self._clock.monotonic()
        if now < self._due:
            return None
        self._due = now + _EVERY
        at = silent()
        self._since = {tp: self._since.get(tp, now) for tp in at}
        late = [tp for tp, since in self._since.items() if now - since >= _GRACE]
        if not all(future.done() for future in self._asked.values()):
            return None
        answers, self._asked = self._asked, {}
        for tp in sorted(answers.keys() & set(late)):
            end = listed_or_none(answers[tp])
            if end is not None and end > at[tp]:
                return (
                    f"topic {tp.topic} was recreated, and the client fetches nothing of {tp}, "
                    f"with records {at[tp]} to {end - 1}: joining once more with a new consumer"
                )
        if late:
            self._asked = self._ask(late)
        return None


# Stopped partitions, stored beside the slots: a stop outlives a handover, not a revision [9].
#
# Problem: in a roll two revisions run side by side, and the store has the stops of both. Choice: a
# revision that is assigned a partition ends another revision's stop and tries it. Stops of
# partitions with other owners are theirs. A stop because of the log (deleted or damaged records, a
# commit beyond the end) outlives revisions too. By the next roll the log may have grown beyond the
# commit, and nothing else shows that the earlier records were never read. `skip` reads on at a
# damaged record batch, and passes over it if it is still damaged. Cost: a stop stays until its
# partition is assigned.


class AssignedStops(NamedTuple):
    """What the store has of partitions that were just assigned."""

    stopped: frozenset[TopicPartition]
    skipped: frozenset[TopicPartition]
    """Their committed offset was beyond the end: they go on at the log's start."""


class StoppedPartitionsView:
    """One worker's view of its group's stopped partitions; a silent store leaves what is known."""

    def __init__(self, store: Store, context: WorkerContext) -> None:
        self._store = store
        self._group = context.group
        self._revision = context.settings.revision
        self._skip = context.worker.on_truncated == "skip"
        self._clock = context.clock
        self._events = context.events
        self._known: frozenset[TopicPartition] = frozenset()

    def committed_topics(self) -> frozenset[str]:
        """Returns the topics with committed offsets of the group [53]. Raises Unreachable."""
        return self._store.committed_topics(self._group)

    def on_assign(self, starts: Sequence[Start]) -> AssignedStops:
        """Returns which of these are stopped for this revision; ends stops that are over."""
        at, skipped = {start.tp: start for start in starts}, set[TopicPartition]()
        try:
            marks = self._store.stopped_partitions(self._group)
            self._known = frozenset(m.tp for m in marks if m.revision == self._revision)
            for mark in marks:
                start = at.get(mark.tp)
                if start is None:
                    continue
                why = self._end_reason(mark, start)
                if why is not None:
                    self._events.log(f"{mark.tp} is read again: {why}")
                    self._store.lift(self._group, mark.tp)
                    self._known -= {mark.tp}
                    if mark.attempts == 0 and start.lost is None and start.committed == mark.offset:
                        skipped.add(mark.tp)
                elif mark.revision != self._revision:
                    self._store.stop_partition(replace(mark, revision=self._revision))
                    self._known |= {mark.tp}
        except Unreachable as error:
            self._events.log_rarely(str(error))
        return AssignedStops(self._known & at.keys(), frozenset(skipped))

    def _end_reason(self, mark: StoppedPartition, start: Start) -> str | None:
        """Returns why a stop ends; None: it stays.

        New code may process a record that the earlier code could not. It changes nothing about what
        the log lacks: there an operator decides, by another commit or by `skip`.
        """
        if not mark.is_log_cause:
            return None if mark.revision == self._revision else "this revision tries it"
        if start.committed != mark.offset:
            return f"offset {start.committed} was committed after the stop at {mark.offset}"
        return "worker.on_truncated is skip" if self._skip else None

    def record_poison(self, tp: TopicPartition, offset: int, error: str, attempts: int) -> None:
        """Stores a stop: the record at `offset`, or one soon after it, cannot be processed."""
        self._known |= {tp}
        mark = StoppedPartition(
            group=self._group,
            tp=tp,
            offset=offset,
            error=error,
            attempts=attempts,
            revision=self._revision,
            at=self._clock.now(),
        )
        try:
            self._store.stop_partition(mark)
        except Unreachable as unreachable:
            self._events.log(f"the stop of {tp} could not be stored: {unreachable}")

    def find_lifted(self, stopped: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Returns which of the stopped partitions were lifted (by command)."""
        if not stopped:
            return stopped
        try:
            marks = self._store.stopped_partitions(self._group)
        except Unreachable:
            return frozenset()
        gone = stopped - {mark.tp for mark in marks}
        self._known -= gone
        return gone


class LeaderWatch:
    """Asks once a second for leaders of partitions that had none when they were assigned.

    It never waits, and the other partitions are read meanwhile. For one membership, on the consumer
    thread.
    """

    def __init__(self, ask: Ask, *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._due = 0.0
        self._asked: Mapping[TopicPartition, Any] = {}

    def poll(self, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        """Returns which of these have a leader since the last poll; asks again in time."""
        asked, now = self._asked, self._clock.monotonic()
        if not all(future.done() for future in asked.values()):
            return []
        self._asked = {}
        if not asked and tps and now >= self._due:
            self._due = now + _EVERY
            self._asked = self._ask(sorted(tps))
        here = asked.keys() & set(tps)
        return sorted(tp for tp in here if listed_or_none(asked[tp]) is not None)


OUT_OF_RANGE: Final = -140
QUIET: Final = frozenset({3, 100, 103, -188, -191, -190})
"""Unknown topic or id, end of partition, unknown partition: not reported as an error."""
PERHAPS_GONE: Final = frozenset({3, 100, 103, -188, -190})
"""After these errors a topic may have been deleted or recreated."""


class Losses:
    """Handles losses of one membership's pipeline, on the consumer thread."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        consumer: Any,
        pipeline: Pipeline,
        assigner: Assigner,
        protocol: MemberProtocol,
        state: MemberState,
    ) -> None:
        self._consumer = consumer
        self._pipeline = pipeline
        pipeline.on_damage = self.damaged
        self._assigner = assigner
        self._protocol = protocol
        self._state = state
        self._skip = context.worker.on_truncated == "skip"
        self._events = context.events
        self._later: set[TopicPartition] = set()
        self._told: dict[TopicPartition, tuple[int, int]] = {}
        self._gaps: set[TopicPartition] = set()
        self._leaders = LeaderWatch(assigner.ask_first, clock=context.clock)
        self.fetches = FetchWatch(assigner.ask_ends, clock=context.clock)
        self.missing: set[TopicPartition] = set()
        """Partitions that the last description of their topic did not have."""
        self._waits_for: str | None = None
        """Which leaders, in words."""

    def out_of_range(self, tp: TopicPartition) -> None:
        """Handles a next record that was deleted while it was being read.

        A batch in hand may have read its own records before; its commit comes first, else they
        would count as lost.
        """
        if tp not in self._state.partitions or tp in self._pipeline.stopped_partitions:
            return
        if self._pipeline.touches([tp]):
            self._later.add(tp)
            return
        self._later.discard(tp)
        before = self._pipeline.start_of(tp)
        (start,) = self._assigner.starts(self._consumer, [tp])
        former_id = before.known_id if before is not None else None
        if start.anew or (former_id is not None and start.known_id not in {None, former_id}):
            self._begin_anew(tp)
            return
        if start.gone:
            self._pipeline.drop([tp])
            self._pipeline.start_partition(start, reads=False)
            return
        if start.lost is None and start.position > self._assigner.end(tp):
            (start,) = self.skip_past_end([start], {tp})
        self._pipeline.drop([tp])
        self._pipeline.start_partition(start, reads=True)
        self._pipeline.stopped.add(tp)
        if start.lost is not None:
            self.report(start)

    def unreadable(self, tp: TopicPartition, error: Any) -> None:
        """Stops just that partition, because the client cannot read on."""
        start = self._pipeline.start_of(tp)
        if start is None or tp in self._pipeline.stopped_partitions:
            return
        why = f"the client cannot read on ({error.str()}); worker.reading auto or ranges can"
        self._pipeline.stop_partition(
            tp, start.position, why, 1
        )  # a revision may read in another way

    def damaged(self, tp: TopicPartition, damage: Damage) -> None:
        """Handles an unreadable record batch: stops the partition, or goes on behind it and names
        it.
        """
        start, first, after = self._pipeline.start_of(tp), damage.offset, damage.after
        if start is None:
            return
        if self._skip and after is not None:
            behind = replace(start.moved(after), committed=start.position, lost=(first, after))
            self._pipeline.drop([tp])
            self._pipeline.start_partition(behind, reads=True)
            told = f"records {first} to {after - 1} of {tp} cannot be read and are skipped"
            self.report(behind, f"{told} ({damage.why})")
            return
        told = f"the log cannot be read on ({damage.why}); "
        if after is None:
            told += "skip has no effect: it is not known where the next record batch begins"
        else:
            told += f"worker.on_truncated: skip would go on at {after}"
        self._pipeline.stop_partition(tp, first, told, DAMAGED)

    def skip_past_end(
        self, starts: Sequence[Start], past_end: Collection[TopicPartition]
    ) -> tuple[Start, ...]:
        """Replaces starts whose committed offset is beyond the end by the log's start."""
        return tuple(
            self._assigner.past_end(start) if start.tp in past_end else start for start in starts
        )

    def recreated(self, topics: Mapping[str, TopicDescription]) -> None:
        """Begins topics again that have another id; releases partitions that they no longer have.

        Two polls must agree, because a broker may not know a new partition yet.
        """
        if not topics:  # called in most turns, and there may be thousands of partitions
            return
        before, self.missing = self.missing, set()
        there_after_all: list[TopicPartition] = []
        for tp in sorted(each for each in self._state.partitions if each.topic in topics):
            start, now = self._pipeline.start_of(tp), topics[tp.topic]
            if start is None:
                continue
            anew = start.known_id not in {None, now.id}
            if tp.partition not in now.partitions:
                if tp not in self._pipeline.gone and (anew or tp in before):
                    self._remove_partition(tp, start)
                elif tp not in self._pipeline.gone:
                    self.missing.add(tp)
            elif anew:
                self._begin_anew(tp)
            elif tp in self._pipeline.gone and start.silent is None:
                there_after_all.append(tp)
        if there_after_all:
            self._begin_again(there_after_all)

    def _begin_again(self, tps: list[TopicPartition]) -> None:
        """Begins partitions that exist after all: a broker did not know them yet."""
        for start in self._assigner.starts(self._consumer, tps):
            self._pipeline.drop([start.tp])
            self._pipeline.start_partition(start, reads=False)
            if not start.gone:
                self._pipeline.stopped.add(start.tp)

    def _remove_partition(self, tp: TopicPartition, before: Start) -> None:
        """Stops reading it; it stays assigned until the next rebalance."""
        self._pipeline.drop([tp])
        self._pipeline.start_partition(absent(tp), reads=False)
        self._events.log(f"its topic does not have {tp} any more: it was at {before.position}")
        self._events.emit("partition_gone", partition=str(tp), position=before.position)

    def find_leaders(self) -> None:
        """Begins partitions that had no leader once they have one; until then names them."""
        pipeline = self._pipeline
        starts = (pipeline.start_of(tp) for tp in sorted(pipeline.gone))
        silent = {start.tp: start.silent for start in starts if start and start.silent is not None}
        if not silent and self._waits_for is None:
            return
        back = self._leaders.poll(silent)
        for start in self._assigner.starts(self._consumer, back):
            pipeline.start_partition(start, reads=start.tp not in pipeline.stopped_partitions)
            if start.silent is not None:
                continue
            del silent[start.tp]
            pipeline.seek(start)  # it was assigned at no position, and paused
            self.tell(start)
        self._name(silent)

    def _name(self, silent: Mapping[TopicPartition, str]) -> None:
        """Reports partitions without a leader for as long as they have none."""
        before, self._waits_for = self._waits_for, None
        if silent:
            why = next(iter(silent.values()))
            self._waits_for = (
                f"{list_names(list(silent))}: no leader returns where to begin ({why}); the other "
                "partitions are read, and these once their leaders are back"
            )
            self._events.log_rarely(self._waits_for, key="leaders")
        if self._state.error in {None, before}:
            self._state.error = self._waits_for

    def _begin_anew(self, tp: TopicPartition) -> None:
        """Reads a recreated topic from its beginning, once no batch is in hand."""
        start = self._assigner.anew(self._consumer, tp, self._pipeline.start_of(tp))
        self._pipeline.drop([tp])
        self._pipeline.start_partition(
            start, reads=False
        )  # what the old fetch still brings is not the new topic's
        if not start.gone:
            self._pipeline.stopped.add(tp)
        self.tell(start)

    def tell(self, start: Start) -> None:
        """Reports how a partition begins: a deleted commit, a loss, a recreated topic."""
        if start.committed is not None:  # also of a topic to which nothing comes
            self._state.committed |= {start.tp.topic}
        if start.expired is not None:
            self._name_gap(start, start.expired)
        if start.lost is not None:
            self.report(start)
        if start.anew:
            self._report_recreated(start)

    def _name_gap(self, start: Start, end: int) -> None:
        """Reports where a group goes on whose commit Kafka deleted."""
        where = "its last commit" if start.resumes else "the log's start"
        told = (
            f"Kafka had deleted the group's commit of {start.tp}: reading goes on at "
            f"{start.position}, {where}, and not at the end {end} (worker.start_from: latest)"
        )
        self._gaps.add(start.tp)
        more = len(self._gaps) - 1
        self._state.gap = told if not more else f"{told}, and the same for {more} more partitions"
        self._events.log(told)
        self._events.emit("expired", partition=str(start.tp), position=start.position, end=end)

    def _report_recreated(self, start: Start) -> None:
        told = "" if start.former is None else f"; the old topic's offset {start.former} is void"
        self._events.log(
            f"topic {start.tp.topic} was deleted and recreated, its id is {start.topic_id} now: "
            f"{start.tp} is read from its beginning, {start.position}{told}"
        )
        self._events.emit(
            "topic_made_again",
            partition=str(start.tp),
            topic_id=start.topic_id,
            position=start.position,
            former=start.former,
        )

    def report(self, start: Start, why: str | None = None) -> None:
        """Names a loss, once; stops the partition, or goes on behind the loss."""
        assert start.lost is not None
        if self._skip and self._told.get(start.tp) == start.lost:
            return  # librdkafka and a poll of this worker may both have found it
        self._told[start.tp] = start.lost
        first, after = start.lost
        if after > first:
            self._state.lost_records += after - first
            what = (
                f"records {first} to {after - 1} of {start.tp} were deleted before they were read"
            )
            what = why or what
        else:
            what = (
                f"{start.tp} ends before the committed offset {first}: "
                "it was truncated or recreated"
            )
        self._events.emit("lost_records", partition=str(start.tp), first=first, after=after)
        if self._skip:
            self._events.log(f"{what}; going on at {after} (worker.on_truncated: skip)")
            return
        told = f"{what} (worker.on_truncated: stop; skip would go on at {after})"
        self._pipeline.stop_partition(start.tp, first, told, 0)

    def lift(self, lifted: set[TopicPartition]) -> None:
        """Reads partitions again whose stop was lifted; empties the set."""
        again = sorted(lifted & self._pipeline.stopped_partitions & self._state.partitions)
        lifted.clear()
        for tp in again:
            self._pipeline.stopped_partitions.discard(tp)
            self._state.error = None
            self._events.log(f"{tp} is read again: its stop was lifted")
        if again:
            self._pipeline.rewind(again)

    def restart(self) -> None:
        """Assigns partitions again whose fetch stopped, once no batch is in hand."""
        pipeline = self._pipeline
        for tp in sorted(self._later):
            if not pipeline.touches([tp]):
                self._later.discard(tp)  # also if it is not owned any more
                self.out_of_range(tp)
        stopped = self._state.partitions & pipeline.stopped
        stopped -= pipeline.stopped_partitions | pipeline.gone
        if not stopped or pipeline.busy:
            return
        others = self._state.partitions - stopped
        all_again = self._protocol.restart(
            self._consumer, self._at_start(stopped), self._at_start(others)
        )
        again = self._state.partitions if all_again else stopped
        starts = [start for tp in again if (start := pipeline.start_of(tp)) is not None]
        pipeline.drop(start.tp for start in starts)
        for start in starts:
            pipeline.start_partition(start, reads=start.tp not in pipeline.stopped_partitions)
        pipeline.stopped -= stopped

    def _at_start(self, tps: frozenset[TopicPartition]) -> list[KafkaPartition]:
        starts = [self._pipeline.start_of(tp) for tp in sorted(tps)]
        return [KafkaPartition(s.tp.topic, s.tp.partition, s.position) for s in starts if s]
