"""Keeps end offsets of every partition over time, to compute the age of an offset.

Problem: 240,000 offsets need an age every few seconds, and a query for each costs a second. Kafka
only returns a time for a record that is read. Choice: each refresh stores one row of end offsets;
old rows are thinned. The age is interpolated between the two refreshes around an offset, for all
offsets at once by a binary search. A file keeps what was before this process: a long-running
process loads all of it, a command asks only for offsets that are older than its own refreshes. For
an offset older than the first refresh only a lower bound is known, and kept apart. Cost: some 130
rows of 8 bytes a partition; a query for each old offset of a command.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from fleet.errors import FleetError
from fleet.lag.lag_columns import NONE, Floats, Ints, Longs
from fleet.model import TopicPartition

# Stored end offsets grow fewer as they grow old: a look thins the few portions of partitions that
# were thinned longest ago, by whichever process, each in a transaction of its own, and of each only
# what grew too old since. What no look has seen for `KEEP` is forgotten, name and all.

KEEP: Final = 32 * 86_400.0
"""Seconds a sample is kept: longer than any `max_lag` or `alerts.max_lag` can be, 30 days."""
THINNED: Final = (
    (300.0, 60.0),
    (1800.0, 300.0),
    (7200.0, 3600.0),
    (28_800.0, 14_400.0),
    (86_400.0, 86_400.0),
    (345_600.0, 345_600.0),
)
"""(older than, the first and the last sample in), seconds: an age is known to a fraction of itself.

Both, since a log may stop and go on: where it began to stand is the last of its time, and where it
was last seen to stand the first.
"""
PORTION: Final = 512
"""Partitions, by number in the file, that are thinned at once: some 10 ms, the first time 50."""
_PORTIONS: Final = 4
"""Portions that one look thins: another process does not wait for all of them."""
_EVERY: Final = 60.0

# Beside the tables of schema 1: a release that does not know it thins as if nobody had.
TABLE: Final = """
CREATE TABLE IF NOT EXISTS thinned (
    portion INTEGER PRIMARY KEY, at REAL NOT NULL, forgotten INTEGER NOT NULL
)
"""

# Rows are chosen before any is deleted: SQLite 3.40 skips some of a table WITHOUT ROWID whose rows
# it deletes while it walks through the partitions.
_OF_PORTION: Final = (
    "DELETE FROM sample WHERE (partition, at) IN (SELECT old.partition, old.at"
    " FROM partition AS p CROSS JOIN sample AS old"
    " WHERE p.id >= :first AND p.id < :beyond AND old.partition = p.id AND old.at < :older"
)
_TOO_OLD: Final = f"{_OF_PORTION})"
_TOO_MANY: Final = (
    f"{_OF_PORTION} AND old.at >= :since"  # noqa: S608 - our own text
    " AND EXISTS (SELECT 1 FROM sample AS kept WHERE kept.partition = old.partition AND kept.at < "
    "old.at AND kept.at >= CAST(old.at / :one AS INTEGER) * :one) AND EXISTS (SELECT 1 FROM sample "
    "AS kept WHERE kept.partition = old.partition AND kept.at > old.at AND kept.at < CAST(old.at / "
    ":one + 1 AS INTEGER) * :one))"
)
# The largest number stays: numbers are given upwards from it, and none is given twice, so that
# nobody who remembers one writes to another partition.
_UNSEEN: Final = (
    "DELETE FROM partition WHERE id >= :first AND id < :beyond AND id < (SELECT MAX(id) FROM "
    "partition) AND NOT EXISTS (SELECT 1 FROM sample WHERE sample.partition = partition.id)"
)


def due(db: sqlite3.Connection, now: float) -> list[int]:
    """The few portions that were thinned longest ago, none of them within the last minute."""
    last = dict(db.execute("SELECT portion, at FROM thinned").fetchall())
    rows = db.execute("SELECT DISTINCT id / ? FROM partition", (PORTION,)).fetchall()
    waited = {portion: abs(now - last.get(portion, float("-inf"))) for (portion,) in rows}
    waiting = [portion for portion, seconds in waited.items() if seconds >= _EVERY]
    return sorted(waiting, key=lambda portion: -waited[portion])[:_PORTIONS]


def thin(db: sqlite3.Connection, portion: int, now: float) -> None:
    """Thin one portion, in the transaction that is open. Wall time.

    Of the rows that grew too old since the last time, or of all at first and where the clock was
    set back.
    """
    row = db.execute("SELECT at, forgotten FROM thinned WHERE portion = ?", (portion,)).fetchone()
    last, forgotten = row or (float("-inf"), 0)
    if abs(now - last) < _EVERY:
        return  # another process was faster
    before = last if last <= now else float("-inf")
    of = {"first": portion * PORTION, "beyond": (portion + 1) * PORTION}
    if db.execute(_TOO_OLD, {**of, "older": now - KEEP}).rowcount:
        forgotten += db.execute(_UNSEEN, of).rowcount
    for older, one_in in THINNED:
        since = before - older - one_in
        db.execute(_TOO_MANY, {**of, "since": since, "older": now - older, "one": one_in})
    db.execute("INSERT OR REPLACE INTO thinned VALUES (?, ?, ?)", (portion, now, forgotten))


def marks(db: sqlite3.Connection) -> tuple[float, float]:
    """Two figures: one is another as soon as anything was thinned, the other as soon as a
    partition was forgotten, by whichever process.
    """
    thinned, forgotten = db.execute("SELECT TOTAL(at), TOTAL(forgotten) FROM thinned").fetchone()
    return float(thinned), float(forgotten)


# The file, one for each fleet: a cache. A partition that stands still keeps two rows, one that
# moves all the time some 160. A full disk or a locked file ends no look, and is told (`problem`).

Sample = tuple[float, int]
"""(wall time, end offset)."""
SCHEMA: Final = 1
APART: Final = 1.0
"""Seconds between samples of one cluster."""
CLOCK_SET_BACK: Final = 60.0
"""Seconds by which a look is older than the last one only after the clock was set back."""

_TABLES: Final = """
CREATE TABLE partition (
    id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, topic TEXT NOT NULL, number INTEGER NOT NULL,
    UNIQUE (cluster, topic, number)
);
CREATE TABLE sample (
    partition INTEGER NOT NULL REFERENCES partition, at REAL NOT NULL, end INTEGER NOT NULL,
    PRIMARY KEY (partition, at)
) WITHOUT ROWID;
"""


def _opened(path: Path | None) -> sqlite3.Connection:
    return sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=10.0,
        isolation_level=None,
        check_same_thread=False,
    )


class EndStore:
    """Stored samples; path None keeps them in memory. Safe for several threads and processes.

    Raises FleetError where it cannot be opened. What cannot be written or read is left out, all of
    a file that a newer release wrote: see `problem`.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._ids: dict[tuple[str, TopicPartition], int] = {}
        self._recent: dict[int, list[Sample]] = {}
        self._last_at: dict[str, float] = {}
        self._thinned = self._forgotten = 0.0
        """The file's marks (`sample_thinning.marks`) that what is remembered here goes by."""
        self.problem: str | None = None
        """Why the last samples were not kept, or not found, in a sentence; None: they were."""
        self._unread: str | None = None
        """Why the file's own were not."""
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _opened(path)
            version = self._prepare()
            if version > SCHEMA:
                self._db.close()
                self._db = _opened(None)
                self._prepare()
                self.problem = self._unread = (
                    f"{path} has schema {version}, but this version knows {SCHEMA}, so ages come "
                    "only from this process: use the newer version, or delete the file (a cache)"
                )
        except (OSError, sqlite3.Error) as error:
            raise FleetError(
                f"end offsets cannot be stored in {path} ({error}): delete the file (a cache), or "
                "set $FLEET_HOME to a writable folder"
            ) from error

    def close(self) -> None:
        """Closes the file of samples."""
        with self._lock:
            self._db.close()

    def _prepare(self) -> int:
        """The file's schema; one that is newer is left as it is."""
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("BEGIN IMMEDIATE")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={SCHEMA}")
        if version <= SCHEMA:
            self._db.execute(TABLE)
        self._db.execute("COMMIT")
        return version

    def record(self, cluster: str, at: float, ends: Mapping[TopicPartition, int]) -> bool:
        """Note end offsets of one moment; False where the last ones are less than 1 s old, or
        these cannot be kept.
        """
        with self._lock:
            if abs(at - self._last_at.get(cluster, float("-inf"))) < APART:
                return False
            try:
                with self._transaction():
                    self._compare_marks(at)
                    self._write(cluster, at, ends)
            except sqlite3.Error as error:
                self._failed(error)
                return False
            self._last_at[cluster], self.problem = at, self._unread
            self._thin(at)
            return True

    def around(
        self, cluster: str, positions: Iterable[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], tuple[Sample | None, Sample | None]]:
        """Of each position the last sample at or below it, and the first one beyond it."""
        with self._lock:
            try:
                self._compare_marks()
                return {
                    (tp, offset): self._neighbours(known, offset)
                    for tp, offset in positions
                    if (known := self._known(cluster, tp)) is not None
                }
            except sqlite3.Error as error:
                self._failed(error)
                return {}

    def times(self, cluster: str) -> list[float]:
        """When partitions of a cluster were looked at, in order."""
        rows = self._rows(
            "SELECT DISTINCT s.at FROM partition AS p CROSS JOIN sample AS s"
            " WHERE p.cluster = ? AND s.partition = p.id",
            cluster,
        )
        return sorted(float(at) for (at,) in rows)

    def stored(self, cluster: str) -> Iterator[tuple[TopicPartition, tuple[Sample, ...]]]:
        """The samples of each partition of a cluster, in order of time, read one by one: all at
        once are gigabytes.
        """
        for partition, topic, number in self._rows(
            "SELECT id, topic, number FROM partition WHERE cluster = ?", cluster
        ):
            if rows := self._rows(
                "SELECT at, end FROM sample WHERE partition = ? ORDER BY at", partition
            ):
                yield (
                    TopicPartition(topic, number),
                    tuple((float(at), int(end)) for at, end in rows),
                )

    def _rows(self, query: str, of: str | int) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(query, (of,)).fetchall()
            except sqlite3.Error as error:
                self._failed(error)
                return []

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. What is undone is forgotten here too: the number of a partition that was
        not stored is given to another one.
        """
        self._db.execute("BEGIN IMMEDIATE")  # where this fails there is nothing to undo
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the first failure is the one to tell
                if self._db.in_transaction:  # on a full disk SQLite has ended it already
                    self._db.execute("ROLLBACK")
            self._ids.clear()
            self._recent.clear()
            raise

    def _failed(self, error: sqlite3.Error) -> None:
        self.problem = (
            f"end offsets cannot be stored in {self._path} ({error}), so ages come only from this "
            "process: free disk space, stop the process that locks the file, or delete it (a "
            "cache) and restart"
        )

    def _known(self, cluster: str, tp: TopicPartition) -> int | None:
        key = (cluster, tp)
        if key not in self._ids:
            row = self._db.execute(
                "SELECT id FROM partition WHERE cluster = ? AND topic = ? AND number = ?",
                (cluster, tp.topic, tp.partition),
            ).fetchone()
            if row is None:
                return None
            self._ids[key] = int(row[0])
        return self._ids[key]

    def _neighbours(self, partition: int, offset: int) -> tuple[Sample | None, Sample | None]:
        """End offsets never fall within one log, so the last sample at or below is the one."""
        return (
            self._one("end <= ? ORDER BY at DESC", partition, offset),
            self._one("end > ? ORDER BY at", partition, offset),
        )

    def _one(self, which: str, partition: int, offset: int) -> Sample | None:
        row = self._db.execute(
            f"SELECT at, end FROM sample WHERE partition = ? AND {which} LIMIT 1",  # noqa: S608
            (partition, offset),
        ).fetchone()
        return None if row is None else (float(row[0]), int(row[1]))

    def _write(self, cluster: str, at: float, ends: Mapping[TopicPartition, int]) -> None:
        new, moved = [], []
        for tp, end in ends.items():
            partition = self._known(cluster, tp)
            if partition is None:
                partition = self._add(cluster, tp)
            recent = self._last_two(partition)
            if recent and recent[-1][0] - CLOCK_SET_BACK < at <= recent[-1][0]:
                continue  # another process looked in between
            if recent and (end < recent[-1][1] or at <= recent[-1][0]):
                # Another log under the same name, or a clock set back: start again.
                self._db.execute("DELETE FROM sample WHERE partition = ?", (partition,))
                recent = []
            if len(recent) == 2 and recent[0][1] == recent[1][1] == end:
                moved.append((at, partition, recent[1][0]))
                recent = recent[:1]
            else:
                new.append((partition, at, end))
            self._recent[partition] = [*recent[-1:], (at, end)]
        self._db.executemany(
            "UPDATE OR REPLACE sample SET at = ? WHERE partition = ? AND at = ?", moved
        )
        self._db.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?, ?)", new)

    def _add(self, cluster: str, tp: TopicPartition) -> int:
        made = self._db.execute(
            "INSERT INTO partition (cluster, topic, number) VALUES (?, ?, ?)",
            (cluster, tp.topic, tp.partition),
        ).lastrowid
        assert made is not None
        self._ids[cluster, tp] = made
        return made

    def _last_two(self, partition: int) -> list[Sample]:
        if partition not in self._recent:
            rows = self._db.execute(
                "SELECT at, end FROM sample WHERE partition = ? ORDER BY at DESC LIMIT 2",
                (partition,),
            ).fetchall()
            self._recent[partition] = [(float(at), int(end)) for at, end in reversed(rows)]
        return self._recent[partition]

    def _compare_marks(self, now: float | None = None) -> None:
        """Remember nothing that somebody forgot or, where rows are asked for, thinned since."""
        thinned, forgotten = marks(self._db)
        if forgotten != self._forgotten:
            self._ids.clear()
            self._recent.clear()
            self._forgotten = forgotten
        if now is not None and thinned != self._thinned:
            young = now - THINNED[0][0] + CLOCK_SET_BACK
            self._recent = {
                partition: rows
                for partition, rows in self._recent.items()
                if rows and rows[0][0] >= young
            }
            self._thinned = thinned

    def _thin(self, now: float) -> None:
        """After what was seen is kept, and only as far as nobody else is writing: the next look
        goes on. What is wrong with the file is told by the next one to be kept.
        """
        with contextlib.suppress(sqlite3.Error), self._impatient():
            for portion in due(self._db, now):
                with self._transaction():
                    thin(self._db, portion, now)

    @contextlib.contextmanager
    def _impatient(self) -> Iterator[None]:
        """Wait for nobody who has locked the file."""
        (grace,) = self._db.execute("PRAGMA busy_timeout").fetchone()
        self._db.execute("PRAGMA busy_timeout=0")
        try:
            yield
        finally:
            self._db.execute(f"PRAGMA busy_timeout={grace}")


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
        stored = self._store.around(self._cluster, {(tps[tp], offset) for tp, offset in asked})
        for row, (tp, offset) in zip(old.tolist(), asked, strict=True):
            last, first = stored.get((tps[tp], offset), (None, None))
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
