"""Partitions that cannot simply go on: records that are gone, quarantine, a fetch that stopped.

Problem: retention or a recreated topic may remove records before they were read, and librdkafka
then stops fetching that partition for good. Choice: the loss is named with its offsets and the
spec decides [7]: `stop` quarantines just that partition, `skip` goes on at the log start; a
stopped fetch is assigned again once no batch is in hand. What had no leader when it was assigned
is begun, and its losses told, as soon as one answers. Cost: under the eager protocol the second
begins the other partitions again at their committed offsets, too (their prepared rows are read
twice, never processed twice).
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
from fleet.worker.events import WorkerContext, names
from fleet.worker.member.member_state import MemberState
from fleet.worker.member.pipeline import Pipeline
from fleet.worker.member.protocols import MemberProtocol
from fleet.worker.offsets.assigning import Assigner, DescribedTopic, Start, absent

_EVERY: Final = 1.0
_GRACE: Final = 3.0
"""Seconds: a fetch that finds nothing is answered within half a second (fetch.wait.max.ms)."""
Ask = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Any]]
"""Starts to ask where partitions end; futures by partition."""


class FetchWatch:
    """Notices partitions of a topic recreated that are not fetched, though records wait [50].

    Where a topic is another than the one that this consumer began, nothing has come of a partition
    for three seconds, and its leader tells of records behind its start, only a new consumer reads
    it. Of one consumer, on its thread.
    """

    def __init__(self, ask: Ask, *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._due = 0.0
        self._since: dict[TopicPartition, float] = {}
        self._asked: Mapping[TopicPartition, Any] = {}

    def stalled(self, silent: Callable[[], Mapping[TopicPartition, int]]) -> str | None:
        """Which partition is not fetched, in a sentence; None where that is not known of any.

        silent: see AdaptiveReader; asked once a second at most.
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
                    f"topic {tp.topic} was recreated, and nothing of {tp} is fetched, though it "
                    f"has records from {at[tp]} to {end - 1}: joining once more with a new consumer"
                )
        if late:
            self._asked = self._ask(late)
        return None


# Quarantined partitions, kept beside the slots: they outlive a handover, not a revision [9].
#
# Problem: in a roll two revisions run side by side, and the store's marks are of both. Choice: a
# revision ends another one's mark where it is assigned that partition, and is the one to try it; a
# mark of a partition that others own is theirs. A mark that is not about code but about the log
# (records that are gone or damaged, a commit beyond the end) outlives revisions, too: by the next
# roll the log may have grown beyond the commit, and nothing else tells that what came before was
# never read. `skip` reads on at a damaged record batch, and passes over it if it still is.
# Cost: a mark stays until its partition is assigned.


class Marked(NamedTuple):
    """What marks say of partitions that were just assigned."""

    stopped: frozenset[TopicPartition]
    skipped: frozenset[TopicPartition]
    """Those whose committed offset lay beyond the end: they go on at the log's start."""


class QuarantinedPartitions:
    """One worker's view of its group's marks; a silent store leaves what is known."""

    def __init__(self, store: Store, context: WorkerContext) -> None:
        self._store = store
        self._group = context.group
        self._revision = context.settings.revision
        self._skip = context.worker.on_truncated == "skip"
        self._clock = context.clock
        self._events = context.events
        self._known: frozenset[TopicPartition] = frozenset()

    def begun(self) -> frozenset[str]:
        """Topics that the group has committed offsets of [53]. Raises Unreachable."""
        return self._store.committed_topics(self._group)

    def on_assign(self, starts: Sequence[Start]) -> Marked:
        """What of these is stopped under this revision; marks that are over end here."""
        at, skipped = {start.tp: start for start in starts}, set[TopicPartition]()
        try:
            marks = self._store.stopped_partitions(self._group)
            self._known = frozenset(m.tp for m in marks if m.revision == self._revision)
            for mark in marks:
                start = at.get(mark.tp)
                if start is None:
                    continue
                why = self._over(mark, start)
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
        return Marked(self._known & at.keys(), frozenset(skipped))

    def _over(self, mark: StoppedPartition, start: Start) -> str | None:
        """Why a mark ends; None: it stands.

        New code may process a record that the code before could not. It changes nothing about
        what the log does not hold: there a person decides, by another commit or by `skip`.
        """
        if not mark.is_log_cause:
            return None if mark.revision == self._revision else "this revision tries it"
        if start.committed != mark.offset:
            return f"offset {start.committed} was committed since it was stopped at {mark.offset}"
        return "worker.on_truncated is skip" if self._skip else None

    def poisoned(self, tp: TopicPartition, offset: int, error: str, attempts: int) -> None:
        """Store a mark: the record at `offset` or one soon after it cannot be processed."""
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
            self._events.log(f"the mark of {tp} could not be stored: {unreachable}")

    def lifted(self, stopped: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of the stopped partitions are marked no more (by command)."""
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
    """Asks once a second, without waiting, for leaders of partitions that had none when they were
    assigned, while the others are read. Of one membership, on the consumer thread.
    """

    def __init__(self, ask: Ask, *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._due = 0.0
        self._asked: Mapping[TopicPartition, Any] = {}

    def look(self, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        """Which of these have a leader, as was answered since the last look; asks again in time."""
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
"""Unknown topic or id, end of partition, unknown partition: nothing to be told as an error."""
PERHAPS_GONE: Final = frozenset({3, 100, 103, -188, -190})
"""After these a topic may have been deleted, or recreated."""


class Losses:
    """Works on one membership's pipeline, on the consumer thread."""

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
        """The next record is gone while it was being read.

        A batch in hand may have read its own records before they went: its commit comes first,
        else they would be called lost, too.
        """
        if tp not in self._state.partitions or tp in self._pipeline.quarantined:
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
        """The client gets no further: stop just that partition."""
        start = self._pipeline.start_of(tp)
        if start is None or tp in self._pipeline.quarantined:
            return
        why = f"the client cannot read on ({error.str()}); worker.reading auto or ranges can"
        self._pipeline.stop_partition(
            tp, start.position, why, 1
        )  # a revision may read in another way

    def damaged(self, tp: TopicPartition, damage: Damage) -> None:
        """A record batch cannot be read: stop the partition, or go on behind it by name."""
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
            told += "skip has no effect, since nothing tells where the next record batch begins"
        else:
            told += f"worker.on_truncated: skip would go on at {after}"
        self._pipeline.stop_partition(tp, first, told, DAMAGED)

    def skip_past_end(
        self, starts: Sequence[Start], past_end: Collection[TopicPartition]
    ) -> tuple[Start, ...]:
        """With those of which the committed offset lay beyond the end at the log's start."""
        return tuple(
            self._assigner.past_end(start) if start.tp in past_end else start for start in starts
        )

    def recreated(self, topics: Mapping[str, DescribedTopic]) -> None:
        """Begin topics anew whose id is another than the one we began; let go of partitions that
        they do not have any more, once two looks agree: a broker may not know a new one yet.
        """
        if not topics:  # at nearly every turn, and there may be thousands of partitions
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
                    self._vanish(tp, start)
                elif tp not in self._pipeline.gone:
                    self.missing.add(tp)
            elif anew:
                self._begin_anew(tp)
            elif tp in self._pipeline.gone and start.silent is None:
                there_after_all.append(tp)
        if there_after_all:
            self._begin_again(there_after_all)

    def _begin_again(self, tps: list[TopicPartition]) -> None:
        """They are there after all: a broker that did not know them yet said otherwise."""
        for start in self._assigner.starts(self._consumer, tps):
            self._pipeline.drop([start.tp])
            self._pipeline.start_partition(start, reads=False)
            if not start.gone:
                self._pipeline.stopped.add(start.tp)

    def _vanish(self, tp: TopicPartition, before: Start) -> None:
        """It is ours until the next rebalance that asks us what we have; nothing is read of it."""
        self._pipeline.drop([tp])
        self._pipeline.start_partition(absent(tp), reads=False)
        self._events.log(f"{tp} is no partition of its topic any more: it was at {before.position}")
        self._events.emit("partition_gone", partition=str(tp), position=before.position)

    def find_leaders(self) -> None:
        """Begin partitions that had no leader, once they have; until then they are named."""
        pipeline = self._pipeline
        starts = (pipeline.start_of(tp) for tp in sorted(pipeline.gone))
        silent = {start.tp: start.silent for start in starts if start and start.silent is not None}
        if not silent and self._waits_for is None:
            return
        back = self._leaders.look(silent)
        for start in self._assigner.starts(self._consumer, back):
            pipeline.start_partition(start, reads=start.tp not in pipeline.quarantined)
            if start.silent is not None:
                continue
            del silent[start.tp]
            pipeline.seek(start)  # it was assigned at no position, and paused
            self.tell(start)
        self._name(silent)

    def _name(self, silent: Mapping[TopicPartition, str]) -> None:
        """Tell of partitions without a leader for as long as they have none."""
        before, self._waits_for = self._waits_for, None
        if silent:
            why = next(iter(silent.values()))
            self._waits_for = (
                f"{names(list(silent))}: no leader tells where to begin ({why}); the other "
                "partitions are read, and these once their leaders are back"
            )
            self._events.log_rarely(self._waits_for, key="leaders")
        if self._state.error in {None, before}:
            self._state.error = self._waits_for

    def _begin_anew(self, tp: TopicPartition) -> None:
        """Read a topic that was recreated from its beginning, once no batch is in hand."""
        start = self._assigner.anew(self._consumer, tp, self._pipeline.start_of(tp))
        self._pipeline.drop([tp])
        self._pipeline.start_partition(
            start, reads=False
        )  # what the old fetch still brings is not its own
        if not start.gone:
            self._pipeline.stopped.add(tp)
        self.tell(start)

    def tell(self, start: Start) -> None:
        """A partition begins here: name a deleted commit, what was lost before, and a topic that
        was recreated.
        """
        if start.committed is not None:  # also of a topic to which nothing comes
            self._state.committed |= {start.tp.topic}
        if start.expired is not None:
            self._name_gap(start, start.expired)
        if start.lost is not None:
            self.report(start)
        if start.anew:
            self._made_again(start)

    def _name_gap(self, start: Start, end: int) -> None:
        """Say where a group goes on whose commit Kafka deleted."""
        where = "the last that it committed" if start.resumes else "the log's start"
        told = (
            f"Kafka had deleted the group's commit of {start.tp}: it goes on at {start.position}, "
            f"{where}, and not at the end {end} (worker.start_from: latest)"
        )
        self._gaps.add(start.tp)
        more = len(self._gaps) - 1
        self._state.gap = told if not more else f"{told}, and {more} more of its partitions alike"
        self._events.log(told)
        self._events.emit("expired", partition=str(start.tp), position=start.position, end=end)

    def _made_again(self, start: Start) -> None:
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
        """Name what was lost, once; stop the partition, or go on behind the loss."""
        assert start.lost is not None
        if self._skip and self._told.get(start.tp) == start.lost:
            return  # librdkafka and a look of our own may both have seen it
        self._told[start.tp] = start.lost
        first, after = start.lost
        if after > first:
            self._state.lost_records += after - first
            what = f"records {first} to {after - 1} of {start.tp} are gone and were never read"
            what = why or what
        else:
            what = (
                f"{start.tp} ends before the committed offset {first}: "
                "it was truncated or created again"
            )
        self._events.emit("lost_records", partition=str(start.tp), first=first, after=after)
        if self._skip:
            self._events.log(f"{what}; going on at {after} (worker.on_truncated: skip)")
            return
        told = f"{what} (worker.on_truncated: stop; skip would go on at {after})"
        self._pipeline.stop_partition(start.tp, first, told, 0)

    def lift(self, lifted: set[TopicPartition]) -> None:
        """Read partitions again whose quarantine was lifted; empties the set."""
        again = sorted(lifted & self._pipeline.quarantined & self._state.partitions)
        lifted.clear()
        for tp in again:
            self._pipeline.quarantined.discard(tp)
            self._state.error = None
            self._events.log(f"{tp} is read again: its quarantine was lifted")
        if again:
            self._pipeline.rewind(again)

    def restart(self) -> None:
        """Assign partitions again whose fetch stopped, once no batch is in hand."""
        pipeline = self._pipeline
        for tp in sorted(self._later):
            if not pipeline.touches([tp]):
                self._later.discard(tp)  # also where it is not ours any more
                self.out_of_range(tp)
        stopped = self._state.partitions & pipeline.stopped
        stopped -= pipeline.quarantined | pipeline.gone
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
            pipeline.start_partition(start, reads=start.tp not in pipeline.quarantined)
        pipeline.stopped -= stopped

    def _at_start(self, tps: frozenset[TopicPartition]) -> list[KafkaPartition]:
        starts = [self._pipeline.start_of(tp) for tp in sorted(tps)]
        return [KafkaPartition(s.tp.topic, s.tp.partition, s.position) for s in starts if s]
