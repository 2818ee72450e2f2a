"""Batches in order: plan, dispatch, commit, rewind. Runs on the consumer thread.

Problem: between the reading of a batch's records and its commit, partitions may be revoked, come
back, or belong to another member [2]. A new owner has to find where the batch ended [4]. Choice:
one object knows the batch in hand, the prepared one and the commit that is due. Each has the tokens
of its partitions, compared right before each commit call. The commit of batch k carries the planned
ends of batch k+1 if that one is closed. Otherwise an extra commit of unchanged offsets does, before
batch k+1 starts. Cost: 1-2 ms for that commit.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.worker.batch.adaptive_reader import AdaptiveReader
from fleet.worker.batch.batches import InlineBatch, Prepared
from fleet.worker.batch.executor import BatchDone, BatchRunner, Damage, InterruptReason
from fleet.worker.events import WorkerContext
from fleet.worker.member.assigning import Partitions, Start
from fleet.worker.member.commit_metadata import PlannedRange, encode_plan, parse_group_metadata
from fleet.worker.member.member_state import EntrypointBackoff, MemberState
from fleet.worker.member.protocols import RETRIED, VOID, Fenced, is_fenced

# A record that crashes its process leaves no error, and the next owner repeats the range. So the
# commit that plans a range counts how often it was begun. A range that was begun `TOGETHER` times
# runs alone in at most `PIECES` parts, with a commit after each. A part that does not end is cut
# again. A single offset that was begun alone `ALONE` times counts as poison, unread. A living
# worker takes the count back, because a batch that fails, hangs or is drained killed no process.


TOGETHER: Final = 3
ALONE: Final = 2
PIECES: Final = 32


def plan_pieces(start: int, end: int, planned: PlannedRange | None) -> tuple[PlannedRange, ...]:
    """Returns how [start, end) is begun: whole, unless `planned` says that it ends processes."""
    if planned is None or planned.start != start or not start < planned.end <= end:
        return (PlannedRange(start=start, end=end),)
    if planned.until is None and planned.tries < TOGETHER:
        tries = planned.tries if planned.end == end else 0
        return (PlannedRange(start=start, end=end, tries=tries),)
    until = max(end, planned.until or 0)
    first = PlannedRange(start=start, end=planned.end, until=until)
    rest = _cut(planned.end, end, until)
    if planned.end - start == 1:
        return (replace(first, tries=0 if planned.until is None else planned.tries), *rest)
    if (
        planned.until is not None and planned.tries == 0
    ):  # its worker survived: this part is not the cause
        return (first, *rest)
    return _cut(start, planned.end, until) + rest


def _cut(start: int, end: int, until: int) -> tuple[PlannedRange, ...]:
    size = max(1, -(-(end - start) // PIECES))
    return tuple(
        PlannedRange(start=at, end=min(at + size, end), until=until)
        for at in range(start, end, size)
    )


def is_poison(piece: PlannedRange) -> bool:
    """Whether it is a single offset that ended its process each time that it ran alone."""
    return piece.until is not None and piece.end - piece.start == 1 and piece.tries >= ALONE


def without_partitions(batch: Prepared, gone: frozenset[TopicPartition]) -> Prepared | None:
    """Returns a batch without these partitions; None if nothing is left."""
    kept = [each.tp for each in batch.ranges if each.tp not in gone]
    if len(kept) == len(batch.ranges):
        return batch
    return batch.only(kept) if kept else None


_UNKNOWN_TOPIC: Final = 3
_RETRY_PAUSE: Final = 0.1


class CommitResult(StrEnum):
    """The result of one commit."""

    DONE = "done"
    RETRY = "retry"
    VOID = "void"


class Committer:
    """Synchronous commits of one consumer, on its thread [1]."""

    def __init__(self, context: WorkerContext, consumer: Any, state: MemberState) -> None:
        self._consumer = consumer
        self._state = state
        self._clock = context.clock
        self._events = context.events

    def write(
        self, entries: list[KafkaPartition]
    ) -> tuple[CommitResult, frozenset[TopicPartition]]:
        """Commits; returns partitions of deleted topics too. Fenced or FleetError if fatal."""
        if not entries:
            return CommitResult.DONE, frozenset()
        try:
            with self._state.waiting_for_brokers(self._clock):
                answers = self._consumer.commit(offsets=entries, asynchronous=False) or []
            told = [(each, each.error) for each in answers if each.error is not None]
        except KafkaException as error:  # no record of them was written
            told = [(each, error.args[0]) for each in entries]
        deleted = frozenset(
            TopicPartition(each.topic, each.partition)
            for each, error in told
            if error.code() == _UNKNOWN_TOPIC
        )
        errors = [error for _, error in told if error.code() != _UNKNOWN_TOPIC]
        if not errors:
            self._state.last_commit_at = self._clock.now()
            self._state.committed |= {e.topic for e in entries} - {tp.topic for tp in deleted}
            return CommitResult.DONE, deleted
        if any(each.code() == KafkaError.OFFSET_METADATA_TOO_LARGE for each in errors):
            raise _too_large(entries)
        return self._judge(errors[0]), deleted

    def _judge(self, error: Any) -> CommitResult:
        if is_fenced(error):
            raise Fenced(error.str())
        self._events.log_rarely(
            f"commit: {error.str()} ({error.code()})", key=f"commit {error.code()}"
        )
        if error.code() in VOID:
            return CommitResult.VOID
        if error.code() in RETRIED or error.retriable():
            return CommitResult.RETRY
        raise FleetError(f"the coordinator refuses the commit: {error.str()} ({error.code()})")

    def member(self) -> tuple[int | None, str | None]:
        """Returns the member's generation and id as librdkafka knows them, or None."""
        with contextlib.suppress(KafkaException, RuntimeError):
            if known := parse_group_metadata(self._consumer.consumer_group_metadata()):
                return known[:2]
        return None, None


def _too_large(entries: list[KafkaPartition]) -> FleetError:
    sizes = {len(each.metadata or ""): f"{each.topic}-{each.partition}" for each in entries}
    size = max(sizes)
    return FleetError(
        f"the coordinator refuses the commit: the metadata of {sizes[size]} has {size} bytes, more "
        "than the brokers' offset.metadata.max.bytes: raise that (Kafka's own value is 4096)"
    )


@dataclass(slots=True, kw_only=True)
class DispatchedBatch:
    """What Spark runs or ran, from its dispatch until its commit."""

    batch: Prepared
    tokens: Mapping[TopicPartition, int]
    member: str | None
    done: BatchDone | None = None
    since: float = 0.0
    """Monotonic time of the first try to commit."""
    next_try: float = 0.0
    cut: bool = False
    """Whether it was interrupted because it outlasted a drain or a revocation."""

    def written(self) -> dict[TopicPartition, int]:
        """Returns the offset up to which each partition is written: its end, or what stops it."""
        done = self.done
        if done is None or done.void or done.unhealthy:
            return {}
        ends = {each.tp: each.end for each in self.batch.ranges} | done.stops
        return {each.tp: ends[each.tp] for each in self.batch.ranges if ends[each.tp] > each.start}

    def records(self, written: Mapping[TopicPartition, int]) -> int:
        """Returns how many records are before these offsets."""
        ranges = {each.tp: each for each in self.batch.ranges}
        whole, parts = [], 0
        for tp, end in written.items():
            if end == ranges[tp].end:
                whole.append(tp)
            else:
                parts += self.batch.part(tp, ranges[tp].start, end).records
        return self.batch.only(whole).records + parts


def _afresh(start: Start) -> Start:
    """Returns the start as if its planned range had never been begun."""
    return start if start.planned is None else replace(start, planned=start.planned.afresh)


class Pipeline:
    """See the module. `post` brings a finished batch back onto the consumer thread."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        consumer: Any,
        reading: AdaptiveReader,
        runner: BatchRunner,
        state: MemberState,
        post: Callable[[Callable[[], None]], None],
        record_poison: Callable[[TopicPartition, int, str, int], None],
        backoff: EntrypointBackoff,
        commit_delay: float = 0.0,
    ) -> None:
        self._backoff = backoff
        self._commit_delay = commit_delay
        self._consumer = consumer
        self._commits = Committer(context, consumer, state)
        self._reading = reading
        self._runner = runner
        self._state = state
        self._revision = context.settings.revision
        self._grace = context.session_timeout
        self._post = post
        self._poisoned = record_poison
        self.on_damage: Callable[[TopicPartition, Damage], None] = lambda *_: None
        self._clock = context.clock
        self._events = context.events
        self.owned = Partitions()
        self.stopped_partitions: set[TopicPartition] = set()
        self.stopped: set[TopicPartition] = set()
        """Partitions that librdkafka fetches no more (it gave up after an error): assign again."""
        self.gone: set[TopicPartition] = set()
        """Partitions whose topic was deleted under us; not read until it is recreated."""
        self._next_try = 0.0
        """Monotonic time before which no chosen position is committed."""
        self._in_hand: DispatchedBatch | None = None
        self._prepared: Prepared | None = None
        self._waiting: deque[Prepared] = deque()
        """Parts of a closed batch that are run before anything else is read into one."""
        self._planned = False
        """Whether the prepared batch's ends are committed."""

    # --- what is going on ------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a batch runs, or its commit is due."""
        return self._in_hand is not None

    @property
    def running(self) -> bool:
        """Whether a batch runs in Spark."""
        return self._in_hand is not None and self._in_hand.done is None

    @property
    def uncommitted(self) -> frozenset[TopicPartition]:
        """Returns partitions whose start is not committed; they are not read before that [42]."""
        return self.owned.waiting(self.stopped_partitions)

    def touches(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether the batch in hand has records of these partitions."""
        return self._in_hand is not None and not self._in_hand.tokens.keys().isdisjoint(tps)

    # --- partitions come and go ------------------------------------------------------------

    def start_partition(self, start: Start, *, reads: bool) -> None:
        """Begins an owned partition with a new token, at its start unless it is stopped.

        If the start was chosen just now, reading waits for `commit_chosen`.
        """
        begins = start if reads else _afresh(start)
        self.owned.gain(begins, member=self._member, reads=reads)
        (self.gone.add if start.gone else self.gone.discard)(start.tp)
        if reads and not start.gone and not start.is_chosen:
            self._begin_reading(start)

    def _begin_reading(self, start: Start) -> None:
        self._reading.add_partition(
            start.tp, topic_id=start.topic_id, start=start.position, replay_to=start.replay_to
        )

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Drops what was read of partitions, not what runs; a call visits all prepared batches."""
        gone = frozenset(tps)
        self._reading.drop(gone)
        if self._prepared is not None:
            self._prepared = without_partitions(self._prepared, gone)
        left = (without_partitions(each, gone) for each in self._waiting)
        self._waiting = deque(each for each in left if each is not None)

    def lose(self, tps: Iterable[TopicPartition]) -> None:
        """Ends the ownership of partitions."""
        gone = frozenset(tps)
        self.drop(gone)
        self.owned.lose(gone)
        self.stopped_partitions -= gone
        self.stopped -= gone
        self.gone -= gone

    def rewind(self, tps: Iterable[TopicPartition]) -> None:
        """Reads owned partitions again from what is committed, with a new token."""
        reads = self.owned.all.keys() - self.stopped_partitions - self.gone
        again = [self.owned.all[tp].start for tp in tps if tp in reads]
        self.drop(start.tp for start in again)
        for start in again:
            self.start_partition(start, reads=True)
            self.seek(start)

    def reopen(self) -> None:
        """Cuts a small batch that waits for its plan again, with newly assigned partitions.

        Its commit would wait for a join's answer and be refused, and moved partitions would wait
        for that batch.
        """
        batch = self._prepared
        if self._in_hand is None and isinstance(batch, InlineBatch) and batch.one_task:
            self.rewind([each.tp for each in batch.ranges])

    def seek(self, start: Start) -> None:
        """Fetches an assigned partition from here on."""
        try:
            self._consumer.seek(KafkaPartition(start.tp.topic, start.tp.partition, start.position))
        except KafkaException:  # not fetched any more
            self.stopped.add(start.tp)

    def start_of(self, tp: TopicPartition) -> Start | None:
        """Returns where an owned partition's reading begins now: every commit moves it."""
        return self.owned.start_of(tp)

    @property
    def _member(self) -> str | None:
        return self._commits.member()[1]

    # --- the steps -------------------------------------------------------------------------

    def step(self) -> None:
        """Does what is due now: commit, close, plan, dispatch."""
        self.commit_chosen()
        holds = self._backoff.is_waiting
        if self._prepared is None and not holds:
            self._prepare()
        if self._in_hand is not None and self._in_hand.done is not None:
            self.settle()
        if self._in_hand is not None or holds:
            return
        if self._prepared is None:
            self._commit_gaps()
        elif self._plan():
            self._dispatch()

    def _prepare(self) -> None:
        now = self._clock.monotonic()
        if not self._waiting and (closed := self._reading.close(now, busy=self.running)):
            self._waiting.extend(self._in_order(closed))
        self._planned, self._prepared = False, self._waiting.popleft() if self._waiting else None

    def _in_order(self, closed: Prepared) -> list[Prepared]:
        """Returns what of a closed batch is begun: whole ranges first, then single pieces."""
        cuts = {each.tp: self._cut(each) for each in closed.ranges}
        in_pieces = {tp: cut for tp, cut in cuts.items() if cut[0].until is not None}
        if not in_pieces:
            return [closed]
        whole = [tp for tp in cuts if tp not in in_pieces]
        # Suspects last: the others succeed first, and so the suspect is known.
        suspects = sorted(in_pieces.items(), key=lambda each: each[1][0].tries)
        alone = [closed.part(tp, piece.start, piece.end) for tp, cut in suspects for piece in cut]
        return [closed.only(whole), *alone] if whole else alone

    def _cut(self, each: BatchRange) -> tuple[PlannedRange, ...]:
        """Returns how a range is begun, by the commit before it; records what counts against it."""
        owned = self.owned.all[each.tp]
        planned = owned.start.planned
        if planned is not None and planned.revision != self._revision:
            planned = None  # other code
        made = plan_pieces(each.start, each.end, planned)
        owned.pieces |= {(p.start, p.end): p for p in made if p.tries or p.until is not None}
        if planned is not None and planned.start == each.start and planned.tries > 1:
            self._log_repeated(each.tp, planned, len(made))
        return made

    def _log_repeated(self, tp: TopicPartition, planned: PlannedRange, parts: int) -> None:
        careful = planned.until is not None or planned.tries >= TOGETHER
        how = f"it is run in {parts} parts" if careful else "again"
        sentence = (
            f"{tp}: offsets {planned.start} to {planned.end - 1} were begun {planned.tries} times, "
            f"and each time their worker ended without a word: {how}"
        )
        self._events.log(sentence)
        self._events.emit("begun_again", partition=str(tp), tries=planned.tries)
        if not self.stopped_partitions:
            self._state.error = sentence

    def _piece(self, each: BatchRange) -> PlannedRange:
        """Returns what is known of a closed range."""
        whole = PlannedRange(start=each.start, end=each.end)
        owned = self.owned.all.get(each.tp)
        return whole if owned is None else owned.pieces.get((each.start, each.end), whole)

    def settle(self) -> bool:
        """Commits the finished batch if one is due; False if it has to be tried again."""
        hand = self._in_hand
        if hand is None or hand.done is None:
            return True
        now = self._clock.monotonic()
        if now < hand.next_try:
            return False
        done = hand.done
        written = hand.written()
        may = self.owned.commitable(hand.tokens, member_then=hand.member, member_now=self._member)
        allowed = {tp: end for tp, end in written.items() if tp in may}
        outcome = self._write_planned(allowed) if allowed else CommitResult.VOID
        if outcome is CommitResult.RETRY:
            hand.since = hand.since or now
            if now - hand.since < self._grace:
                hand.next_try = now + _RETRY_PAUSE
                return False
            outcome = CommitResult.VOID
        self._in_hand = None
        if done.void:
            self._take_back_tries(hand)
        ours = self.owned.owned_since(hand.tokens)
        if outcome is CommitResult.DONE:
            allowed = {tp: end for tp, end in allowed.items() if tp not in self.gone}
            if allowed:
                self._note_commit(hand, allowed)
            again = ours - allowed.keys() - self.stopped_partitions - self.gone
        elif done.unhealthy:
            again = set(
                self.owned.all
            )  # all are cut again together: a control record may be among them
        else:
            if done.void or written:
                self._events.log(f"batch of {done.batch.records} records is void: not committed")
                self._events.emit("void", ranges=[each.id for each in done.batch.ranges])
            again = ours - self.stopped_partitions  # a lifted stop is tried as if never begun
        self._rewind_onto_ranges(hand, again)
        return True

    def _rewind_onto_ranges(self, hand: DispatchedBatch, again: set[TopicPartition]) -> None:
        """Makes owned partitions with uncommitted records be cut the same way again."""
        unhealthy = hand.done is not None and hand.done.unhealthy
        ours = self.owned.owned_since(hand.tokens) & again
        for each in hand.batch.ranges:
            if each.tp in ours:
                planned = replace(self._piece(each), revision=self._revision)
                owned = self.owned.all[each.tp]
                owned.start = owned.start.moved(
                    owned.start.position, None if unhealthy else planned
                )
        self.rewind(again)

    def _dispatch(self) -> None:
        batch, self._prepared = self._prepared, None
        assert batch is not None
        hand = DispatchedBatch(
            batch=batch,
            tokens=self.owned.tokens(each.tp for each in batch.ranges),
            member=self._member,
        )
        self._in_hand = hand
        self._events.emit("batch", ranges=[each.id for each in batch.ranges], records=batch.records)

        def arrives(done: BatchDone) -> None:
            self._post(lambda: self._arrived(hand, done))

        piece = self._piece(batch.ranges[0])
        if is_poison(piece):
            why = (
                f"its batch ended the worker's process at every try, {TOGETHER} times with "
                f"others and {piece.tries} times alone (killed, out of memory, or crashed)"
            )
            self._runner.set_aside(batch, why, arrives)
        else:
            self._runner.submit(batch, arrives)

    def _arrived(self, hand: DispatchedBatch, done: BatchDone) -> None:
        """Handles the batch that the batch thread has finished, on the consumer thread."""
        state = self._state
        state.busy_seconds += done.seconds
        hand.done, hand.next_try = done, self._clock.monotonic() + self._commit_delay
        if done.fatal is not None:
            state.error = done.fatal
            self._in_hand = None
            self._take_back_tries(hand)
            raise FleetError(done.fatal)
        if done.unhealthy is not None:
            self._become_unhealthy(hand, done.unhealthy)
            return
        if not done.void:
            self._backoff.record_success()
            state.failing_since = None
            self._reading.record_duration(done.batch, done.seconds)
            state.failed = bool(done.failed)
        if done.failed and is_poison(self._piece(done.batch.ranges[0])):
            self._take_back_tries(hand)  # its next owner must not count these tries again
        state.dead_letters += done.letters
        ours = self.owned.owned_since(hand.tokens)
        for tp, at in done.stops.items():
            if tp in ours:
                if tp in done.failed:
                    self.stop_partition(tp, at, done.failed[tp], done.attempts)
                else:
                    self.on_damage(tp, done.damaged[tp])
        if not done.failed and not done.void and not self.stopped_partitions:
            state.error = None

    def _become_unhealthy(self, hand: DispatchedBatch, error: str) -> None:
        """Commits nothing of a batch without any success, and cuts it again [43]."""
        self._state.failed, self._state.error = True, error
        try:
            self._state.error, line = self._backoff.failed(error)
        except FleetError:
            self._in_hand = None
            self._take_back_tries(hand)
            raise
        self._state.failing_since = self._backoff.since
        self._events.log(line)
        self._events.emit("unhealthy", error=error)

    def take_back_tries(self) -> None:
        """Records that the batch in hand is not what ends this worker."""
        if self._in_hand is not None:
            self._take_back_tries(self._in_hand)

    def _take_back_tries(self, hand: DispatchedBatch) -> None:
        """Takes back that its ranges were begun, if that begins to count."""
        if hand.member is not None and self._member != hand.member:
            return
        ours = self.owned.owned_since(hand.tokens)
        begun = [(e.tp, self._piece(e)) for e in hand.batch.ranges if e.tp in ours]
        weighed = [
            self._entry(tp, piece.start, replace(piece, tries=-1))
            for tp, piece in begun
            if piece.tries > 0 or piece.until is not None
        ]
        with contextlib.suppress(FleetError):  # one try; another one is for the next owner
            self._write(weighed)

    def stop_partition(self, tp: TopicPartition, offset: int, error: str, attempts: int) -> None:
        """Stops one partition, durably; the others go on [9]."""
        self.drop([tp])
        self.stopped_partitions.add(tp)
        if owned := self.owned.all.get(tp):  # a lifted stop is tried as if for the first time
            owned.start = _afresh(owned.start)
        self._state.error = f"{tp} is stopped at offset {offset}: {error}"
        self._events.log(self._state.error)
        self._events.emit("quarantined", partition=str(tp), offset=offset, error=error)
        self._poisoned(tp, offset, error, attempts)

    # --- commits ---------------------------------------------------------------------------

    def _plan(self) -> bool:
        """Ensures that the prepared batch's ends are in its partitions' metadata [4]."""
        if self._planned:
            return True
        outcome = self._write_planned({})
        if outcome is CommitResult.VOID and self._prepared is not None:
            self.rewind([each.tp for each in self._prepared.ranges])
        return outcome is CommitResult.DONE and self._prepared is not None

    def _write_planned(self, written: Mapping[TopicPartition, int]) -> CommitResult:
        """Commits offsets with plans: what is written, and unchanged ones of the prepared batch."""
        plans = {r.tp: self._piece(r) for r in self._prepared.ranges} if self._prepared else {}
        owned = self.owned.all
        offsets = {tp: owned[tp].start.position for tp in plans if tp in owned} | dict(written)
        outcome = self._write(
            [self._entry(tp, offset, plans.get(tp)) for tp, offset in sorted(offsets.items())]
        )
        if outcome is CommitResult.DONE:
            self._planned = self._prepared is not None
        return outcome

    def commit_chosen(self, *, assigned: bool = True) -> None:
        """Commits chosen positions, one try [42]; they are read from then on.

        assigned: whether the client fetches them already (paused), so that it has to seek.
        """
        waiting = self.uncommitted
        now = self._clock.monotonic()
        if not waiting or now < self._next_try:
            return
        due = self.owned.due(waiting, self._member)
        outcome = self._write([self._entry(tp, at, None) for tp, at in due.items()])
        if outcome is not CommitResult.DONE:  # while they are owned; void ones are lost soon
            self._next_try = now + _RETRY_PAUSE
            return
        kept = {tp: at for tp, at in due.items() if tp not in self.gone}
        self.owned.settle(kept)
        for tp, at in kept.items():
            owned = self.owned.all[tp]
            owned.start = owned.start.moved(at)
            if owned.reads:
                self._begin_reading(owned.start)
                if assigned:
                    self.seek(owned.start)
        if kept:
            self._events.emit("began", offsets={str(tp): at for tp, at in kept.items()})

    def _commit_gaps(self) -> None:
        """Commits positions that moved only over markers, so that their lag is 0.

        Only if nothing is in hand or prepared: then the position is behind every record read.
        """
        gaps = self._reading.gaps()
        if not gaps:
            return
        entries = [self._entry(tp, end, None) for tp, (_, end) in sorted(gaps.items())]
        for tp, (_, end) in gaps.items():
            self.owned.all[tp].start = self.owned.all[tp].start.moved(end)
        self._write(entries)  # if it fails, the partition's next commit is past it anyway

    def _entry(self, tp: TopicPartition, offset: int, piece: PlannedRange | None) -> KafkaPartition:
        """Returns a partition's commit entry; piece: what is planned to begin there."""
        start = self.owned.all[tp].start
        plan = encode_plan(
            None if piece is None else piece.end,
            self._revision,
            start.known_id,
            cluster=start.cluster,
            parts=start.parts,
            tries=1 if piece is None else piece.tries + 1,
            until=None if piece is None else piece.until,
        )
        return KafkaPartition(tp.topic, tp.partition, offset, metadata=plan)

    def _write(self, entries: list[KafkaPartition]) -> CommitResult:
        outcome, deleted = self._commits.write(entries)
        if deleted:
            self._drop_topics(deleted)
        return outcome

    def _drop_topics(self, tps: frozenset[TopicPartition]) -> None:
        """Stops reading and committing a deleted topic until it is recreated."""
        self.gone |= tps & self.owned.all.keys()
        self.owned.settle(tps)
        self.drop(tps)
        for topic in sorted({tp.topic for tp in tps}):
            self._events.log(f"topic {topic} was deleted: its records are not committed")
            self._events.emit("topic_deleted", topic=topic)

    def _note_commit(self, hand: DispatchedBatch, written: Mapping[TopicPartition, int]) -> None:
        state = self._state
        for tp, end in written.items():
            owned = self.owned.all[tp]
            owned.start = owned.start.moved(end)
            owned.pieces = {key: piece for key, piece in owned.pieces.items() if key[1] > end}
        state.batches += 1
        state.unclean &= hand.cut  # one batch at a time: what was cut before it runs no more
        state.records += hand.records(written)
        offsets = {str(tp): end for tp, end in written.items()}
        self._events.emit("committed", offsets=offsets, generation=self.generation())

    def generation(self) -> int | None:
        """Returns the member's generation as librdkafka knows it; None if unknown."""
        return self._commits.member()[0]

    def interrupt_late(self, what: str) -> None:
        """Interrupts the batch in hand, once: it has had the time that `what` gives it."""
        hand = self._in_hand
        if hand is not None and not hand.cut:
            hand.cut = self._state.unclean = True
            self.interrupt()
            self._events.log(f"{what} ran into drain_timeout: interrupting the batch")

    def interrupt(self) -> None:
        """Interrupts the batch in hand, because no commit will follow."""
        if self.running:
            self._runner.interrupt(InterruptReason.VOID)
