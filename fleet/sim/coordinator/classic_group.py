"""A classic group as its coordinator keeps it: members, who leads, what is awaited.

Problem: Kafka counts beside what it keeps (who awaits a JoinGroup, who supports which protocol),
and where a write fails late the counts go their own way. Choice: the same counters and the same
order of steps as its ClassicGroup, so that the model errs where Kafka errs. Cost: what could be
derived is kept twice.

Not modelled: a member that names one protocol twice, and subscriptions that are broken in other
ways than being cut short.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fleet.log import encoding
from fleet.log.records import record_key
from fleet.sim.coordinator.requests import (
    ErrorCode,
    GroupRecord,
    JoinGroupMember,
    JoinGroupProtocol,
)
from fleet.sim.hashing import HashOrder
from fleet.sim.timers import Timers

# The states of a classic group, and which may follow which.
#
# States, moves and their causes as in org.apache.kafka.coordinator.group.classic (4.3.1).


class ClassicState(StrEnum):
    """What a classic group is at.

    EMPTY: nobody is in it; offsets may be.
      action: members may join; everything else is from an unknown member, but for commits
        without a generation
      transitions: a member joins => PREPARING_REBALANCE; unloaded or deleted => DEAD
    PREPARING_REBALANCE: it waits until its members have joined anew.
      action: park JoinGroup; heartbeats and SyncGroup hear REBALANCE_IN_PROGRESS; commits of the
        last generation are taken
      transitions: all have joined, or time is up => COMPLETING_REBALANCE; nobody is left => EMPTY;
        unloaded => DEAD
    COMPLETING_REBALANCE: the new generation waits for its leader's assignment.
      action: park SyncGroup; heartbeats are fine; commits hear REBALANCE_IN_PROGRESS
      transitions: the assignment is durable => STABLE; someone joins, leaves, fails, does not
        sync in time, or the write fails => PREPARING_REBALANCE; unloaded => DEAD
    STABLE: everyone has an assignment.
      action: heartbeats are fine; SyncGroup gets the assignment again; a follower that joins
        unchanged, and a static member that comes back, get the current generation
      transitions: a new or changed member or the leader joins, someone leaves or fails
        => PREPARING_REBALANCE; unloaded => DEAD
    DEAD: this coordinator has it no more.
      action: every request hears COORDINATOR_NOT_AVAILABLE
      transitions: none
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


BEFORE: Final[Mapping[ClassicState, frozenset[ClassicState]]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING_REBALANCE}),
    ClassicState.PREPARING_REBALANCE: frozenset(
        {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY}
    ),
    ClassicState.COMPLETING_REBALANCE: frozenset({ClassicState.PREPARING_REBALANCE}),
    ClassicState.STABLE: frozenset({ClassicState.COMPLETING_REBALANCE}),
    ClassicState.DEAD: frozenset(ClassicState),
}
"""State → the states that it may follow."""


class IllegalTransition(RuntimeError):
    """A group was to make a move that there is not: the model is wrong, and tells the story."""

    def __init__(
        self, group: str, state: ClassicState, target: ClassicState, transitions: Iterable[str]
    ) -> None:
        allowed = ", ".join(sorted(BEFORE[target]))
        lines = "\n  ".join(transitions)
        super().__init__(
            f"group {group} is {state} and cannot become {target}, which follows {allowed}; "
            f"what led there:\n  {lines}"
        )


class UnexpectedRequest(Exception):
    """Where Kafka's coordinator throws what it has no error code for: UNKNOWN_SERVER_ERROR."""


# What a group has around it: time, timers, settings, parked requests, ids for new members.


class CoordinatorConfig(NamedTuple):
    """A broker's settings, with Kafka's defaults; milliseconds."""

    initial_rebalance_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    max_size: int = 2**31 - 1
    """group.max.size"""
    min_session_timeout: int = 6_000
    """group.min.session.timeout.ms"""
    max_session_timeout: int = 1_800_000
    """group.max.session.timeout.ms"""
    new_member_join_timeout: int = 300_000
    """Of a new member that is parked; a constant of Kafka's."""
    metadata_max_bytes: int = 4_096
    """offset.metadata.max.bytes"""


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """Records to write; what was decided counts when they are durable."""

    records: tuple[GroupRecord, ...]
    done: Callable[[ErrorCode], None]
    """Called with NONE when they are durable, else with why the write failed."""


Decision = PendingWrite | None
"""None: nothing to write."""


def nothing_done(error: ErrorCode) -> None:
    """Of a write that nobody waits for."""


@dataclass(slots=True, eq=False)
class CoordinatorContext:
    """Shared by all groups of a coordinator."""

    config: CoordinatorConfig
    uuids: Iterator[str]
    """Each new member's id ends with one."""
    now: int = 0
    timers: Timers[Callable[[], Decision]] = field(default_factory=Timers)
    answers: dict[int, Any] = field(default_factory=dict)
    """Given since they were taken last, by the number of the request."""
    parked: set[int] = field(default_factory=set)
    """Requests without an answer."""

    def answer(self, ticket: int | None, response: Any) -> None:
        """The first answer to a request goes out, later ones are lost."""
        if ticket is not None and ticket in self.parked:
            self.parked.discard(ticket)
            self.answers[ticket] = response

    def schedule(self, key: str, delay: int, action: Callable[[], Decision]) -> None:
        """Set a timer, from now on."""
        self.timers.schedule(key, self.now + delay, action)


_OF_WRITES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def answered_error(error: ErrorCode) -> ErrorCode:
    """What a member is told of a write that failed so."""
    return _OF_WRITES.get(error, error)


_TRANSITIONS_KEPT = 20
"""Moves that an illegal one is told with."""


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """A member; `awaits_join` and `awaits_sync` are the numbers of its parked requests."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocols: tuple[JoinGroupProtocol, ...]
    assignment: bytes = b""
    awaits_join: int | None = None
    awaits_sync: int | None = None
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        """What it told the assignor of that name."""
        for each in self.protocols:
            if each.name == protocol:
                return each.metadata
        raise UnexpectedRequest(f"member {self.member_id} does not support {protocol}")

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """A parked request is a sign of life, but not of one that joins for the first time."""
        return not self.is_new and (self.awaits_join is not None or self.awaits_sync is not None)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """See the module; times are milliseconds."""

    group_id: str
    since: int
    """When its state began; -1 where its record does not say."""
    state: ClassicState = ClassicState.EMPTY
    previous_state: ClassicState = ClassicState.DEAD
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: HashOrder[str, ClassicGroupMember] = field(default_factory=HashOrder)
    """Walked as Kafka walks them: who leads, and records, follow from it."""
    static: dict[str, str] = field(default_factory=dict)
    """Instance id → member id."""
    pending_join: set[str] = field(default_factory=set)
    pending_sync: set[str] = field(default_factory=set)
    awaiting_join: int = 0
    supported: dict[str, int] = field(default_factory=dict)
    """Protocol → members that support it."""
    new_member_added: bool = False
    transitions: deque[str] = field(default_factory=lambda: deque(maxlen=_TRANSITIONS_KEPT))

    def move(self, target: ClassicState, now: int) -> None:
        """Into another state. Raises IllegalTransition."""
        if self.state not in BEFORE[target]:
            raise IllegalTransition(self.group_id, self.state, target, self.transitions)
        self.transitions.append(
            f"{now} ms: {self.state} => {target}, generation {self.generation}, "
            f"{len(self.members)} members"
        )
        self.previous_state = self.state
        self.state = target
        self.since = now

    # Members.

    def add(self, member: ClassicGroupMember, protocol_type: str, ticket: int | None) -> None:
        """A member more; `ticket` is its parked JoinGroup."""
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        member.awaits_join = ticket
        if ticket is not None:
            self.awaiting_join += 1
        self.pending_join.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """A member less, or one less that has only been given an id."""
        removed = self.members.pop(member_id, None)
        if removed is not None:
            self._count(removed, -1)
            if removed.awaits_join is not None:
                self.awaiting_join -= 1
            if removed.group_instance_id is not None:
                self.static.pop(removed.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)

    def replace(self, instance: str, old: str, new: str) -> ClassicGroupMember:
        """The member with the same instance id under a new id; what was parked is the caller's."""
        removed = self.members.pop(old, None)
        if removed is None:
            raise UnexpectedRequest(f"cannot replace {old}, which is not there")
        if removed.awaits_join is not None:
            removed.awaits_join = None
            self.awaiting_join -= 1
        removed.awaits_sync = None
        made = ClassicGroupMember(
            member_id=new,
            group_instance_id=removed.group_instance_id,
            client_id=removed.client_id,
            client_host=removed.client_host,
            rebalance_timeout=removed.rebalance_timeout,
            session_timeout=removed.session_timeout,
            protocols=removed.protocols,
            assignment=removed.assignment,
        )
        self.members[new] = made
        if self.leader == old:
            self.leader = new
        self.static[instance] = new
        return made

    def update(
        self,
        member: ClassicGroupMember,
        protocols: tuple[JoinGroupProtocol, ...],
        rebalance_timeout: int,
        session_timeout: int,
        ticket: int | None,
    ) -> None:
        """What a member says of itself when it joins anew."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.rebalance_timeout = rebalance_timeout
        member.session_timeout = session_timeout
        if ticket is not None and member.awaits_join is None:
            self.awaiting_join += 1
        elif ticket is None and member.awaits_join is not None:
            self.awaiting_join -= 1
        member.awaits_join = ticket

    def _count(self, member: ClassicGroupMember, by: int) -> None:
        for each in member.protocols:
            self.supported[each.name] = self.supported.get(each.name, 0) + by

    @property
    def has_all_joined(self) -> bool:
        """Every member is parked, and nobody has only been given an id."""
        return len(self.members) == self.awaiting_join and not self.pending_join

    @property
    def rebalance_timeout(self) -> int:
        """The longest of all members."""
        return max((each.rebalance_timeout for each in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Whether a member leads that has joined: the leader, or the first that has."""
        if self.leader is None:
            return False
        leader = self.members.get(self.leader)
        if leader is None:
            raise UnexpectedRequest(f"the leader {self.leader} is no member")
        if leader.awaits_join is None:
            joined = (e.member_id for e in self.members.values() if e.awaits_join is not None)
            found = next(joined, None)
            if found is None:
                return False
            self.leader = found
        return True

    # Protocols.

    def supports(self, protocol_type: str, protocols: tuple[JoinGroupProtocol, ...]) -> bool:
        """Whether a member with these protocols can be in the group."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self.supported.get(each.name, 0) == len(self.members) for each in protocols
        )

    def select_protocol(self) -> str:
        """By votes: each member for its first that all support."""
        candidates = {name for name, n in self.supported.items() if n == len(self.members)}
        if len(candidates) == 1:
            return candidates.pop()
        votes: HashOrder[str, int] = HashOrder()
        for member in self.members.values():
            name = next((p.name for p in member.protocols if p.name in candidates), None)
            if name is None:
                raise UnexpectedRequest(f"{member.member_id} supports none of {candidates}")
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)  # the first of equals

    def next_generation(self, now: int) -> None:
        """One generation on, with its protocol."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        empty = not self.members
        self.move(ClassicState.EMPTY if empty else ClassicState.COMPLETING_REBALANCE, now)
        self.pending_sync.clear()

    # Records.

    def listed(self) -> tuple[JoinGroupMember, ...]:
        """The members as their leader is told of them."""
        if self.state in {ClassicState.DEAD, ClassicState.PREPARING_REBALANCE}:
            raise UnexpectedRequest(f"the members are unknown while the group is {self.state}")
        return tuple(
            JoinGroupMember(m.member_id, m.group_instance_id, m.metadata(self.protocol))
            for m in self.members.values()
        )

    def assignments(self) -> dict[str, bytes]:
        """Member id → its assignment."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def record(self, assignments: dict[str, bytes]) -> GroupRecord:
        """The group with these assignments."""
        members = [
            encoding.WrittenMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout,
                m.session_timeout,
                m.metadata(self.protocol),
                assignments[m.member_id],
            )
            for m in self.members.values()
        ]
        return self._written(self.protocol_type or "", self.generation, members)

    def empty_record(self) -> GroupRecord:
        """The group as it is written when it is made."""
        return GroupRecord(
            record_key(encoding.GROUP_METADATA, self.group_id),
            encoding.group_metadata(
                protocol_type="",
                generation=0,
                protocol=None,
                leader=None,
                state_timestamp_ms=self.since,
                members=(),
            ),
        )

    def _written(
        self, protocol_type: str, generation: int, members: list[encoding.WrittenMember]
    ) -> GroupRecord:
        return GroupRecord(
            record_key(encoding.GROUP_METADATA, self.group_id),
            encoding.group_metadata(
                protocol_type=protocol_type,
                generation=generation,
                protocol=self.protocol,
                leader=self.leader,
                state_timestamp_ms=self.since,
                members=members,
            ),
        )
