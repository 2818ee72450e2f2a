"""Defines the requests about groups, for many groups at once, and reads their answers.

Problem: four requests describe four types of groups, and older brokers take one group at a time.
Choice: each request is a `GroupQuestion`, which makes the request for some groups and splits the
answer by group. `fleet.observe.group_questions` sends it to the brokers and retries.

Source: DescribeGroups (KIP-345, KIP-430, KIP-1043), OffsetFetch (KIP-88, KIP-709), and
`fleet.observe.messages`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka.admin import ACLOperation
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from fleet.lag.lag_columns import NONE
from fleet.log.records import MalformedRecord, assignment, subscription
from fleet.model import Member, TopicPartition
from fleet.observe.messages import (
    ConsumerGroupDescribeRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from fleet.observe.poll_answers import (
    CONSUMER_PROTOCOL,
    DescribedGroup,
    ShareOffsets,
    state_of,
    type_of,
)

NOT_FOUND: Final = 69
"""GROUP_ID_NOT_FOUND: no such group, or none of this kind."""
_READING: Final = 3
"""First version of DescribeGroups that returns the allowed operations."""
_DEAD_ONLY: Final = 5
"""Last version that describes a group that does not exist as Dead."""
_OPERATIONS: Final = {each.value: each.name.title().replace("_", "") for each in ACLOperation}
"""Kafka's AclOperation by code, as kafka-acls writes them."""


class GroupAnswer(NamedTuple):
    """One group's part of an answer: Kafka's error code (0: none), or a value."""

    group: str
    error: int
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class GroupQuestion:
    """A request about groups. `most` groups go into one."""

    request: type[Any]
    make: Callable[[Sequence[str]], Any]
    take: Callable[[Any, Sequence[str]], Iterator[GroupAnswer]]
    version: int = 0
    """The least that a broker has to know."""
    most: int = 250


def operations_of(bits: Iterable[int] | None) -> frozenset[str] | None:
    """Allowed operations ("Read", "AlterConfigs"); None where the broker does not tell."""
    return None if bits is None else frozenset(_OPERATIONS[b] for b in bits if b in _OPERATIONS)


# --- describing -----------------------------------------------------------------------------


def _each(value: Callable[[Any], Any]) -> Callable[[Any, Sequence[str]], Iterator[GroupAnswer]]:
    """Takes an answer about several groups apart; `value` makes a group's part of it."""

    def take(answer: Any, _: Sequence[str]) -> Iterator[GroupAnswer]:
        for group in answer.groups:
            yield GroupAnswer(group.group_id, group.error_code, value(group))

    return take


def _classic(group: Any) -> DescribedGroup:
    consumers = group.protocol_type == CONSUMER_PROTOCOL
    members, unreadable, topics = [], [], set[str]()
    known = consumers
    for each in group.members:
        held: frozenset[TopicPartition] = frozenset()
        try:
            if consumers:
                held = _by_topic(assignment(bytes(each.member_assignment)).items())
        except MalformedRecord:
            unreadable.append(each.member_id)
        try:
            subscribed = subscription(bytes(each.member_metadata))[0] if consumers else ()
        except MalformedRecord:
            subscribed = ()
        known &= bool(subscribed)
        topics.update(subscribed, (tp.topic for tp in held))
        members.append(_member(each, each.group_instance_id, held))
    return DescribedGroup(
        type=type_of("classic", group.protocol_type),
        state=state_of(group.group_state),
        members=tuple(members),
        assignor=group.protocol_data or None,
        unreadable=tuple(unreadable),
        topics=frozenset(topics) if known else None,
    )


def _consumer(group: Any) -> DescribedGroup:
    members = (_member(m, m.instance_id, _held(m)) for m in group.members)
    return _described("consumer", group, members, topics=_subscribed(group.members))


def _share(group: Any) -> DescribedGroup:
    members = (_member(m, None, _held(m)) for m in group.members)
    return _described("share", group, members, topics=_subscribed(group.members))


def _streams(group: Any) -> DescribedGroup:
    topics = _topics_of(group.topology)
    members = (_member(m, m.instance_id, _tasks(m, topics)) for m in group.members)
    read = {topic for each in topics.values() for topic in each}
    return _described("streams", group, members, topics=read)


def _topics_of(topology: Any) -> dict[str, list[str]]:
    """Input topics by subtopology; task n of it reads partition n of each."""
    subtopologies = (topology.subtopologies or ()) if topology is not None else ()
    return {
        each.subtopology_id: [
            *each.source_topics,
            *(t.name for t in each.repartition_source_topics),
        ]
        for each in subtopologies
    }


def _tasks(member: Any, topics: Mapping[str, list[str]]) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic, number)
        for task in member.assignment.active_tasks
        for topic in topics.get(task.subtopology_id, ())
        for number in task.partitions
    )


def _subscribed(members: Iterable[Any]) -> Iterator[str]:
    """Names and patterns, and the topics of what they still own."""
    for each in members:
        yield from each.subscribed_topic_names
        if pattern := getattr(each, "subscribed_topic_regex", None):
            yield pattern
        yield from (owned.topic_name for owned in each.assignment.topic_partitions)


def _described(
    kind: str, group: Any, members: Iterable[Member], *, topics: Iterable[str]
) -> DescribedGroup:
    return DescribedGroup(
        type=kind,
        state=state_of(group.group_state),
        members=tuple(members),
        assignor=getattr(group, "assignor_name", None) or None,
        topics=frozenset(topics),
    )


def _held(member: Any) -> frozenset[TopicPartition]:
    return _by_topic((tps.topic_name, tps.partitions) for tps in member.assignment.topic_partitions)


def _by_topic(partitions: Iterable[tuple[str, Iterable[int]]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, n) for topic, numbers in partitions for n in numbers)


def _member(told: Any, instance: str | None, held: frozenset[TopicPartition]) -> Member:
    return Member(
        member_id=told.member_id,
        instance_id=instance or None,
        client_id=told.client_id,
        host=told.client_host,
        partitions=held,
    )


DESCRIBING: Final[Mapping[str, GroupQuestion]] = {
    "classic": GroupQuestion(
        DescribeGroupsRequest,
        lambda groups: DescribeGroupsRequest(groups=list(groups)),
        _each(_classic),
    ),
    "consumer": GroupQuestion(
        ConsumerGroupDescribeRequest,
        lambda groups: ConsumerGroupDescribeRequest(group_ids=list(groups)),
        _each(_consumer),
    ),
    "share": GroupQuestion(
        ShareGroupDescribeRequest,
        lambda groups: ShareGroupDescribeRequest(group_ids=list(groups)),
        _each(_share),
        version=1,
    ),
    "streams": GroupQuestion(
        StreamsGroupDescribeRequest,
        lambda groups: StreamsGroupDescribeRequest(group_ids=list(groups)),
        _each(_streams),
    ),
}
"""By the type of the groups."""


ALLOWED: Final = GroupQuestion(
    DescribeGroupsRequest,
    lambda groups: DescribeGroupsRequest(
        groups=list(groups),
        include_authorized_operations=True,
        min_version=_READING,
        max_version=_DEAD_ONLY,
    ),
    _each(lambda group: operations_of(group.authorized_operations)),
    version=_READING,
)
"""What this login may do to groups of any kind, also to such as do not exist."""


# --- offsets --------------------------------------------------------------------------------


def _offsets_of_one(answer: Any, groups: Sequence[str]) -> Iterator[GroupAnswer]:
    yield GroupAnswer(groups[0], answer.error_code, _committed(answer.topics))


def _committed(topics: Iterable[Any]) -> dict[TopicPartition, int]:
    """Offsets by partition; to Kafka's own clients any negative one is none."""
    return {
        TopicPartition(topic.name, part.partition_index): max(part.committed_offset, NONE)
        for topic in topics
        for part in topic.partitions
        if part.error_code == 0
    }


def _share_offsets(group: Any) -> ShareOffsets:
    told = {
        TopicPartition(topic.topic_name, part.partition_index): part
        for topic in group.topics
        for part in topic.partitions
        if part.start_offset >= 0 and part.error_code == 0
    }
    return ShareOffsets(told)


OFFSETS: Final = GroupQuestion(
    OffsetFetchRequest,
    lambda groups: OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=each, topics=None)
            for each in groups
        ],
        min_version=8,
        max_version=9,  # the next one names topics by their ids alone
    ),
    _each(lambda group: _committed(group.topics)),
    version=8,
)
OFFSETS_ONE_BY_ONE: Final = GroupQuestion(
    OffsetFetchRequest,
    lambda groups: OffsetFetchRequest(
        group_id=groups[0], topics=None, min_version=2, max_version=7
    ),
    _offsets_of_one,
    version=2,
    most=1,
)
"""Brokers before 3.0 take one group a request."""
SHARE_OFFSETS: Final = GroupQuestion(
    DescribeShareGroupOffsetsRequest,
    lambda groups: DescribeShareGroupOffsetsRequest(
        groups=[
            DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
                group_id=each, topics=None
            )
            for each in groups
        ]
    ),
    _each(_share_offsets),
)
