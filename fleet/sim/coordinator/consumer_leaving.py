"""Members of KIP-848 groups that go: for good, for a while, by a timer, or by an administrator.

Whoever goes for good takes its target with it and raises the group epoch, once for all who go by
one request. A static member that goes for a while (-2) keeps what it has until its session
ends: whoever comes with its instance id inherits it, and nothing is moved.
"""

from collections.abc import Iterable

from fleet.sim.coordinator.consumer_group import EpochGroup, counted
from fleet.sim.coordinator.consumer_member import AWAY, ConsumerMember, Owned
from fleet.sim.coordinator.consumer_records import (
    CURRENT,
    EPOCH,
    MEMBER,
    PARTITION_METADATA,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    MemberValue,
    TargetValue,
)
from fleet.sim.coordinator.consumer_shard import ConsumerShard, Expiry
from fleet.sim.coordinator.error_codes import ErrorCode
from fleet.sim.coordinator.request_refusals import (
    RequestRefused,
    fenced_instance,
    group_is_not_empty,
    unknown_instance,
)
from fleet.sim.coordinator.requests import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from fleet.sim.coordinator.topic_image import group_hash
from fleet.sim.hashing.hash_order import HashOrder

Records = list[ConsumerRecord]


def leave(
    shard: ConsumerShard, asked: ConsumerGroupHeartbeatRequest
) -> tuple[ConsumerGroupHeartbeatResponse, Records]:
    """A heartbeat of epoch -1 or -2. Raises RequestRefused for a member that is not there."""
    group = shard.groups.group(asked.group_id)
    answer = ConsumerGroupHeartbeatResponse(
        member_id=asked.member_id, member_epoch=asked.member_epoch
    )
    if asked.instance_id is None:
        member = shard.groups.member(group, asked.member_id)
    else:
        member = static_member(group, asked.instance_id, asked.member_id)
        if asked.member_epoch == AWAY:
            return answer, [_current(group, _away(member))]
    return answer, removed(shard, group, [member])


def static_member(group: EpochGroup, instance: str, member_id: str) -> ConsumerMember:
    """The member of an instance id, if it has that id; an empty id is that of any.

    Raises RequestRefused (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID).
    """
    member = group.static_member(instance)
    if member is None:
        raise unknown_instance(group.id, instance)
    if member_id and member.id != member_id:
        raise fenced_instance(instance, member_id, member.id)
    return member


def leave_many(
    shard: ConsumerShard, asked: LeaveGroupRequest
) -> tuple[LeaveGroupResponse, Records]:
    """LeaveGroup, as administrators use it: each member with its own answer, one new epoch.

    Raises RequestRefused for a group that is not there.
    """
    try:
        group = shard.groups.group(asked.group_id)
    except RequestRefused as refused:
        raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, refused.why) from refused
    leaving: dict[str, ConsumerMember] = {}
    answers = []
    for leaver in asked.members:
        error = 0
        try:
            if leaver.group_instance_id is None:
                member = shard.groups.member(group, leaver.member_id)
            else:
                member = static_member(group, leaver.group_instance_id, leaver.member_id)
            leaving[member.id] = member
        except RequestRefused as refused:
            error = int(refused.code)
        answers.append(MemberResponse(leaver.member_id, leaver.group_instance_id, error))
    records = removed(shard, group, list(leaving.values())) if leaving else []
    return LeaveGroupResponse(members=tuple(answers)), records


def expired(shard: ConsumerShard, expiry: Expiry) -> Records:
    """A member's timer went off: it goes, but for one that has left the epoch it was to leave."""
    try:
        group = shard.groups.group(expiry.group)
        member = shard.groups.member(group, expiry.member)
    except RequestRefused:
        return []
    if expiry.epoch is not None and member.epoch != expiry.epoch:
        return []
    return removed(shard, group, [member])


def removed(shard: ConsumerShard, group: EpochGroup, members: Iterable[ConsumerMember]) -> Records:
    """The records by which members go for good; their timers go at once."""
    records: Records = []
    topics = dict(group.topics)
    users: HashOrder[str, int] = HashOrder()
    for member in members:
        records += without(group, member)
        counted(topics, member.topics, by_name=-1)
        if member.subscribed_regex:
            users.put_first(member.subscribed_regex, users.get(member.subscribed_regex, 0) + 1)
    for regex, count in users.items():
        if group.regexes.get(regex, 0) == count:
            records.append(ConsumerRecord(REGEX, group.id, regex, None))
            if regex in group.resolved:
                counted(topics, group.resolved[regex].topics, by_regex=-1)
    value = EpochValue(group.epoch + 1, group_hash(topics, shard.image))
    records.append(ConsumerRecord(EPOCH, group.id, None, value))
    for member in members:
        shard.expect_nothing(group, member.id)
    return records


def without(group: EpochGroup, member: ConsumerMember) -> Records:
    """The tombstones of a member."""
    kinds = (CURRENT, TARGET, MEMBER)
    return [ConsumerRecord(kind, group.id, member.id, None) for kind in kinds]


def replaced(group: EpochGroup, old: ConsumerMember, new: ConsumerMember) -> Records:
    """A static member comes back under another id and takes all that was its own."""
    target = TargetValue.of(group.targets.get(old.id, HashOrder()))
    return [
        *without(group, old),
        ConsumerRecord(MEMBER, group.id, new.id, MemberValue.of(new)),
        ConsumerRecord(TARGET, group.id, new.id, target),
        _current(group, new),
    ]


def deleted(shard: ConsumerShard, group_id: str) -> Records:
    """DeleteGroups of one. Raises RequestRefused (GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP)."""
    group = shard.groups.group(group_id)
    if group.members:
        raise group_is_not_empty(group_id, len(group.members))
    return _deletion(group)


def cleaned_up(shard: ConsumerShard) -> Records:
    """Empty groups go, as they have no offsets here; the next look is set."""
    groups = [group for group in shard.groups.by_id.values() if not group.members]
    shard.expect_cleanup()
    return [record for group in groups for record in _deletion(group)]


def _deletion(group: EpochGroup) -> Records:
    return [
        ConsumerRecord(TARGET_EPOCH, group.id, None, None),
        *(ConsumerRecord(REGEX, group.id, regex, None) for regex in group.resolved),
        ConsumerRecord(PARTITION_METADATA, group.id, None, None),
        ConsumerRecord(EPOCH, group.id, None, None),
    ]


def _current(group: EpochGroup, member: ConsumerMember) -> ConsumerRecord:
    return ConsumerRecord(CURRENT, group.id, member.id, CurrentValue.of(member))


def _away(member: ConsumerMember) -> ConsumerMember:
    """Gone for a while: it keeps what it was assigned, as if from ever; what it gave up is free."""
    kept: Owned = HashOrder()
    for topic, partitions in member.assigned.items():
        each: HashOrder[int, int] = HashOrder()
        for partition in partitions:
            each[partition] = 0
        kept[topic] = each
    return member.having(epoch=AWAY, revoking=HashOrder(), assigned=kept)
