"""What one look found, as the values that metrics are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.model.totals import Totals
from fleet.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """One topic as one group sees it; None = cannot be said."""

    topic: str
    lag: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """One partition as one group sees it."""

    topic: str
    partition: int
    committed: int
    lag: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPicture:
    """One group."""

    group: str
    owner: str
    """Of the fleet that declares it; empty where none does."""
    state: str
    type: str
    members: int | None
    generation: int | None
    topics: tuple[TopicLag, ...]
    cases: Mapping[str, int]
    """Partitions by what their lag figure means (fleet.model.LagCase)."""
    verdict: str
    level: str
    totals: Totals | None
    """Rebalances since the exporter began; None where the log is not read."""
    partitions: tuple[PartitionLag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPicture:
    """One slot of a declared group."""

    group: str
    owner: str
    slot: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTransaction:
    """A transaction with offsets that has not ended for long: its commits do not count yet."""

    partition: int
    """Of the offsets topic."""
    producer: int
    since: float
    """Wall time of its first commit."""
    seconds: float
    commits: int
    """Partitions whose commits it holds back."""

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since, UTC)
        return (
            f"a transaction of producer {self.producer} has been open in "
            f"__consumer_offsets-{self.partition} since {began:%H:%M:%S} UTC: "
            f"{plural(self.commits, 'committed offset')} in it "
            f"{'does' if self.commits == 1 else 'do'} not count until it ends"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One complete look."""

    cluster: str
    took: float
    from_log: bool
    """The offsets topic was read; else only the coordinators were asked."""
    groups: tuple[GroupPicture, ...] = ()
    slots: tuple[SlotPicture, ...] = ()
    decode_errors: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By record type and value version."""
    records: int = 0
    """Records of the offsets topic read."""
    transactions: tuple[LongTransaction, ...] = ()
    problems: tuple[str, ...] = ()
