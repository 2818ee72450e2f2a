"""Batches in order: plan, dispatch, commit, rewind. Lives on the consumer thread.

Problem: between the records that a batch was cut from and its commit, partitions may go, come
back, or belong to somebody else [2], and a successor has to find where the batch ended [4].
Choice: one object knows the batch in hand, the prepared one and the commit that is due; every
one of them carries the tokens of its partitions, compared right before each commit call. The
commit of batch k carries the planned ends of batch k+1 where that one is closed; otherwise an
extra commit of unchanged offsets does, before batch k+1 starts. Cost: 1-2 ms for that commit.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.worker.batch.batch_reader import BatchReader, Prepared
from fleet.worker.batch.batches import InlineBatch
from fleet.worker.batch.executor import BatchDone, BatchRunner, Damage, Why
from fleet.worker.events import Events
from fleet.worker.member.member_state import BackingOff, MemberState
from fleet.worker.member.protocols import RETRIED, VOID, Fenced, is_fenced
from fleet.worker.offsets.assigning import Start, StartPositions
from fleet.worker.offsets.commit_metadata import (
    Begun,
    Finished,
    Ownership,
    commitable,
    encode_plan,
    parse_group_metadata,
)

# Ranges that were begun again and again without an end: records that kill their process.
#
# Problem: a record that brings its process down (out of memory, a crash in native code) leaves no
# error behind; its successor repeats the range and goes down too, and so on, with no name told.
# Choice: the commit that plans a range also counts how often it was begun (`tries`), so whoever is
# assigned the partition next knows, in every store and protocol. A range that was begun `TOGETHER`
# times is run alone in at most `PIECES` parts, a commit after each; a part that is begun and does
# not end is cut again; a single offset that was begun alone `ALONE` times is condemned, unread. A
# living worker takes the count back: where a batch fails, hangs or is drained nobody was killed.
# So whoever is killed from outside repeats a little more slowly, and loses nothing. Cost: 3 + 2
# ends for one record among at most 32, one more for each further factor of 32.


TOGETHER: Final = 3
ALONE: Final = 2
PIECES: Final = 32

_Key = tuple[int, int]
"""First offset, next after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRange:
    """What is begun next of one partition. `until`: how far its partition is run in pieces."""

    start: int
    end: int
    tries: int = 0
    """How often it was begun before, without an end."""
    until: int | None = None

    def as_begun(self, revision: str) -> Begun:
        """What its commit would have told, had it not been begun."""
        return Begun(
            start=self.start,
            next=self.end,
            tries=self.tries,
            revision=revision,
            until=self.until,
        )

    @property
    def planned(self) -> tuple[int, int, int | None]:
        """What the commit before it says: its end, how often it will have been begun, `until`."""
        return self.end, self.tries + 1, self.until

    @property
    def condemned(self) -> bool:
        """A single offset that ended its process each time that it was alone."""
        return self.until is not None and self.end - self.start == 1 and self.tries >= ALONE


def pieces(start: int, end: int, begun: Begun | None) -> tuple[SuspectRange, ...]:
    """How [start, end) is to be begun: as a whole, unless `begun` says that it ends processes."""
    if begun is None or begun.start != start or not start < begun.next <= end:
        return (SuspectRange(start=start, end=end),)
    if begun.until is None and begun.tries < TOGETHER:
        return (SuspectRange(start=start, end=end, tries=begun.tries if begun.next == end else 0),)
    until = max(end, begun.until or 0)
    if begun.next - start == 1:
        tries = 0 if begun.until is None else begun.tries
        first: tuple[SuspectRange, ...] = (
            SuspectRange(start=start, end=begun.next, tries=tries, until=until),
        )
    elif begun.until is not None and begun.tries == 0:  # its worker lived: not this part's doing
        first = (SuspectRange(start=start, end=begun.next, until=until),)
    else:
        first = _cut(start, begun.next, until)
    return first + _cut(begun.next, end, until)


def _cut(start: int, end: int, until: int) -> tuple[SuspectRange, ...]:
    size = max(1, -(-(end - start) // PIECES))
    return tuple(
        SuspectRange(start=at, end=min(at + size, end), until=until)
        for at in range(start, end, size)
    )


class SuspectRanges:
    """What one membership begins of its closed batches, and in which order."""

    def __init__(self, *, revision: str) -> None:
        self._revision = revision
        self._waiting: deque[Prepared] = deque()
        """What is run before anything else is read into a batch."""
        self._noted: dict[TopicPartition, dict[_Key, SuspectRange]] = {}
        """Of ranges that were begun before, or are run in pieces."""

    def take(self) -> Prepared | None:
        """The next one, where some wait."""
        return self._waiting.popleft() if self._waiting else None

    def cut(
        self,
        closed: Prepared,
        begun: Mapping[TopicPartition, Begun | None],
        say: Callable[[TopicPartition, Begun, str], None],
    ) -> Prepared:
        """What is to be begun first of a closed batch; the rest waits.

        What is run as a whole goes together, first; pieces go alone, one partition after the
        other. begun: what the commits told of the partitions' positions. say: told of those that
        were begun more than once.
        """
        cuts = {each.tp: self._cut(each, begun.get(each.tp), say) for each in closed.ranges}
        whole = [tp for tp, cut in cuts.items() if len(cut) == 1 and cut[0].until is None]
        if len(whole) == len(cuts):
            return closed
        if whole:
            self._waiting.append(closed.only(whole))
        in_pieces = [(tp, cut) for tp, cut in cuts.items() if tp not in whole]
        # Suspects last: who lives through the others and ends with them is a witness.
        for tp, cut in sorted(in_pieces, key=lambda each: each[1][0].tries):
            self._waiting.extend(closed.part(tp, piece.start, piece.end) for piece in cut)
        return self._waiting.popleft()

    def of(self, each: BatchRange) -> SuspectRange:
        """What is known of a range that was cut here."""
        whole = SuspectRange(start=each.start, end=each.end)
        return self._noted.get(each.tp, {}).get((each.start, each.end), whole)

    def weighed(self, ranges: Iterable[BatchRange]) -> list[tuple[TopicPartition, SuspectRange]]:
        """Of these, what was begun before or alone; as if it had not been begun now."""
        return [
            (each.tp, replace(piece, tries=-1))
            for each in ranges
            if (piece := self.of(each)).tries > 0 or piece.until is not None
        ]

    def drop(self, tps: frozenset[TopicPartition]) -> None:
        """Forget what waits of partitions."""
        left = (without(each, tps) for each in self._waiting)
        self._waiting = deque(each for each in left if each is not None)

    def forget(self, tp: TopicPartition) -> None:
        """It begins anew, by what its commit tells: what was noted of it is of another life."""
        self._noted.pop(tp, None)

    def passed(self, tp: TopicPartition, position: int) -> None:
        """Nothing before `position` is begun again."""
        noted = self._noted.pop(tp, {})
        left = {key: piece for key, piece in noted.items() if key[1] > position}
        if left:
            self._noted[tp] = left

    def _cut(
        self,
        each: BatchRange,
        begun: Begun | None,
        say: Callable[[TopicPartition, Begun, str], None],
    ) -> tuple[SuspectRange, ...]:
        if begun is not None and (begun.revision != self._revision or begun.start != each.start):
            begun = None  # other code, or further on
        made = pieces(each.start, each.end, begun)
        weighed = {(p.start, p.end): p for p in made if p.tries or p.until is not None}
        if weighed:
            self._noted.setdefault(each.tp, {}).update(weighed)
        if begun is not None and begun.tries > 1:
            say(each.tp, begun, told(each.tp, begun, len(made)))
        return made


def without(batch: Prepared, gone: frozenset[TopicPartition]) -> Prepared | None:
    """A batch without these partitions; None where nothing is left."""
    kept = [each.tp for each in batch.ranges if each.tp not in gone]
    if len(kept) == len(batch.ranges):
        return batch
    return batch.only(kept) if kept else None


def told(tp: TopicPartition, begun: Begun, parts: int) -> str:
    """A sentence for people: what is repeated, and how."""
    how = f"it is run in {parts} parts" if begun.until or begun.tries >= TOGETHER else "again"
    return (
        f"{tp}: offsets {begun.start} to {begun.next - 1} were begun {begun.tries} times, and each "
        f"time their worker ended without a word: {how}"
    )


def condemned(piece: SuspectRange) -> str:
    """Why a single offset is not begun once more."""
    return (
        f"its batch ended the worker's process each time that it was begun, {TOGETHER} times with "
        f"others and {piece.tries} times alone (killed, out of memory, or crashed)"
    )


# Synchronous commits of the consumer thread, and what the coordinator made of them [1, 2].


_UNKNOWN_TOPIC: Final = 3


class Committed(StrEnum):
    """What became of one commit."""

    DONE = "done"
    RETRY = "retry"
    VOID = "void"


class Committer:
    """Of one consumer; used on its thread."""

    def __init__(self, consumer: Any, *, state: MemberState, clock: Clock, events: Events) -> None:
        self._consumer = consumer
        self._state = state
        self._clock = clock
        self._events = events

    def write(self, entries: list[KafkaPartition]) -> tuple[Committed, frozenset[TopicPartition]]:
        """One commit, and the partitions whose topic is deleted; Fenced or FleetError if fatal."""
        if not entries:
            return Committed.DONE, frozenset()
        try:
            with self._state.waits(self._clock):
                answers = self._consumer.commit(offsets=entries, asynchronous=False) or []
            told = [(each, each.error) for each in answers if each.error is not None]
        except KafkaException as error:  # none of them was written
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
            return Committed.DONE, deleted
        if any(each.code() == KafkaError.OFFSET_METADATA_TOO_LARGE for each in errors):
            raise _too_large(entries)
        return self._judged(errors[0]), deleted

    def _judged(self, error: Any) -> Committed:
        if is_fenced(error):
            raise Fenced(error.str())
        self._events.log_rarely(
            f"commit: {error.str()} ({error.code()})", key=f"commit {error.code()}"
        )
        if error.code() in VOID:
            return Committed.VOID
        if error.code() in RETRIED or error.retriable():
            return Committed.RETRY
        raise FleetError(f"the coordinator refuses the commit: {error.str()} ({error.code()})")

    def member(self) -> str | None:
        """The member id as librdkafka knows it; None where it is unknown."""
        known = self._group_metadata()
        return known[1] if known else None

    def generation(self) -> int | None:
        """The member's generation as librdkafka knows it; None where it is unknown."""
        known = self._group_metadata()
        return known[0] if known else None

    def _group_metadata(self) -> tuple[int, str, str] | None:
        try:
            return parse_group_metadata(self._consumer.consumer_group_metadata())
        except (KafkaException, RuntimeError):
            return None


def _too_large(entries: list[KafkaPartition]) -> FleetError:
    sizes = {len(each.metadata or ""): f"{each.topic}-{each.partition}" for each in entries}
    size = max(sizes)
    return FleetError(
        f"the coordinator refuses the commit: the metadata of {sizes[size]} has {size} bytes, more "
        "than the brokers' offset.metadata.max.bytes: raise that (Kafka's own value is 4096)"
    )


def entry_of(
    start: Start, offset: int, piece: SuspectRange | None, revision: str
) -> KafkaPartition:
    """What a commit of `offset` says of a partition; piece: what is planned to begin there."""
    end, tries, until = (None, 1, None) if piece is None else piece.planned
    plan = encode_plan(
        end,
        revision,
        start.known_id,
        cluster=start.cluster,
        parts=start.parts,
        tries=tries,
        until=until,
    )
    return KafkaPartition(start.tp.topic, start.tp.partition, offset, metadata=plan)


# The batch in hand: what Spark runs or ran, and under which membership it was dispatched.


@dataclass(slots=True, kw_only=True)
class DispatchedBatch:
    """From its dispatch until its commit."""

    batch: Prepared
    tokens: Mapping[TopicPartition, int]
    member: str | None
    done: BatchDone | None = None
    since: float = 0.0
    """Monotonic time of the first try to commit."""
    next_try: float = 0.0
    cut: bool = False
    """Whether it was interrupted for having outlasted a drain or a revocation."""

    def finished(self) -> tuple[Finished, ...]:
        """What of it is written: all of a partition, or what lies before what stops it."""
        done = self.done
        if done is None or done.void or done.ill:
            return ()
        ends = {each.tp: each.end for each in self.batch.ranges} | done.stops
        return tuple(
            Finished(tp=each.tp, token=self.tokens[each.tp], end=ends[each.tp])
            for each in self.batch.ranges
            if ends[each.tp] > each.start
        )

    def records(self, finished: Iterable[Finished]) -> int:
        """How many records that is."""
        ranges = {each.tp: each for each in self.batch.ranges}
        whole, parts = [], 0
        for each in finished:
            its = ranges[each.tp]
            if each.end == its.end:
                whole.append(each.tp)
            else:
                parts += self.batch.part(each.tp, its.start, each.end).records
        return self.batch.only(whole).records + parts


_RETRY_PAUSE: Final = 0.1


class Pipeline:
    """See the module. `submit_done` posts a finished batch back onto the consumer thread."""

    def __init__(
        self,
        *,
        consumer: Any,
        reading: BatchReader,
        runner: BatchRunner,
        state: MemberState,
        revision: str,
        patience: float,
        post: Callable[[Callable[[], None]], None],
        poisoned: Callable[[TopicPartition, int, str, int], None],
        backing_off: BackingOff,
        clock: Clock,
        events: Events,
        commit_delay: float = 0.0,
    ) -> None:
        self._backing_off = backing_off
        self._commit_delay = commit_delay
        self._consumer = consumer
        self._commits = Committer(consumer, state=state, clock=clock, events=events)
        self._reading = reading
        self._runner = runner
        self._state = state
        self._revision = revision
        self._patience = patience
        self._post = post
        self._poisoned = poisoned
        self.on_damage: Callable[[TopicPartition, Damage], None] = lambda *_: None
        self._clock = clock
        self._events = events
        self.owned = Ownership()
        self.quarantined: set[TopicPartition] = set()
        self.stopped: set[TopicPartition] = set()
        """Partitions that librdkafka fetches no more (it gave up after an error): assign again."""
        self.gone: set[TopicPartition] = set()
        """Partitions whose topic was deleted under us; not read until it is made again."""
        self._starts: dict[TopicPartition, Start] = {}
        self._chosen = StartPositions()
        self._in_hand: DispatchedBatch | None = None
        self._prepared: Prepared | None = None
        self._pieces = SuspectRanges(revision=revision)
        self._planned = False

    # --- what is going on ------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A batch runs, or its commit is due."""
        return self._in_hand is not None

    @property
    def running(self) -> bool:
        """A batch runs in Spark."""
        return self._in_hand is not None and self._in_hand.done is None

    @property
    def unsettled(self) -> frozenset[TopicPartition]:
        """Partitions that begin where nobody has committed: not read before that is done [42]."""
        return self._chosen.waiting(self.quarantined)

    def touches(self, tps: Iterable[TopicPartition]) -> bool:
        """Whether the batch in hand has records of these partitions."""
        return self._in_hand is not None and not self._in_hand.tokens.keys().isdisjoint(tps)

    # --- partitions come and go ------------------------------------------------------------

    def start_partition(self, start: Start, *, reads: bool) -> None:
        """A partition is ours (again): a new token, read from its start unless quarantined.

        Where the start was chosen just now, reading waits for `commit_chosen`.
        """
        token = self.owned.gain(start.tp)
        self._pieces.forget(start.tp)
        self._starts[start.tp] = start if reads else replace(start, begun=None)
        (self.gone.add if start.gone else self.gone.discard)(start.tp)
        self._chosen.drop([start.tp])
        if start.chosen:
            self._chosen.add(start, token=token, member=self._commits.member(), reads=reads)
        elif reads and not start.gone:
            self._begin_reading(start)

    def _begin_reading(self, start: Start) -> None:
        self._reading.add_partition(
            start.tp, topic_id=start.topic_id, start=start.position, replay_to=start.replay_to
        )

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Forget what was read of partitions, not what runs; a call goes through all prepared."""
        gone = frozenset(tps)
        self._reading.drop(gone)
        if self._prepared is not None:
            self._prepared = without(self._prepared, gone)
        self._pieces.drop(gone)

    def lose(self, tps: Iterable[TopicPartition]) -> None:
        """Not ours any more."""
        gone = frozenset(tps)
        self.drop(gone)
        self.owned.lose(gone)
        self._chosen.drop(gone)
        self.quarantined -= gone
        self.stopped -= gone
        self.gone -= gone
        self._starts = {tp: start for tp, start in self._starts.items() if tp not in gone}

    def rewind(self, tps: Iterable[TopicPartition]) -> None:
        """Read owned partitions again from what is committed, with a new token."""
        reads = self._starts.keys() - self.quarantined - self.gone
        again = [self._starts[tp] for tp in tps if tp in reads]
        self.drop(start.tp for start in again)
        for start in again:
            self.start_partition(start, reads=True)
            self.seek(start)

    def reopen(self) -> None:
        """Cut a small batch that waits for its plan anew: what is assigned just now goes along.

        A commit waits for a join's answer and is refused: what moved would wait for that batch.
        """
        batch = self._prepared
        if self._in_hand is None and isinstance(batch, InlineBatch) and batch.one_task:
            self.rewind([each.tp for each in batch.ranges])

    def seek(self, start: Start) -> None:
        """Fetch a partition that is assigned already from here on."""
        try:
            self._consumer.seek(KafkaPartition(start.tp.topic, start.tp.partition, start.position))
        except KafkaException:  # not fetched any more
            self.stopped.add(start.tp)

    def start_of(self, tp: TopicPartition) -> Start | None:
        """What an owned partition's reading begins with now: moved on by every commit."""
        return self._starts.get(tp)

    # --- the steps -------------------------------------------------------------------------

    def step(self) -> None:
        """Whatever is due now: commit, close, plan, dispatch."""
        self.commit_chosen()
        holds = self._backing_off.holds
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
        self._planned, self._prepared = False, self._pieces.take()
        now = self._clock.monotonic()
        if self._prepared is None and (closed := self._reading.close(now, busy=self.running)):
            begun = {tp: start.begun for tp, start in self._starts.items()}
            self._prepared = self._pieces.cut(closed, begun, self._say_begun)

    def _say_begun(self, tp: TopicPartition, begun: Begun, sentence: str) -> None:
        self._events.log(sentence)
        self._events.emit("begun_again", partition=str(tp), tries=begun.tries)
        if not self.quarantined:
            self._state.error = sentence

    def settle(self) -> bool:
        """Commit the finished batch if one is due; False where it has to be tried again."""
        hand = self._in_hand
        if hand is None or hand.done is None:
            return True
        now = self._clock.monotonic()
        if now < hand.next_try:
            return False
        done = hand.done
        finished = hand.finished()
        allowed = commitable(
            finished, self.owned, member_then=hand.member, member_now=self._commits.member()
        )
        outcome = self._write_planned(allowed) if allowed else Committed.VOID
        if outcome is Committed.RETRY:
            hand.since = hand.since or now
            if now - hand.since < self._patience:
                hand.next_try = now + _RETRY_PAUSE
                return False
            outcome = Committed.VOID
        self._in_hand = None
        if done.void:
            self._spare(hand)
        ours = {tp for tp, token in hand.tokens.items() if self.owned.holds(tp, token)}
        if outcome is Committed.DONE:
            allowed = tuple(each for each in allowed if each.tp not in self.gone)
            if allowed:
                self._note_commit(hand, allowed)
            again = ours - {each.tp for each in allowed} - self.quarantined - self.gone
        elif done.ill:
            again = set(self._starts)  # all are cut anew together: there may be a witness
        else:
            if done.void or finished:
                self._events.log(f"batch of {done.batch.records} records is void: not committed")
                self._events.emit("void", ranges=[each.id for each in done.batch.ranges])
            again = ours - self.quarantined  # who lifts it wants it to be tried as if never begun
        self._rewind_onto_ranges(done, again)
        return True

    def _rewind_onto_ranges(self, done: BatchDone, again: Iterable[TopicPartition]) -> None:
        """Partitions still ours whose records were not committed are cut the same way again."""
        pieces_of = {each.tp: self._pieces.of(each) for each in done.batch.ranges}
        for tp in again:
            start, piece = self._starts.get(tp), pieces_of.get(tp)
            if start is not None and piece is not None:
                upto = None if done.ill else max(piece.end, piece.until or 0)
                kept = None if done.ill else piece.as_begun(self._revision)
                self._starts[tp] = replace(start.moved(start.position, upto), begun=kept)
        self.rewind(again)

    def _dispatch(self) -> None:
        batch, self._prepared = self._prepared, None
        assert batch is not None
        tokens = self.owned.tokens
        hand = DispatchedBatch(
            batch=batch,
            tokens={each.tp: tokens[each.tp] for each in batch.ranges},
            member=self._commits.member(),
        )
        self._in_hand = hand
        self._events.emit("batch", ranges=[each.id for each in batch.ranges], records=batch.records)

        def arrives(done: BatchDone) -> None:
            self._post(lambda: self._arrived(hand, done))

        piece = self._pieces.of(batch.ranges[0])
        if piece.condemned:
            self._runner.condemn(batch, condemned(piece), arrives)
        else:
            self._runner.submit(batch, arrives)

    def _arrived(self, hand: DispatchedBatch, done: BatchDone) -> None:
        """On the consumer thread: the batch thread is through with it."""
        state = self._state
        state.busy_seconds += done.seconds
        hand.done, hand.next_try = done, self._clock.monotonic() + self._commit_delay
        if done.fatal is not None:
            state.error = done.fatal
            self._in_hand = None
            self._spare(hand)
            raise FleetError(done.fatal)
        if done.ill is not None:
            self._fall_ill(hand, done.ill)
            return
        if not done.void:
            self._backing_off.worked()
            state.failing_since = None
            self._reading.took(done.batch, done.seconds)
            state.failed = bool(done.failed)
        if done.failed and self._pieces.of(done.batch.ranges[0]).condemned:
            self._spare(hand)  # nor shall its next owner count what was counted for the mark
        state.dead_letters += done.letters
        for tp, at in done.stops.items():
            if self.owned.holds(tp, hand.tokens[tp]):
                if tp in done.failed:
                    self.quarantine(tp, at, done.failed[tp], done.attempts)
                else:
                    self.on_damage(tp, done.damaged[tp])
        if not done.failed and not done.void and not self.quarantined:
            state.error = None

    def _fall_ill(self, hand: DispatchedBatch, error: str) -> None:
        """Nothing of the batch went well: nothing of it is committed, and it is cut anew [43]."""
        self._state.failed, self._state.error = True, error
        try:
            self._state.error = self._backing_off.failed(error)
        except FleetError:
            self._in_hand = None
            self._spare(hand)
            raise
        self._state.failing_since = self._backing_off.since
        self._events.log(self._state.error)
        self._events.emit("ill", error=error)

    def spare(self) -> None:
        """The batch in hand is not what ends this worker, whatever comes: see `narrowing`."""
        if self._in_hand is not None:
            self._spare(self._in_hand)

    def _spare(self, hand: DispatchedBatch) -> None:
        """Take back that its ranges were begun, where that begins to weigh."""
        ours = [e for e in hand.batch.ranges if self.owned.holds(e.tp, hand.tokens[e.tp])]
        weighed = self._pieces.weighed(ours)
        if not weighed or (hand.member is not None and self._commits.member() != hand.member):
            return
        with contextlib.suppress(FleetError):  # it is tried once, and for the next owner
            self._write([self._entry(tp, piece.start, piece) for tp, piece in weighed])

    def quarantine(self, tp: TopicPartition, offset: int, error: str, attempts: int) -> None:
        """Stop one partition, durably; the others go on [9]."""
        self.drop([tp])
        self.quarantined.add(tp)
        if start := self._starts.get(tp):  # who lifts it wants it tried as if for the first time
            self._starts[tp] = replace(start, begun=None)
        self._state.error = f"{tp} is quarantined at offset {offset}: {error}"
        self._events.log(self._state.error)
        self._events.emit("quarantined", partition=str(tp), offset=offset, error=error)
        self._poisoned(tp, offset, error, attempts)

    # --- commits ---------------------------------------------------------------------------

    def _plan(self) -> bool:
        """Make sure that the prepared batch's ends stand in its partitions' metadata [4]."""
        if self._planned:
            return True
        outcome = self._write_planned(())
        if outcome is Committed.VOID and self._prepared is not None:
            self.rewind([each.tp for each in self._prepared.ranges])
        return outcome is Committed.DONE and self._prepared is not None

    def _write_planned(self, finished: Iterable[Finished]) -> Committed:
        """Offsets with plans: the finished ends, and unchanged ones of the prepared batch."""
        plans = {r.tp: self._pieces.of(r) for r in self._prepared.ranges} if self._prepared else {}
        offsets = {tp: self._starts[tp].position for tp in plans if tp in self._starts}
        offsets.update({each.tp: each.end for each in finished})
        outcome = self._write(
            [self._entry(tp, offset, plans.get(tp)) for tp, offset in sorted(offsets.items())]
        )
        if outcome is Committed.DONE:
            self._planned = self._prepared is not None
        return outcome

    def commit_chosen(self, *, assigned: bool = True) -> None:
        """Commit positions that were chosen, one try [42]; they are read from then on.

        assigned: whether the client fetches them already (paused), so that it has to seek.
        """
        waiting = self.unsettled
        now = self._clock.monotonic()
        if not waiting or now < self._chosen.next_try:
            return
        due = self._chosen.due(waiting, self.owned, self._commits.member())
        outcome = self._write([self._entry(each.tp, each.end, None) for each in due])
        if outcome is not Committed.DONE:  # for as long as they are ours; void ones are lost soon
            self._chosen.next_try = now + _RETRY_PAUSE
            return
        kept = [each for each in due if each.tp not in self.gone]
        for each in kept:
            self._starts[each.tp] = start = self._starts[each.tp].moved(each.end)
            if self._chosen.committed(each.tp):
                self._begin_reading(start)
                if assigned:
                    self.seek(start)
        if kept:
            self._events.emit("began", offsets={str(each.tp): each.end for each in kept})

    def _commit_gaps(self) -> None:
        """Positions that moved over markers alone: no batch, but their lag shall read 0.

        Only while nothing is in hand or prepared: the position is then behind every record read.
        """
        gaps = self._reading.gaps()
        if not gaps:
            return
        entries = [self._entry(tp, end, None) for tp, (_, end) in sorted(gaps.items())]
        for tp, (_, end) in gaps.items():
            self._starts[tp] = self._starts[tp].moved(end)
        self._write(entries)  # where it fails, the partition's next commit is past it anyway

    def _entry(self, tp: TopicPartition, offset: int, piece: SuspectRange | None) -> KafkaPartition:
        return entry_of(self._starts[tp], offset, piece, self._revision)

    def _write(self, entries: list[KafkaPartition]) -> Committed:
        outcome, deleted = self._commits.write(entries)
        if deleted:
            self._forsake(deleted)
        return outcome

    def _forsake(self, tps: frozenset[TopicPartition]) -> None:
        """Their topic was deleted: nothing of it is read or committed until it is made again."""
        self.gone |= tps & self._starts.keys()
        self._chosen.drop(tps)
        self.drop(tps)
        for topic in sorted({tp.topic for tp in tps}):
            self._events.log(f"topic {topic} was deleted: what was read of it is not committed")
            self._events.emit("topic_deleted", topic=topic)

    def _note_commit(self, hand: DispatchedBatch, allowed: tuple[Finished, ...]) -> None:
        state = self._state
        for each in allowed:
            self._starts[each.tp] = self._starts[each.tp].moved(each.end)
            self._pieces.passed(each.tp, each.end)
        state.batches += 1
        state.unclean &= hand.cut  # one batch at a time: what was cut before it runs no more
        state.records += hand.records(allowed)
        offsets = {str(each.tp): each.end for each in allowed}
        self._events.emit("committed", offsets=offsets, generation=self._commits.generation())

    def generation(self) -> int | None:
        """The member's generation as librdkafka knows it; None where it is unknown."""
        return self._commits.generation()

    def cut_short(self, what: str) -> None:
        """Cancel the batch in hand, once: it has had the time that `what` gives it."""
        hand = self._in_hand
        if hand is not None and not hand.cut:
            hand.cut = self._state.unclean = True
            self.interrupt()
            self._events.log(f"{what} ran into drain_timeout: interrupting the batch")

    def interrupt(self) -> None:
        """Cancel the batch in hand: nobody waits for it any more."""
        if self.running:
            self._runner.interrupt(Why.VOID)
