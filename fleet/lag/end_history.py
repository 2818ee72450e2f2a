"""End offsets of every partition over time: how old is a position?

Problem: 240,000 positions want their age every few seconds, and a query for each costs a
second; Kafka itself tells it only for a record that is read. Choice: one row of end offsets per
look, thinned as they grow old; the age is interpolated between the two looks around a position,
for all positions at once by a binary search over the looks. What was before the first look of
this process is in a file (`fleet.lag.samples`): one who looks for long begins with all of it,
a command asks it for the few positions that are older than its own looks. Older than the first
look of all, only the least that it can be is known, and said apart. Cost: some 130 rows of 8
bytes a partition; a query for each old position of a command.
"""

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from fleet.lag.lag_columns import NONE, Floats, Ints, Longs
from fleet.lag.sample_thinning import KEEP, THINNED
from fleet.lag.samples import CLOCK_SET_BACK, EndStore
from fleet.model import TopicPartition


class EndHistory:
    """End offsets by look, of one cluster. Safe for several threads.

    `store` keeps them for other processes; None: in memory alone.
    """

    def __init__(self, cluster: str = "", store: EndStore | None = None) -> None:
        self._cluster, self._store = cluster, store
        self._whole = store is None
        """Nothing is stored that is not here."""
        self._lock = threading.Lock()
        self._columns: dict[TopicPartition, int] = {}
        self._seen: Floats = np.empty(0)
        """By column, the time of the last look that saw the partition."""
        self._times: list[float] = []
        self._looks: list[Longs] = []
        self._table: Longs | None = None

    @property
    def problem(self) -> str | None:
        """Why the store did not take or tell ends, in a sentence; None: it did."""
        return None if self._store is None else self._store.problem

    def load(self) -> None:
        """Begin with all that is stored, for one who will look for long.

        Each partition was seen at times of its own; at the others its end is interpolated, as an
        age is.
        """
        if self._store is None:
            return
        self._whole = True
        times = self._store.times(self._cluster)
        for at in times:
            self._times.append(at)
            self._looks.append(np.empty(0, dtype=np.int64))
            self._thin(times[-1])
        grid, tps, columns, seen = np.array(self._times), [], [], []
        for tp, samples in self._store.stored(self._cluster):
            own, ends = zip(*samples, strict=True)
            filled = np.interp(grid, own, ends).astype(np.int64)
            filled[grid < own[0]] = NONE
            tps.append(tp)
            columns.append(filled)
            seen.append(own[-1])
        if tps:
            self._columns = {tp: column for column, tp in enumerate(tps)}
            self._seen = np.array(seen)
            self._looks = [look.copy() for look in np.array(columns).T]

    def add(self, at: float, ends: Mapping[TopicPartition, int]) -> None:
        """Note the ends of one look; a partition that is left out keeps its last one."""
        if self._store is not None and ends:
            self._store.record(self._cluster, at, ends)
        with self._lock:
            self._add(at, ends)

    def _add(self, at: float, ends: Mapping[TopicPartition, int]) -> None:
        if self._times and at <= self._times[-1] - CLOCK_SET_BACK:
            self._times, self._looks, self._table = [], [], None  # as the store begins again
            self._seen = np.minimum(self._seen, at)
        if self._times and at <= self._times[-1]:
            return  # another thread looked in between
        columns = self._places(list(ends), at)
        self._seen[columns] = at
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
        self._forget(at)
        self._table = None

    def ages(
        self, tps: Sequence[TopicPartition], which: Longs, offsets: Longs, now: float
    ) -> tuple[Floats, Floats]:
        """Seconds since each offset of `tps[which]` was written, and what they are at least.

        NaN: not known. 0 where nothing was written at that offset at the last look.
        """
        with self._lock:
            return self._ages(tps, which, offsets, now)

    def _ages(
        self, tps: Sequence[TopicPartition], which: Longs, offsets: Longs, now: float
    ) -> tuple[Floats, Floats]:
        exact = np.full(len(offsets), np.nan)
        least = np.full(len(offsets), np.nan)
        if not self._times or not len(offsets):
            return exact, least
        columns = self._places(tps, self._times[-1])[which]
        table, times = self._stacked(), np.array(self._times)
        after = _first_beyond(table, columns, offsets)
        done = after == len(times)
        exact[done] = least[done] = 0.0
        rows = np.flatnonzero(~done)
        k, column = after[rows], columns[rows]
        since, until = times[np.maximum(k - 1, 0)], times[k]
        before = np.where(k > 0, table[np.maximum(k - 1, 0), column], NONE)
        end = table[k, column]
        if not self._whole:
            self._recall(tps, which[rows], offsets[rows], (since, before, until, end))
        least[rows] = np.maximum(0.0, now - until)
        known = before != NONE
        rows, since, before, until, end = (c[known] for c in (rows, since, before, until, end))
        written = since + (until - since) * (offsets[rows] - before) / (end - before)
        exact[rows] = least[rows] = np.maximum(0.0, now - written)
        return exact, least

    def _recall(
        self,
        tps: Sequence[TopicPartition],
        which: Longs,
        offsets: Longs,
        around: tuple[Floats, Longs, Floats, Longs],
    ) -> None:
        """Of positions that are older than all looks here: what other processes saw, filled in."""
        assert self._store is not None
        since, before, until, end = around
        old = np.flatnonzero(before == NONE)
        asked = list(zip(which[old].tolist(), offsets[old].tolist(), strict=True))
        told = self._store.around(self._cluster, {(tps[tp], offset) for tp, offset in asked})
        for row, (tp, offset) in zip(old.tolist(), asked, strict=True):
            last, first = told.get((tps[tp], offset), (None, None))
            if last is not None:
                since[row], before[row] = last
            if first is not None:
                until[row], end[row] = first

    def _places(self, tps: Sequence[TopicPartition], at: float) -> Ints:
        """The column of each partition, made where it is new."""
        known = self._columns
        places = np.array([known.setdefault(tp, len(known)) for tp in tps], dtype=np.int32)
        new = len(known) - len(self._seen)
        if new:
            self._seen = np.append(self._seen, np.full(new, at))
        return places

    def _stacked(self) -> Longs:
        if self._table is None or self._table.shape[1] < len(self._columns):
            table = np.full((len(self._looks), len(self._columns)), NONE, dtype=np.int64)
            for row, look in enumerate(self._looks):
                table[row, : len(look)] = look
            self._table = table
        return self._table

    def _thin(self, now: float) -> None:
        kept: list[int] = []
        for index, at in enumerate(self._times):
            age = now - at
            one_in = max((gap for older, gap in THINNED if age > older), default=0.0)
            # By what its going would leave between its neighbours: of a log that stood, the times
            # at which that began and ended are the only ones for long.
            behind = self._times[index + 1] if index + 1 < len(self._times) else now
            close = bool(kept) and behind - self._times[kept[-1]] < one_in
            if age <= KEEP and not close:
                kept.append(index)
        if len(kept) < len(self._times):
            self._times = [self._times[index] for index in kept]
            self._looks = [self._looks[index] for index in kept]

    def _forget(self, now: float) -> None:
        """Partitions that no look has seen for as long as a look is kept."""
        stays = np.flatnonzero(now - self._seen <= KEEP)
        if len(stays) == len(self._seen):
            return
        tps = list(self._columns)
        self._columns = {tps[column]: place for place, column in enumerate(stays.tolist())}
        self._seen = self._seen[stays]
        self._looks = [look[stays[stays < len(look)]] for look in self._looks]


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
