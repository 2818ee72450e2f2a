"""A consumer's process as librdkafka is one: when it starts, polls, wakes and ends.

Problem: what a rebalance costs is decided as much by when members heartbeat, revoke and poll as
by the coordinator. Choice: one object per process, with librdkafka's main loop in it: it wakes
every second from its start and twice a second from its last assignment, and only then sees that a
heartbeat is due; a heartbeat is due one interval after the last one, whatever happened since.
So members notice a rebalance apart from each other. Cost: what else
wakes the loop (answers of fetches and commits) is left out; a poll takes no time but for `slow`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import FleetError
from fleet.sim.coordinator.requests import ErrorCode, MemberIdentity
from fleet.sim.scenarios.group_scenario import GROUP, Scenario

if TYPE_CHECKING:
    from fleet.sim.scenarios.play import ScenarioRun
from collections.abc import Sequence

from fleet.sim.assignors import (
    Assignor,
    ReportedMember,
    Shares,
    ranges,
    round_robin,
    sticky,
    withhold,
)
from fleet.sim.coordinator.consumer_group import AWAY, LEFT
from fleet.sim.coordinator.requests import (
    UNKNOWN_MEMBER,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicPartitions,
)
from fleet.sim.scenarios import coordinator_sides
from fleet.sim.scenarios.coordinator_sides import TOPIC, TOPIC_ID

TICK_MS: Final = (1_000, 500)
"""librdkafka's timers: of its connections, from the start on; of max.poll.interval.ms, from each
assignment on."""
LATE_US: Final = 600
"""Microseconds by which each tick comes later than its timer says, since the loop sleeps whole
milliseconds and the next tick is set when this one is served. Measured: 0.5 to 0.7 ms."""


class ClientState(StrEnum):
    """What a member's process is at.

    DOWN: no process. CONNECTING: it looks for its coordinator. JOINING: JoinGroup or SyncGroup is
    out, or the first heartbeat of KIP-848. STEADY: it is a member and heartbeats. REVOKING: it has
    to give up partitions, and the application has yet to poll. OUT: it has left after
    max.poll.interval.ms and joins at the next poll.

    DOWN starts as CONNECTING and joins when it has a coordinator. JOINING becomes STEADY by an
    assignment, and joins again where it is refused. STEADY becomes REVOKING, or JOINING where the
    application polls; it is OUT where it does not poll at all. REVOKING and OUT go on at the next
    poll. Any may end as DOWN.
    """

    DOWN = "down"
    CONNECTING = "connecting"
    JOINING = "joining"
    STEADY = "steady"
    REVOKING = "revoking"
    OUT = "out"


MOVED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The coordinator is looked up anew; the member works on."""
LOOK_UP_EVERY_MS: Final = 500
"""While there is none: librdkafka's pace."""
CLIENT_MOVES: Final[Mapping[ClientState, frozenset[ClientState]]] = {
    ClientState.DOWN: frozenset({ClientState.CONNECTING}),
    ClientState.CONNECTING: frozenset({ClientState.DOWN, ClientState.JOINING}),
    ClientState.JOINING: frozenset({*ClientState} - {ClientState.CONNECTING}),
    ClientState.STEADY: frozenset({*ClientState} - {ClientState.CONNECTING}),
    ClientState.REVOKING: frozenset({*ClientState} - {ClientState.CONNECTING}),
    ClientState.OUT: frozenset({ClientState.DOWN, ClientState.JOINING}),
}
"""State → where it may lead; JOINING to JOINING where a join is refused."""


class SimulatedClient(ABC):
    """See the module; `number` stays over restarts, `life` counts them."""

    member_id: str = ""
    busy_until: int = 0
    """The application polls again then; before that it polls all the time."""
    duplicates: int = 0
    """Batches done in vain, in all its lives: when they ended they were another's to do."""
    _duplicate_until: int = 0
    """When the last of them ended: each counts once."""

    def __init__(self, number: int, scenario: Scenario, place: "ScenarioRun") -> None:
        self.number, self.scenario, self.place = number, scenario, place
        self.state = ClientState.DOWN
        self.life = 0
        self.owned: tuple[int, ...] = ()
        self._ticks: list[int] = [0, 0]
        """When each of TICK_MS began."""

    @property
    def client_id(self) -> str:
        """Its client.id, by which a coordinator names dynamic members."""
        return f"member-{self.number:05d}"

    @property
    def instance(self) -> str | None:
        """Its group.instance.id; sorts by number."""
        return self.client_id if self.scenario.static else None

    @property
    def identity(self) -> MemberIdentity:
        """As an administrator names it, to take it out."""
        if self.instance is not None:
            return MemberIdentity(group_instance_id=self.instance)
        return MemberIdentity(self.member_id)

    @property
    def is_settled(self) -> bool:
        """A member that has what it was given, and nothing to do."""
        return self.state is ClientState.STEADY and self.busy_until <= self.place.now

    # What is done to it.

    def start(self) -> None:
        """A new process; nothing where one runs."""
        if self.state is ClientState.DOWN:
            self.life += 1
            self.busy_until = 0
            self._ticks = [self.place.now, self.place.now]
            self.place.tell(self.number, "starts")
            self.forget()
            self.become(ClientState.CONNECTING)
            self.later(self.place.connecting(), self.join)

    def close(self) -> None:
        """A proper end: what a member says then, it says."""
        if self.state is not ClientState.DOWN:
            self.leave()
            self.end("closes")

    def crash(self) -> None:
        """The process is gone without a word."""
        if self.state is not ClientState.DOWN:
            self.end("crashes")

    def slow(self, lasts: int) -> None:
        """The application does not poll for so long."""
        if self.state is ClientState.DOWN:
            return
        self.place.tell(self.number, f"does not poll for {lasts} ms")
        until = self.place.now + lasts
        if until <= self.busy_until:
            return  # it is at a longer batch
        self.busy_until = until
        self.later(lasts, self._batch_ends)
        looked = self.until_poll_is_overdue()
        if looked is not None and lasts > looked:
            self.later(looked, self._poll_is_overdue)

    def _batch_ends(self) -> None:
        if self.place.now == self.busy_until:
            self.poll()

    def _poll_is_overdue(self) -> None:
        if self.state is not ClientState.OUT:
            self.poll_interval_over()

    def until_poll_is_overdue(self) -> int | None:
        """Milliseconds until max.poll.interval.ms is seen to be over; None: nobody looks."""
        over = self.place.now + self.scenario.max_poll_interval
        return _tick_at(self._ticks[1], TICK_MS[1], over) - self.place.now

    def lose_batch(self) -> None:
        """What the application is at, or was until now, has to be done again."""
        if self._duplicate_until != self.busy_until:
            self._duplicate_until = self.busy_until
            self.duplicates += 1

    # What each protocol does in its own way.

    @abstractmethod
    def forget(self) -> None:
        """A new process knows nothing."""

    @abstractmethod
    def join(self) -> None:
        """Ask to be a member."""

    @abstractmethod
    def leave(self) -> None:
        """Say that it goes, as far as a member of its kind does."""

    @abstractmethod
    def poll(self) -> None:
        """The application polls again."""

    @abstractmethod
    def poll_interval_over(self) -> None:
        """max.poll.interval.ms is over, and it did not poll."""

    @abstractmethod
    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""

    @abstractmethod
    def resubscribe(self) -> None:
        """Subscribe to the same again."""

    @abstractmethod
    def drift(self, by: int) -> None:
        """Its timers come earlier by so many ms, its next heartbeat later where it would be past.

        Less than a heartbeat interval.
        """

    # What they share.

    def become(self, state: ClientState) -> None:
        """Change the state. Raises FleetError for a move that CLIENT_MOVES does not have."""
        if state not in CLIENT_MOVES[self.state]:
            allowed = ", ".join(sorted(CLIENT_MOVES[self.state]))
            raise FleetError(
                f"member {self.number} is {self.state} and cannot become {state} (allowed: "
                f"{allowed}); this is a bug of the model"
            )
        self.state = state

    def end(self, how: str) -> None:
        """The process is gone."""
        self.place.tell(self.number, how)
        self.become(ClientState.DOWN)
        self.give_up(self.owned)

    def take(self, partitions: Iterable[int]) -> None:
        """The application is told to process these, too."""
        new = tuple(p for p in partitions if p not in self.owned)
        self._ticks[1] = self.place.now
        self.owned = tuple(sorted((*self.owned, *new)))
        self.place.own(self.number, new)

    def give_up(self, partitions: Iterable[int]) -> None:
        """The application is told that these are gone."""
        gone = frozenset(partitions)
        self.owned = tuple(p for p in self.owned if p not in gone)
        if gone:
            self.place.disown(self.number, gone)
            if self.place.now < self.busy_until and self.state is not ClientState.DOWN:
                self.lose_batch()

    @property
    def polls(self) -> bool:
        """Whether the application hears what it is told."""
        return self.place.now >= self.busy_until

    def later(self, delay: int, action: Callable[[], None]) -> None:
        """Later on in this life."""
        life = self.life

        def acted() -> None:
            if self.life == life and self.state is not ClientState.DOWN:
                action()

        self.place.after(delay, acted)

    def shift_ticks(self, by: int) -> None:
        """Those of its main loop, earlier by so many ms."""
        self._ticks = [began - by for began in self._ticks]

    def until_awake(self, at: int) -> int:
        """Milliseconds from now to the first wake of the main loop at that time or after."""
        found = (_tick_at(began, tick, at) for began, tick in self._wakes())
        return max(0, min(found) - self.place.now)

    def _wakes(self) -> Iterable[tuple[int, int]]:
        return zip(self._ticks, TICK_MS, strict=True)


def _tick_at(began: int, tick: int, at: int) -> int:
    """The first tick of a timer at that time or after."""
    period = tick * 1000 + LATE_US
    return began + -(-max(0, at - began) * 1000 // period) * period // 1000


# A member of a classic group as librdkafka is one, with an eager or a cooperative assignor.
#
# It notices a rebalance by a heartbeat. With an eager assignor it gives up everything before it
# joins; with cooperative-sticky (KIP-429) it goes on, gives up what it has lost when the group is
# synced, takes up what is new and joins again at once, so that what it gave up finds an owner.
# JoinGroup is sent at most once a second, but at once after partitions were given up, after the
# coordinator gave it an id, and for that second round. It heartbeats while it waits for the
# application, and never while it joins. LeaveGroup is sent by dynamic members only.
#
# Not modelled: that it gives up everything when its coordinator does not answer for a session.


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
        if code in MOVED:  # what it owns is its own; it asks the next coordinator
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


# A member of a KIP-848 group as librdkafka is one.
#
# It makes its own id, joins by a heartbeat of epoch 0 and heartbeats at the interval that the
# coordinator tells it. An assignment that comes with an answer is reconciled: what is no longer in
# it is given up, what is new is taken up and its offsets are asked for; then a heartbeat goes out
# at once that names all of it. One assignment at a time: a newer one waits for that answer. Who is
# fenced gives up everything and joins again under the same id. At its end a dynamic member says
# that it leaves (-1), a static one that it will be back (-2).
#
# Where max.poll.interval.ms is over, heartbeats stop, and it leaves only when the application polls
# again: a stuck member is missed at its session timeout.


class EpochClient(SimulatedClient):
    """Simulates librdkafka's member of a KIP-848 group."""

    epoch: int = 0
    _interval: int = 0
    """Milliseconds; 0 before the coordinator has told it."""
    _target: tuple[int, ...] | None = None
    """What it is on its way to."""
    _acked: tuple[int, ...] = ()
    """What it last told the coordinator that it owns."""
    _next: tuple[int, ...] | None = None
    """What it has to become after that."""
    _must_tell: bool = False
    _is_telling: bool = False
    _in_flight: bool = False
    _beat: int = 0
    _beaten_at: int = 0
    _leaving: bool = False

    @property
    def is_settled(self) -> bool:
        """Nothing is under way, and the coordinator knows what it owns.

        One that has never had a partition still sends all about itself with each heartbeat.
        """
        waits = self.state is ClientState.JOINING and self.epoch > 0
        done = self._target is None and self._next is None
        return done and (waits or super().is_settled)

    def forget(self) -> None:
        """A new process knows nothing."""
        self.member_id = self.place.new_member_id()
        self._interval = 0
        self._in_flight = False
        self._reset()

    def _reset(self) -> None:
        self.epoch = 0
        self._target = self._next = None
        self._acked = ()
        self._must_tell = self._is_telling = self._leaving = False

    # The application.

    def poll(self) -> None:
        """What waited for it goes on."""
        if self.state is ClientState.REVOKING:
            self.become(ClientState.STEADY)
            self._reconcile()
        elif self.state is ClientState.OUT:
            if self.place.now - self._beaten_at >= self.scenario.session_timeout:
                self.lose_batch()  # its commit is refused
            self.give_up(self.owned)
            if self.epoch == 0 and not self._in_flight:
                self._left()  # it never was a member: nothing is sent, so that nobody answers
                return
            self._leaving = True
            self.leave()

    def poll_interval_over(self) -> None:
        """Stops heartbeats after max.poll.interval.ms."""
        self.place.tell(self.number, "exceeds max.poll.interval.ms")
        self.become(ClientState.OUT)

    def resubscribe(self) -> None:
        """Subscribe again: a heartbeat goes out at once, if none is under way."""
        waits = self.state is ClientState.JOINING and self.epoch > 0
        if (waits or self.state is ClientState.STEADY) and not self._in_flight:
            self._heartbeat(topics=True)

    def drift(self, by: int) -> None:
        """Its heartbeats begin anew; nothing where it has none."""
        self.shift_ticks(by)
        if self._interval:
            due = self._beaten_at + self._interval - self.place.now
            self._beat += 1
            self._heartbeat_in((due - by) % self._interval)

    def leave(self) -> None:
        """A static member will be back, also where it does not know it (librdkafka PR #4994)."""
        if self.epoch > 0:
            going = LEFT if self.instance is None else AWAY
            self.place.send(
                self,
                ConsumerGroupHeartbeatRequest(GROUP, self.member_id, going, self.instance),
            )

    # Heartbeats.

    def join(self) -> None:
        """The first heartbeat, with all about it."""
        self.become(ClientState.JOINING)
        self._heartbeat()

    def _heartbeat(self, *, topics: bool = False) -> None:
        joins = self.state is ClientState.JOINING
        owned = self._target if self._must_tell else self._acked if joins else None
        self._is_telling = self._must_tell
        self._in_flight = True
        self._beaten_at = self.place.now
        self.place.send(
            self,
            ConsumerGroupHeartbeatRequest(
                GROUP,
                self.member_id,
                self.epoch,
                self.instance,
                rebalance_timeout_ms=self.scenario.max_poll_interval if joins else -1,
                subscribed_topic_names=(TOPIC,) if joins or topics else None,
                topic_partitions=None if owned is None else _told(owned),
            ),
        )
        self._beat += 1
        if self._interval:
            self._heartbeat_in(self._interval)

    def _heartbeat_in(self, delay: int) -> None:
        beat = self._beat

        def due() -> None:
            if beat == self._beat and self.state is not ClientState.OUT:
                self._heartbeat()

        self.later(delay, due)

    # Answers.

    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""
        if not isinstance(answer, ConsumerGroupHeartbeatResponse):
            return
        if self._leaving:
            self._left()
            return
        self._in_flight = False
        if answer.error_code:
            self._refused(answer.error_code)
        elif self.state is not ClientState.OUT:
            self._answered(answer)

    def _left(self) -> None:
        """The answer to its leave, after which it joins anew."""
        self._reset()
        self._in_flight = False
        self.join()

    def _refused(self, code: int) -> None:
        if code in MOVED:
            if self.state is not ClientState.OUT:
                self._heartbeat_in(LOOK_UP_EVERY_MS)
        elif code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
            if self.state is ClientState.OUT:
                return
            self.place.tell(self.number, "is fenced and joins again")
            self.give_up(self.owned)
            self._reset()
            self.join()
        else:
            self.end(f"is refused (error {code})")

    def _answered(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch = answer.member_epoch
        if not self._interval:
            self._interval = answer.heartbeat_interval_ms
            self._heartbeat_in(self._interval)
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            wanted = tuple(sorted(p for each in given for p in each.partitions))
            self._next = wanted if wanted != self._last else None
        if self._must_tell and self._is_telling and self._target is not None:
            self._acked, self._target = self._target, None
            self._must_tell = False
        elif self._must_tell:
            self._heartbeat()  # the answer was that to an older heartbeat
        if self._target is None and self._next is not None:
            self._target, self._next = self._next, None
            self._reconcile()

    @property
    def _last(self) -> tuple[int, ...]:
        return self._acked if self._target is None else self._target

    def _reconcile(self) -> None:
        """Give up, take up, tell."""
        target = self._target
        if target is None:
            return
        if not self.polls:
            self.become(ClientState.REVOKING)
            return
        self.give_up(set(self.owned) - set(target))
        new = set(target) - set(self.owned)
        self.place.tell(self.number, f"epoch {self.epoch}: {len(target)} partitions")
        self.take(target)
        if self.state is ClientState.JOINING:
            self.become(ClientState.STEADY)
        # Offsets of new partitions are asked for before the coordinator is told.
        self.later(self.place.trip() if new else 0, lambda: self._tell(target))

    def _tell(self, target: tuple[int, ...]) -> None:
        if self._target == target and self.state is ClientState.STEADY:
            self._must_tell = True
            if not self._in_flight:
                self._heartbeat()


def _told(partitions: tuple[int, ...]) -> tuple[TopicPartitions, ...]:
    return (TopicPartitions(TOPIC_ID, partitions),) if partitions else ()
