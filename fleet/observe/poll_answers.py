"""Combines the answers of one poll of a cluster into values. Sends no requests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.clock import Clock
from fleet.lag.lag_columns import NONE
from fleet.lag.snapshot import GroupFacts
from fleet.model import GroupState, Member, TopicPartition

MIN_WAIT_SECONDS: Final = 0.1
_NAMED: Final = 5
"""Groups or topics named in one sentence about a failure."""


@dataclass(slots=True)
class Poll:
    """The deadline of one poll, and its problems: a sentence for each reason."""

    clock: Clock
    timeout: float
    began: float = field(init=False)
    problems: list[str] = field(default_factory=list)
    partial: bool = False
    """Some broker did not list its groups."""

    def __post_init__(self) -> None:
        self.began = self.clock.monotonic()

    def left(self) -> float:
        """Returns the seconds left, at least a little, so that answers that arrived count."""
        return max(MIN_WAIT_SECONDS, self.began + self.timeout - self.clock.monotonic())

    def part(self, brokers: int) -> float:
        """Returns the seconds of one round of requests: silent brokers must not use up all."""
        return self.left() if brokers == 1 else max(MIN_WAIT_SECONDS, self.left() / 3)

    def report(self, failed: Mapping[str, str], what: str) -> None:
        """Adds one sentence for each reason, from name → reason; `what` is "group(s) ..."."""
        by_reason: dict[str, list[str]] = {}
        for name, why in failed.items():
            by_reason.setdefault(why, []).append(name)
        for why, names in by_reason.items():
            named = ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            self.problems.append(f"{len(names)} {what} ({why}): {named}")


CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of classic consumer groups, unlike Connect's and others'."""
_STATES: Final = {
    **{each.value.lower(): each for each in GroupState},
    "assigning": GroupState.REBALANCING,
    "reconciling": GroupState.REBALANCING,
    "notready": GroupState.REBALANCING,  # a streams group whose topics are not there yet
}


def state_of(name: str) -> GroupState:
    """Returns the state for a broker's name of it; capitals differ by protocol."""
    return _STATES.get(name.lower(), GroupState.UNKNOWN)


def type_of(group_type: str, protocol_type: str) -> str:
    """Returns `classic`, `consumer`, `share`, `streams`, or a classic group's own protocol type.

    Brokers before 3.7 send no type: all their groups are classic.
    """
    found = group_type.lower() or "classic"
    if found == "classic" and protocol_type not in {"", CONSUMER_PROTOCOL}:
        return protocol_type
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """One group as ListGroups returns it."""

    type: str
    state: GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """One group as its coordinator describes it."""

    type: str
    state: GroupState
    members: tuple[Member, ...] = ()
    assignor: str | None = None
    unreadable: tuple[str, ...] = ()
    """Members whose assignment is no assignment; they stand in `members` without partitions."""
    topics: frozenset[str] | None = None
    """Names and patterns to which members subscribe; None if unknown."""


DEAD: Final = DescribedGroup(type="unknown", state=GroupState.DEAD)
"""Describes a group that does not exist."""


Offsets = Mapping[TopicPartition, int]
"""Committed offset by partition; NONE: no offset."""


class ShareOffsets(dict[TopicPartition, int]):
    """Offset of each partition's first unfinished record, of a share group.

    `lag`: unfinished records, as the coordinator counts them (KIP-1226); NONE if the broker does
    not send it.
    """

    def __init__(self, partitions: Mapping[TopicPartition, Any]) -> None:
        super().__init__((tp, part.start_offset) for tp, part in partitions.items())
        self.lag = {tp: max(part.lag, NONE) for tp, part in partitions.items()}


@dataclass(slots=True)
class PollAnswers:
    """The answers of one poll."""

    descriptions: Mapping[str, DescribedGroup]
    listed: Mapping[str, ListedGroup] = field(default_factory=dict)
    committed: Mapping[str, Offsets] = field(default_factory=dict)

    def _known(self, group: str) -> DescribedGroup | ListedGroup | None:
        return self.descriptions.get(group) or self.listed.get(group)

    def kind(self, group: str) -> str:
        """Returns the group's type, or `unknown`."""
        known = self._known(group)
        return "unknown" if known is None else known.type

    def state(self, group: str) -> GroupState:
        """Returns the group's state as described, or else as listed."""
        known = self._known(group)
        return GroupState.UNKNOWN if known is None else known.state

    def members(self, group: str) -> tuple[Member, ...]:
        """Returns the members as described; none if the describe failed."""
        described = self.descriptions.get(group)
        return described.members if described else ()

    def facts(self, group: str) -> GroupFacts:
        """Returns the facts of a group that exists."""
        described = self.descriptions.get(group)
        return GroupFacts(
            state=self.state(group),
            type=self.kind(group),
            members=None if described is None else len(described.members),
            assignor=None if described is None else described.assignor,
            topics=None if described is None else described.topics,
        )

    def counted(self) -> dict[str, Offsets]:
        """Returns the lag of each share group, as its coordinator counts it."""
        return {
            group: offsets.lag
            for group, offsets in self.committed.items()
            if isinstance(offsets, ShareOffsets)
        }

    def rows(self, group: str) -> Iterator[tuple[str, TopicPartition, int | None]]:
        """Yields the partitions that the group committed, or owns without a commit."""
        committed = self.committed.get(group, {})
        for tp, offset in committed.items():
            yield group, tp, offset
        owned = {tp for member in self.members(group) for tp in member.partitions}
        for tp in sorted(owned - committed.keys()):
            yield group, tp, None


def is_dead(described: DescribedGroup | None) -> bool:
    """Returns whether a describe means that the group does not exist."""
    return described is not None and described.state is GroupState.DEAD


def no_group() -> GroupFacts:
    """Returns the facts of a group that does not exist."""
    return GroupFacts(state=GroupState.DEAD, type="unknown", members=0, exists=False)
