"""Slots, slot targets and changes of one cluster in the SQLite file of the state directory.

Each swap is one transaction that compares the whole row with what its caller read. Equal rows are
the same state, because owners count up and tokens grow.
"""

import contextlib
import json
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from operator import eq
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fleet.clock import Clock
from fleet.errors import Damaged, FleetError, SchemaTooNew, Unreachable
from fleet.slots import Change, Pause, Slot, StoppedPartition, WorkerReport
from fleet.slots.backend import (
    KEPT_CHANGES,
    ConcurrentWrite,
    Entry,
    Key,
    Kind,
    MapValue,
    MapValues,
    SlotTargetsRecord,
    Space,
    Value,
    is_new_change,
)
from fleet.slots.codec import as_json, from_json
from fleet.slots.evidence import WriteLog
from fleet.slots.store import Store

DecodedValue = TypeVar("DecodedValue")
Stored = TypeVar("Stored")


class DecodeCache(Generic[Stored, DecodedValue]):
    """Keeps the last decoded value per key, so that a poll decodes only changes. Thread-safe.

    same: whether two stored objects have the same meaning.
    """

    def __init__(self, same: Callable[[Stored, Stored], bool]) -> None:
        self._same = same
        self._known: dict[Hashable, tuple[Stored, DecodedValue]] = {}

    def of(
        self, key: Hashable, stored: Stored, decode: Callable[[Stored], DecodedValue]
    ) -> DecodedValue:
        """Returns the decoded value of `stored`. Raises what `decode` raises."""
        known = self._known.get(key)
        if known is not None and self._same(known[0], stored):
            return known[1]
        value = decode(stored)
        self._known[key] = (stored, value)
        return value


# The one SQLite file of a state directory: connections, transactions, schema.
#
# Problem: workers, the supervisor, Dagster runs and commands share small state on one machine, and
# any of them may be killed with -9 during a write. Choice: one file in WAL mode. Every write is a
# `BEGIN IMMEDIATE` transaction, with one connection per thread and a bounded wait for the lock.
# Threads of one process queue for it in memory: SQLite polls, and of 25 threads of a batch some
# would wait for more than 5 s. Cost: one writer at a time (a write takes well under a millisecond)
# and no network file systems. After a power cut (not a kill) the last writes may be lost, because
# commits are not flushed singly.


SCHEMA: Final = 2
DATABASE: Final = "fleet.db"
_BUSY_SECONDS: Final = 5.0
_WRITE: Final = "BEGIN IMMEDIATE"

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS objects (
    cluster TEXT, grp TEXT, kind TEXT, number INTEGER, body TEXT NOT NULL,
    PRIMARY KEY (cluster, grp, kind, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    cluster TEXT, space TEXT, grp TEXT, name TEXT, body TEXT NOT NULL,
    PRIMARY KEY (cluster, space, grp, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workers (
    name TEXT PRIMARY KEY, cluster TEXT NOT NULL, grp TEXT NOT NULL, revision TEXT NOT NULL,
    launch TEXT NOT NULL, shared_spark INTEGER NOT NULL, wanted INTEGER NOT NULL,
    grace REAL NOT NULL, restart_asked INTEGER NOT NULL, process TEXT, restarts INTEGER NOT NULL,
    failures INTEGER NOT NULL, started_at REAL, exit_reason TEXT) WITHOUT ROWID;
"""


_turns: Final[dict[Path, threading.Lock]] = {}
"""By file: the lock that a thread of this process holds while it writes."""
os.register_at_fork(after_in_child=_turns.clear)


class _Connection(sqlite3.Connection):
    """Subclassed only because the base class cannot be weakly referenced."""


class _ThreadConnection:
    """One thread's connection, closed when the thread ends.

    By itself it would keep three file descriptors until Python collects cycles, because every
    connection is one.
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
        self.writes = WriteLog(clock)
        self._local = threading.local()
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._prepare(self._connection())

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Opens one consistent view: all statements inside see the same state."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Opens an exclusive write; commits at the end and rolls back if the block raises."""
        with self.writes.track() as write:
            try:
                with self._transaction(_WRITE) as connection:
                    before = connection.total_changes
                    yield connection
            except Unreachable:
                write.refused = True
                raise
            write.stored = connection.total_changes != before

    def data_version(self) -> int:
        """Returns a number that differs after any change to the file, also by this thread.

        Costs microseconds, so a poller compares it before it reads. Comparable only within one
        thread.
        """
        with self._errors():
            connection = self._connection()
            others = int(connection.execute("PRAGMA data_version").fetchone()[0])
            return (others << 40) + connection.total_changes

    def close(self) -> None:
        """Closes every thread's connection; the next use opens a new one."""
        for connection in list(self._open):
            connection.close()
        self._local = threading.local()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._errors():
            connection = self._connection()
            with self._turn() if begin == _WRITE else contextlib.nullcontext():
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):  # the first error counts
                        connection.execute("ROLLBACK")
                    raise

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits for the other threads of this process that write to the file."""
        lock = _turns.setdefault(self.path.absolute(), threading.Lock())
        if not lock.acquire(timeout=_BUSY_SECONDS):
            raise sqlite3.OperationalError("database is locked")
        try:
            yield
        finally:
            lock.release()

    def _connection(self) -> _Connection:
        known: _ThreadConnection | None = getattr(self._local, "own", None)
        if known is not None and known.process == os.getpid():
            return known.connection
        connection = sqlite3.connect(
            self.path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,  # only `close` uses another thread's
            factory=_Connection,
        )
        connection.execute("PRAGMA synchronous=NORMAL")
        self._open.add(connection)
        self._local.own = _ThreadConnection(connection)
        return connection

    def _prepare(self, connection: _Connection) -> None:
        """Creates missing tables.

        A complete file is not written, so that a locked or read-only one can still be read.
        """
        self._switch_to_wal(connection)
        if self._is_prepared(connection):
            return
        connection.execute(_WRITE)
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
        """Returns the schema of the release that wrote the file; None if it is new."""
        row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if row is not None and int(row[0]) > SCHEMA:
            raise SchemaTooNew(
                f"{self.path} has schema {row[0]}, and this version reads schemas up to "
                f"{SCHEMA}: use the newer version of Fleet that wrote it"
            )
        if row is not None and int(row[0]) < SCHEMA:
            raise FleetError(
                f"{self.path} has schema {row[0]} of a version before the first release; stop "
                "Fleet, move the file away and start again: slots are rebuilt from fleet.yaml"
            )
        return None if row is None else int(row[0])

    def _switch_to_wal(self, connection: _Connection) -> None:
        """Changes the journal mode, which SQLite does without waiting for a lock."""
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
                f"the store {self.path} does not answer ({error}): another process may lock it, or "
                "the disk may be full or read-only; run `fleet doctor`"
            ) from error
        except sqlite3.DatabaseError as error:
            raise FleetError(
                f"{self.path} is damaged or no database ({error}); stop Fleet, move the file away "
                "and start again: slots are rebuilt from fleet.yaml"
            ) from error


class SqliteStore(Store):
    """The store of a state directory, shared by all its processes and threads.

    Raises SchemaTooNew if a newer version wrote the file. Raises Unreachable if it stays locked for
    more than 5 s, or holds what this release cannot read.
    """

    def __init__(self, path: Path, *, cluster: str, clock: Clock) -> None:
        self.cluster = cluster
        self.database = Database(path, clock=clock)
        super().__init__(SqliteBackend(self.database, cluster=cluster), clock=clock)


class SqliteBackend:
    """A `fleet.slots.backend.Backend` in one file.

    Each object and each small value is one row with its JSON; of a group's changes the one with the
    highest number is the present one.
    """

    def __init__(self, db: Database, *, cluster: str) -> None:
        self._db = db
        self._cluster = cluster
        self._decoded: DecodeCache[str, Value] = DecodeCache(eq)

    @property
    def writes(self) -> WriteLog:
        """Returns the log of this process's writes; all use the path of a renewal."""
        return self._db.writes

    @property
    def reads_cache(self) -> bool:
        """Returns False: every read is fresh."""
        return False

    def beat(self, group: str) -> None:
        """Writes a row that no reader uses, into the file of the renewals."""
        with self._db.write() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"beat {group}", os.getpid()))

    def version(self) -> int:
        """Returns the version of the file (see Database)."""
        return self._db.data_version()

    def known_since(self) -> float | None:
        """Returns minus infinity: a file that answers is current."""
        return float("-inf")

    def close(self) -> None:
        """Closes the connections of all threads."""
        self._db.close()

    # --- objects ----------------------------------------------------------------------------

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """Returns the object; None if it does not exist."""
        del fresh
        with self._db.read() as db:
            return self._read(db, key)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """Returns the slot targets and all slots of a group, by one transaction."""
        del fresh
        with self._db.read() as db:
            targets = self._read(db, Key(group, Kind.TARGETS))
            rows = db.execute(
                "SELECT number, body FROM objects WHERE cluster = ? AND grp = ? AND kind = ?",
                (self._cluster, group, Kind.SLOT),
            ).fetchall()
        record = None if targets is None else targets.value
        found = {number: self._value(Key(group, Kind.SLOT, number), body) for number, body in rows}
        slots = {number: slot for number, slot in found.items() if isinstance(slot, Slot)}
        return (record if isinstance(record, SlotTargetsRecord) else None), slots

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Stores `value` if the row is still as seen."""
        with self._db.write() as db:
            stored = self._read(db, key)
            if (stored and stored.version) != (seen and seen.version):
                raise ConcurrentWrite
            number, before = key.number, "{}"
            if stored is not None:
                assert isinstance(stored.version, tuple)
                number, before = stored.version
                if is_new_change(stored.value, value):
                    number, before = number + 1, "{}"
            # Fields of a newer release that this one does not know are kept.
            known, told = json.loads(before), as_json(value)
            if key.kind is Kind.TARGETS:
                told["targets"] = known.get("targets", {}) | told["targets"]
            row = (self._cluster, key.group, key.kind, number, _text(known | told))
            db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", row)
            if key.kind is Kind.CHANGE:
                db.execute(
                    "DELETE FROM objects WHERE cluster = ? AND grp = ? AND kind = ?"
                    " AND number <= ?",
                    (*row[:3], number - KEPT_CHANGES),
                )
            return value

    def ended_changes(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Returns the ended changes, latest first."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT number, body FROM objects WHERE cluster = ? AND grp = ? AND kind = ?"
                " ORDER BY number DESC LIMIT ? OFFSET 1",
                (self._cluster, group, Kind.CHANGE, limit),
            ).fetchall()
        with _reading_errors(_WHAT[Kind.CHANGE], group):
            return tuple(from_json(Change, json.loads(body)) for _, body in rows)

    def _read(self, db: sqlite3.Connection, key: Key) -> Entry | None:
        last = sys.maxsize if key.kind is Kind.CHANGE else key.number
        row = db.execute(
            "SELECT number, body FROM objects WHERE cluster = ? AND grp = ? AND kind = ?"
            " AND number BETWEEN ? AND ? ORDER BY number DESC LIMIT 1",
            (self._cluster, key.group, key.kind, key.number, last),
        ).fetchone()
        return None if row is None else Entry(self._value(key, row[1]), row)

    def _value(self, key: Key, body: str) -> Value:
        def decode(body: str) -> Value:
            with _reading_errors(_WHAT[key.kind].format(key.number), key.group):
                return from_json(_OBJECTS[key.kind], json.loads(body))

        return self._decoded.of(key, body, decode)

    # --- maps -------------------------------------------------------------------------------

    def entries(self, space: Space, group: str) -> Mapping[str, MapValue]:
        """Returns one map of small values."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT name, body FROM entries WHERE cluster = ? AND space = ? AND grp = ?",
                (self._cluster, space, group),
            ).fetchall()
        found: dict[str, MapValue] = {}
        for name, body in rows:
            with _reading_errors(f"the entry {name} of the {space.value}", group):
                told, kind = json.loads(body), _KINDS.get(space)
                found[name] = dict(told) if kind is None else from_json(kind, told)
        return found

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """Replaces these keys; None removes a key."""
        if values is None:
            values = dict.fromkeys(self.entries(space, group or ""))
        there = 0
        with self._db.write() as db:
            for name, value in values.items():
                there += db.execute(
                    "DELETE FROM entries WHERE cluster = ? AND space = ? AND grp = ifnull(?, grp)"
                    " AND name = ?",
                    (self._cluster, space, group, name),
                ).rowcount
                if value is not None:
                    body = _text(value if isinstance(value, Mapping) else as_json(value))
                    row = (self._cluster, space, group, name, body)
                    db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
        return there


_WHAT: Final = {Kind.TARGETS: "the slot targets", Kind.SLOT: "slot {}", Kind.CHANGE: "a change"}
_OBJECTS: Final[Mapping[Kind, type[Value]]] = {
    Kind.TARGETS: SlotTargetsRecord,
    Kind.SLOT: Slot,
    Kind.CHANGE: Change,
}
_KINDS: Final[Mapping[Space, type[WorkerReport | StoppedPartition | Pause]]] = {
    Space.WORKER_REPORTS: WorkerReport,
    Space.STOPPED_PARTITIONS: StoppedPartition,
    Space.PAUSES: Pause,
}


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


@contextmanager
def _reading_errors(what: str, group: str) -> Iterator[None]:
    """Raises Unreachable for stored state that cannot be read, so that no caller acts on it."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        why = "; ".join(str(error).splitlines()[:3])
        raise Damaged(
            f"{what} of group {group} cannot be read by this release ({why}): use the newer "
            f"version of Fleet that wrote it; if none did, stop Fleet, move {DATABASE} away and "
            "start again: slots are rebuilt from fleet.yaml"
        ) from error
