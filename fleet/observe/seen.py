"""The answers of one look at a cluster, put together into values. No requests here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, ConsumerGroupType

from fleet.model import GroupSnapshot, GroupState, Member, Snapshot, TopicPartition
from fleet.observe.lag import Sample, partition_state, rate

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
class Seen:
    """The answers of one look."""

    descriptions: Mapping[str, Any]
    listed: Mapping[str, Any] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    committed: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def unknown(self, group: str) -> bool:
        """No consumer group of this name exists."""
        return group not in self.known

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

    def of_interest(self, group: str) -> set[TopicPartition]:
        """Partitions that the group committed or owns."""
        owned = (tp for member in self.members(group) for tp in member.partitions)
        return {*self.committed.get(group, {}), *owned}

    def waiting(self, group: str) -> dict[TopicPartition, int]:
        """Where reading goes on, for partitions in which something waits."""
        found = {}
        for tp, committed in self.committed.get(group, {}).items():
            start, end = self.starts.get(tp), self.ends.get(tp)
            if start is not None and end is not None and max(committed, start) < end:
                found[tp] = max(committed, start)
        return found

    def is_deleted(self, tp: TopicPartition) -> bool:
        """The topic is gone, or was created anew with fewer partitions."""
        return tp.topic in self.deleted or (
            tp.topic in self.partitions and tp.partition >= self.partitions[tp.topic]
        )

    def group(
        self, group: str, at: float, history: Mapping[TopicPartition, Sequence[Sample]]
    ) -> GroupSnapshot:
        """One group that exists."""
        described = self.descriptions.get(group)
        members = self.members(group)
        owners = {tp: member.member_id for member in members for tp in member.partitions}
        offsets_known = group in self.committed
        committed = self.committed.get(group, {})
        partitions = tuple(
            partition_state(
                tp=tp,
                committed=committed.get(tp),
                log_start=self.starts.get(tp),
                log_end=self.ends.get(tp),
                deleted=self.is_deleted(tp),
                unreadable=not offsets_known,
                owner=owners.get(tp),
                samples=history.get(tp, ()),
                now=at,
            )
            for tp in sorted(self.of_interest(group))
        )
        return GroupSnapshot(
            group=group,
            exists=True,
            state=self.state(group),
            type=self.kind(group),
            assignor=(described.partition_assignor or None) if described is not None else None,
            members=members,
            partitions=partitions,
        )


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


def with_rates(made: GroupSnapshot, at: float, previous: Snapshot | None) -> GroupSnapshot:
    """The group with rates since the previous look, for partitions that both know."""
    before = previous.groups.get(made.group) if previous is not None else None
    if previous is None or before is None:
        return made
    known = {state.tp: state for state in before.partitions}
    rates = {
        state.tp: rate(known[state.tp], state, at - previous.at)
        for state in made.partitions
        if state.tp in known
    }
    return replace(made, rates=rates)


def unlisted_group(group: str, *, exists: bool) -> GroupSnapshot:
    """A group that is no consumer group (its members and offsets are not ours to read), or none."""
    return GroupSnapshot(
        group=group,
        exists=exists,
        state=GroupState.UNKNOWN if exists else GroupState.DEAD,
        type="unknown",
        assignor=None,
        members=(),
        partitions=(),
    )
