"""Rounds of a classic group: who is waited for and how long, a new generation, its assignment.

Problem: a rebalance is three timers and two barriers, and which of them is set, kept or dropped
at each step is what a plan costs. Choice: the steps of Kafka's GroupMetadataManager one by one,
with its names for them; whoever is parked is a number, answered when the barrier opens. Cost: a
reader needs both open side by side to see that they agree; tests/conformance does that.

docs/design/protocol.md 2.2 has the rules in words.
"""

from collections.abc import MutableMapping

from fleet.sim.coordinator.classic_group import ClassicGroup, ClassicGroupMember
from fleet.sim.coordinator.classic_state import ClassicState
from fleet.sim.coordinator.error_codes import ErrorCode
from fleet.sim.coordinator.requests import JoinGroupResponse, SyncGroupResponse
from fleet.sim.coordinator.surroundings import (
    Decision,
    PendingWrite,
    Surroundings,
    nothing_done,
)

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

    def __init__(self, around: Surroundings, groups: MutableMapping[str, ClassicGroup]) -> None:
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
