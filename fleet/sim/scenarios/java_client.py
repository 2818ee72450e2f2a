"""A member of a classic group as Java's consumer was before KIP-62 (0.9, 0.10.0) and with it.

Problem: what KIP-62 bought is a number only beside members that lack it. Choice: the states and
moves of `ClientState`, told apart by `Scenario.client`:

- `java-0.10.0` does everything within poll(): while the application is at a batch, no heartbeat
  goes out and no answer is read. A batch longer than the session gets the member expelled, which
  it hears when it commits. JoinGroup is version 0, so the session is the rebalance timeout, too.
- `java-0.10.1` heartbeats from a thread that is only stopped while it joins, and that sends
  LeaveGroup where the application is at one batch for longer than max.poll.interval.ms, or the
  session where that is longer. JoinGroup is version 1: that time is the rebalance timeout.

Both end a batch with a commit that waits for its answer. Where it is refused the batch was done in
vain; the member gives up its partitions and joins again. A heartbeat is due an interval after the
assignment or the last one, so that members of one round heartbeat together; who is refused joins
again at once, or after `retry.backoff.ms` where the coordinator has moved.

Cost: an eager assignor only, no static members (KIP-429 and KIP-345 came later). Not modelled: that
0.10.0 looks for its coordinator anew after a session without a heartbeat, and commits that a timer
sends. That JoinGroup's leader asks for partitions first is librdkafka's, and takes a round trip.
"""

from typing import Any, Final

from fleet.sim.coordinator.requests import (
    UNKNOWN_MEMBER,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    SyncGroupResponse,
)
from fleet.sim.scenarios.classic_client import ClassicClient
from fleet.sim.scenarios.member_blobs import TOPIC
from fleet.sim.scenarios.simulated_client import GROUP, MOVED, ClientState

RETRY_MS: Final = 100
"""retry.backoff.ms"""
LATE_MS: Final = 1
"""Of each heartbeat, since what sends it sleeps whole milliseconds. Taken from reading, not
measured; without it a session of ten heartbeats would end in the middle of the others' tenth."""
_JOINS: Final = frozenset({ClientState.CONNECTING, ClientState.JOINING})
"""The application is within poll(), which returns with records only once it has joined."""


class JavaClient(ClassicClient):
    """See the module."""

    _commits: bool = False
    """The batch is done, and whether it counts is not known yet."""
    _batch: int = 0
    """Milliseconds of a batch that begins once it has joined."""
    _unread: tuple[Any, ...] = ()
    """Answers that came while nobody was within poll()."""

    @property
    def has_thread(self) -> bool:
        """Whether heartbeats go out in the background (KIP-62)."""
        return self.scenario.client == "java-0.10.1"

    @property
    def join_version(self) -> int:
        """Of JoinGroup; both are given their id with the answer."""
        return 1 if self.has_thread else 0

    @property
    def rebalance_timeout(self) -> int:
        """Milliseconds; what the coordinator makes of version 0, which has none, is the session."""
        session = self.scenario.session_timeout
        return max(session, self.scenario.max_poll_interval) if self.has_thread else session

    @property
    def polls(self) -> bool:
        """A commit that waits for its answer is not within poll()."""
        return super().polls and not self._commits

    @property
    def is_settled(self) -> bool:
        """It has what it was given, and its last batch counts or not."""
        return super().is_settled and not self._commits

    def forget(self) -> None:
        """A new process knows nothing."""
        super().forget()
        self._commits, self._batch, self._unread = False, 0, ()

    # The application.

    def slow(self, lasts: int) -> None:
        """A batch that takes so long; a join or a commit that is under way comes first."""
        if self.state in _JOINS or self._commits:
            self._batch = lasts
        else:
            super().slow(lasts)

    def _begin_batch(self) -> None:
        if self.state is ClientState.STEADY and self._batch:
            lasts, self._batch = self._batch, 0
            super().slow(lasts)

    def until_poll_is_overdue(self) -> int | None:
        """The thread looks all the time; without it nobody does."""
        return self.rebalance_timeout if self.has_thread else None

    def poll_interval_over(self) -> None:
        """The thread leaves; the application hears of it when it commits."""
        self.place.tell(self.number, "exceeds max.poll.interval.ms")
        self.leave()
        self.member_id, self.generation = UNKNOWN_MEMBER, -1
        self.become(ClientState.OUT)

    def poll(self) -> None:
        """The batch is done: it is committed first."""
        if self.owned and self.generation >= 0:
            self._commits = True
            self._commit()
        else:
            if self.owned:
                self.lose_batch()
            self._polled()

    def _commit(self) -> None:
        partitions = tuple(OffsetCommitPartition(each, 0) for each in self.owned)
        topics = (OffsetCommitTopic(TOPIC, partitions),)
        self.place.send(
            self,
            OffsetCommitRequest(GROUP, self.generation, self.member_id, None, topics, version=2),
        )

    def _committed(self, answer: OffsetCommitResponse) -> None:
        code = answer.error_code
        if code in MOVED:
            self.later(RETRY_MS, self._commit)
            return
        self._commits = False
        if code:
            self.place.tell(self.number, f"may not commit its batch (error {code})")
            self.lose_batch()
            self._forgot(code)
        self._polled()

    def _polled(self) -> None:
        """Within poll() again: it joins where it has to, or goes on as before the batch."""
        unread, self._unread = self._unread, ()
        if self.generation < 0 or self.state in {ClientState.REVOKING, ClientState.OUT}:
            self.give_up(self.owned)
            self.join()
            return
        for each in unread:
            super().receive(each)
        if self.state is ClientState.STEADY and not self.has_thread:
            super()._begin_heartbeats()
        self._begin_batch()

    # Answers.

    def receive(self, answer: Any) -> None:
        """An answer of the coordinator; without a thread the next poll reads it."""
        if isinstance(answer, OffsetCommitResponse):
            self._committed(answer)
        elif self.has_thread or self.polls:
            super().receive(answer)
        else:
            self._unread = (*self._unread, answer)

    def _synced(self, answer: SyncGroupResponse) -> None:
        super()._synced(answer)
        self._begin_batch()

    def _not_synced(self, code: int) -> None:
        self._forgot(code)
        if code in MOVED:
            self.later(RETRY_MS, self._if_still_joining(self.join))
        else:
            self.join()

    # Heartbeats.

    def until_awake(self, at: int) -> int:
        """No timers of a main loop to wait for."""
        return max(0, at - self.place.now) + LATE_MS

    def _begin_heartbeats(self) -> None:
        """The first is due an interval after the assignment."""
        self._beaten_at = self.place.now
        super()._begin_heartbeats()

    def _heartbeat(self, beat: int) -> None:
        """Without a thread a batch keeps it waiting; who is out of the group sends none."""
        if self.generation >= 0 and (self.has_thread or self.polls):
            super()._heartbeat(beat)
