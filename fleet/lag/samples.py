"""End offsets over time, kept from process to process. One SQLite file per fleet.

Problem: a command looks once, and an age needs what was before (`fleet.lag.end_history`). Choice:
every snapshot leaves its end offsets here. Bounded: samples are at least 1 s apart and at most
32 days old, the fewer the older (`fleet.lag.sample_thinning`); a partition that stands still keeps
two rows. It is a cache: a full disk or a locked file ends no look, is told (`EndStore.problem`),
and leaves what is stored as it was. Cost: some 160 rows for each partition that moves all the
time, and unknown ages for what is older than the first look.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fleet.errors import FleetError
from fleet.lag import sample_thinning
from fleet.model import TopicPartition

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
                    f"{path} has schema {version}, this version knows {SCHEMA}, so that ages are "
                    "known from this process's own looks alone: use the newer version, or remove "
                    "the file (it is a cache)"
                )
        except (OSError, sqlite3.Error) as error:
            raise FleetError(
                f"end-offset samples cannot be kept in {path} ({error}); it is a cache: remove "
                "the file, or point $FLEET_HOME to a writable folder"
            ) from error

    def close(self) -> None:
        """Close the file."""
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
            self._db.execute(sample_thinning.TABLE)
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
            f"end offsets cannot be kept in {self._path} ({error}), so that ages are known from "
            "this process's own looks alone: make room there, end what locks the file, or remove "
            "it and start again (it is a cache)"
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
        thinned, forgotten = sample_thinning.marks(self._db)
        if forgotten != self._forgotten:
            self._ids.clear()
            self._recent.clear()
            self._forgotten = forgotten
        if now is not None and thinned != self._thinned:
            young = now - sample_thinning.THINNED[0][0] + CLOCK_SET_BACK
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
            for portion in sample_thinning.due(self._db, now):
                with self._transaction():
                    sample_thinning.thin(self._db, portion, now)

    @contextlib.contextmanager
    def _impatient(self) -> Iterator[None]:
        """Wait for nobody who has locked the file."""
        (patience,) = self._db.execute("PRAGMA busy_timeout").fetchone()
        self._db.execute("PRAGMA busy_timeout=0")
        try:
            yield
        finally:
            self._db.execute(f"PRAGMA busy_timeout={patience}")
