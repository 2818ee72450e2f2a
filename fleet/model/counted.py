"""What the coordinator recorded over a stretch of its log, as values for every room.

`fleet.log.replay.counting` makes them from records, `fleet.decide.receipts` compares them with a
plan. A member is named by its instance id where it has one (KIP-345), else by its member id.
Times are wall-clock seconds, by the records' own timestamps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.model import TopicPartition
from fleet.model.rebalances import Rebalance


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
    every_pause: tuple[float, ...] = ()
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
    def longest_pause_s(self) -> float | None:
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
    def longest_downtime_s(self) -> float | None:
        """The longest that a partition stood still, handed over or not; None as above."""
        return max((*self.pauses.values(), *self.silences.values()), default=None)
