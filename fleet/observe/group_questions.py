"""Questions about groups, to the brokers that coordinate them, many groups in each request.

Problem: only its coordinator describes a group. Coordinators move, and one silent broker must not
block a query of thousands of groups. Choice: the broker that lists a group coordinates it, so a
poll needs no search. Only for a name that no broker listed does it search the coordinator. It asks
all brokers at once, with all requests about a group together. It searches coordinators that moved
for two seconds; then it reports the failure by group. Cost: in these two seconds a poll waits for a
coordinator that loads, as Kafka's own tools do for a minute.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka.admin import ACLOperation
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.failures import DENIED, NO_ANSWER, code_named
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
    DEAD,
    MIN_WAIT_SECONDS,
    DescribedGroup,
    ListedGroup,
    Poll,
    ShareOffsets,
    is_dead,
    state_of,
    type_of,
)

# Defines the requests about groups, for many groups at once, and reads their answers.
#
# Problem: four requests describe four types of groups, and older brokers take one group at a time.
# Choice: each request is a `GroupQuestion`, which makes the request for some groups and splits the
# answer by group. `fleet.observe.group_questions` sends it to the brokers and retries.
#
# Source: DescribeGroups (KIP-345, KIP-430, KIP-1043), OffsetFetch (KIP-88, KIP-709), and
# `fleet.observe.messages`.


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


def _member(described: Any, instance: str | None, held: frozenset[TopicPartition]) -> Member:
    return Member(
        member_id=described.member_id,
        instance_id=instance or None,
        client_id=described.client_id,
        host=described.client_host,
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
    partitions = {
        TopicPartition(topic.topic_name, part.partition_index): part
        for topic in group.topics
        for part in topic.partitions
        if part.start_offset >= 0 and part.error_code == 0
    }
    return ShareOffsets(partitions)


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


_MOVING: Final = frozenset({14, 15, 16})
"""Error codes: the coordinator loads, is not available yet, or moved."""
_GRACE: Final = 2.0
"""Seconds for which a poll searches a coordinator that moved."""
_MANY: Final = 1_000
"""Groups in one search for coordinators."""


class GroupFailure(NamedTuple):
    """Why there is no answer about a group: Kafka's error code or NO_ANSWER, and a sentence."""

    code: int
    text: str


_Asked = tuple[GroupQuestion, str]
"""A request and the group that it is about."""


class GroupQuestions:
    """For one thread at a time, as its connections are."""

    def __init__(self, net: Connections) -> None:
        self._net = net
        self._coordinators: dict[str, int] = {}
        self._types: dict[str, str] = {}

    def list_groups(self, poll: Poll) -> tuple[dict[str, ListedGroup], list[NoAnswer]]:
        """Lists all groups that this login may see; and why brokers did not list theirs."""
        asked = list(self._net.brokers())
        found: dict[str, ListedGroup] = {}
        failed: dict[int, NoAnswer] = {}
        self._coordinators, self._types = {}, {}
        while asked:
            requests = dict.fromkeys(asked, ListGroupsRequest())
            answers = self._net.ask(requests, poll.part(len(self._net.brokers())))
            asked = []
            for broker, answer in answers.items():
                failed.pop(broker, None)
                if isinstance(answer, NoAnswer):
                    failed[broker] = answer
                    continue
                if answer.error_code:
                    failed[broker] = NoAnswer(code_named(answer.error_code))
                if answer.error_code in _MOVING and poll.left() > MIN_WAIT_SECONDS:
                    asked.append(broker)
                found |= {each.group_id: _listed(each) for each in answer.groups}
                self._coordinators |= dict.fromkeys((g.group_id for g in answer.groups), broker)
            if asked:
                self._net.pause(
                    MIN_WAIT_SECONDS
                )  # a coordinator that starts or takes over, some 0.1 s
        self._types = {group: each.type for group, each in found.items()}
        return found, list(failed.values())

    def describe_with_offsets(
        self, groups: Sequence[str], poll: Poll
    ) -> tuple[dict[str, DescribedGroup], dict[str, dict[TopicPartition, int]]]:
        """State and members of these groups, and what each committed.

        Groups that do not exist are Dead; what cannot be read is left out and told by `poll`.
        """
        asked = [
            *((question, g) for g in groups for question in self._describing(g)),
            *((question, g) for g in groups if (question := self._committing(g)) is not None),
        ]
        found, failed = self._asked(asked, poll)
        described, undescribed = self._best(groups, found, failed)
        poll.report(undescribed, "group(s) cannot be described")
        unreadable = {f"{each} of {g}": "" for g, d in described.items() for each in d.unreadable}
        if unreadable:
            poll.report(
                dict.fromkeys(unreadable, "their assignment is damaged"), "member(s) own nothing"
            )
        committed = {
            group: offsets
            for (question, group), offsets in found.items()
            if question not in _DESCRIBING and not is_dead(described.get(group))
        }
        poll.report(
            {
                group: why.text
                for (question, group), why in failed.items()
                if question not in _DESCRIBING
                and group not in undescribed
                and why.code != NOT_FOUND
            },
            "group(s) have unreadable offsets",
        )
        return described, committed

    def describe(self, groups: Sequence[str], poll: Poll) -> dict[str, DescribedGroup]:
        """Reads only state and members, as `describe_with_offsets`."""
        found, failed = self._asked([(w, g) for g in groups for w in self._describing(g)], poll)
        described, undescribed = self._best(groups, found, failed)
        again = [g for g in groups if is_dead(described.get(g)) and self._types.pop(g, "")]
        if again:  # the group has another type now
            described |= self.describe(again, poll)
        poll.report(undescribed, "group(s) cannot be described")
        return described

    def allowed_operations(self, groups: Sequence[str], poll: Poll) -> dict[str, frozenset[str]]:
        """Returns what this login may do with each group; unknown ones are left out.

        Empty if not even Describe is allowed.
        """
        found, failed = self._asked([(ALLOWED, group) for group in groups], poll)
        allowed = {group: names for (_, group), names in found.items() if names is not None}
        return allowed | {g: frozenset() for (_, g), why in failed.items() if why.code in DENIED}

    # --- which question -------------------------------------------------------------------

    def _describing(self, group: str) -> list[GroupQuestion]:
        """Returns the request for the group's type, or all requests if the type is unknown."""
        known = self._types.get(group)
        if known is not None:
            return [DESCRIBING.get(known, DESCRIBING["classic"])]
        return [w for w in DESCRIBING.values() if self._net.knows(w.request, w.version)]

    def _committing(self, group: str) -> GroupQuestion | None:
        if self._types.get(group) == "share":
            there = self._net.knows(SHARE_OFFSETS.request, SHARE_OFFSETS.version)
            return SHARE_OFFSETS if there else None
        batched = self._net.knows(OFFSETS.request, OFFSETS.version)
        return OFFSETS if batched else OFFSETS_ONE_BY_ONE

    def _best(
        self,
        groups: Iterable[str],
        found: Mapping[_Asked, DescribedGroup],
        failed: Mapping[_Asked, GroupFailure],
    ) -> tuple[dict[str, DescribedGroup], dict[str, str]]:
        """Returns each group's description by the request for its type, or why there is none."""
        described: dict[str, DescribedGroup] = {}
        undescribed: dict[str, str] = {}
        for group in groups:
            questions = [(question, group) for question in _DESCRIBING]
            answers = [found[each] for each in questions if each in found]
            alive = [each for each in answers if not is_dead(each)]
            reasons = [failed[each] for each in questions if each in failed]
            others = [each for each in reasons if each.code != NOT_FOUND]
            if alive:
                described[group] = alive[0]
                self._types[group] = alive[0].type
            elif others:
                undescribed[group] = others[0].text
            elif answers or reasons:
                described[group] = DEAD
        return described, undescribed

    # --- where to ---------------------------------------------------------------------------

    def _asked(
        self, asked: Sequence[_Asked], poll: Poll
    ) -> tuple[dict[_Asked, Any], dict[_Asked, GroupFailure]]:
        """Sends all requests; searches coordinators that move for a while."""
        found: dict[_Asked, Any] = {}
        failed: dict[_Asked, GroupFailure] = {}
        left = list(dict.fromkeys(asked))
        until = poll.clock.monotonic() + min(_GRACE, poll.left())
        while left:
            failed |= self._round(left, found, poll)
            left = [each for each in left if each in failed and failed[each].code in _MOVING]
            if not left or poll.clock.monotonic() + MIN_WAIT_SECONDS >= until:
                break
            for each in left:
                del failed[each]
            self._net.pause(MIN_WAIT_SECONDS)
        return found, failed

    def _round(
        self, asked: Sequence[_Asked], found: dict[_Asked, Any], poll: Poll
    ) -> dict[_Asked, GroupFailure]:
        """Sends the requests once; adds the answers to `found`."""
        failed: dict[_Asked, GroupFailure] = {}
        unplaced = self._find([group for _, group in asked], poll)
        parts: dict[tuple[int, GroupQuestion], list[str]] = {}
        for question, group in asked:
            if group in unplaced:
                failed[question, group] = unplaced[group]
            else:
                parts.setdefault((self._coordinators[group], question), []).append(group)
        portions = [
            (broker, question, groups[first : first + question.most])
            for (broker, question), groups in parts.items()
            for first in range(0, len(groups), question.most)
        ]
        answers = self._net.ask_each(
            [(broker, question.make(groups)) for broker, question, groups in portions],
            poll.part(len({broker for broker, _, _ in portions})),
        )
        for (_, question, groups), answer in zip(portions, answers, strict=True):
            if isinstance(answer, NoAnswer):
                failed |= {(question, g): GroupFailure(NO_ANSWER, str(answer)) for g in groups}
                self._forget(groups)
                continue
            for group, error, value in question.take(answer, groups):
                if error:
                    failed[question, group] = GroupFailure(error, code_named(error))
                    if error in _MOVING:
                        self._forget([group])
                else:
                    found[question, group] = value
        return failed

    def _forget(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._coordinators.pop(group, None)

    def _find(self, groups: Iterable[str], poll: Poll) -> dict[str, GroupFailure]:
        """Searches unknown coordinators; returns which cannot be found, and why."""
        unknown = sorted({group for group in groups if group not in self._coordinators})
        failed: dict[str, GroupFailure] = {}
        batched = self._net.knows(FindCoordinatorRequest, 4)
        size = _MANY if batched else 1
        for first in range(0, len(unknown), size):
            some = unknown[first : first + size]
            if batched:
                request = FindCoordinatorRequest(key_type=0, coordinator_keys=some, min_version=4)
            else:
                request = FindCoordinatorRequest(key=some[0], key_type=0, max_version=3)
            try:
                answer = self._net.ask_any(request, poll.left())
            except NoAnswer as error:
                return failed | dict.fromkeys(unknown[first:], GroupFailure(NO_ANSWER, str(error)))
            for node in answer.coordinators if batched else [answer]:
                group = node.key if batched else some[0]
                if node.error_code:
                    failed[group] = GroupFailure(node.error_code, code_named(node.error_code))
                else:
                    self._coordinators[group] = node.node_id
        return failed


_DESCRIBING: Final = tuple(DESCRIBING.values())


def _listed(group: Any) -> ListedGroup:
    return ListedGroup(
        type=type_of(group.group_type, group.protocol_type), state=state_of(group.group_state)
    )
