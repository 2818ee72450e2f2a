"""The one SQLite file of a home: connections, transactions, schema.

Problem: workers, the supervisor, Dagster runs and commands of several terminals share small
state on one machine; any of them may be killed with -9 in the middle of a write. Choice: one
file in WAL mode, every write a `BEGIN IMMEDIATE` transaction, one connection per thread, and
a bounded wait for the lock. Cost: one writer at a time (a write takes well under a
millisecond), no network file systems, and after a power cut (not a kill) the last writes may
be gone, since commits are not flushed one by one.
"""

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError, SchemaTooNew, Unreachable
from fleet.slots.evidence import Writes

SCHEMA: Final = 1
DATABASE: Final = "fleet.db"
_BUSY_SECONDS: Final = 5.0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS gates (
    cluster TEXT, grp TEXT, version INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (cluster, grp)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots (
    cluster TEXT, grp TEXT, number INTEGER, holder TEXT, token INTEGER NOT NULL,
    counter INTEGER NOT NULL, phase TEXT NOT NULL, clean INTEGER NOT NULL, member_id TEXT,
    spark_session TEXT, revision TEXT, batches INTEGER NOT NULL, error TEXT,
    holder_ended INTEGER NOT NULL, lease REAL NOT NULL,
    PRIMARY KEY (cluster, grp, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reports (
    cluster TEXT, worker TEXT, grp TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (cluster, worker)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS changes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, cluster TEXT NOT NULL, grp TEXT NOT NULL,
    state TEXT NOT NULL, actor TEXT NOT NULL, token INTEGER NOT NULL, counter INTEGER NOT NULL,
    body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS changes_of_group ON changes (cluster, grp, id);
CREATE UNIQUE INDEX IF NOT EXISTS one_running_change ON changes (cluster, grp)
    WHERE state = 'running';
CREATE TABLE IF NOT EXISTS pauses (
    cluster TEXT, grp TEXT, reason TEXT NOT NULL, who TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (cluster, grp)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
    cluster TEXT, grp TEXT, name TEXT, body TEXT NOT NULL,
    PRIMARY KEY (cluster, grp, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS quarantines (
    cluster TEXT, grp TEXT, topic TEXT, part INTEGER, start INTEGER NOT NULL,
    error TEXT NOT NULL, attempts INTEGER NOT NULL, revision TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (cluster, grp, topic, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workers (
    name TEXT PRIMARY KEY, cluster TEXT NOT NULL, grp TEXT NOT NULL, revision TEXT NOT NULL,
    launch TEXT NOT NULL, shared_spark INTEGER NOT NULL, wanted INTEGER NOT NULL,
    grace REAL NOT NULL, restart_asked INTEGER NOT NULL, process TEXT, restarts INTEGER NOT NULL,
    failures INTEGER NOT NULL, started_at REAL, exit_reason TEXT) WITHOUT ROWID;
"""


class _Connection(sqlite3.Connection):
    """Subclassed only because the base class cannot be weakly referenced."""


class _Own:
    """One thread's connection, closed when the thread ends: by itself it would stay, with three
    file descriptors, until Python looks for cycles, of which every connection is one.
    """

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self.process = os.getpid()

    def __del__(self) -> None:
        if self.process == os.getpid():  # SQLite forbids use across a fork
            with contextlib.suppress(sqlite3.Error):
                self.connection.close()


class Database:
    """Transactions on one SQLite file; safe to share between threads and after a fork."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self.writes = Writes(clock)
        self._local = threading.local()
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._prepare(self._connection())

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view: all statements inside see the same state."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One write, alone; committed at the end, rolled back where the block raises."""
        with self.writes.one() as write:
            try:
                with self._transaction("BEGIN IMMEDIATE") as connection:
                    before = connection.total_changes
                    yield connection
            except Unreachable:
                write.refused = True
                raise
            write.stored = connection.total_changes != before

    def data_version(self) -> int:
        """A number that differs whenever anybody, this thread included, has changed the file.

        Costs microseconds: a poller compares it before it reads. Comparable only within one
        thread.
        """
        with self._errors():
            connection = self._connection()
            others = int(connection.execute("PRAGMA data_version").fetchone()[0])
            return (others << 40) + connection.total_changes

    def close(self) -> None:
        """Close every thread's connection; the next use opens a new one."""
        for connection in list(self._open):
            connection.close()
        self._local = threading.local()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._errors():
            connection = self._connection()
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the first error is the story
                    connection.execute("ROLLBACK")
                raise

    def _connection(self) -> _Connection:
        known: _Own | None = getattr(self._local, "own", None)
        if known is not None and known.process == os.getpid():
            return known.connection
        connection = sqlite3.connect(
            self.path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,  # only `close` reaches over, when its owner is done
            factory=_Connection,
        )
        connection.execute("PRAGMA synchronous=NORMAL")
        self._open.add(connection)
        self._local.own = _Own(connection)
        return connection

    def _prepare(self, connection: _Connection) -> None:
        """Make what is missing; a file that is as it shall be is not written, so that one which
        cannot be (locked, read-only) is read all the same.
        """
        self._into_wal(connection)
        if self._is_prepared(connection):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value)")
            if self._schema(connection) is None:
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA,))
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _is_prepared(self, connection: _Connection) -> bool:
        there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
        return there is not None and self._schema(connection) is not None

    def _schema(self, connection: _Connection) -> int | None:
        """By whom it was written; None: by nobody yet. Raises SchemaTooNew."""
        row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if row is not None and int(row[0]) > SCHEMA:
            raise SchemaTooNew(
                f"{self.path} was written with schema {row[0]}, this version reads up to "
                f"{SCHEMA}: use the newer fleet that wrote it"
            )
        return None if row is None else int(row[0])

    def _into_wal(self, connection: _Connection) -> None:
        """Change the journal mode, which does not wait for a lock by itself."""
        deadline = self._clock.monotonic() + _BUSY_SECONDS
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError:
                if self._clock.monotonic() >= deadline:
                    raise
                self._clock.sleep(0.01)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unreachable(
                f"the store {self.path} does not answer ({error}); another process may hold it, or "
                "the disk may be full or read-only: see `fleet doctor`"
            ) from error
        except sqlite3.DatabaseError as error:
            raise FleetError(
                f"{self.path} is damaged or no database ({error}); stop everything, move it away "
                "and start again: slots are rebuilt from fleet.yaml"
            ) from error
