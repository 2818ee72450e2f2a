"""All KIP-848 groups of a coordinator, as their records make them.

Problem: what a coordinator decides and what one that takes over reads must lead to the same
state. Choice: both go through `apply`, record by record. Cost: none but the detour.
"""

from collections.abc import Iterable

from fleet.sim.assignors.applicants import Target
from fleet.sim.coordinator.consumer_group import BrokenLog, EpochGroup, Resolved
from fleet.sim.coordinator.consumer_member import (
    LEFT,
    ConsumerMember,
    ConsumerMemberState,
    Owned,
)
from fleet.sim.coordinator.consumer_records import (
    EPOCH,
    MEMBER,
    PARTITION_METADATA,
    REGEX,
    TARGET,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    Listed,
    MemberValue,
    OldMetadataValue,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from fleet.sim.coordinator.request_refusals import no_group, unknown_member
from fleet.sim.hashing.hash_order import HashOrder, SlotOrder


class ConsumerGroups:
    """Groups by id."""

    def __init__(self) -> None:
        self.by_id: SlotOrder[str, EpochGroup] = SlotOrder()

    def group(self, group_id: str) -> EpochGroup:
        """A group. Raises RequestRefused (GROUP_ID_NOT_FOUND)."""
        found = self.by_id.get(group_id)
        if found is None:
            raise no_group(group_id)
        return found

    def member(self, group: EpochGroup, member_id: str) -> ConsumerMember:
        """A member of it. Raises RequestRefused (UNKNOWN_MEMBER_ID)."""
        found = group.members.get(member_id)
        if found is None:
            raise unknown_member(group.id, member_id)
        return found

    def take_up(self, records: Iterable[ConsumerRecord]) -> None:
        """Applies the records of one event, and says where each group stands then.

        Raises BrokenLog for records that contradict each other.
        """
        touched: dict[str, EpochGroup] = {}
        for record in records:
            self.apply(record)
            group = self.by_id.get(record.group)
            if group is not None:
                touched[group.id] = group
        for group in touched.values():
            if group.id in self.by_id:
                group.settle()

    def apply(self, record: ConsumerRecord) -> None:
        """One record; a tombstone of what is not there is none of anything."""
        group = self.by_id.get(record.group)
        if group is None:
            if record.value is None:
                return
            group = self.by_id[record.group] = EpochGroup(record.group)
        value = record.value
        if value is None:
            self._without(group, record)
        elif isinstance(value, EpochValue):
            group.set_epoch(value.epoch, value.metadata_hash)
        elif isinstance(value, TargetEpochValue):
            group.set_target_epoch(value.epoch, value.computed_ms)
        elif isinstance(value, RegexValue):
            topics: HashOrder[str, None] = HashOrder.collected(value.topics, None)
            resolved = Resolved(topics, value.version, value.resolved_ms)
            group.set_resolved(str(record.about), resolved)
        elif isinstance(value, TargetValue):
            group.set_target(str(record.about), _target(value))
        elif isinstance(value, OldMetadataValue):
            group.has_old_metadata = True
        else:
            old = group.members.get(str(record.about)) or ConsumerMember(id=str(record.about))
            group.set_member(_as_told(old, value))

    def _without(self, group: EpochGroup, record: ConsumerRecord) -> None:
        about = str(record.about)
        if record.type == EPOCH:
            self._delete(group)
        elif record.type == REGEX:
            group.set_resolved(about, None)
        elif record.type == PARTITION_METADATA:
            group.has_old_metadata = False
        elif record.type == TARGET:
            group.remove_target(about)
        elif record.about is None:
            if group.targets:
                raise _contradiction(group, "its target epoch went before its targets")
            group.set_target_epoch(-1, 0)
        elif about in group.members:
            self._without_member(group, group.members[about], record.type)

    def _without_member(self, group: EpochGroup, member: ConsumerMember, kind: int) -> None:
        if kind != MEMBER:
            nothing: Owned = HashOrder()
            gone = member.having(
                epoch=LEFT, previous_epoch=LEFT, assigned=nothing, revoking=HashOrder()
            )
            group.set_member(gone)
            return
        if member.epoch != LEFT:
            raise _contradiction(group, f"member {member.id} went before what it owned")
        if member.id in group.targets:
            raise _contradiction(group, f"member {member.id} went before its target")
        group.remove_member(member.id)

    def _delete(self, group: EpochGroup) -> None:
        if group.members or group.targets or group.target_epoch != -1:
            raise _contradiction(group, "it went before its members and their targets")
        group.settle(deleted=True)
        del self.by_id[group.id]


def _contradiction(group: EpochGroup, why: str) -> BrokenLog:
    return BrokenLog(f"group {group.id}: {why}; the log has lost a record in between")


def _target(value: TargetValue) -> Target:
    found: Target = HashOrder()
    for topic, partitions in value.partitions:
        found[topic] = HashOrder.collected(partitions, None, len(partitions))
    return found


def _owned(listed: Listed) -> Owned:
    found: Owned = HashOrder()
    for topic, partitions, epochs in listed:
        each: HashOrder[int, int] = HashOrder()
        each.put_each(dict(zip(partitions, epochs, strict=True)))
        found[topic] = each
    return found


def _as_told(old: ConsumerMember, value: MemberValue | CurrentValue) -> ConsumerMember:
    if isinstance(value, CurrentValue):
        return old.having(
            epoch=value.epoch,
            previous_epoch=value.previous_epoch,
            state=ConsumerMemberState.of(value.state),
            assigned=_owned(value.assigned),
            revoking=_owned(value.revoking),
        )
    return old.having(
        instance=value.instance,
        rack=value.rack,
        client=value.client,
        host=value.host,
        topics=HashOrder.collected(value.topics, None, len(value.topics)),
        regex=value.regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.assignor,
    )
