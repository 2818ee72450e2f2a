"""By how much ages grew over the last minutes, of all partitions of all groups at once.

Problem: a group that falls behind shows in its age of some minutes ago, and hundreds of thousands
of ages cannot be kept for every look. Choice: one look a minute is kept, for five minutes,
by the rows' own numbers, which no other partition is ever given: a partition that was not there
then did not grow, nor one of whose age only a bound was known, which grows with the clock. Cost: 4
bytes a row for each look that is kept, and 8 more where other partitions were there before; an
age of a day is up to 4 ms off, one of a year a second.
"""

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.lag.lag_columns import Floats, Longs

_WINDOW: Final = 300.0
"""Seconds over which a growing age is told."""
_APART: Final = 60.0


class Growth:
    """Asked at each look; for one thread."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Longs, NDArray[np.float32]]] = deque()

    def look(self, rows: Longs, ages: Floats, known: Floats, at: float) -> tuple[Floats, float]:
        """(by how much each row's age grew, over how many seconds); NaN: not known.

        ages: at least; known: the same, NaN where that is only a bound. at: seconds of a clock
        that nobody sets.
        """
        gained = np.full(len(ages), np.nan)
        while self._kept and at - self._kept[0][0] > _WINDOW:
            self._kept.popleft()
        over = 0.0
        if self._kept:
            since, places, then = self._kept[0]
            over = at - since
            place = np.searchsorted(places, rows)
            there = place < len(places)
            there[there] = places[place[there]] == rows[there]
            gained[there] = ages[there] - then[place[there]]
        if not self._kept or at - self._kept[-1][0] >= _APART:
            order = np.argsort(rows)
            places = rows[order]
            if self._kept and np.array_equal(places, self._kept[-1][1]):
                places = self._kept[-1][1]
            self._kept.append((at, places, known[order].astype(np.float32)))
        return gained, over
