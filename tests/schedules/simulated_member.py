"""A member's thread: a classic consumer that works on batches, drains, closes, as ours does.

Problem: the membership's own thread blocks inside librdkafka. Choice: the same steps as callbacks
(join, sync, heartbeat, revoke, work, commit), with our own rules for what may be committed, for
positions that nobody committed yet, and for when a drain is over. Cost: assignor range only; one
partition's failure, quarantine and Spark itself are left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fleet.model import TopicPartition
from fleet.sim.coordinator.requests import (
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from fleet.slots import Phase
from fleet.worker.member.assigning import Partitions, Start
from fleet.worker.member.member_state import End, MembershipEnd
from fleet.worker.member.membership import Draining, is_drained
from fleet.worker.member.protocols import FENCED, RETRIED
from fleet.worker.slot.slot_life import Life
from tests.schedules.simulated_broker import GROUP, Fetch, SimulatedBroker
from tests.schedules.simulated_group_side import GroupSide, Times
from tests.schedules.simulated_time import Process
from tests.schedules.simulated_topic import SimulatedTopic, Work, tp_of

MOST = 40
"""Records of a batch and partition."""


class Hand(NamedTuple):
    """A batch in hand."""

    works: tuple[Work, ...]
    tokens: dict[TopicPartition, int]
    member: str


class SimulatedMember(GroupSide):
    """One membership; `ended` is set when it is over."""

    def __init__(
        self,
        process: Process,
        broker: SimulatedBroker,
        topic: SimulatedTopic,
        *,
        instance: str | None,
        times: Times,
        open_at: float,
        may_join: Callable[[], bool | None],
        changed: Callable[[], None],
        rest: Callable[[], None],
        begins: Callable[["SimulatedMember", Work], None],
    ) -> None:
        super().__init__(process, broker, topic, instance=instance, times=times, changed=changed)
        self.hand: Hand | None = None
        self._begins = begins
        self._open_at = open_at
        self._may_join = may_join
        self._rest = rest
        self._owned = Partitions()
        self._at: dict[int, int] = {}
        """Partition → where its next batch begins."""
        self._draining = Draining(self.state, timeout=times.drain)
        self._commit_out = False
        self._done_at: float | None = None
        self._next_batch = 0.0

    # --- asked by the owner ------------------------------------------------------------------

    def start(self) -> None:
        """Join when `open_at` has come."""
        ahead = max(0.0, self._open_at - self.process.now())
        self.process.later(ahead + 0.03 * self.process.world.random.random(), self._enter)

    def join(self, timeout: float) -> bool:
        """Wait until something happens; whether its end has."""
        del timeout  # a tick of the product: too many for a schedule
        if self.ended is None:
            self._rest()
        return self.ended is not None

    def expect_change(self, why: str, at: float) -> None:
        """A classic member hears of a change by its heartbeats."""

    def _enter(self) -> None:
        """As Membership._subscribe."""
        self.process.start(self._confirm)

    def _confirm(self) -> None:
        while self.ended is None and (ours := self._may_join()) is not True:
            if ours is False or self._draining.then is Life.CLOSING:
                self._close(End.CLOSED, "closed")
            else:
                self.process.sleep(1.0)
        self._subscribe()

    def become(self, life: Life) -> None:
        """As Membership.become."""
        if self.ended is not None:
            return
        if life is Life.LOST:
            self._lose("aborted")
            self._close(End.CLOSED, "closed")
        elif life is Life.SERVING:
            self.state.asked_to_drain = False
            self._draining.take_back()
            self._work()
        else:
            self.state.asked_to_drain |= life is not Life.REJOINING
            self._begin_drain(life)

    def _begin_drain(self, then: Life) -> None:
        if self._draining.then is not Life.CLOSING:
            if self._draining.then is Life.STILL and then is Life.CLOSING:
                self._close(End.CLOSED, "closed")
                return
            self._draining.begin(then, self.process.monotonic())
            if then is Life.STILL and self.hand is None:
                self.state.phase = Phase.CLOSED
        if self.state.joined_at is None and then is Life.CLOSING:
            self._close(End.CLOSED, "closed")
            return
        self._work()

    # --- partitions ---------------------------------------------------------------------------

    def _ask_positions(self, partitions: tuple[int, ...]) -> None:
        """Committed offsets, and for what has none the end: `start_from: latest`."""
        topic = self.topic

        def look() -> dict[int, tuple[int | None, int]]:
            now = self.broker.world.now
            return {p: (topic.committed.get(p), topic.end(p, now)) for p in partitions}

        def hears(answer: Any) -> None:
            if answer is None:
                self._later(0.2, lambda: self._ask_positions(partitions))
                return
            for partition, (committed, end) in answer.items():
                self._begin(partition, committed, end)
            self.state.assigned = True
            self._next_batch = 0.0
            self._work()

        self._send(Fetch(look), hears)

    def _begin(self, partition: int, committed: int | None, end: int) -> None:
        start = Start(
            tp=tp_of(partition),
            topic_id="t",
            position=end if committed is None else committed,
            committed=committed,
        )
        self._owned.gain(start, member=self.member_id, reads=True)
        if not start.is_chosen:
            self._at[partition] = start.position

    def _lose(self, why: str) -> None:
        """Nothing is ours any more; what runs is void."""
        if self.hand is not None:
            for work in self.hand.works:
                work.void = why
            self.hand = None
        self._owned.lose(tuple(self._owned.all))
        self._at.clear()
        self.state.partitions = frozenset()
        self._commit_out = False
        self._joined = False
        self._turn += 1

    # --- work -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Whatever is due now."""
        if self.ended is not None or not self._joined:
            unread = {Life.CLOSING, Life.HOLDING, Life.SERVING}
            if self.ended is None and self._draining.then in unread and not self.hand:
                self._drained()
            return
        now = self.process.monotonic()
        self._commit_chosen()
        if self.hand is not None:
            self._settle(now)
            return
        if self._revoke_by is not None:
            uncommitted = bool(self._owned.waiting(()))
            if is_drained(busy=False, uncommitted=uncommitted, in_time=now < self._revoke_by):
                self._lose("revoked")
                self._join()
            else:
                self._later(0.25, self._work)
        elif self._draining.then is not None:
            uncommitted = bool(self._owned.waiting(()))
            if self._draining.is_over(now, busy=False, uncommitted=uncommitted):
                self._drained()
            else:
                self._later(0.25, self._work)
        else:
            self._take(now)

    def _drained(self) -> None:
        then = self._draining.then
        if then is Life.CLOSING:
            self._close(End.CLOSED, "closed")
        elif then is Life.HOLDING and self.state.phase is not Phase.DRAINED:
            self.state.phase = Phase.DRAINED
            self._changed()
        elif then is Life.STILL and self.state.phase is not Phase.CLOSED:
            self.state.phase = Phase.CLOSED
            self._changed()
        elif then is Life.REJOINING:
            self._leave()
            self._lose("revoked")
            self._draining.end()
            self.member_id = ""
            self.state.phase = Phase.JOINING
            self._later(0.02, self._enter)
        elif then is Life.SERVING:
            self._draining.end()
            self._rewind()
            self._work()

    def _rewind(self) -> None:
        """As Pipeline.rewind: from what is committed, with new tokens."""
        for partition, at in self._at.items():
            start = self._owned.all[tp_of(partition)].start.moved(at)
            self._owned.gain(start, member=self.member_id, reads=True)

    def _take(self, now: float) -> None:
        rng, topic = self.process.world.random, self.topic
        if now < self._next_batch:
            return
        works = []
        for partition, start in sorted(self._at.items()):
            end = min(topic.end(partition, self.process.world.now), start + MOST)
            if end > start:
                works.append(Work(partition, start, end, self.process))
        self._next_batch = now + 2.0 + 2.0 * rng.random()
        self._later(self._next_batch - now + 0.001, self._work)
        if not works:
            if self.state.phase is Phase.JOINING and not self._owned.waiting(()):
                self.state.phase = Phase.ACTIVE
                self._changed()
            return
        for work in works:
            self._begins(self, work)
        tokens = self._owned.tokens(tp_of(w.partition) for w in works)
        self.hand = Hand(tuple(works), tokens, self.member_id)
        self._done_at = None
        lasts = 0.2 + 0.8 * rng.random() if rng.random() < 0.9 else 2.5
        hand = self.hand
        self.process.later(lasts, lambda: self._through(hand))

    def _through(self, hand: Hand) -> None:
        """The entrypoint has returned."""
        if self.ended is None and self.hand is hand:
            self._done_at = self.process.monotonic()
            for work in hand.works:
                work.done = True
            self._work()

    def _settle(self, now: float) -> None:
        """Commit the batch that is done; cut it short where a drain lasts too long."""
        hand = self.hand
        assert hand is not None
        if self._done_at is None:
            draining = self._revoke_by is not None or self._draining.then is not None
            if self._revoke_by is not None:
                late = now >= self._revoke_by
            else:
                late = draining and self._draining.is_late(now)
            busy = not self._draining.is_over(now, busy=True, uncommitted=False)
            if draining and (late or not busy):
                self.state.unclean = late
                for work in hand.works:
                    work.void = "cut short" if late else None
                self.hand = None
                self._work()
            elif draining:
                self._later(0.25, self._work)
            return
        if self._commit_out:
            return
        allowed = self._owned.commitable(
            hand.tokens, member_then=hand.member, member_now=self.member_id
        )
        if not allowed:
            self.hand = None
            self._work()
            return
        self._commit(
            [(w.partition, w.end) for w in hand.works if tp_of(w.partition) in allowed],
            lambda code: self._told(hand, code),
        )

    def _told(self, hand: Hand, code: int) -> None:
        if self.hand is not hand:
            return
        if code in RETRIED:
            self._later(0.25, self._work)
            return
        self.hand = None
        if code == FENCED:
            self._refused(code)
            return
        for work in hand.works:
            if code:
                work.void = f"its commit was answered with {code}"
            else:
                work.committed = True
                self._at[work.partition] = work.end
        if not code:
            self.state.batches += 1
            self.state.unclean = False
            if self.state.phase is Phase.JOINING:
                self.state.phase = Phase.ACTIVE
            self._changed()
        self._work()

    def _commit_chosen(self) -> None:
        waiting = self._owned.waiting(())
        if not waiting or self._commit_out:
            return
        due = self._owned.due(waiting, self.member_id)

        def told(code: int) -> None:
            if code in RETRIED:
                self._later(0.25, self._work)
                return
            if not code:
                self._owned.settle(due)
                self._at |= {tp.partition: at for tp, at in due.items() if tp in self._owned.all}
                self._next_batch = 0.0
            self._work()

        if due:
            self._commit([(tp.partition, at) for tp, at in due.items()], told)

    def _commit(self, offsets: list[tuple[int, int]], told: Callable[[int], None]) -> None:
        self._commit_out = True
        parts = tuple(OffsetCommitPartition(p, end) for p, end in offsets)
        request = OffsetCommitRequest(
            GROUP,
            self.generation,
            self.member_id,
            self.instance,
            (OffsetCommitTopic("orders", parts),),
        )

        def hears(answer: Any) -> None:
            self._commit_out = False
            told(7 if answer is None else answer.error_code)

        self._send(request, hears)

    # --- its end --------------------------------------------------------------------------------

    def _leave(self) -> None:
        who = MemberIdentity(self.member_id, self.instance)
        self.broker.send(self.process, LeaveGroupRequest(GROUP, (who,)), lambda _: None)

    def _close(self, how: End, sentence: str) -> None:
        if self.instance is None and self.member_id and how is End.CLOSED:
            self._leave()
        clean = self.hand is None and not self.state.unclean
        self.state.partitions = frozenset()
        self.ended = MembershipEnd(how=how, sentence=sentence, clean=clean)
        self._changed()
