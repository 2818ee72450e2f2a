"""End offsets of every partition over time, in memory: how old is a committed position?

Problem: 240,000 positions want their age every few seconds, and a query for each costs a
second; Kafka itself tells it only for a record that is read. Choice: one row of end offsets per
look, thinned as they grow old; the age is interpolated between the two looks around a position,
for all positions at once by a binary search over the looks. Older than the first look, only the
least that it can be is known, and said apart. Cost: some 70 rows of 8 bytes a partition.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from fleet.log.readers.positions import NONE, Floats, Ints, Longs
from fleet.model import TopicPartition

_THINNED: Final = ((300.0, 60.0), (1800.0, 300.0))
"""(older than, one look in), seconds."""
_KEPT: Final = 7200.0


class EndHistory:
    """End offsets by look. Not for several threads."""

    def __init__(self) -> None:
        self._columns: dict[TopicPartition, int] = {}
        self._times: list[float] = []
        self._looks: list[Longs] = []
        self._table: Longs | None = None

    def load(self, samples: Mapping[TopicPartition, Sequence[tuple[float, int]]]) -> None:
        """Begin with what earlier looks of this machine have stored (fleet.observe.samples).

        Each partition has samples at times of its own; at the others its end is interpolated,
        as an age would be.
        """
        times = sorted({at for each in samples.values() for at, _ in each})
        for at in times:
            self._times.append(at)
            self._looks.append(np.empty(0, dtype=np.int64))
            self._thin(times[-1])
        columns = self.columns(list(samples))
        grid = np.array(self._times)
        self._looks = [np.full(len(self._columns), NONE, dtype=np.int64) for _ in self._times]
        for column, each in zip(columns.tolist(), samples.values(), strict=True):
            own, ends = zip(*each, strict=True)
            filled = np.interp(grid, own, ends).astype(np.int64)
            filled[grid < own[0]] = NONE
            for look, end in zip(self._looks, filled.tolist(), strict=True):
                look[column] = end

    def columns(self, tps: Sequence[TopicPartition]) -> Ints:
        """The column of each partition, made where it is new."""
        known = self._columns
        return np.array([known.setdefault(tp, len(known)) for tp in tps], dtype=np.int32)

    def add(self, at: float, ends: Mapping[TopicPartition, int]) -> None:
        """Note the ends of one look; a partition that is left out keeps its last one."""
        if self._times and at <= self._times[-1]:
            return
        columns = self.columns(list(ends))
        now = np.full(len(self._columns), NONE, dtype=np.int64)
        if self._looks:
            last = self._looks[-1]
            now[: len(last)] = last
        values = np.fromiter(ends.values(), dtype=np.int64, count=len(ends))
        fallen = columns[values < now[columns]]
        now[columns] = values
        for look in self._looks if len(fallen) else ():
            look[fallen[fallen < len(look)]] = NONE  # another log under the same name
        self._times.append(at)
        self._looks.append(now)
        self._thin(at)
        self._table = None

    def ages(self, columns: Ints, offsets: Longs, now: float) -> tuple[Floats, Floats]:
        """Seconds since each offset was written, and what they are at least; NaN = not known.

        0 where nothing was written at that offset at the last look.
        """
        exact = np.full(len(offsets), np.nan)
        least = np.full(len(offsets), np.nan)
        if not self._times or not len(offsets):
            return exact, least
        table, times = self._stacked(), np.array(self._times)
        after = _first_beyond(table, columns, offsets)
        done = after == len(times)
        exact[done] = least[done] = 0.0
        rows = np.flatnonzero(~done)
        k, column = after[rows], columns[rows]
        least[rows] = now - times[k]
        before = np.where(k > 0, table[np.maximum(k - 1, 0), column], NONE)
        between = before != NONE
        rows, k, column, before = rows[between], k[between], column[between], before[between]
        part = (offsets[rows] - before) / (table[k, column] - before)
        written = times[k - 1] + (times[k] - times[k - 1]) * part
        exact[rows] = least[rows] = np.maximum(0.0, now - written)
        return exact, least

    def _stacked(self) -> Longs:
        if self._table is None:
            table = np.full((len(self._looks), len(self._columns)), NONE, dtype=np.int64)
            for row, look in enumerate(self._looks):
                table[row, : len(look)] = look
            self._table = table
        return self._table

    def _thin(self, now: float) -> None:
        kept: list[int] = []
        for index, at in enumerate(self._times):
            age = now - at
            one_in = max((gap for older, gap in _THINNED if age > older), default=0.0)
            close = bool(kept) and at - self._times[kept[-1]] < one_in
            if age <= _KEPT and not close:
                kept.append(index)
        if len(kept) < len(self._times):
            self._times = [self._times[index] for index in kept]
            self._looks = [self._looks[index] for index in kept]


def _first_beyond(table: Longs, columns: Ints, offsets: Longs) -> Longs:
    """The first look whose end is beyond the offset; the number of looks where none is."""
    low = np.zeros(len(offsets), dtype=np.int64)
    high = np.full(len(offsets), len(table), dtype=np.int64)
    while True:
        open_ = low < high
        if not open_.any():
            return low
        middle = (low + high) // 2
        below = table[np.minimum(middle, len(table) - 1), columns] <= offsets
        low = np.where(open_ & below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
