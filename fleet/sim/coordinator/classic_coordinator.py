"""A coordinator of classic groups: requests in, answers and records out, time as it is told.

Problem: one seed has to make one trace, and the same trace as Kafka's own coordinator makes of the
same events. Choice: a coordinator does what a broker's partition of `__consumer_offsets` does and
nothing by itself: `request` asks it, `advance` lets time go on (each timer at its own moment),
`appended` tells it that what it wrote is durable, `failover` makes another one of its log. Each
returns what came of it. Cost: a caller that plays a whole cluster keeps the clocks together.

Exact against Kafka 4.3.1 (tests/conformance): answers, states, generations, members, timers in
their order, records byte for byte. Not modelled: several groups' order where one failover or one
clean-up touches more than one; what the modules beside this one name.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from fleet.log import encoding
from fleet.log.records import GroupMetadata, OffsetCommit, decode, record_key
from fleet.sim.coordinator.classic_group import (
    ClassicGroup,
    ClassicGroupMember,
    ClassicState,
    CoordinatorConfig,
    CoordinatorContext,
    Decision,
    PendingWrite,
    UnexpectedRequest,
    answered_error,
    nothing_done,
)
from fleet.sim.coordinator.requests import (
    UNKNOWN_MEMBER,
    ClassicRequest,
    Client,
    CommittedPartition,
    CommittedTopic,
    ErrorCode,
    GroupRecord,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# Requests of classic members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
#
# Each answers at once or parks the request (its number is kept), and returns what is to be written.
# docs/contributing/protocol.md 2.2 and 2.3 have the rules in words.


# Rounds of a classic group: who is waited for and how long, a new generation, its assignment.
#
# Problem: a rebalance is three timers and two barriers, and which of them is set, kept or dropped
# at each step is what a plan costs. Choice: the steps of Kafka's GroupMetadataManager one by one,
# with its names for them; a parked request is a number, answered when the barrier opens. Cost: a
# reader needs both open side by side to see that they agree; tests/conformance does that.
#
# docs/contributing/protocol.md 2.2 has the rules in words.


CAN_REBALANCE = frozenset(
    {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY}
)


def heartbeat_key(group: str, member: str) -> str:
    """The timer of a member's session."""
    return f"heartbeat-{group}-{member}"


def join_key(group: str) -> str:
    """The timer of the join phase."""
    return f"join-{group}"


def sync_key(group: str) -> str:
    """The timer of the sync phase."""
    return f"sync-{group}"


class ClassicRounds:
    """Over all classic groups of a coordinator."""

    def __init__(
        self, around: CoordinatorContext, groups: MutableMapping[str, ClassicGroup]
    ) -> None:
        self.around = around
        self.groups = groups

    # Answers to who is parked.

    def answer_join(
        self, group: ClassicGroup, member: ClassicGroupMember, response: JoinGroupResponse
    ) -> None:
        """To a member that awaits a generation."""
        if member.awaits_join is not None:
            self.around.answer(member.awaits_join, response)
            member.awaits_join = None
            group.awaiting_join -= 1

    def answer_sync(self, member: ClassicGroupMember, response: SyncGroupResponse) -> bool:
        """To a member that awaits its assignment; whether it did."""
        if member.awaits_sync is None:
            return False
        self.around.answer(member.awaits_sync, response)
        member.awaits_sync = None
        return True

    # Sessions.

    def keep_alive(
        self, group: ClassicGroup, member: ClassicGroupMember, timeout: int | None = None
    ) -> None:
        """A sign of life: the member's session begins anew."""
        name, member_id = group.group_id, member.member_id
        self.around.schedule(
            heartbeat_key(name, member_id),
            member.session_timeout if timeout is None else timeout,
            lambda: self.expire_session(name, member_id),
        )

    def expire_session(self, group_id: str, member_id: str) -> Decision:
        """No sign of life for a session, or of one that was only given an id."""
        group = self.groups.get(group_id)
        if group is None or group.state is ClassicState.DEAD:
            return None
        if member_id in group.pending_join:
            group.remove(member_id)
            return self._complete_if_all_joined(group)
        member = group.members.get(member_id)
        if member is None or member.has_satisfied_heartbeat:
            return None
        refused = JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        self.answer_join(group, member, refused)
        group.remove(member_id)
        if group.state in {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE}:
            return self.rebalance_or_complete(group)
        return self._complete_if_all_joined(group)

    def _complete_if_all_joined(self, group: ClassicGroup) -> Decision:
        if group.state is ClassicState.PREPARING_REBALANCE and group.has_all_joined:
            return self.complete_join(group)
        return None

    # The join phase.

    def rebalance_or_complete(self, group: ClassicGroup) -> Decision:
        """The group has changed: a round begins, or the one under way may be complete."""
        if group.state in CAN_REBALANCE:
            return self.prepare_rebalance(group)
        return self.maybe_complete_join(group)

    def prepare_rebalance(self, group: ClassicGroup) -> Decision:
        """A round begins; of an empty group it waits for more to come."""
        if group.state is ClassicState.COMPLETING_REBALANCE:
            self.reset_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        self.around.timers.cancel(sync_key(group.group_id))
        initial = group.state is ClassicState.EMPTY
        if initial:
            delay = self.around.config.initial_rebalance_delay
            self._wait_for_more(group, delay, max(group.rebalance_timeout - delay, 0))
        group.move(ClassicState.PREPARING_REBALANCE, self.around.now)
        if initial:
            return None
        if group.has_all_joined:
            return self.complete_join(group)
        self._wait_for_all(group)
        return None

    def maybe_complete_join(self, group: ClassicGroup) -> Decision:
        """The round is complete if all have joined; the initial delay is not cut short."""
        if (
            group.state is not ClassicState.PREPARING_REBALANCE
            or group.previous_state is ClassicState.EMPTY
            or not group.has_all_joined
        ):
            return None
        return self.complete_join(group)

    def _wait_for_more(self, group: ClassicGroup, delay: int, remaining: int) -> None:
        name = group.group_id
        self.around.schedule(
            join_key(name), delay, lambda: self._initial_delay_over(name, delay, remaining)
        )

    def _initial_delay_over(self, group_id: str, delay: int, remaining: int) -> Decision:
        group = self.groups.get(group_id)
        if group is None:
            return None
        if not group.new_member_added or remaining == 0:
            return self.complete_join(group)
        group.new_member_added = False
        again = min(self.around.config.initial_rebalance_delay, remaining)
        self._wait_for_more(group, again, max(remaining - delay, 0))
        return None

    def _wait_for_all(self, group: ClassicGroup) -> None:
        name = group.group_id
        self.around.schedule(join_key(name), group.rebalance_timeout, lambda: self._time_up(name))

    def _time_up(self, group_id: str) -> Decision:
        group = self.groups.get(group_id)
        return None if group is None else self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> Decision:
        """A new generation of those that have joined, and of static members in any case."""
        around = self.around
        around.timers.cancel(join_key(group.group_id))
        for member in group.members.values():
            if member.awaits_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
                around.timers.cancel(heartbeat_key(group.group_id, member.member_id))
        if group.state is ClassicState.DEAD:
            return None
        if not group.elect_joined_leader() and group.members:
            self._wait_for_all(group)
            return None
        group.next_generation(around.now)
        if group.state is ClassicState.EMPTY:
            return PendingWrite((group.record({}),), nothing_done)
        self._tell_generation(group)
        name = group.group_id
        around.schedule(sync_key(name), group.rebalance_timeout, lambda: self._expire_sync(name))
        return None

    def _tell_generation(self, group: ClassicGroup) -> None:
        for member in group.members.values():
            leads = group.leader == member.member_id
            self.answer_join(group, member, self.joined(group, member.member_id, listed=leads))
            self.keep_alive(group, member)
            member.is_new = False
            group.pending_sync.add(member.member_id)

    def joined(
        self, group: ClassicGroup, member_id: str, *, listed: bool, skip: bool = False
    ) -> JoinGroupResponse:
        """The current generation as a member is told of it."""
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader,
            skip_assignment=skip,
            member_id=member_id,
            members=group.listed() if listed else (),
        )

    # The sync phase.

    def _expire_sync(self, group_id: str) -> Decision:
        group = self.groups.get(group_id)
        if (
            group is None
            or group.state not in {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}
            or not group.pending_sync
        ):
            return None
        for member_id in tuple(group.pending_sync):
            group.remove(member_id)
            self.around.timers.cancel(heartbeat_key(group_id, member_id))
        return self.prepare_rebalance(group)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        """A member has sent its SyncGroup of this generation."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self.around.timers.cancel(sync_key(group.group_id))

    def reset_assignments(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Nobody gets one of this generation."""
        for member in group.members.values():
            member.assignment = b""
        self.tell_assignments(group, error)

    def tell_assignments(self, group: ClassicGroup, error: ErrorCode) -> None:
        """To all that wait for one."""
        fine = error is ErrorCode.NONE
        for member in group.members.values():
            response = SyncGroupResponse(
                error_code=error,
                protocol_type=group.protocol_type if fine else None,
                protocol_name=group.protocol if fine else None,
                assignment=member.assignment,
            )
            if self.answer_sync(member, response):
                self.keep_alive(group, member)


_NEEDS_KNOWN_ID: Final = 4
"""JoinGroup's version from which on a dynamic member gets its id first (KIP-394)."""
_SKIPS_ASSIGNMENT: Final = 9
"""And from which on a leader that comes back need not assign (KIP-814)."""


def member_error(group: ClassicGroup, member_id: str, instance: str | None) -> ErrorCode:
    """Why a request is not that of a member; NONE where it is."""
    if instance is not None:
        owner = group.static.get(instance)
        if owner is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if owner != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


class ClassicRequests(ClassicRounds):
    """What classic members ask of their groups."""

    # JoinGroup.

    def join(self, ticket: int, request: JoinGroupRequest, client: Client) -> Decision:
        """A member joins, or joins anew."""
        group = self.groups.get(request.group_id)
        is_new_group = group is None
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                self._refuse(ticket, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return None
            group = ClassicGroup(request.group_id, self.around.now)
            self.groups[request.group_id] = group
        decision = self._join(ticket, request, client, group)
        if not is_new_group or decision is not None:
            return decision

        def done(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self._refuse(ticket, answered_error(error), "")

        return PendingWrite((group.empty_record(),), done)

    def _join(
        self, ticket: int, request: JoinGroupRequest, client: Client, group: ClassicGroup
    ) -> Decision:
        if not self._has_room(group, request.member_id):
            group.remove(request.member_id)
            self._refuse(ticket, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            return None
        known = request.member_id
        if group.state is ClassicState.DEAD:
            self._refuse(ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE, known)
            return None
        if not group.supports(request.protocol_type, request.protocols):
            self._refuse(ticket, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, known)
            return None
        if known == UNKNOWN_MEMBER:
            return self._join_without_id(ticket, request, client, group)
        if known in group.pending_join:
            if request.group_instance_id is not None:
                raise UnexpectedRequest(f"a static member with the dynamic member's id {known}")
            return self._add(ticket, request, client, group, known)
        return self._join_again(ticket, request, group)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        most = self.around.config.max_size
        member = group.members.get(member_id)
        if group.state is ClassicState.PREPARING_REBALANCE:
            parked = member is not None and member.awaits_join is not None
            return parked or group.awaiting_join < most
        if group.state in {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}:
            return member is not None or len(group.members) < most
        return True

    def _refuse(self, ticket: int, error: ErrorCode, member_id: str) -> None:
        self.around.answer(ticket, JoinGroupResponse(error_code=error, member_id=member_id))

    def _join_without_id(
        self, ticket: int, request: JoinGroupRequest, client: Client, group: ClassicGroup
    ) -> Decision:
        instance = request.group_instance_id
        made = f"{client.client_id if instance is None else instance}-{next(self.around.uuids)}"
        if instance is not None and instance in group.static:
            return self._replace_static(ticket, request, group, group.static[instance], made)
        if instance is not None or request.version < _NEEDS_KNOWN_ID:
            return self._add(ticket, request, client, group, made)
        group.pending_join.add(made)
        name = group.group_id
        self.around.schedule(
            heartbeat_key(name, made),
            request.session_timeout_ms,
            lambda: self.expire_session(name, made),
        )
        self._refuse(ticket, ErrorCode.MEMBER_ID_REQUIRED, made)
        return None

    def _add(
        self,
        ticket: int,
        request: JoinGroupRequest,
        client: Client,
        group: ClassicGroup,
        member_id: str,
    ) -> Decision:
        member = ClassicGroupMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=f"/{client.host}",
            rebalance_timeout=request.rebalance_timeout_ms,
            session_timeout=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        if (
            group.state is ClassicState.PREPARING_REBALANCE
            and group.previous_state is ClassicState.EMPTY
        ):
            group.new_member_added = True
        group.add(member, request.protocol_type, ticket)
        self.keep_alive(group, member, self.around.config.new_member_join_timeout)
        return self.rebalance_or_complete(group)

    def _join_again(self, ticket: int, request: JoinGroupRequest, group: ClassicGroup) -> Decision:
        known = request.member_id
        error = member_error(group, known, request.group_instance_id)
        if error is not ErrorCode.NONE:
            refusal = JoinGroupResponse(error_code=error, member_id=known, protocol_name=None)
            self.around.answer(ticket, refusal)
            return None
        member = group.members[known]
        leads = group.leader == known
        if group.state is ClassicState.EMPTY:
            self._refuse(ticket, ErrorCode.UNKNOWN_MEMBER_ID, known)
            return None
        settled = group.state is not ClassicState.PREPARING_REBALANCE
        stable = group.state is ClassicState.STABLE
        if settled and member.protocols == request.protocols and not (stable and leads):
            told_of = leads and not stable
            self.around.answer(ticket, self.joined(group, known, listed=told_of))
            return None
        self._update(ticket, request, group, member)
        return self.rebalance_or_complete(group)

    def _update(
        self,
        ticket: int,
        request: JoinGroupRequest,
        group: ClassicGroup,
        member: ClassicGroupMember,
    ) -> None:
        rebalance, session = request.rebalance_timeout_ms, request.session_timeout_ms
        group.update(member, request.protocols, rebalance, session, ticket)

    # Static members.

    def _replace(
        self, group: ClassicGroup, instance: str, old_id: str, new_id: str
    ) -> ClassicGroupMember:
        """A request parked under the old id hears that it is another's now."""
        old = group.members.get(old_id)
        if old is not None:
            fenced = ErrorCode.FENCED_INSTANCE_ID
            refusal = JoinGroupResponse(error_code=fenced, member_id=old_id, protocol_name=None)
            self.answer_join(group, old, refusal)
            self.answer_sync(old, SyncGroupResponse(error_code=fenced))
        return group.replace(instance, old_id, new_id)

    def _replace_static(
        self, ticket: int, request: JoinGroupRequest, group: ClassicGroup, old: str, new: str
    ) -> Decision:
        instance = request.group_instance_id or ""
        leader = group.leader
        member = self._replace(group, instance, old, new)
        self.keep_alive(group, member)
        before = (member.protocols, member.rebalance_timeout, member.session_timeout)
        self._update(ticket, request, group, member)
        if group.state is ClassicState.COMPLETING_REBALANCE:
            return self.prepare_rebalance(group)
        if group.state is not ClassicState.STABLE:
            return self.maybe_complete_join(group)
        if group.select_protocol() != (group.protocol or ""):
            return self.rebalance_or_complete(group)

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._tell_returned(group, member, leader, request.version)
                return
            protocols, rebalance, session = before
            group.update(member, protocols, rebalance, session, None)
            self.keep_alive(group, self._replace(group, instance, new, old))
            refusal = JoinGroupResponse(
                error_code=answered_error(error),
                generation_id=group.generation,
                protocol_type=group.protocol_type,
                protocol_name=group.protocol,
                leader=leader,
            )
            self.around.answer(ticket, refusal)

        return PendingWrite((group.record(group.assignments()),), done)

    def _tell_returned(
        self, group: ClassicGroup, member: ClassicGroupMember, leader: str | None, version: int
    ) -> None:
        """A static member that came back gets the generation that is; no rebalance."""
        leads = group.leader == member.member_id and version >= _SKIPS_ASSIGNMENT
        response = self.joined(group, member.member_id, listed=leads, skip=leads)
        if version < _SKIPS_ASSIGNMENT:  # an old leader is told of its old id: it follows
            response = response._replace(leader=leader)
        self.answer_join(group, member, response)

    # SyncGroup.

    def sync(self, ticket: int, request: SyncGroupRequest) -> Decision:
        """A member asks for its assignment; the leader brings all of them."""
        group = self.groups.get(request.group_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None and group.state is not ClassicState.EMPTY:
            error = self._sync_error(group, request)
        if group is None or error is not ErrorCode.NONE:
            self.around.answer(ticket, SyncGroupResponse(error_code=error))
            return None
        member = group.members[request.member_id]
        self.has_synced(group, request.member_id)
        if group.state is ClassicState.STABLE:
            self.around.answer(
                ticket,
                SyncGroupResponse(
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol,
                    assignment=member.assignment,
                ),
            )
            return None
        member.awaits_sync = ticket
        return self._assign(group, request) if group.leader == request.member_id else None

    def _sync_error(self, group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
        error = _generation_error(group, request)
        if error is not ErrorCode.NONE:
            return error
        named = (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol),
        )
        if any(None not in pair and pair[0] != pair[1] for pair in named):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is ClassicState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assign(self, group: ClassicGroup, request: SyncGroupRequest) -> Decision:
        given = {each.member_id: each.assignment for each in request.assignments}
        whole = {name: given.get(name, b"") for name in group.members}

        def done(error: ErrorCode) -> None:
            if (
                group.state is not ClassicState.COMPLETING_REBALANCE
                or request.generation_id != group.generation
            ):
                return
            if error is not ErrorCode.NONE:
                self.reset_assignments(group, answered_error(error))
                self.rebalance_or_complete(group)
                return
            for member in group.members.values():
                member.assignment = given.get(member.member_id, b"")
            self.tell_assignments(group, ErrorCode.NONE)
            group.move(ClassicState.STABLE, self.around.now)

        return PendingWrite((group.record(whole),), done)

    # Heartbeat and LeaveGroup.

    def heartbeat(self, ticket: int, request: HeartbeatRequest) -> Decision:
        """A sign of life; the answer says whether to join anew."""
        group = self.groups.get(request.group_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            error = self._heartbeat_error(group, request)
            if error in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
                self.keep_alive(group, group.members[request.member_id])
        self.around.answer(ticket, HeartbeatResponse(error))
        return None

    def _heartbeat_error(self, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
        error = _generation_error(group, request)
        if error is not ErrorCode.NONE:
            return error
        preparing = group.state is ClassicState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def leave(self, request: LeaveGroupRequest) -> tuple[Decision, LeaveGroupResponse]:
        """All that are named go at once: one rebalance. The answer waits for what is written."""
        group = self.groups.get(request.group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return None, LeaveGroupResponse(
                members=tuple(MemberResponse(*each, unknown) for each in request.members)
            )
        if group.state is ClassicState.DEAD:
            return None, LeaveGroupResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        found = tuple(MemberResponse(*m, self._leave(group, m)) for m in request.members)
        response = LeaveGroupResponse(members=found)
        if all(each.error_code for each in found):
            return None, response
        if group.state in {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE}:
            return self.rebalance_or_complete(group), response
        return self.maybe_complete_join(group), response

    def _leave(self, group: ClassicGroup, leaving: MemberIdentity) -> ErrorCode:
        member_id, instance = leaving
        if member_id == UNKNOWN_MEMBER:
            if instance is None or instance not in group.static:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = group.static[instance]
        elif member_id not in group.pending_join:
            error = member_error(group, member_id, instance)
            if error is not ErrorCode.NONE:
                return error
        self.around.timers.cancel(heartbeat_key(group.group_id, member_id))
        member = group.members.get(member_id)
        if member is not None:
            refused = JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            self.answer_join(group, member, refused)
        group.remove(member_id)
        return ErrorCode.NONE


# Offsets of classic groups: who may commit, and what is written.
#
# Not modelled: transactions, commits by topic id, and that offsets and empty groups expire.


_GROUP_ID_NOT_FOUND_SINCE = 9
_LIVES = frozenset({ClassicState.STABLE, ClassicState.PREPARING_REBALANCE})
"""States in which a commit is a sign of life."""


class ClassicOffsets:
    """Answers commits."""

    def __init__(self, rounds: ClassicRounds, groups: MutableMapping[str, ClassicGroup]) -> None:
        self.rounds = rounds
        self.groups = groups

    def commit(
        self, request: OffsetCommitRequest
    ) -> tuple[PendingWrite | None, OffsetCommitResponse]:
        """What is to be written, and the answer for when it is."""
        error = self._error(request)
        if error is not ErrorCode.NONE:
            return None, OffsetCommitResponse(error)
        found, records = [], []
        for topic in request.topics:
            partitions = []
            for each in topic.partitions:
                code = self._too_large(each)
                partitions.append(CommittedPartition(each.partition_index, code))
                if code is ErrorCode.NONE:
                    records.append(self._record(request.group_id, topic.name, each))
            found.append(CommittedTopic(topic.name, tuple(partitions)))
        write = PendingWrite(tuple(records), nothing_done) if records else None
        return write, OffsetCommitResponse(topics=tuple(found))

    def _too_large(self, each: OffsetCommitPartition) -> ErrorCode:
        most = self.rounds.around.config.metadata_max_bytes
        too_large = len(each.committed_metadata or "") > most
        return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE

    def _record(self, group: str, topic: str, each: OffsetCommitPartition) -> GroupRecord:
        return GroupRecord(
            record_key(encoding.OFFSET_COMMIT, group, topic, each.partition_index),
            encoding.offset_commit(
                each.committed_offset,
                leader_epoch=each.committed_leader_epoch,
                metadata=each.committed_metadata or "",
                commit_timestamp=self.rounds.around.now,
            ),
        )

    def _error(self, request: OffsetCommitRequest) -> ErrorCode:
        generation = request.generation_id_or_member_epoch
        group = self.groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                is_newer = request.version >= _GROUP_ID_NOT_FOUND_SINCE
                return ErrorCode.GROUP_ID_NOT_FOUND if is_newer else ErrorCode.ILLEGAL_GENERATION
            group = ClassicGroup(request.group_id, self.rounds.around.now)
            self.groups[request.group_id] = group
        error = self._member_error(group, request)
        if error is ErrorCode.NONE and group.state in _LIVES:
            self.rounds.keep_alive(group, group.members[request.member_id])
        return error

    def _member_error(self, group: ClassicGroup, request: OffsetCommitRequest) -> ErrorCode:
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance = request.group_instance_id
        empty = group.state is ClassicState.EMPTY
        if group.state is ClassicState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and empty:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance is not None:
            error = member_error(group, member_id, instance)
            if error is not ErrorCode.NONE:
                return error
            if generation != group.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not empty:
            return ErrorCode.UNKNOWN_MEMBER_ID
        completing = group.state is ClassicState.COMPLETING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if completing else ErrorCode.NONE


AnyRequest = ClassicRequest | OffsetCommitRequest
_REFUSAL: dict[type, Any] = {
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    OffsetCommitRequest: OffsetCommitResponse,
}


class CoordinatorStep(NamedTuple):
    """What came of one event."""

    answers: dict[int, Any]
    """By the number of the request; JoinGroup's may be one of long ago."""
    records: tuple[GroupRecord, ...]
    fired: tuple[tuple[str, int], ...]
    """Timers that went off, and when (ms)."""


class _Held(NamedTuple):
    write: PendingWrite
    ticket: int | None
    request: AnyRequest | None
    response: Any
    before: int
    """Records in the log before these."""


class ClassicCoordinator:
    """See the module; `log` is its partition of `__consumer_offsets`."""

    def __init__(
        self, uuids: Iterator[str], *, config: CoordinatorConfig | None = None, now: int = 0
    ) -> None:
        self.around = CoordinatorContext(config or CoordinatorConfig(), uuids, now)
        self.groups: dict[str, ClassicGroup] = {}
        self.log: list[GroupRecord] = []
        self._requests = ClassicRequests(self.around, self.groups)
        self._offsets = ClassicOffsets(self._requests, self.groups)
        self._held: list[_Held] = []
        self._fired: list[tuple[str, int]] = []

    @property
    def now(self) -> int:
        """Returns the model's time in milliseconds."""
        return self.around.now

    # Events.

    def request(
        self,
        ticket: int,
        request: AnyRequest,
        client: Client | None = None,
        *,
        append: ErrorCode = ErrorCode.NONE,
        hold: bool = False,
    ) -> CoordinatorStep:
        """A request, by a number of the caller's. `append`: why the write of what it decides fails.

        hold: what it writes is not durable before `appended`.
        """
        before = len(self.log)
        self.around.parked.add(ticket)
        refusal = self._out_of_bounds(request)
        if refusal is not None:
            self.around.answer(ticket, refusal)
            return self._step(before)
        try:
            decision, response = self._decide(ticket, request, client or Client())
        except UnexpectedRequest:
            self._refuse(ticket, request, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            self._finish(decision, ticket, request, response, append, hold=hold)
        return self._step(before)

    def advance(self, milliseconds: int, *, append: ErrorCode = ErrorCode.NONE) -> CoordinatorStep:
        """Time goes on; `append`: why what is decided meanwhile cannot be written."""
        before = len(self.log)
        until = self.around.now + milliseconds
        while (due := self.around.timers.take(until)) is not None:
            self.around.now = max(self.around.now, due.deadline)
            self._fired.append((due.key, self.around.now))
            try:
                self._finish(due.action(), None, None, None, append)
            except UnexpectedRequest:
                continue  # Kafka logs it, and the timer is gone
        self.around.now = until
        return self._step(before)

    def appended(self, error: ErrorCode = ErrorCode.NONE) -> CoordinatorStep:
        """What has been written longest is durable, or the wait for that has failed."""
        before = len(self.log)
        if self._held:
            self._settle(self._held.pop(0), error)
        return self._step(before)

    def failover(self, *, kept: bool = False) -> CoordinatorStep:
        """Another broker loads the log; kept: with the records that were not durable yet.

        Who is parked hears NOT_COORDINATOR.
        """
        self.around.timers.clear()
        durable = len(self.log)
        while self._held:
            each = self._held.pop(0)
            if not kept:
                durable = min(durable, each.before)
            self._settle(each, ErrorCode.NOT_COORDINATOR)
        del self.log[durable:]
        self._unload()
        self.around.timers.clear()
        self._load()
        return self._step(len(self.log))

    # Requests.

    def _out_of_bounds(self, request: AnyRequest) -> Any:
        """What the broker refuses before a group is looked for."""
        if not request.group_id and not isinstance(request, OffsetCommitRequest):
            return _REFUSAL[type(request)](error_code=ErrorCode.INVALID_GROUP_ID)
        if isinstance(request, JoinGroupRequest):
            config = self.around.config
            session = request.session_timeout_ms
            if not config.min_session_timeout <= session <= config.max_session_timeout:
                error = ErrorCode.INVALID_SESSION_TIMEOUT
                return JoinGroupResponse(error_code=error, member_id=request.member_id)
        return None

    def _decide(self, ticket: int, request: AnyRequest, client: Client) -> tuple[Decision, Any]:
        """What is to be written, and the answer that waits for that."""
        match request:
            case JoinGroupRequest():
                return self._requests.join(ticket, request, client), None
            case SyncGroupRequest():
                return self._requests.sync(ticket, request), None
            case HeartbeatRequest():
                return self._requests.heartbeat(ticket, request), None
            case LeaveGroupRequest():
                return self._requests.leave(request)
            case OffsetCommitRequest():
                return self._offsets.commit(request)

    def _refuse(self, ticket: int | None, request: AnyRequest | None, error: ErrorCode) -> None:
        if request is not None:
            self.around.answer(ticket, _REFUSAL[type(request)](error_code=answered_error(error)))

    # Writes.

    def _finish(
        self,
        decision: Decision,
        ticket: int | None,
        request: AnyRequest | None,
        response: Any,
        append: ErrorCode,
        *,
        hold: bool = False,
    ) -> None:
        if decision is None:
            if response is not None:
                self.around.answer(ticket, response)
            return
        held = _Held(decision, ticket, request, response, len(self.log))
        if append is ErrorCode.NONE:
            self.log.extend(decision.records)
        if hold:
            self._held.append(held)
        else:
            self._settle(held, append)

    def _settle(self, held: _Held, error: ErrorCode) -> None:
        with suppress(UnexpectedRequest):  # in Kafka a future's exception that nobody looks at
            held.write.done(error)
        if error is not ErrorCode.NONE:
            self._refuse(held.ticket, held.request, error)
        elif held.response is not None:
            self.around.answer(held.ticket, held.response)

    def _step(self, before: int) -> CoordinatorStep:
        answers, fired = self.around.answers, tuple(self._fired)
        self.around.answers = {}
        self._fired.clear()
        return CoordinatorStep(answers, tuple(self.log[before:]), fired)

    # Failover.

    def _unload(self) -> None:
        gone = ErrorCode.NOT_COORDINATOR
        for group in self.groups.values():
            group.move(ClassicState.DEAD, self.around.now)
            before = group.previous_state
            for member in group.members.values():
                if before is ClassicState.PREPARING_REBALANCE:
                    refusal = JoinGroupResponse(error_code=gone, member_id=member.member_id)
                    self._requests.answer_join(group, member, refusal)
                elif before in {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}:
                    self._requests.answer_sync(member, SyncGroupResponse(error_code=gone))

    def _load(self) -> None:
        self.groups.clear()
        for record in self.log:
            self._learn(record)
        for group in self.groups.values():
            for member in group.members.values():
                self._requests.keep_alive(group, member)
            if len(group.members) > self.around.config.max_size:
                self._requests.prepare_rebalance(group)

    def _learn(self, record: GroupRecord) -> None:
        """What a coordinator knows from a record alone."""
        match decode(record.key, record.value, offset=0, timestamp=0):
            case GroupMetadata() as found:
                self.groups[found.group] = self._loaded(found)
            case OffsetCommit() as found if found.group not in self.groups:
                self.groups[found.group] = ClassicGroup(found.group, self.around.now)

    def _loaded(self, found: GroupMetadata) -> ClassicGroup:
        since = found.state_timestamp_ms
        group = ClassicGroup(
            found.group,
            -1 if since is None else since,
            state=ClassicState.STABLE if found.members else ClassicState.EMPTY,
            generation=found.generation,
            protocol_type=found.protocol_type or None,
            protocol=found.protocol,
            leader=found.leader,
        )
        for each in found.members:
            protocol = JoinGroupProtocol(found.protocol or "", each.subscription)
            member = ClassicGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout=each.rebalance_timeout_ms,
                session_timeout=each.session_timeout_ms,
                protocols=(protocol,),
                assignment=each.assignment,
            )
            group.add(member, found.protocol_type, None)
        return group


def _generation_error(
    group: ClassicGroup, request: SyncGroupRequest | HeartbeatRequest
) -> ErrorCode:
    """Tells what is wrong with a request that names a member and its generation."""
    if group.state is ClassicState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = member_error(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE
