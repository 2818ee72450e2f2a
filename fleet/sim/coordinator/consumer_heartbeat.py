"""A heartbeat of a KIP-848 member, from its fields to the answer and the records.

Problem: with KIP-848 everything happens at heartbeats: joins, changed subscriptions, noticed
topics, new targets, and each member's next step. Choice: one after the other, as Kafka's: the
member as it tells of itself, its expression, the group epoch, the target, the member's step.
Cost: who asks first pays for all.
"""

from dataclasses import dataclass
from typing import Final

from fleet.sim.assignors.applicants import Target
from fleet.sim.coordinator import consumer_regexes
from fleet.sim.coordinator.consumer_group import EpochGroup, is_homogeneous
from fleet.sim.coordinator.consumer_leaving import Records, replaced, static_member
from fleet.sim.coordinator.consumer_member import AWAY, ConsumerMember, ConsumerMemberState
from fleet.sim.coordinator.consumer_records import (
    CURRENT,
    EPOCH,
    MEMBER,
    PARTITION_METADATA,
    ConsumerRecord,
    CurrentValue,
    EpochValue,
    MemberValue,
)
from fleet.sim.coordinator.consumer_regexes import RegexChange
from fleet.sim.coordinator.consumer_shard import ConsumerShard
from fleet.sim.coordinator.heartbeat_checks import JOINING, check_epoch
from fleet.sim.coordinator.reconciling import Reconciliation
from fleet.sim.coordinator.request_refusals import group_is_full, unreleased_instance
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fleet.sim.coordinator.target_assignment import assignor_of, computed, may_compute
from fleet.sim.coordinator.topic_ids import owned_by_id, topic_partitions
from fleet.sim.coordinator.topic_image import group_hash
from fleet.sim.hashing.hash_order import HashOrder

LOOK_AGAIN_MS: Final = 2_147_483_647
"""How long a look at the topics holds without a change of them (24.8 days)."""
_TELLS: Final = slice(4, 9)
"""Where a heartbeat says what a member is: rack, rebalance timeout, topics, regex, assignor."""
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
        raise group_is_full(group.id, most)
    return _Heartbeat(shard, group, asked).answered(client)


@dataclass(slots=True)
class _Heartbeat:
    shard: ConsumerShard
    group: EpochGroup
    asked: ConsumerGroupHeartbeatRequest

    def answered(self, client: Client) -> tuple[ConsumerGroupHeartbeatResponse, Records]:
        records: Records = []
        old = self._member(records)
        told = self._as_told(old, client)
        new = told if told is old and self._is_settled(old) else self._step(old, told, records)
        self.shard.expect_heartbeat(self.group.id, self.asked.member_id)
        return self._answer(old, new), records

    def _is_settled(self, member: ConsumerMember) -> bool:
        """Nothing is to do for one that tells nothing new: most heartbeats."""
        group = self.group
        return (
            group.target_epoch >= group.epoch
            and member.is_reconciled_to(group.target_epoch)
            and not group.regexes
            and not group.must_look(self.shard.now)
        )

    def _step(self, old: ConsumerMember, told: ConsumerMember, records: Records) -> ConsumerMember:
        """The member after its next step."""
        renamed, regex = False, RegexChange.NONE
        if told is not old:
            if told != old:
                records.append(ConsumerRecord(MEMBER, self.group.id, told.id, MemberValue.of(told)))
            renamed = told.topics != old.topics
            regex, more = consumer_regexes.changed(self.group, old, told)
            records += more
        if told is not old or self.group.regexes:
            self._ask_to_resolve(old, told)
        bumps = renamed or regex is RegexChange.KNOWN
        epoch, homogeneous = self.group.epoch, self.group.homogeneous
        if bumps or self.group.must_look(self.shard.now):
            epoch, homogeneous = self._look_at_topics(old, told, records, bumps=bumps)
        target_epoch, target = self._target(epoch, old, told, records, homogeneous=homogeneous)
        changed = renamed or regex is not RegexChange.NONE
        return self._reconciled(told, target_epoch, target, records, changed=changed)

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
            raise unreleased_instance(asked.instance_id, asked.member_id, last.id)
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
        regex = asked.subscribed_topic_regex
        timeout = asked.rebalance_timeout_ms
        return old.having(
            instance=old.instance if asked.instance_id is None else asked.instance_id,
            rack=old.rack if asked.rack_id is None else asked.rack_id,
            rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
            assignor=old.assignor if asked.server_assignor is None else asked.server_assignor,
            topics=topics,
            regex=old.regex if regex is None else regex,
            client=client.client_id,
            host=host,
        )

    # The group.

    def _ask_to_resolve(self, old: ConsumerMember, told: ConsumerMember) -> None:
        if self.group.id in self.shard.to_resolve:
            return
        regexes = consumer_regexes.to_resolve(
            self.group,
            old,
            told,
            self.shard.now,
            newest_topics=self.shard.newest_topics,
            refresh_ms=self.shard.settings.regex_refresh_ms,
        )
        if regexes:
            self.shard.to_resolve[self.group.id] = regexes

    def _look_at_topics(
        self, old: ConsumerMember, told: ConsumerMember, records: Records, *, bumps: bool
    ) -> tuple[int, bool]:
        """(the group epoch, whether all subscribe to the same) with the member as it tells."""
        group, shard = self.group, self.shard
        topics = group.topics_with(old, told)
        hashed = group_hash(topics, shard.image)
        is_new = told.id not in group.members and told.instance not in group.statics
        homogeneous = is_homogeneous(
            group.regexes_with(old, told), topics, len(group.members) + is_new
        )
        epoch = group.epoch
        if bumps or hashed != group.metadata_hash:
            epoch += 1
            records.append(ConsumerRecord(EPOCH, group.id, None, EpochValue(epoch, hashed)))
        group.has_looked(shard.now + LOOK_AGAIN_MS, epoch)
        if group.has_old_metadata:
            records.append(ConsumerRecord(PARTITION_METADATA, group.id, None, None))
        return epoch, homogeneous

    def _target(
        self,
        epoch: int,
        old: ConsumerMember,
        told: ConsumerMember,
        records: Records,
        *,
        homogeneous: bool,
    ) -> tuple[int, Target]:
        group, shard = self.group, self.shard
        if group.target_epoch >= epoch:
            return group.target_epoch, group.target_of(told)
        interval = shard.settings_of(group.id).assignment_interval_ms
        if not may_compute(group, interval, shard.now):
            return group.target_epoch, group.target_of(told)
        target, more = computed(
            group,
            told,
            epoch=epoch,
            assignor=assignor_of(group, old, told, shard.settings.assignors[0]),
            image=shard.image,
            now=shard.now,
            homogeneous=homogeneous,
        )
        records += more
        return epoch, target

    # The answer.

    def _reconciled(
        self, told: ConsumerMember, epoch: int, target: Target, records: Records, *, changed: bool
    ) -> ConsumerMember:
        if not changed and told.is_reconciled_to(epoch):
            return told
        group, owned = self.group, self.asked.topic_partitions
        new = Reconciliation(
            epoch=epoch,
            target=target,
            names=group.names_of(told),
            subscription_changed=changed,
            reported=None if owned is None else owned_by_id(owned),
            image=self.shard.image,
            epoch_of=group.epoch_of,
        ).next_of(told)
        if new != told:
            value = CurrentValue.of(new)
            records.append(ConsumerRecord(CURRENT, group.id, new.id, value))
            if new.state is ConsumerMemberState.UNREVOKED:
                self.shard.expect_revocation(group.id, new)
            else:
                self.shard.expect_no_revocation(group.id, new.id)
        return new

    def _answer(self, old: ConsumerMember, new: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
        asked = self.asked
        names, regex = asked.subscribed_topic_names, asked.subscribed_topic_regex
        told_all = (
            asked.rebalance_timeout_ms != -1
            and (names is not None or regex is not None)
            and asked.topic_partitions is not None
        )
        assignment = None
        given = new is not old and new.assigned != old.assigned
        if asked.member_epoch == JOINING or told_all or given:
            assignment = ConsumerGroupAssignment(topic_partitions(new.assigned))
        interval = self.shard.settings_of(self.group.id).heartbeat_ms
        return ConsumerGroupHeartbeatResponse(0, new.id, new.epoch, interval, assignment)
