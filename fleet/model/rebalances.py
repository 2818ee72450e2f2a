"""A rebalance and what caused it, as values for every room.

Problem: tables, commands, metrics and alerts all speak of the same thing, and the log that it
is taken from leaves gaps. Choice: one value per rebalance with its place in the log as its
identity, and beside every time how it is known; what the log cannot tell is None or AMBIGUOUS,
never guessed. Cost: callers must handle None.

A rebalance is one completed generation (classic) or one new assignment epoch (KIP-848); a static
member that is replaced is none, and comes as a `MembershipSpan` row. Members are named by instance
id where they have one (KIP-345), else by member id. Times are wall-clock seconds by the
coordinator's own timestamps.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet.model import TopicPartition


class Cause(StrEnum):
    """Why a rebalance came about (docs/contributing/protocol.md 3.5)."""

    CREATED = "created"
    """The group's first members."""
    JOIN = "join"
    LEAVE = "leave"
    BATCHED_LEAVE = "batched leave"
    EXPIRY = "expiry"
    """A session or processing timeout: the member was removed by the coordinator."""
    REMOVAL = "removal"
    """Somebody left or expired; the log of classic groups cannot tell which."""
    SUBSCRIPTION = "subscription change"
    PARTITIONS = "partition count"
    """A topic grew, shrank, came or went."""
    ASSIGNOR = "assignor change"
    LEADER_REJOIN = "leader rejoin"
    SECOND_ROUND = "second cooperative round"
    COORDINATOR_MOVE = "coordinator move"
    MIGRATION = "migration"
    """classic ↔ KIP-848, in place."""
    RECREATED = "group recreated"
    """Deleted, and recreated under the same name."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "Cause":
        """One that a newer release found, and this one has no word for."""
        del value
        return cls.UNKNOWN


class Confidence(StrEnum):
    """How sure a cause is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    """Told by a hint, such as a last commit older than the session timeout."""
    AMBIGUOUS = "ambiguous"
    """The log allows more than one, and says no more."""

    @classmethod
    def _missing_(cls, value: object) -> "Confidence":
        """As a cause of a newer release."""
        del value
        return cls.AMBIGUOUS


class Known(StrEnum):
    """How a time is known."""

    RECORD = "record"
    """Written by the coordinator for this very event."""
    COMMITS = "commits"
    """The burst of commits at revocation: the rebalance began no later."""
    STATES = "states"
    """Between two looks at the group's state: within a second, or a quarter of the duration."""
    SEEN = "seen"
    """It was unsettled when somebody looked: the rebalance began no later."""
    POLLED = "polled"
    """Seen by polling the group's state."""
    NOT = "not known"

    @classmethod
    def _missing_(cls, value: object) -> "Known":
        """In a way that only a newer release knows."""
        del value
        return cls.NOT


_TIMED = frozenset({Known.RECORD, Known.STATES, Known.POLLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance of one group.

    `log_partition` and `log_offset` are the place of the record in `__consumer_offsets` that
    completed it: its identity, whoever derives it and however often (-1 where it was polled).
    """

    cluster: str
    group: str
    protocol: str
    """classic | consumer | share | streams."""
    number: int
    """Generation or assignment epoch."""
    before: int | None
    """The one before; None where the log no longer has it."""
    incarnation: int
    """Counts how often the group was made anew, as far as the log reaches back; 0 is the first."""
    started_at: float | None
    start_source: Known
    ended_at: float
    end_source: Known
    cause: Cause
    confidence: Confidence
    also: tuple[Cause, ...] = ()
    """What else changed in the same round."""
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    members: int = 0
    """Members after it."""
    moved: tuple[TopicPartition, ...] = ()
    """Partitions whose owner differs from the last one they had."""
    aborted: int = 0
    """Rounds before it that never completed."""
    assignor: str | None = None
    log_partition: int
    log_offset: int
    resubscribed: tuple[str, ...] = field(default=(), compare=False)
    """Members that stayed, with other topics than before. Of this and `added` the history keeps
    nothing: they are told to who reads on without a stop."""
    added: tuple[TopicPartition, ...] = field(default=(), compare=False)
    """Partitions never assigned before, of topics that were: the topic grew."""

    @property
    def seconds(self) -> float | None:
        """From its start, or the latest that it can be, to its end; None where nothing is known."""
        return None if self.started_at is None else max(0.0, self.ended_at - self.started_at)

    @property
    def is_timed(self) -> bool:
        """`seconds` is its duration; else it took at least so long, if anything is known."""
        ends = self.end_source is not Known.NOT
        return self.started_at is not None and self.start_source in _TIMED and ends


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSpan:
    """One member of one group from one event on, or gone with it."""

    cluster: str
    group: str
    at: float
    number: int
    """Generation, or member epoch, at that time."""
    event: str
    """joined | left | replaced | owns (what it owns changed)."""
    member: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    owned: tuple[TopicPartition, ...]
    log_partition: int
    log_offset: int


def standing(rows: Sequence[MembershipSpan]) -> list[MembershipSpan]:
    """Of one group's rows in order those of stays that none of them ends."""
    left = {row.member: place for place, row in enumerate(rows) if row.event == "left"}
    return [row for place, row in enumerate(rows) if place > left.get(row.member, -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorMove:
    """Partitions of `__consumer_offsets` that got another leader, or the same one anew.

    All groups of such a partition have another coordinator, or one that has just started.
    """

    at: float
    """When it was seen, wall-clock seconds."""
    partitions: int
    of: int
    """Partitions of the topic."""
    lost: tuple[int, ...]
    """Brokers that led them before."""
    gained: tuple[int, ...]
    """Brokers that lead them now."""

    @property
    def words(self) -> str:
        """`17 of 50 coordinators moved from broker 2 to brokers 0, 1`."""
        what = f"{self.partitions} of {self.of} coordinators"
        if self.lost == self.gained:
            return f"{what} started again on {_brokers(self.gained)}"
        return f"{what} moved from {_brokers(self.lost)} to {_brokers(self.gained)}"


def _brokers(ids: tuple[int, ...]) -> str:
    return f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


# What the coordinator recorded over a stretch of its log: `fleet.log.replay.counting` makes it of
# records, `fleet.decide.receipts` compares it with a plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Rebalances, moves and pauses of one group between two positions of the offsets log."""

    group: str
    generations: tuple[Rebalance, ...]
    """Completed generations (classic) or assignment epochs (KIP-848), compared with the last."""
    replacements: int
    """Static members that came back under their instance id; no rebalance in itself."""
    pauses: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Longest pause per partition that was handed over, seconds [27]."""
    every_downtime: tuple[float, ...] = ()
    """The pause of each hand-over of a partition, in order of the log, seconds [27]."""
    unended: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Read until it was handed over and not committed again by the last record: pause so far, s."""
    silences: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Longest time without a commit, beyond the usual, of partitions that committed steadily, s."""
    from_generation: int | None = None
    """The generation before the stretch; None where there was none or it cannot be known."""
    to_generation: int | None = None
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Who owns what after the last record."""
    undecoded: int = 0
    """Records of unknown type or version, or truncated; nothing was guessed from them."""

    @property
    def rebalances(self) -> int:
        """Completed generations, or new assignment epochs."""
        return len(self.generations)

    @property
    def aborted(self) -> int:
        """Rounds that never completed."""
        return sum(generation.aborted for generation in self.generations)

    @property
    def moved(self) -> int:
        """Changes of owner, each partition once per change."""
        return sum(len(generation.moved) for generation in self.generations)

    @property
    def longest_downtime_s(self) -> float | None:
        """The longest pause of a handed-over partition; None where none can be said."""
        return max(self.pauses.values(), default=None)

    @property
    def stayed(self) -> Mapping[TopicPartition, float]:
        """The silences of partitions whose owner stayed."""
        return {tp: silence for tp, silence in self.silences.items() if tp not in self.pauses}

    @property
    def moved_silence_s(self) -> float:
        """The longest silence of a partition that was handed over; 0 if there is none."""
        return max((s for tp, s in self.silences.items() if tp in self.pauses), default=0.0)

    @property
    def longest_silence_s(self) -> float | None:
        """The longest that a partition stood still, handed over or not; None as above."""
        return max((*self.pauses.values(), *self.silences.values()), default=None)


# Rebalances of one group, counted up: what a counter and a histogram are made of. Pure.


BUCKETS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of durations, seconds; what is longer counts beyond them."""


@dataclass(slots=True)
class Durations:
    """A histogram's numbers."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Per bucket, not summed up; the last is beyond all bounds."""
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Durations":
        """As it is now."""
        return Durations(list(self.counts), self.seconds)


@dataclass(slots=True)
class Totals:
    """Sums over rebalances; of those whose duration is not known what it is at least is apart."""

    by_cause: Counter[Cause] = field(default_factory=Counter)
    moved: int = 0
    aborted: int = 0
    durations: Durations = field(default_factory=Durations)
    least: Durations = field(default_factory=Durations)
    """What the others took at least; 0 where nothing is known."""

    def add(self, rebalance: Rebalance) -> None:
        """Count one."""
        self.by_cause[rebalance.cause] += 1
        self.moved += len(rebalance.moved)
        self.aborted += rebalance.aborted
        (self.durations if rebalance.is_timed else self.least).add(rebalance.seconds or 0.0)

    def copy(self) -> "Totals":
        """As it is now."""
        return Totals(
            Counter(self.by_cause),
            self.moved,
            self.aborted,
            self.durations.copy(),
            self.least.copy(),
        )
