"""Rebalances of one group, counted up: what a counter and a histogram are made of. Pure."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from fleet.model.rebalances import Cause, Rebalance

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
