"""The answers of one look at a cluster, put together into values. No requests here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, ConsumerGroupType

from fleet.lag.snapshot import GroupFacts
from fleet.model import GroupState, Member, TopicPartition

_STATES: Final[Mapping[Any, GroupState]] = {
    ConsumerGroupState.EMPTY: GroupState.EMPTY,
    ConsumerGroupState.PREPARING_REBALANCING: GroupState.PREPARING,
    ConsumerGroupState.COMPLETING_REBALANCING: GroupState.COMPLETING,
    ConsumerGroupState.STABLE: GroupState.STABLE,
    ConsumerGroupState.DEAD: GroupState.DEAD,
}
_TYPES: Final[Mapping[Any, str]] = {
    ConsumerGroupType.CLASSIC: "classic",
    ConsumerGroupType.CONSUMER: "consumer",
}


@dataclass(slots=True)
class PollAnswers:
    """The answers of one look."""

    descriptions: Mapping[str, Any]
    listed: Mapping[str, Any] = field(default_factory=dict)
    committed: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)

    def _told(self, group: str) -> Any:
        return self.descriptions.get(group) or self.listed.get(group)

    def kind(self, group: str) -> str:
        """classic, consumer or unknown."""
        return _TYPES.get(getattr(self._told(group), "type", None), "unknown")

    def state(self, group: str) -> GroupState:
        """As described, or else as listed."""
        state = _STATES.get(getattr(self._told(group), "state", None), GroupState.UNKNOWN)
        if state is GroupState.UNKNOWN and self.kind(group) == "consumer":
            # librdkafka has no names for Assigning and Reconciling.
            return GroupState.REBALANCING
        return state

    def members(self, group: str) -> tuple[Member, ...]:
        """Members as described; none where the describe failed."""
        described = self.descriptions.get(group)
        return tuple(_member(each) for each in described.members) if described else ()

    def facts(self, group: str) -> GroupFacts:
        """One group that exists."""
        described = self.descriptions.get(group)
        return GroupFacts(
            state=self.state(group),
            type=self.kind(group),
            members=None if described is None else len(described.members),
            assignor=None if described is None else described.partition_assignor or None,
        )

    def rows(self, group: str) -> Iterator[tuple[str, TopicPartition, int | None]]:
        """Partitions that the group committed, and those that it owns and never committed."""
        committed = self.committed.get(group, {})
        for tp, offset in committed.items():
            yield group, tp, offset
        owned = {tp for member in self.members(group) for tp in member.partitions}
        for tp in sorted(owned - committed.keys()):
            yield group, tp, None


def is_dead(described: Any) -> bool:
    """What a describe answers for a group that does not exist."""
    return described is not None and described.state is ConsumerGroupState.DEAD


def _member(member: Any) -> Member:
    assigned = member.assignment.topic_partitions if member.assignment else ()
    return Member(
        member_id=member.member_id,
        instance_id=member.group_instance_id or None,
        client_id=member.client_id,
        host=member.host,
        partitions=frozenset(TopicPartition(tp.topic, tp.partition) for tp in assigned),
    )


def unlisted_group(*, exists: bool) -> GroupFacts:
    """A group that is no consumer group (its members and offsets are not ours to read), or none."""
    state = GroupState.UNKNOWN if exists else GroupState.DEAD
    return GroupFacts(state=state, type="unknown", members=0, exists=exists)
