"""A rebalance and its cause, as values for every package.

Problem: tables, commands, metrics and alerts describe the same rebalance, and the log that it is
derived from has gaps. Choice: one value per rebalance, identified by its place in the log. Each
time has its source. What the log does not hold is None or AMBIGUOUS, never a guess. Cost: callers
must handle None.

A rebalance is one completed generation (classic) or one new assignment epoch (KIP-848). A static
member that is replaced is no rebalance; it is a `MembershipSpan` row. Members are named by instance
id if they have one (KIP-345), else by member id. Times are wall-clock seconds of the coordinator's
own timestamps.
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
    """A session or processing timeout: the coordinator removed the member."""
    REMOVAL = "removal"
    """A member left or expired; the log of classic groups does not say which."""
    SUBSCRIPTION = "subscription change"
    PARTITIONS = "partition count"
    """A topic got more or fewer partitions, was created or was deleted."""
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
        """Maps a cause that only a newer release knows."""
        del value
        return cls.UNKNOWN


class Confidence(StrEnum):
    """How certain a cause is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    """Derived from a hint, such as a last commit older than the session timeout."""
    AMBIGUOUS = "ambiguous"
    """The log allows more than one cause."""

    @classmethod
    def _missing_(cls, value: object) -> "Confidence":
        """Maps a confidence that only a newer release knows."""
        del value
        return cls.AMBIGUOUS


class TimeSource(StrEnum):
    """Where a time comes from."""

    RECORD = "record"
    """Written by the coordinator for this very event."""
    COMMITS = "commits"
    """The burst of commits at revocation: the rebalance began no later."""
    STATES = "states"
    """Between two polls of the group's state: within a second, or a quarter of the duration."""
    SEEN = "seen"
    """The group was rebalancing when it was polled: the rebalance began no later."""
    POLLED = "polled"
    """Found by polling the group's state."""
    NOT = "not known"

    @classmethod
    def _missing_(cls, value: object) -> "TimeSource":
        """Maps a source that only a newer release knows."""
        del value
        return cls.NOT


_TIMED = frozenset({TimeSource.RECORD, TimeSource.STATES, TimeSource.POLLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance of one group.

    `log_partition` and `log_offset` are the place of the record in `__consumer_offsets` that
    completed it. They identify it, however often and by whatever process it is derived (-1 if it
    was polled).
    """

    cluster: str
    group: str
    protocol: str
    """classic | consumer | share | streams."""
    number: int
    """Generation or assignment epoch."""
    before: int | None
    """The number before; None if the log no longer has it."""
    incarnation: int
    """How often the group was recreated, as far as the log reaches back; 0 is the first."""
    started_at: float | None
    start_source: TimeSource
    ended_at: float
    end_source: TimeSource
    cause: Cause
    confidence: Confidence
    also: tuple[Cause, ...] = ()
    """What else changed in the same round."""
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    members: int = 0
    """Members after the rebalance."""
    moved: tuple[TopicPartition, ...] = ()
    """Partitions whose owner differs from the last one they had."""
    aborted: int = 0
    """Rounds before it that never completed."""
    assignor: str | None = None
    log_partition: int
    log_offset: int
    resubscribed: tuple[str, ...] = field(default=(), compare=False)
    """Members that stayed and subscribed to other topics. The history stores neither this nor
    `added`; only readers of the live log get them."""
    added: tuple[TopicPartition, ...] = field(default=(), compare=False)
    """Partitions that were never assigned before, of topics that were: the topic grew."""

    @property
    def seconds(self) -> float | None:
        """Returns the time from its start, or the latest possible start, to its end; None if
        unknown.
        """
        return None if self.started_at is None else max(0.0, self.ended_at - self.started_at)

    @property
    def is_timed(self) -> bool:
        """Whether `seconds` is its duration; else `seconds` is a lower bound."""
        ends = self.end_source is not TimeSource.NOT
        return self.started_at is not None and self.start_source in _TIMED and ends


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSpan:
    """One member of one group, from one event on or until it left."""

    cluster: str
    group: str
    at: float
    number: int
    """Generation, or member epoch, at that time."""
    event: str
    """joined | left | replaced | owns (its partitions changed)."""
    member: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    owned: tuple[TopicPartition, ...]
    log_partition: int
    log_offset: int


def standing(rows: Sequence[MembershipSpan]) -> list[MembershipSpan]:
    """Returns the rows, in order, of members that did not leave."""
    left = {row.member: place for place, row in enumerate(rows) if row.event == "left"}
    return [row for place, row in enumerate(rows) if place > left.get(row.member, -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorMove:
    """Partitions of `__consumer_offsets` that got another leader, or a restarted one.

    All groups of such a partition have another coordinator, or one that has just started.
    """

    at: float
    """When it was noticed, wall-clock seconds."""
    partitions: int
    of: int
    """Number of partitions of the topic."""
    lost: tuple[int, ...]
    """Brokers that led them before."""
    gained: tuple[int, ...]
    """Brokers that lead them now."""

    @property
    def summary(self) -> str:
        """Returns for example `17 of 50 coordinators moved from broker 2 to brokers 0, 1`."""
        what = f"{self.partitions} of {self.of} coordinators"
        if self.lost == self.gained:
            return f"{what} started again on {_brokers(self.gained)}"
        return f"{what} moved from {_brokers(self.lost)} to {_brokers(self.gained)}"


def _brokers(ids: tuple[int, ...]) -> str:
    return f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


# What the coordinator recorded in a part of its log. `fleet.log.replay.counting` derives it from
# records, and `fleet.decide.receipts` compares it with a plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceCounts:
    """Rebalances, moves and downtimes of one group between two positions of the offsets log."""

    group: str
    generations: tuple[Rebalance, ...]
    """Completed generations (classic) or assignment epochs (KIP-848), compared with the last."""
    replacements: int
    """Static members that rejoined under their instance id; that is no rebalance."""
    pauses: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Longest downtime per partition that was handed over, seconds [27]."""
    every_downtime: tuple[float, ...] = ()
    """The downtime of each handover of a partition, in order of the log, seconds [27]."""
    open_downtimes: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Downtime so far of partitions handed over without a commit since, seconds."""
    silences: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Longest time without a commit beyond the usual gap, of partitions with steady commits,
    seconds."""
    from_generation: int | None = None
    """The generation before the first record; None if none existed or it is not known."""
    to_generation: int | None = None
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    """The owner of each partition after the last record."""
    undecoded: int = 0
    """Records of unknown type or version, or truncated; nothing is derived from them."""

    @property
    def rebalances(self) -> int:
        """Returns the number of completed generations or new assignment epochs."""
        return len(self.generations)

    @property
    def aborted(self) -> int:
        """Returns the number of rounds that never completed."""
        return sum(generation.aborted for generation in self.generations)

    @property
    def moved(self) -> int:
        """Returns the number of changes of owner, each partition once per change."""
        return sum(len(generation.moved) for generation in self.generations)

    @property
    def longest_downtime_s(self) -> float | None:
        """Returns the longest downtime of a handover; None if none is known."""
        return max(self.pauses.values(), default=None)

    @property
    def stayed_silences(self) -> Mapping[TopicPartition, float]:
        """Returns the silences of partitions whose owner stayed."""
        return {tp: silence for tp, silence in self.silences.items() if tp not in self.pauses}

    @property
    def moved_silence_s(self) -> float:
        """Returns the longest silence of a partition that was handed over; 0 if none."""
        return max((s for tp, s in self.silences.items() if tp in self.pauses), default=0.0)

    @property
    def longest_silence_s(self) -> float | None:
        """Returns the longest downtime or silence of any partition; None if none is known."""
        return max((*self.pauses.values(), *self.silences.values()), default=None)


# Rebalances of one group, summed for a counter and a histogram. Pure.


BUCKETS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of durations in seconds; longer ones count beyond them."""


@dataclass(slots=True)
class Durations:
    """The counts and the sum of a histogram."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Per bucket, not cumulative; the last is beyond all bounds."""
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Durations":
        """Returns a copy that later additions do not change."""
        return Durations(list(self.counts), self.seconds)


@dataclass(slots=True)
class Totals:
    """Sums over rebalances. Those of unknown duration have lower bounds of their own."""

    by_cause: Counter[Cause] = field(default_factory=Counter)
    moved: int = 0
    aborted: int = 0
    durations: Durations = field(default_factory=Durations)
    least: Durations = field(default_factory=Durations)
    """Lower bounds of the other durations; 0 if nothing is known."""

    def add(self, rebalance: Rebalance) -> None:
        """Counts one rebalance."""
        self.by_cause[rebalance.cause] += 1
        self.moved += len(rebalance.moved)
        self.aborted += rebalance.aborted
        (self.durations if rebalance.is_timed else self.least).add(rebalance.seconds or 0.0)

    def copy(self) -> "Totals":
        """Returns a copy that later additions do not change."""
        return Totals(
            Counter(self.by_cause),
            self.moved,
            self.aborted,
            self.durations.copy(),
            self.least.copy(),
        )
