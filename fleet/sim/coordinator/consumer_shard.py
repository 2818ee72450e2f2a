"""What a coordinator of KIP-848 groups has at hand: groups, topics, timers, settings, the time."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from fleet.sim.assignors import Target
from fleet.sim.coordinator.consumer_group import (
    AWAY,
    LEFT,
    ConsumerMember,
    ConsumerMemberState,
    EpochGroup,
    Owned,
)
from fleet.sim.coordinator.consumer_records import (
    CURRENT,
    EPOCH,
    MEMBER,
    TARGET,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    Listed,
    MemberValue,
    TargetEpochValue,
    TargetValue,
)
from fleet.sim.coordinator.requests import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ErrorCode,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    RequestRefused,
)
from fleet.sim.hashing import HashOrder, SlotOrder
from fleet.sim.timers import Timers

# What a coordinator knows of topics, and the hashes by which it notices changes (KIP-1101).
#
# A topic id is 16 bytes. Hashes are signed 64-bit numbers, as they stand in records.


@dataclass(frozen=True)
class TopicFacts:
    """One topic of brokers without racks."""

    id: bytes
    name: str
    partitions: int


class TopicImage:
    """All topics at one version of the cluster's metadata (an offset of the metadata log)."""

    def __init__(self, version: int = -1, topics: Iterable[TopicFacts] = ()) -> None:
        self.version = version
        self.by_name: Mapping[str, TopicFacts] = {topic.name: topic for topic in topics}
        self.by_id = {topic.id: topic for topic in self.by_name.values()}
        self.partitions = {topic.id: topic.partitions for topic in self.by_name.values()}

    def ids_of(self, names: Iterable[str]) -> list[bytes]:
        """The ids of those topics that exist, in the order of the names."""
        return [self.by_name[name].id for name in names if name in self.by_name]

    def has_among(self, topic_id: bytes, names: Iterable[str]) -> bool:
        """Whether that topic exists under one of the names."""
        topic = self.by_id.get(topic_id)
        return topic is not None and topic.name in names


def group_hash(names: Iterable[str], image: TopicImage) -> int:
    """The hash of the topics of a group; 0 where none of them exists.

    Kafka's is another function of more facts (KIP-1101); nothing depends on its value.
    """
    found = [image.by_name[name] for name in sorted(names) if name in image.by_name]
    digest = hashlib.blake2b(repr(found).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) if found else 0


# All KIP-848 groups of a coordinator, as their records make them.
#
# Problem: what a coordinator decides and what one that takes over reads must lead to the same
# state. Choice: both go through `apply`, record by record. Cost: none but the detour.


class ConsumerGroups:
    """Holds the groups by id."""

    def __init__(self) -> None:
        self.by_id: SlotOrder[str, EpochGroup] = SlotOrder()

    def group(self, group_id: str) -> EpochGroup:
        """A group. Raises RequestRefused (GROUP_ID_NOT_FOUND)."""
        found = self.by_id.get(group_id)
        if found is None:
            raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND)
        return found

    def member(self, group: EpochGroup, member_id: str) -> ConsumerMember:
        """A member of it. Raises RequestRefused (UNKNOWN_MEMBER_ID)."""
        found = group.members.get(member_id)
        if found is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID)
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
        elif isinstance(value, TargetValue):
            group.set_target(str(record.about), _target(value))
        else:
            old = group.members.get(str(record.about)) or ConsumerMember(id=str(record.about))
            group.set_member(_as_told(old, value))

    @staticmethod
    def _without(group: EpochGroup, record: ConsumerRecord) -> None:
        about = str(record.about)
        if record.type == TARGET:
            group.remove_target(about)
        elif about in group.members and record.type == MEMBER:
            group.remove_member(about)
        elif about in group.members:
            gone = group.members[about].having(
                epoch=LEFT, previous_epoch=LEFT, assigned=HashOrder(), revoking=HashOrder()
            )
            group.set_member(gone)


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
            state=ConsumerMemberState(value.state),
            assigned=_owned(value.assigned),
            revoking=_owned(value.revoking),
        )
    return old.having(
        instance=value.instance,
        rack=value.rack,
        client=value.client,
        host=value.host,
        topics=HashOrder.collected(value.topics, None, len(value.topics)),
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.assignor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """What the broker is configured with; Kafka 4.3's defaults, in ms."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    max_size: int = 2_147_483_647
    assignment_interval_ms: int = 1_000


BROKER_DEFAULTS: Final = ConsumerGroupSettings()


class Expiry(NamedTuple):
    """A member's timer; `epoch` is None for its session, for a rebalance the epoch to leave."""

    group: str
    member: str
    epoch: int | None = None


@dataclass(slots=True)
class ConsumerShard:
    """`now` and all times in ms. Another broker takes over the groups, and begins the rest anew."""

    settings: ConsumerGroupSettings = BROKER_DEFAULTS
    now: int = 0
    groups: ConsumerGroups = field(default_factory=ConsumerGroups)
    image: TopicImage = field(default_factory=TopicImage)
    timers: Timers[Expiry] = field(default_factory=Timers)

    def expect_heartbeat(self, group: str, member: str) -> None:
        """The member's session begins anew."""
        key, expiry = _session(group, member)
        self.timers.schedule(key, self.now + self.settings.session_ms, expiry)

    def expect_revocation(self, group: str, member: ConsumerMember) -> None:
        """The member has its rebalance timeout to give up partitions; else nothing is awaited."""
        key = _rebalance(group, member.id)
        deadline = self.now + member.rebalance_timeout_ms
        self.timers.schedule(key, deadline, Expiry(group, member.id, member.epoch))

    def expect_no_revocation(self, group: str, member: str) -> None:
        """The member has nothing to give up."""
        self.timers.cancel(_rebalance(group, member))

    def expect_nothing(self, group: EpochGroup, member: str) -> None:
        """The member is gone."""
        self.timers.cancel(_session(group.id, member)[0])
        self.timers.cancel(_rebalance(group.id, member))


@lru_cache(maxsize=4096)  # one for each heartbeat
def _session(group: str, member: str) -> tuple[str, Expiry]:
    return f"session-timeout-{group}-{member}", Expiry(group, member)


def _rebalance(group: str, member: str) -> str:
    return f"rebalance-timeout-{group}-{member}"


# Members of KIP-848 groups that go: for good, for a while, by a timer, or by an administrator.
#
# A member that goes for good takes its target with it and raises the group epoch, once for all
# members of one request. A static member that goes for a while (-2) keeps what it has until its
# session ends: the next member with its instance id inherits it, and nothing is moved.


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
        raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID)
    if member_id and member.id != member_id:
        raise RequestRefused(ErrorCode.FENCED_INSTANCE_ID)
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
        raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID) from refused
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


def removed(shard: ConsumerShard, group: EpochGroup, members: list[ConsumerMember]) -> Records:
    """The records by which members go for good; their timers go at once."""
    records: Records = []
    for member in members:
        records += without(group, member)
    topics = group.topics if len(members) < len(group.members) else ()
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
