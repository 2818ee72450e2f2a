"""The coordinator of KIP-848 consumer groups as a model of Kafka 4.3.1's, exact to the byte.

Problem: what a plan costs follows from what the coordinator does at every heartbeat; an estimate
of it is wrong where it matters, in the middle of another change. Choice: the coordinator's own
machine without its I/O: requests, topics and time go in, answers and records come out, in the
very bytes and order that Kafka writes (tests/conformance plays both side by side). Cost: Python
is slower than Kafka's code, and Kafka 4.3.1 is one version.

Not modelled: groups that are both classic and KIP-848 (conversion either way), share and streams
groups, offsets, that empty groups expire, the value of the topics' hash, access rules, appends that
fail, ids that the broker makes (version 0 of the request), racks, members that subscribe to
different topics or by expressions, and assignors other than `uniform`. Where several members leave
by one request, Java walks them in an order that differs from run to run; here it is theirs.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fleet.errors import FleetError
from fleet.sim.assignors import Target, assign_uniformly
from fleet.sim.coordinator import consumer_shard
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
    TARGET_EPOCH,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    MemberValue,
    TargetEpochValue,
    TargetValue,
)
from fleet.sim.coordinator.consumer_shard import (
    BROKER_DEFAULTS,
    ConsumerGroupSettings,
    ConsumerShard,
    Records,
    TopicFacts,
    TopicImage,
    group_hash,
    replaced,
    static_member,
)
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ErrorCode,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    RequestRefused,
    TopicPartitions,
)
from fleet.sim.hashing import HashOrder, emptied

# A heartbeat of a KIP-848 member, from its fields to the answer and the records.
#
# Problem: with KIP-848 everything happens at heartbeats: joins, changed subscriptions, noticed
# topics, new targets, and each member's next step. Choice: one after the other, as Kafka's: the
# member as it tells of itself, the group epoch, the target, the member's step.
# Cost: who asks first pays for all.


# What a member may own after a heartbeat: one step from what it has towards its target.
#
# Problem: a partition must have one owner at any time, and members hear of a new target only with
# their heartbeats. Choice: Kafka's (KIP-848): first a member gives up what is not in its target
# and says so, then it takes the target's epoch with what is free of it, then the rest as others
# let it go. Cost: two heartbeat intervals in the worst case for a partition that moves.


Reported = Sequence[tuple[bytes, Sequence[int]]]
"""Partitions by topic id that a member says it owns."""
_NONE: Mapping[int, int] = {}


@dataclass(slots=True)
class Reconciliation:
    """All that a step needs besides the member.

    `names` are the topics that the member subscribes to. `reported` is None where the heartbeat did
    not say what the member owns. `epoch_of` tells at which epoch a partition is owned by anyone, -1
    if it is free.
    """

    epoch: int
    target: Target
    names: Collection[str]
    reported: Reported | None
    image: TopicImage
    epoch_of: Callable[[bytes, int], int]

    def next_of(self, member: ConsumerMember) -> ConsumerMember:
        """The member after this step; the same object where nothing changes."""
        state = member.state
        if state is ConsumerMemberState.STABLE and member.epoch == self.epoch:
            return member
        if state is ConsumerMemberState.UNREVOKED and self._still_has(member.revoking):
            return member
        return self._towards_target(member)

    def _still_has(self, given_up: Owned) -> bool:
        """Whether the member owns any of that, or did not say."""
        if self.reported is None:
            return True
        return any(
            partition in given_up.get(topic, _NONE)
            for topic, partitions in self.reported
            for partition in partitions
        )

    def _subscribed(self, topic: bytes) -> bool:
        return self.image.has_among(topic, self.names)

    def _towards_target(self, member: ConsumerMember) -> ConsumerMember:
        keep: Owned = HashOrder()
        give_up: Owned = HashOrder()
        take: HashOrder[bytes, list[int]] = HashOrder()
        waits = False
        topics = HashOrder.collected(self.target, None)
        for topic in member.assigned:
            topics[topic] = None
        for topic in topics:
            wanted = self.target.get(topic, _NONE) if self._subscribed(topic) else _NONE
            has = member.assigned.get(topic)
            kept: HashOrder[int, int] = HashOrder()
            if has:
                kept = HashOrder.copied(has)
                kept.keep(wanted)
                if kept:
                    keep[topic] = kept
                if len(kept) < len(has):
                    give_up[topic] = emptied(HashOrder.copied(has), kept)
            if len(kept) == len(wanted):
                continue
            missing = emptied(HashOrder.collected(wanted, None), kept)
            mine = member.revoking.get(topic, _NONE)
            free = [each for each in missing if self.epoch_of(topic, each) == -1 or each in mine]
            waits = waits or len(free) < len(missing)
            if free:
                take[topic] = free
        return self._stepped(member, keep, give_up, take, waits=waits)

    def _stepped(
        self,
        member: ConsumerMember,
        keep: Owned,
        give_up: Owned,
        take: HashOrder[bytes, list[int]],
        *,
        waits: bool,
    ) -> ConsumerMember:
        if give_up and self._still_has(give_up):
            state = ConsumerMemberState.UNREVOKED
            return member.reached(member.epoch, state=state, assigned=keep, revoking=give_up)
        for topic, partitions in take.items():
            mine = keep.found(topic, HashOrder())
            mine.put_each(dict.fromkeys(partitions, self.epoch))
        state = ConsumerMemberState.UNRELEASED if waits else ConsumerMemberState.STABLE
        return member.reached(self.epoch, state=state, assigned=keep, revoking=HashOrder())


# Topic ids: 16 bytes inside the model, 22 characters of base64 in messages, as Kafka has them.


_KNOWN_IDS: Final = 1 << 16


@lru_cache(maxsize=_KNOWN_IDS)
def topic_id_bytes(text: str) -> bytes:
    """The id that Kafka prints so. Raises ValueError for anything else."""
    return base64.urlsafe_b64decode(text + "==")


@lru_cache(maxsize=_KNOWN_IDS)
def topic_id_text(topic: bytes) -> str:
    """The id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic).decode().rstrip("=")


def owned_by_id(owned: Iterable[TopicPartitions]) -> Reported:
    """What a member says it owns."""
    return [(topic_id_bytes(each.topic_id), each.partitions) for each in owned]


def topic_partitions(owned: Owned) -> tuple[TopicPartitions, ...]:
    """What a member is told to own."""
    return tuple(
        TopicPartitions(topic_id_text(topic), tuple(partitions))
        for topic, partitions in owned.items()
    )


# What must hold of a ConsumerGroupHeartbeat before its group is looked at.


JOINING: Final = 0
_NOTHING: Final[Mapping[int, int]] = {}


def check(asked: ConsumerGroupHeartbeatRequest) -> None:
    """Raises RequestRefused (INVALID_REQUEST, UNSUPPORTED_ASSIGNOR) where fields do not fit."""
    # One by one, since most of what a simulation asks are heartbeats.
    if (
        not asked.member_id.strip()
        or not asked.group_id.strip()
        or (asked.instance_id is not None and not asked.instance_id.strip())
        or (asked.rack_id is not None and not asked.rack_id.strip())
    ):
        raise RequestRefused(ErrorCode.INVALID_REQUEST)
    if asked.member_epoch == JOINING:
        unnamed = asked.subscribed_topic_names is None
        if asked.rebalance_timeout_ms == -1 or asked.topic_partitions != () or unnamed:
            raise RequestRefused(ErrorCode.INVALID_REQUEST)  # it owns nothing yet, and says so
    elif asked.member_epoch < AWAY or (asked.member_epoch == AWAY and asked.instance_id is None):
        raise RequestRefused(ErrorCode.INVALID_REQUEST)
    if asked.server_assignor not in {None, "uniform"}:
        raise RequestRefused(ErrorCode.UNSUPPORTED_ASSIGNOR)


def check_epoch(member: ConsumerMember, epoch: int, owned: Reported | None) -> None:
    """Raises RequestRefused (FENCED_MEMBER_EPOCH) for an epoch that the member cannot have.

    Its previous epoch is taken where the answer to its last heartbeat may have been lost: if it
    owns nothing but what it was given.
    """
    if epoch in (JOINING, member.epoch):
        return
    lost_an_answer = epoch < member.epoch and epoch == member.previous_epoch
    if not lost_an_answer or owned is None or not _is_within(owned, member):
        raise RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH)


def _is_within(owned: Reported, member: ConsumerMember) -> bool:
    for topic, partitions in owned:
        given = member.assigned.get(topic)
        if given is None or any(each not in given for each in partitions):
            return False
    return True


# The target of a KIP-848 group: when it may be computed anew, and from whom.
#
# Problem: a start of many members would compute a target for each of them. Choice: Kafka's of 4.3
# (KIP-1263): a new target is computed at a heartbeat of any member, and not before an interval has
# gone by since the last one. Cost: a lone join may wait for the interval.


def may_compute(group: EpochGroup, interval_ms: int, now: int) -> bool:
    """Whether the interval since the last target has gone by; the first one waits for nothing."""
    never = group.computed_ms == 0
    return never or interval_ms == 0 or now >= group.computed_ms + interval_ms


def computed(
    group: EpochGroup,
    new: ConsumerMember,
    *,
    epoch: int,
    image: TopicImage,
    now: int,
) -> tuple[Target, list[ConsumerRecord]]:
    """(the new target of that member, the records of all that change).

    `new` is the member as its heartbeat makes it; it may replace a static member of another id.
    """
    applicants = _applicants(group, new)
    known = image.ids_of(new.topics)
    topics = HashOrder.collected(known, None, len(new.topics))
    targets = assign_uniformly(applicants, topics, image.partitions, group.target_owners)
    records: list[ConsumerRecord] = []
    for member in applicants:
        target = targets.get(member, HashOrder())
        if member not in group.targets or target != group.targets[member]:
            value = TargetValue.of(target)
            records.append(ConsumerRecord(TARGET, group.id, member, value))
    records.append(ConsumerRecord(TARGET_EPOCH, group.id, None, TargetEpochValue(epoch, now)))
    return targets.get(new.id, HashOrder()), records


def _applicants(group: EpochGroup, new: ConsumerMember) -> HashOrder[str, Target]:
    """The targets of all members as they will be, in the order of a Java map of them."""
    found: HashOrder[str, Target] = HashOrder()
    for member in group.members.values():
        found[member.id] = group.targets.get(member.id, HashOrder())
    inherited = group.statics.get(new.instance) if new.instance is not None else None
    target = group.targets.get(inherited or new.id, HashOrder())
    updates: HashOrder[str, Target | None] = HashOrder()
    updates[new.id] = target
    if inherited is not None and inherited != new.id:
        updates[inherited] = None
    for member_id, update in updates.items():
        if update is None:
            found.pop(member_id, None)
        else:
            found[member_id] = update
    return found


NEXT_TOPIC_CHECK_MS: Final = 2_147_483_647
"""How long a look at the topics holds without a change of them (24.8 days)."""
_TELLS: Final = slice(4, 8)
"""Where a heartbeat says what a member is: rack, rebalance timeout, topics, assignor."""
_NOTHING_TOLD: Final = ConsumerGroupHeartbeatRequest("", "", 0)[_TELLS]


def heartbeat(
    shard: ConsumerShard, asked: ConsumerGroupHeartbeatRequest, client: Client
) -> tuple[ConsumerGroupHeartbeatResponse, Records]:
    """(the answer, what it writes). Raises RequestRefused."""
    group = shard.groups.by_id.get(asked.group_id)
    if group is None and asked.member_epoch == JOINING:
        group = EpochGroup(asked.group_id)
    group = group or shard.groups.group(asked.group_id)
    most = shard.settings.max_size
    if len(group.members) >= most and asked.member_id not in group.members:
        raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    return _Heartbeat(shard, group, asked).answered(client)


@dataclass(slots=True)
class _Heartbeat:
    shard: ConsumerShard
    group: EpochGroup
    asked: ConsumerGroupHeartbeatRequest

    def answered(self, client: Client) -> tuple[ConsumerGroupHeartbeatResponse, Records]:
        records: Records = []
        old = self._member(records)
        member = self._as_told(old, client)
        new = (
            member if member is old and self._is_settled(old) else self._step(old, member, records)
        )
        self.shard.expect_heartbeat(self.group.id, self.asked.member_id)
        return self._answer(old, new), records

    def _is_settled(self, member: ConsumerMember) -> bool:
        """Nothing is to do for one that tells nothing new: most heartbeats."""
        group = self.group
        return (
            group.target_epoch >= group.epoch
            and member.is_reconciled_to(group.target_epoch)
            and not group.must_check_topics(self.shard.now)
        )

    def _step(
        self, old: ConsumerMember, member: ConsumerMember, records: Records
    ) -> ConsumerMember:
        """The member after its next step."""
        group, renamed = self.group, member.topics != old.topics
        if renamed and group.topics and member.topics != group.topics:
            raise FleetError(f"members of group {group.id} subscribe to other topics")
        if member != old:
            records.append(ConsumerRecord(MEMBER, group.id, member.id, MemberValue.of(member)))
        epoch = group.epoch
        if renamed or group.must_check_topics(self.shard.now):
            epoch = self._look_at_topics(member, records, bumps=renamed)
        target_epoch, target = self._target(epoch, member, records)
        return self._reconciled(member, target_epoch, target, records)

    # The member.

    def _member(self, records: Records) -> ConsumerMember:
        """The member as it is known, a new one, or the heir of a static one."""
        asked, group = self.asked, self.group
        joins = asked.member_epoch == JOINING
        if asked.instance_id is None:
            known = group.members.get(asked.member_id)
            if known is None:
                if not joins:
                    known = self.shard.groups.member(group, asked.member_id)
                else:
                    known = ConsumerMember(id=asked.member_id)
            self._check_epoch(known)
            return known
        if not joins:
            known = static_member(group, asked.instance_id, asked.member_id)
            self._check_epoch(known)
            return known
        last = group.static_member(asked.instance_id)
        if last is None:
            return group.members.get(asked.member_id) or ConsumerMember(id=asked.member_id)
        if last.epoch != AWAY:
            raise RequestRefused(ErrorCode.UNRELEASED_INSTANCE_ID)
        heir = last.having(id=asked.member_id, epoch=0, previous_epoch=0)
        records += replaced(group, last, heir)
        return heir

    def _check_epoch(self, member: ConsumerMember) -> None:
        owned = self.asked.topic_partitions
        check_epoch(member, self.asked.member_epoch, None if owned is None else owned_by_id(owned))

    def _as_told(self, old: ConsumerMember, client: Client) -> ConsumerMember:
        asked = self.asked
        topics, host = old.topics, f"/{client.host}"
        if (
            asked[_TELLS] == _NOTHING_TOLD
            and asked.instance_id in {None, old.instance}
            and client.client_id == old.client
            and host == old.host
        ):
            return old  # most heartbeats
        if asked.subscribed_topic_names is not None:
            names = asked.subscribed_topic_names
            topics = HashOrder.collected(names, None, len(names))
        timeout = asked.rebalance_timeout_ms
        return old.having(
            instance=old.instance if asked.instance_id is None else asked.instance_id,
            rack=old.rack if asked.rack_id is None else asked.rack_id,
            rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
            assignor=old.assignor if asked.server_assignor is None else asked.server_assignor,
            topics=topics,
            client=client.client_id,
            host=host,
        )

    # The group.

    def _look_at_topics(self, member: ConsumerMember, records: Records, *, bumps: bool) -> int:
        """The group epoch with the member as it tells."""
        group, shard = self.group, self.shard
        hashed = group_hash(member.topics, shard.image)
        epoch = group.epoch
        if bumps or hashed != group.metadata_hash:
            epoch += 1
            records.append(ConsumerRecord(EPOCH, group.id, None, EpochValue(epoch, hashed)))
        group.note_topic_check(shard.now + NEXT_TOPIC_CHECK_MS, epoch)
        return epoch

    def _target(self, epoch: int, member: ConsumerMember, records: Records) -> tuple[int, Target]:
        group, shard = self.group, self.shard
        interval = shard.settings.assignment_interval_ms
        if group.target_epoch >= epoch or not may_compute(group, interval, shard.now):
            return group.target_epoch, group.target_of(member)
        target, more = computed(group, member, epoch=epoch, image=shard.image, now=shard.now)
        records += more
        return epoch, target

    # The answer.

    def _reconciled(
        self, member: ConsumerMember, epoch: int, target: Target, records: Records
    ) -> ConsumerMember:
        if member.is_reconciled_to(epoch):
            return member
        group, owned = self.group, self.asked.topic_partitions
        new = Reconciliation(
            epoch=epoch,
            target=target,
            names=member.topics,
            reported=None if owned is None else owned_by_id(owned),
            image=self.shard.image,
            epoch_of=group.epoch_of,
        ).next_of(member)
        if new != member:
            value = CurrentValue.of(new)
            records.append(ConsumerRecord(CURRENT, group.id, new.id, value))
            if new.state is ConsumerMemberState.UNREVOKED:
                self.shard.expect_revocation(group.id, new)
            else:
                self.shard.expect_no_revocation(group.id, new.id)
        return new

    def _answer(self, old: ConsumerMember, new: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
        asked = self.asked
        told_all = (
            asked.rebalance_timeout_ms != -1
            and asked.subscribed_topic_names is not None
            and asked.topic_partitions is not None
        )
        assignment = None
        given = new is not old and new.assigned != old.assigned
        if asked.member_epoch == JOINING or told_all or given:
            assignment = ConsumerGroupAssignment(topic_partitions(new.assigned))
        interval = self.shard.settings.heartbeat_ms
        return ConsumerGroupHeartbeatResponse(0, new.id, new.epoch, interval, assignment)


_ANYONE = Client()


class ConsumerCoordinator:
    """One partition's coordinator, with its log. All times in ms.

    Each method writes at the time to which the coordinator was brought last (`advance`).
    """

    def __init__(
        self, settings: ConsumerGroupSettings = BROKER_DEFAULTS, *, start_ms: int = 0
    ) -> None:
        self.shard = ConsumerShard(settings=settings, now=start_ms)
        self.log: list[ConsumerRecord] = []

    @property
    def now(self) -> int:
        """Returns the model's time in milliseconds."""
        return self.shard.now

    def heartbeat(
        self, asked: ConsumerGroupHeartbeatRequest, client: Client = _ANYONE
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat, a join or a leave of a member."""
        try:
            check(asked)
            if asked.member_epoch in (LEFT, AWAY):
                answer, records = consumer_shard.leave(self.shard, asked)
            else:
                answer, records = heartbeat(self.shard, asked, client)
        except RequestRefused as refused:
            return ConsumerGroupHeartbeatResponse(error_code=int(refused.code))
        self._write(records)
        return answer

    def leave_group(self, asked: LeaveGroupRequest) -> LeaveGroupResponse:
        """Members are taken out by an administrator."""
        try:
            answer, records = consumer_shard.leave_many(self.shard, asked)
        except RequestRefused as refused:
            code = int(refused.code)
            refusals = [MemberResponse(*leaver, code) for leaver in asked.members]
            return LeaveGroupResponse(members=tuple(refusals))
        self._write(records)
        return answer

    def advance(self, until: int) -> Iterator[str]:
        """Time goes on: each timer goes off at its own moment; yields their keys, after it."""
        while (due := self.shard.timers.take(until)) is not None:
            self.shard.now = max(self.shard.now, due.deadline)
            self._write(consumer_shard.expired(self.shard, due.action))
            yield due.key
        self.shard.now = max(self.shard.now, until)

    def set_topics(self, topics: Iterable[TopicFacts]) -> None:
        """The cluster's topics are now these; groups that know a changed one look again."""
        shard, old = self.shard, self.shard.image
        new = shard.image = TopicImage(old.version + 1, topics)
        names = {old.by_id[each].name for each in old.by_id.keys() - new.by_id.keys()}
        names |= {topic.name for topic in new.by_id.values() if topic != old.by_id.get(topic.id)}
        for group in shard.groups.by_id.values():
            if not names.isdisjoint(group.topics):
                group.note_topic_check(0, 0)

    def fail_over(self) -> None:
        """Another broker takes over and knows the log only; sessions begin anew.

        Raises BrokenLog for records that contradict each other.
        """
        before = self.shard
        self.shard = shard = ConsumerShard(
            settings=before.settings,
            now=before.now,
            image=before.image,
        )
        shard.groups.take_up(self.log)
        for group in shard.groups.by_id.values():
            for member in group.members.values():
                shard.expect_heartbeat(group.id, member.id)
                if member.state is ConsumerMemberState.UNREVOKED:
                    shard.expect_revocation(group.id, member)

    def _write(self, records: list[ConsumerRecord]) -> None:
        if not records:
            return
        self.shard.groups.take_up(records)
        self.log += records
