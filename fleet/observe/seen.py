"""The answers of one look at a cluster, put together into values. No requests here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.clock import Clock
from fleet.lag.lag_columns import NONE
from fleet.lag.snapshot import GroupFacts
from fleet.model import GroupState, Member, TopicPartition

LEAST: Final = 0.1
_NAMED: Final = 5
"""Groups or topics named in one sentence about a failure."""


@dataclass(slots=True)
class Poll:
    """The deadline of one look, whatever hangs, and what went wrong: a sentence for each reason."""

    clock: Clock
    timeout: float
    began: float = field(init=False)
    problems: list[str] = field(default_factory=list)
    partial: bool = False
    """Some broker did not list its groups."""

    def __post_init__(self) -> None:
        self.began = self.clock.monotonic()

    def left(self) -> float:
        """Seconds left, at least a little: what is already there can still be taken."""
        return max(LEAST, self.began + self.timeout - self.clock.monotonic())

    def part(self, brokers: int) -> float:
        """Seconds for one of several rounds of questions, where some of many brokers may be silent
        and the others be asked more.
        """
        return self.left() if brokers == 1 else max(LEAST, self.left() / 3)

    def tell(self, failed: Mapping[str, str], what: str) -> None:
        """One sentence for each reason, from name → reason; `what` failed, as "group(s) ..."."""
        by_reason: dict[str, list[str]] = {}
        for name, why in failed.items():
            by_reason.setdefault(why, []).append(name)
        for why, names in by_reason.items():
            named = ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            self.problems.append(f"{len(names)} {what} ({why}): {named}")


CONSUMER_PROTOCOL: Final = "consumer"
"""What members of a classic group speak, unless they are Connect's or somebody else's."""
_STATES: Final = {
    **{each.value.lower(): each for each in GroupState},
    "assigning": GroupState.REBALANCING,
    "reconciling": GroupState.REBALANCING,
    "notready": GroupState.REBALANCING,  # a streams group whose topics are not there yet
}


def state_of(told: str) -> GroupState:
    """A state by the name that brokers use for it; they differ in capitals by protocol."""
    return _STATES.get(told.lower(), GroupState.UNKNOWN)


def type_of(group_type: str, protocol_type: str) -> str:
    """`classic`, `consumer`, `share`, `streams`; or, as `connect`, a classic group's own protocol.

    Brokers before 3.7 tell no type: all their groups are classic.
    """
    found = group_type.lower() or "classic"
    if found == "classic" and protocol_type not in {"", CONSUMER_PROTOCOL}:
        return protocol_type
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """One group as ListGroups tells it."""

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
    """Names and patterns that members subscribe to; None where they are not known."""


DEAD: Final = DescribedGroup(type="unknown", state=GroupState.DEAD)
"""What stands for a group that does not exist."""


Offsets = Mapping[TopicPartition, int]
"""Committed offset by partition; NONE: negative, which is none."""


class ShareOffsets(dict[TopicPartition, int]):
    """Where each partition's first record lies that is not yet done with.

    `lag`: records not yet done with, as the group's coordinator counts them (KIP-1226); NONE:
    a broker that does not tell it.
    """

    def __init__(self, partitions: Mapping[TopicPartition, Any]) -> None:
        super().__init__((tp, part.start_offset) for tp, part in partitions.items())
        self.lag = {tp: max(part.lag, NONE) for tp, part in partitions.items()}


@dataclass(slots=True)
class PollAnswers:
    """The answers of one look."""

    descriptions: Mapping[str, DescribedGroup]
    listed: Mapping[str, ListedGroup] = field(default_factory=dict)
    committed: Mapping[str, Offsets] = field(default_factory=dict)

    def _told(self, group: str) -> DescribedGroup | ListedGroup | None:
        return self.descriptions.get(group) or self.listed.get(group)

    def kind(self, group: str) -> str:
        """Its type, or unknown."""
        told = self._told(group)
        return "unknown" if told is None else told.type

    def state(self, group: str) -> GroupState:
        """As described, or else as listed."""
        told = self._told(group)
        return GroupState.UNKNOWN if told is None else told.state

    def members(self, group: str) -> tuple[Member, ...]:
        """Members as described; none where the describe failed."""
        described = self.descriptions.get(group)
        return described.members if described else ()

    def facts(self, group: str) -> GroupFacts:
        """One group that exists."""
        described = self.descriptions.get(group)
        return GroupFacts(
            state=self.state(group),
            type=self.kind(group),
            members=None if described is None else len(described.members),
            assignor=None if described is None else described.assignor,
            topics=None if described is None else described.topics,
        )

    def counted(self) -> dict[str, Offsets]:
        """Lag by share group, as its coordinator counts it."""
        return {
            group: offsets.lag
            for group, offsets in self.committed.items()
            if isinstance(offsets, ShareOffsets)
        }

    def rows(self, group: str) -> Iterator[tuple[str, TopicPartition, int | None]]:
        """Partitions that the group committed, and those that it owns and never committed."""
        committed = self.committed.get(group, {})
        for tp, offset in committed.items():
            yield group, tp, offset
        owned = {tp for member in self.members(group) for tp in member.partitions}
        for tp in sorted(owned - committed.keys()):
            yield group, tp, None


def is_dead(described: DescribedGroup | None) -> bool:
    """What a describe answers for a group that does not exist."""
    return described is not None and described.state is GroupState.DEAD


def no_group() -> GroupFacts:
    """A name that no group has."""
    return GroupFacts(state=GroupState.DEAD, type="unknown", members=0, exists=False)
