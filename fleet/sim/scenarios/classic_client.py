"""A member of a classic group as librdkafka is one, with an eager or a cooperative assignor.

It notices a rebalance by a heartbeat. With an eager assignor it gives up everything before it
joins; with cooperative-sticky (KIP-429) it goes on, gives up what it has lost when the group is
synced, takes up what is new and joins again at once, so that what it gave up finds an owner.
JoinGroup is sent at most once a second, but at once after partitions were given up, after the
coordinator gave it an id, and for that second round. It heartbeats while it waits for the
application, and never while it joins. LeaveGroup is sent by dynamic members only.

Not modelled: that it gives up everything when its coordinator does not answer for a session.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from fleet.sim.assignors import (
    Assignor,
    ReportedMember,
    Shares,
    ranges,
    round_robin,
    sticky,
    withhold,
)
from fleet.sim.coordinator.requests import (
    UNKNOWN_MEMBER,
    ErrorCode,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fleet.sim.scenarios import coordinator_sides
from fleet.sim.scenarios.coordinator_sides import TOPIC
from fleet.sim.scenarios.simulated_client import GROUP, MOVED, ClientState, SimulatedClient

JOIN_EVERY_MS: Final = 1_000


def _cooperative(members: Sequence[ReportedMember], partitions: int) -> Shares:
    return withhold(members, sticky(members, partitions))


ASSIGNORS: Final[dict[str, Assignor]] = {
    "range": ranges,
    "roundrobin": round_robin,
    "sticky": sticky,
    "cooperative-sticky": _cooperative,
}
"""librdkafka has no sticky: Java's members have, and balance by rules of their own."""


class ClassicClient(SimulatedClient):
    """Simulates librdkafka's member of a classic group."""

    generation: int = -1
    _last: tuple[int, ...] | None = None
    """The last assignment, which a sticky member tells."""
    _last_generation: int = -1
    _joined_at: int | None = None
    _subscribed_at: int | None = None
    """Of a connected process: its first JoinGroup."""
    _beaten_at: int | None = None
    _beat: int = 0
    """Counts the times that heartbeats began: those of a former time stop."""

    @property
    def join_version(self) -> int:
        """Of JoinGroup: the newest that librdkafka speaks."""
        return 5

    @property
    def rebalance_timeout(self) -> int:
        """Milliseconds that the others wait for it in a round."""
        return self.scenario.max_poll_interval

    @property
    def is_cooperative(self) -> bool:
        """Whether it keeps its partitions while the group rebalances."""
        return self.scenario.protocol == "cooperative-sticky"

    def forget(self) -> None:
        """A new process knows nothing."""
        self.member_id, self.generation = UNKNOWN_MEMBER, -1
        self._last, self._last_generation = None, -1
        self._joined_at = self._subscribed_at = self._beaten_at = None

    # The application.

    def poll(self) -> None:
        """What waited for it goes on."""
        if self.state in {ClientState.REVOKING, ClientState.OUT}:
            self.give_up(self.owned)
            self.join()

    def resubscribe(self) -> None:
        """The same subscription is no news to a classic member."""

    def drift(self, by: int) -> None:
        """Its heartbeats begin anew; nothing where it has none."""
        self.shift_ticks(by)
        if self.state is ClientState.STEADY and self._beaten_at is not None:
            self._beaten_at -= by
            if self._beaten_at + self.scenario.heartbeat_interval < self.place.now:
                self._beaten_at += self.scenario.heartbeat_interval
            self._beat += 1
            self._heartbeat_later(self._beat)

    def poll_interval_over(self) -> None:
        """A dynamic member leaves, any forgets its id."""
        self.place.tell(self.number, "exceeds max.poll.interval.ms")
        self.leave()
        self.member_id, self.generation = UNKNOWN_MEMBER, -1
        self.give_up(self.owned)
        self.become(ClientState.OUT)

    def close(self) -> None:
        """A cooperative member without partitions sends no LeaveGroup at its end.

        Seen in librdkafka 2.16 with real members: its group waits for the session timeout.
        """
        if self.is_cooperative and not self.owned and self.state is not ClientState.DOWN:
            self.end("closes without a word")
        else:
            super().close()

    def leave(self) -> None:
        """A static member is expected back."""
        if self.instance is None and self.member_id:
            who = MemberIdentity(self.member_id, None)
            self.place.send(self, LeaveGroupRequest(GROUP, (who,)))

    # Joining.

    def join(self) -> None:
        """Sends a JoinGroup at once."""
        self.become(ClientState.JOINING)
        if self._joined_at is None and self.scenario.connected:
            self._subscribed_at = self.place.now
        self._joined_at = self.place.now
        self.place.send(
            self,
            JoinGroupRequest(
                GROUP,
                self.member_id,
                self.instance,
                (JoinGroupProtocol(self.scenario.protocol, self._told),),
                session_timeout_ms=self.scenario.session_timeout,
                rebalance_timeout_ms=self.rebalance_timeout,
                version=self.join_version,
            ),
        )

    @property
    def _told(self) -> bytes:
        if self.scenario.protocol in {"range", "roundrobin"}:
            return coordinator_sides.subscription()
        owned = self.owned if self.is_cooperative else self._last or ()
        return coordinator_sides.subscription(owned, self._last_generation, self._last)

    def _join_in_turn(self) -> None:
        """JoinGroup, a second after the last one at the earliest."""
        self.become(ClientState.JOINING)
        last = self._joined_at if self._joined_at != self._subscribed_at else None
        due = 0 if last is None else last + JOIN_EVERY_MS
        if self.place.now > due:
            self.join()
        else:
            self.later(self.until_awake(due + 1), self._if_still_joining(self.join))

    def _if_still_joining(self, action: Callable[[], None]) -> Callable[[], None]:
        joined_at = self._joined_at

        def acted() -> None:
            if self.state is ClientState.JOINING and self._joined_at == joined_at:
                action()

        return acted

    def _rejoin(self, *, lost: bool) -> None:
        """The group rebalances, or no longer knows this member."""
        if self.is_cooperative and not lost:
            self._join_in_turn()
        elif not self.owned:
            self.join()
        elif self.polls:
            self.give_up(self.owned)
            self.join()
        else:
            self.become(ClientState.REVOKING)

    # Answers.

    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""
        match answer:
            case JoinGroupResponse() if self.state is ClientState.JOINING:
                self._joined(answer)
            case SyncGroupResponse() if self.state is ClientState.JOINING:
                self._synced(answer)
            case HeartbeatResponse() if self.state is ClientState.STEADY:
                if answer.error_code and answer.error_code not in MOVED:
                    self._refused(answer.error_code)

    def _refused(self, code: int) -> None:
        """A heartbeat's answer."""
        if not self._forgot(code):
            return
        self._rejoin(lost=code != ErrorCode.REBALANCE_IN_PROGRESS)

    def _forgot(self, code: int) -> bool:
        """What an error makes it forget; False where it is the end."""
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self.end("is fenced by another process with its instance id")
            return False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = UNKNOWN_MEMBER
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = -1
        return True

    def _joined(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.join()
            return
        if answer.error_code:
            self._not_synced(answer.error_code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        if answer.members:  # the leader asks for the topic's partitions before it assigns
            self.later(self.place.trip(), self._if_still_joining(lambda: self._sync(answer)))
        else:
            self._sync(answer)

    def _sync(self, answer: JoinGroupResponse) -> None:
        given: Shares = {}
        if answer.members:
            claims = [coordinator_sides.claimed(*each) for each in answer.members]
            given = ASSIGNORS[self.scenario.protocol](claims, self.scenario.partitions)
        self.place.send(
            self,
            SyncGroupRequest(
                GROUP,
                self.generation,
                self.member_id,
                self.instance,
                protocol_name=answer.protocol_name,
                assignments=tuple(
                    SyncGroupAssignment(name, coordinator_sides.assignment(of))
                    for name, of in given.items()
                ),
            ),
        )

    def _not_synced(self, code: int) -> None:
        if code in MOVED:  # what it owns is its own; it asks again, of whoever coordinates then
            self._join_in_turn()
            return
        if not self._forgot(code):
            return
        if self.is_cooperative and code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin(lost=True)
        else:
            self._join_in_turn()

    def _synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code:
            self._not_synced(answer.error_code)
            return
        of = coordinator_sides.assigned(answer.assignment)
        self._last, self._last_generation = of, self.generation
        self.place.tell(self.number, f"generation {self.generation}: {len(of)} partitions")
        revoked = tuple(p for p in self.owned if p not in of)
        self.become(ClientState.STEADY)
        self.give_up(revoked)
        self.take(of)
        self._begin_heartbeats()
        if revoked:
            self.later(self.scenario.rejoins_after, self._join_after(self.generation))

    def _join_after(self, generation: int) -> Callable[[], None]:
        """The second round, for what it gave up."""

        def acted() -> None:
            if self.state is ClientState.STEADY and self.generation == generation:
                self.join()

        return acted

    # Heartbeats.

    def _begin_heartbeats(self) -> None:
        """One is due an interval after the last, were it before the rebalance."""
        self._beat += 1
        self._heartbeat_later(self._beat)

    def _heartbeat_later(self, beat: int) -> None:
        due = self.place.now
        if self._beaten_at is not None:
            due = max(due, self._beaten_at + self.scenario.heartbeat_interval)
        wait = self.until_awake(due) if due > self.place.now else 0
        self.later(wait, lambda: self._heartbeat(beat))

    def _heartbeat(self, beat: int) -> None:
        if beat == self._beat and self.state in {ClientState.STEADY, ClientState.REVOKING}:
            self._beaten_at = self.place.now
            request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance)
            self.place.send(self, request)
            self._heartbeat_later(beat)


# A member of a classic group as Java's consumer was before KIP-62 (0.9, 0.10.0) and with it.
#
# Problem: what KIP-62 bought is a number only beside members that lack it. Choice: the states and
# moves of `ClientState`, told apart by `Scenario.client`:
#
# - `java-0.10.0` does everything within poll(): while the application is at a batch, no heartbeat
#   goes out and no answer is read. A batch longer than the session gets the member expelled, which
#   it hears when it commits. JoinGroup is version 0, so the session is the rebalance timeout, too.
# - `java-0.10.1` heartbeats from a thread that is only stopped while it joins, and that sends
#   LeaveGroup where the application is at one batch for longer than max.poll.interval.ms, or the
#   session where that is longer. JoinGroup is version 1: that time is the rebalance timeout.
#
# Both end a batch with a commit that waits for its answer. Where it is refused the batch was done
# in vain; the member gives up its partitions and joins again. A heartbeat is due an interval after
# the assignment or the last one, so that members of one round heartbeat together; who is refused
# joins again at once, or after `retry.backoff.ms` where the coordinator has moved.
#
# Cost: an eager assignor only, no static members (KIP-429 and KIP-345 came later). Not modelled:
# that 0.10.0 looks for its coordinator anew after a session without a heartbeat, and commits that
# a timer sends. That JoinGroup's leader asks for partitions first is librdkafka's, and takes a
# round trip.


RETRY_MS: Final = 100
"""retry.backoff.ms"""
LATE_MS: Final = 1
"""Of each heartbeat, since what sends it sleeps whole milliseconds. Taken from reading, not
measured; without it a session of ten heartbeats would end in the middle of the others' tenth."""
_JOINS: Final = frozenset({ClientState.CONNECTING, ClientState.JOINING})
"""The application is within poll(), which returns with records only once it has joined."""


class JavaClient(ClassicClient):
    """Simulates Java's member of a classic group, before and after KIP-62."""

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
