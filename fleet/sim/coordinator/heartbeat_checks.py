"""What must hold of a ConsumerGroupHeartbeat before its group is looked at."""

from collections.abc import Mapping
from typing import Final

from fleet.sim.coordinator.consumer_member import AWAY, ConsumerMember
from fleet.sim.coordinator.reconciling import Reported
from fleet.sim.coordinator.request_refusals import (
    fenced_epoch,
    invalid_request,
    unsupported_assignor,
)
from fleet.sim.coordinator.requests import ConsumerGroupHeartbeatRequest

JOINING: Final = 0
_NOTHING: Final[Mapping[int, int]] = {}


def check(asked: ConsumerGroupHeartbeatRequest, assignors: tuple[str, ...]) -> None:
    """Raises RequestRefused (INVALID_REQUEST, UNSUPPORTED_ASSIGNOR) where fields do not fit."""
    # One by one, since most of what a simulation asks are heartbeats.
    if not asked.member_id.strip():
        raise invalid_request("MemberId is empty")
    if not asked.group_id.strip():
        raise invalid_request("GroupId is empty")
    if asked.instance_id is not None and not asked.instance_id.strip():
        raise invalid_request("InstanceId is empty")
    if asked.rack_id is not None and not asked.rack_id.strip():
        raise invalid_request("RackId is empty")
    if asked.member_epoch == JOINING:
        _check_join(asked)
    elif asked.member_epoch == AWAY and asked.instance_id is None:
        raise invalid_request("a member without InstanceId cannot leave for a while")
    elif asked.member_epoch < AWAY:
        raise invalid_request(f"MemberEpoch {asked.member_epoch}; -2 is the least")
    if asked.server_assignor is not None and asked.server_assignor not in assignors:
        raise unsupported_assignor(asked.server_assignor, assignors)


def _check_join(asked: ConsumerGroupHeartbeatRequest) -> None:
    if asked.rebalance_timeout_ms == -1:
        raise invalid_request("a join without RebalanceTimeoutMs")
    if asked.topic_partitions is None or asked.topic_partitions:
        raise invalid_request("a join that does not say that it owns nothing")
    if asked.subscribed_topic_names is None and asked.subscribed_topic_regex is None:
        raise invalid_request("a join without SubscribedTopicNames and SubscribedTopicRegex")


def check_epoch(member: ConsumerMember, told: int, owned: Reported | None) -> None:
    """Raises RequestRefused (FENCED_MEMBER_EPOCH) for an epoch that the member cannot have.

    Its previous epoch is taken where the answer to its last heartbeat may have been lost: if it
    owns nothing but what it was given.
    """
    if told in (JOINING, member.epoch):
        return
    lost_an_answer = told < member.epoch and told == member.previous_epoch
    if not lost_an_answer or owned is None or not _is_within(owned, member):
        raise fenced_epoch(member.id, told, member.epoch)


def _is_within(owned: Reported, member: ConsumerMember) -> bool:
    for topic, partitions in owned:
        given = member.assigned.get(topic)
        if given is None or any(each not in given for each in partitions):
            return False
    return True
