"""Slots, slot targets and changes of one cluster in the SQLite file of the state directory.

Each swap is one transaction that compares the whole row with what its caller read. Equal rows are
the same state, because owners count up and tokens grow.
"""

import contextlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fleet.clock import Clock
from fleet.errors import Damaged, FleetError, SchemaTooNew, Unreachable
from fleet.model import TopicPartition
from fleet.slots import Change, Pause, Phase, Slot, StoppedPartition, WorkerReport
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
from fleet.slots.codec import as_json, from_json, record_as_json, record_from_json
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
# Cost: one writer at a time (a write takes well under a millisecond) and no network file systems.
# After a power cut (not a kill) the last writes may be lost, because commits are not flushed
# singly.


SCHEMA: Final = 1
DATABASE: Final = "fleet.db"
_BUSY_SECONDS: Final = 5.0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS targets (
    cluster TEXT, grp TEXT, version INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (cluster, grp)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots (
    cluster TEXT, grp TEXT, number INTEGER, owner TEXT, token INTEGER NOT NULL,
    counter INTEGER NOT NULL, phase TEXT NOT NULL, clean INTEGER NOT NULL, member_id TEXT,
    spark_session TEXT, revision TEXT, batches INTEGER NOT NULL, error TEXT,
    owner_ended INTEGER NOT NULL, lease REAL NOT NULL,
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
                with self._transaction("BEGIN IMMEDIATE") as connection:
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
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the first error counts
                    connection.execute("ROLLBACK")
                raise

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
        """Returns the schema of the release that wrote the file; None if it is new."""
        row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if row is not None and int(row[0]) > SCHEMA:
            raise SchemaTooNew(
                f"{self.path} has schema {row[0]}, and this version reads schemas up to "
                f"{SCHEMA}: use the newer version of Fleet that wrote it"
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


_COLUMNS: Final = (
    "owner", "token", "counter", "phase", "clean",
    "member_id", "spark_session", "revision", "batches", "error", "owner_ended",
    "lease",
)  # fmt: skip
_SLOT: Final = ", ".join(_COLUMNS)
_PLACEHOLDERS: Final = ", ".join("?" * len(_COLUMNS))
_MAPS: Final[Mapping[Space, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    Space.WORKER_REPORTS: ("reports", ("worker",), ("body",)),
    Space.MANAGER_STATE: ("notes", ("name",), ("body",)),
    Space.STOPPED_PARTITIONS: (
        "quarantines",
        ("topic", "part"),
        ("start", "error", "attempts", "revision", "at"),
    ),
    Space.PAUSES: ("pauses", ("grp",), ("reason", "who", "at")),
}
"""Space → its table, the key's columns, the value's columns. A pause's key is its group."""


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
    """A `fleet.slots.backend.Backend` in one file."""

    def __init__(self, db: Database, *, cluster: str) -> None:
        self._db = db
        self._cluster = cluster
        self._last_targets: DecodeCache[str, SlotTargetsRecord] = DecodeCache(eq)
        self._slots: DecodeCache[tuple[Any, ...], Slot] = DecodeCache(eq)

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
                f"SELECT number, {_SLOT} FROM slots WHERE cluster = ? AND grp = ?",  # noqa: S608
                (self._cluster, group),
            ).fetchall()
        record = None if targets is None else targets.value
        slots = {row[0]: self._slot(group, row) for row in rows}
        return (record if isinstance(record, SlotTargetsRecord) else None), slots

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Stores `value` if the row is still as seen."""
        with self._db.write() as db:
            stored = self._read(db, key)
            if (stored and stored.version) != (seen and seen.version):
                raise ConcurrentWrite
            if isinstance(value, Slot):
                self._write_slot(db, value)
            elif isinstance(value, SlotTargetsRecord):
                # Fields of a newer release that this one does not know are kept.
                before = json.loads(stored.version[0]) if stored else {}  # type: ignore[index]
                body = _text({**before, **record_as_json(value)})
                db.execute(
                    "INSERT OR REPLACE INTO targets VALUES (?, ?, ?, ?)",
                    (self._cluster, key.group, value.targets.version, body),
                )
            else:
                self._write_change(db, value, stored)
            return value

    def ended_changes(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Returns the ended changes, latest first."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT body FROM changes WHERE cluster = ? AND grp = ?"
                " ORDER BY id DESC LIMIT ? OFFSET 1",
                (self._cluster, group, limit),
            ).fetchall()
        return tuple(_change_from(group, row[0]) for row in rows)

    def _read(self, db: sqlite3.Connection, key: Key) -> Entry | None:
        where = (self._cluster, key.group)
        if key.kind is Kind.SLOT:
            row = db.execute(
                f"SELECT {_SLOT} FROM slots WHERE cluster = ? AND grp = ? AND number = ?",  # noqa: S608
                (*where, key.number),
            ).fetchone()
            if row is None:
                return None
            return Entry(self._slot(key.group, (key.number, *row)), row)
        if key.kind is Kind.CHANGE:
            row = db.execute(
                "SELECT id, body FROM changes WHERE cluster = ? AND grp = ?"
                " ORDER BY id DESC LIMIT 1",
                where,
            ).fetchone()
            return None if row is None else Entry(_change_from(key.group, row[1]), row)
        row = db.execute("SELECT body FROM targets WHERE cluster = ? AND grp = ?", where).fetchone()
        if row is None:
            return None
        return Entry(self._targets(key.group, row[0]), row)

    def _targets(self, group: str, body: str) -> SlotTargetsRecord:
        return self._last_targets.of(group, body, partial(_targets_from, group=group))

    def _slot(self, group: str, row: tuple[Any, ...]) -> Slot:
        """row: the number, and the stored columns."""
        return self._slots.of((group, row[0]), row, partial(_slot, group))

    def _write_slot(self, db: sqlite3.Connection, slot: Slot) -> None:
        db.execute(
            f"INSERT OR REPLACE INTO slots (cluster, grp, number, {_SLOT})"  # noqa: S608
            f" VALUES (?, ?, ?, {_PLACEHOLDERS})",
            (self._cluster, slot.group, slot.number, *(getattr(slot, c) for c in _COLUMNS)),
        )

    def _write_change(self, db: sqlite3.Connection, change: Change, stored: Entry | None) -> None:
        body = _text(as_json(change))
        row = (change.state.value, change.actor, change.token, change.counter, body)
        if stored is not None and not is_new_change(stored.value, change):
            assert isinstance(stored.version, tuple)
            db.execute(
                "UPDATE changes SET state = ?, actor = ?, token = ?, counter = ?, body = ?"
                " WHERE id = ?",
                (*row, stored.version[0]),
            )
            return
        db.execute(
            "INSERT INTO changes (cluster, grp, state, actor, token, counter, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._cluster, change.group, *row),
        )
        db.execute(
            "DELETE FROM changes WHERE cluster = ?1 AND grp = ?2 AND id NOT IN (SELECT id"
            " FROM changes WHERE cluster = ?1 AND grp = ?2 ORDER BY id DESC LIMIT ?3)",
            (self._cluster, change.group, KEPT_CHANGES),
        )

    # --- maps -------------------------------------------------------------------------------

    def entries(self, space: Space, group: str) -> Mapping[str, MapValue]:
        """Returns one map of small values."""
        table, keys, values = _MAPS[space]
        where, named = "cluster = ?", [self._cluster]
        if space is not Space.PAUSES:
            where, named = f"{where} AND grp = ?", [*named, group]
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT {', '.join((*keys, *values))} FROM {table} WHERE {where}",  # noqa: S608
                named,
            ).fetchall()
        return {" ".join(map(str, row[: len(keys)])): _map_value(space, group, row) for row in rows}

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """Replaces these keys; None removes a key."""
        if values is None:
            values = dict.fromkeys(self.entries(space, group or ""))
        table, keys, columns = _MAPS[space]
        there = 0
        with self._db.write() as db:
            for key, value in values.items():
                # A topic's name has no space; other keys are one column.
                parts = key.rsplit(" ", len(keys) - 1) if len(keys) > 1 else [key]
                where = " AND ".join(f"{column} = ?" for column in ("cluster", *keys))
                named: list[object] = [self._cluster, *parts]
                if group is not None and space is not Space.PAUSES:
                    where, named = f"{where} AND grp = ?", [*named, group]
                gone = db.execute(f"DELETE FROM {table} WHERE {where}", named)  # noqa: S608
                there += gone.rowcount
                if value is not None:
                    place = () if space is Space.PAUSES else ("grp",)
                    into = ("cluster", *place, *keys, *columns)
                    row = [self._cluster, *((group,) if place else ()), *parts, *_row(value)]
                    db.execute(
                        f"INSERT OR REPLACE INTO {table} ({', '.join(into)})"  # noqa: S608
                        f" VALUES ({', '.join('?' * len(into))})",
                        row,
                    )
        return there


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


def _change_from(group: str, body: str) -> Change:
    with _reading_errors("a change", group):
        return from_json(Change, json.loads(body))


def _targets_from(body: str, group: str) -> SlotTargetsRecord:
    with _reading_errors("the slot targets", group):
        return record_from_json(json.loads(body))


def _slot(group: str, row: tuple[Any, ...]) -> Slot:
    number, *values = row
    told = dict(zip(_COLUMNS, values, strict=True))
    with _reading_errors(f"slot {number}", group):
        phase = Phase(told["phase"])
    return Slot(
        group=group,
        number=number,
        **{
            **told,
            "phase": phase,
            "clean": bool(told["clean"]),
            "owner_ended": bool(told["owner_ended"]),
        },
    )


def _row(value: MapValue) -> tuple[object, ...]:
    if isinstance(value, WorkerReport):
        return (_text(as_json(value)),)
    if isinstance(value, StoppedPartition):
        return (value.offset, value.error, value.attempts, value.revision, value.at)
    if isinstance(value, Pause):
        return (value.reason, value.by, value.at)
    return (_text(value),)


def _map_value(space: Space, group: str, row: tuple[Any, ...]) -> MapValue:
    if space is Space.WORKER_REPORTS:
        with _reading_errors(f"the report of {row[0]}", group):
            return from_json(WorkerReport, json.loads(row[1]))
    if space is Space.MANAGER_STATE:
        with _reading_errors(f"the manager state {row[0]}", group):
            return dict(json.loads(row[1]))
    if space is Space.PAUSES:
        return Pause(group=row[0] or None, reason=row[1], by=row[2], at=row[3])
    return StoppedPartition(
        group=group,
        tp=TopicPartition(row[0], row[1]),
        offset=row[2],
        error=row[3],
        attempts=row[4],
        revision=row[5],
        at=row[6],
    )
