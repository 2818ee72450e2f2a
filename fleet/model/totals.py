"""Rebalances of one group, counted up: what a counter and a histogram are made of. Pure."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from fleet.model.rebalances import Cause, Rebalance

BUCKETS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of durations, seconds; what is longer counts beyond them."""


@dataclass(slots=True)
class Totals:
    """Sums over rebalances; `durations` are of those whose start is known."""

    by_cause: Counter[Cause] = field(default_factory=Counter)
    moved: int = 0
    aborted: int = 0
    durations: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Per bucket, not summed up; the last is beyond all bounds."""
    seconds: float = 0.0

    def add(self, rebalance: Rebalance) -> None:
        """Count one."""
        self.by_cause[rebalance.cause] += 1
        self.moved += len(rebalance.moved)
        self.aborted += rebalance.aborted
        if rebalance.seconds is not None:
            self.durations[bisect_left(BUCKETS, rebalance.seconds)] += 1
            self.seconds += rebalance.seconds

    def copy(self) -> "Totals":
        """As it is now."""
        return Totals(
            Counter(self.by_cause), self.moved, self.aborted, list(self.durations), self.seconds
        )
