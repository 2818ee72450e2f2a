"""Batches in order: plan, dispatch, commit, rewind. Lives on the consumer thread.

Problem: between the records that a batch was cut from and its commit, partitions may go, come
back, or belong to somebody else [2], and a successor has to find where the batch ended [4].
Choice: one object knows the batch in hand, the prepared one and the commit that is due; every
one of them carries the tokens of its partitions, compared right before each commit call. The
commit of batch k carries the planned ends of batch k+1 where that one is closed; otherwise an
extra commit of unchanged offsets does, before batch k+1 starts. Cost: 1-2 ms for that commit.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.worker.batch.batch_reader import BatchReader, Prepared
from fleet.worker.batch.batch_run import BatchDone, Damage, Why
from fleet.worker.batch.batches import InlineBatch
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.events import Events
from fleet.worker.member.backing_off import BackingOff
from fleet.worker.member.commits import Committed, Committer, entry_of
from fleet.worker.member.crash_search import SuspectRange, SuspectRanges, condemned, without
from fleet.worker.member.dispatched_batch import DispatchedBatch
from fleet.worker.member.member_state import MemberState
from fleet.worker.offsets.commit_metadata import Begun, Finished, Ownership, commitable
from fleet.worker.offsets.start_positions import Start, StartPositions

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
