"""End offsets over time, kept from process to process. One SQLite file per fleet.

Problem: a command looks once, and an age needs what was before (`fleet.lag.end_history`). Choice:
every snapshot leaves its end offsets here. Bounded: samples are at least 1 s apart and at most
32 days old, the fewer the older; a partition that stands still keeps two rows. It is a cache: a
full disk or a locked file ends no look, is told (`EndStore.problem`), and leaves what is stored as
it was. Cost: some 120 rows for each partition that moves all the time, and unknown ages for what
is older than the first look.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fleet.errors import FleetError, SchemaTooNew
from fleet.model import TopicPartition

Sample = tuple[float, int]
"""(wall time, end offset)."""
SCHEMA: Final = 1
KEEP: Final = 32 * 86_400.0
"""Seconds a sample is kept: longer than any `max_lag` or `alerts.lag` can be, 30 days."""
APART: Final = 1.0
"""Seconds between samples of one cluster."""
THINNED: Final = (
    (300.0, 60.0),
    (1800.0, 300.0),
    (7200.0, 3600.0),
    (28_800.0, 14_400.0),
    (86_400.0, 86_400.0),
    (345_600.0, 345_600.0),
)
"""(older than, one sample in), seconds: an age is known to a fraction of itself."""
_THIN_EVERY: Final = 60.0
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


class EndStore:
    """Stored samples; path None keeps them in memory. Safe for several threads and processes.

    Raises SchemaTooNew where a newer version wrote the file, FleetError where it cannot be
    opened. Once open, what cannot be written or read is left out: see `problem`.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._ids: dict[tuple[str, TopicPartition], int] = {}
        self._recent: dict[int, list[Sample]] = {}
        self._last_at: dict[str, float] = {}
        self._thinned_at = 0.0
        self.problem: str | None = None
        """Why the last samples were not kept, or not found, in a sentence; None: they were."""
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=10.0,
                isolation_level=None,
                check_same_thread=False,
            )
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise FleetError(
                f"end-offset samples cannot be kept in {path} ({error}); it is a cache: remove "
                "the file, or point $FLEET_HOME to a writable folder"
            ) from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("BEGIN IMMEDIATE")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={SCHEMA}")
        self._db.execute("COMMIT")
        if version > SCHEMA:
            raise SchemaTooNew(
                f"{self._path} has schema {version}, this version knows {SCHEMA}; use the newer "
                "version, or remove the file (it is a cache)"
            )

    def record(self, cluster: str, at: float, ends: Mapping[TopicPartition, int]) -> bool:
        """Note end offsets of one moment; False where the last ones are less than 1 s old, or
        these cannot be kept.
        """
        with self._lock:
            if abs(at - self._last_at.get(cluster, float("-inf"))) < APART:
                return False
            try:
                with self._transaction():
                    self._write(cluster, at, ends)
                    if at - self._thinned_at >= _THIN_EVERY or at < self._thinned_at:
                        self._thin(at)
            except sqlite3.Error as error:
                self._failed(error)
                return False
            self._last_at[cluster], self.problem = at, None
            return True

    def around(
        self, cluster: str, positions: Iterable[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], tuple[Sample | None, Sample | None]]:
        """Of each position the last sample at or below it, and the first one beyond it."""
        with self._lock:
            try:
                return {
                    (tp, offset): self._neighbours(known, offset)
                    for tp, offset in positions
                    if (known := self._known(cluster, tp)) is not None
                }
            except sqlite3.Error as error:
                self._failed(error)
                return {}

    def stored(self, cluster: str) -> dict[TopicPartition, tuple[Sample, ...]]:
        """All samples of a cluster, in order of time."""
        with self._lock:
            try:
                rows = self._db.execute(
                    "SELECT p.topic, p.number, s.at, s.end FROM partition AS p"
                    " JOIN sample AS s ON s.partition = p.id WHERE p.cluster = ? ORDER BY s.at",
                    (cluster,),
                ).fetchall()
            except sqlite3.Error as error:
                self._failed(error)
                return {}
        found: dict[TopicPartition, list[Sample]] = {}
        for topic, number, at, end in rows:
            found.setdefault(TopicPartition(topic, number), []).append((float(at), int(end)))
        return {tp: tuple(samples) for tp, samples in found.items()}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. What is undone is forgotten here too: the number of a partition that was
        not stored is given to another one.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
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

    def _thin(self, now: float) -> None:
        """Of the rows that grew too old since the last time, or of all at first."""
        before = self._thinned_at if 0.0 < self._thinned_at <= now else float("-inf")
        # The newest row of a partition stays however old: it says where the log stood.
        newest = "SELECT MAX(at) FROM sample AS s WHERE s.partition = sample.partition"
        self._db.execute(
            f"DELETE FROM sample WHERE at < ? AND at < ({newest})",  # noqa: S608 - our own text
            (now - KEEP,),
        )
        for older, one_in in THINNED:
            self._db.execute(
                "DELETE FROM sample WHERE at >= :since AND at < :older"
                " AND EXISTS (SELECT 1 FROM sample AS kept"
                " WHERE kept.partition = sample.partition AND kept.at < sample.at"
                " AND kept.at >= CAST(sample.at / :one AS INTEGER) * :one)",
                {"since": before - older - one_in, "older": now - older, "one": one_in},
            )
        self._thinned_at = now
        self._recent.clear()
