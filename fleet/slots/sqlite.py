"""Slots, gates and changes of one cluster in the home's SQLite file.

Each swap is one transaction that compares the whole row with what its caller read: equal rows are
the same state, since holders count up and tokens grow.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import Damaged
from fleet.model import TopicPartition
from fleet.slots import Change, Pause, Phase, Quarantine, Slot, WorkerReport
from fleet.slots.backend import (
    KEPT_CHANGES,
    Entry,
    Key,
    Kind,
    Moved,
    Remark,
    Remarks,
    Space,
    Value,
    is_next,
)
from fleet.slots.codec import as_json, from_json, record_as_json, record_from_json
from fleet.slots.database import DATABASE, Database
from fleet.slots.decoded import LastDecoded
from fleet.slots.evidence import Writes
from fleet.slots.gates import GateRecord
from fleet.slots.store import Store

_COLUMNS: Final = (
    "holder", "token", "counter", "phase", "clean",
    "member_id", "spark_session", "revision", "batches", "error", "holder_ended",
    "lease",
)  # fmt: skip
_SLOT: Final = ", ".join(_COLUMNS)
_MARKS_: Final = ", ".join("?" * len(_COLUMNS))
_REMARKS: Final[Mapping[Space, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    Space.REPORTS: ("reports", ("worker",), ("body",)),
    Space.NOTES: ("notes", ("name",), ("body",)),
    Space.MARKS: (
        "quarantines",
        ("topic", "part"),
        ("start", "error", "attempts", "revision", "at"),
    ),
    Space.PAUSES: ("pauses", ("grp",), ("reason", "who", "at")),
}
"""Space → its table, the columns of a key, those of a value. A pause's key is its group."""


class SqliteStore(Store):
    """The store of a home; shared by all processes and threads of it.

    Raises SchemaTooNew where a newer version wrote the file, Unreachable where it stays locked
    for more than 5 s, or holds what this release cannot read.
    """

    def __init__(self, path: Path, *, cluster: str, clock: Clock) -> None:
        self.cluster = cluster
        self.database = Database(path, clock=clock)
        super().__init__(SqliteBackend(self.database, cluster=cluster), clock=clock)


class SqliteBackend:
    """`fleet.slots.backend.Backend` in one file."""

    def __init__(self, db: Database, *, cluster: str) -> None:
        self._db = db
        self._cluster = cluster
        self._gates: LastDecoded[str, GateRecord] = LastDecoded(eq)
        self._slots: LastDecoded[tuple[Any, ...], Slot] = LastDecoded(eq)

    @property
    def writes(self) -> Writes:
        """Of this process: all of them go the way that a renewal goes."""
        return self._db.writes

    @property
    def hears(self) -> bool:
        """Every reading is fresh."""
        return False

    def beat(self, group: str) -> None:
        """A write of a row that nobody reads, where every renewal's goes."""
        with self._db.write() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"beat {group}", os.getpid()))

    def version(self) -> int:
        """Of the file (see Database)."""
        return self._db.data_version()

    def known_since(self) -> float | None:
        """A file that answers is as it is."""
        return float("-inf")

    def close(self) -> None:
        """Close the connections of all threads."""
        self._db.close()

    # --- objects ----------------------------------------------------------------------------

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """The object."""
        del fresh
        with self._db.read() as db:
            return self._read(db, key)

    def scan(self, group: str, *, fresh: bool) -> tuple[GateRecord | None, Mapping[int, Slot]]:
        """The gate and all slots of a group, by one transaction."""
        del fresh
        with self._db.read() as db:
            gate = self._read(db, Key(group, Kind.GATE))
            rows = db.execute(
                f"SELECT number, {_SLOT} FROM slots WHERE cluster = ? AND grp = ?",  # noqa: S608
                (self._cluster, group),
            ).fetchall()
        record = None if gate is None else gate.value
        slots = {row[0]: self._slot(group, row) for row in rows}
        return (record if isinstance(record, GateRecord) else None), slots

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Store `value` if the row is still as seen."""
        with self._db.write() as db:
            stored = self._read(db, key)
            if (stored and stored.version) != (seen and seen.version):
                raise Moved
            if isinstance(value, Slot):
                self._write_slot(db, value)
            elif isinstance(value, GateRecord):
                # What a newer release wrote, and this one does not know, stays.
                before = json.loads(stored.version[0]) if stored else {}  # type: ignore[index]
                body = _text({**before, **record_as_json(value)})
                db.execute(
                    "INSERT OR REPLACE INTO gates VALUES (?, ?, ?, ?)",
                    (self._cluster, key.group, value.gate.version, body),
                )
            else:
                self._write_change(db, value, stored)
            return value

    def ended(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Latest first."""
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
        row = db.execute("SELECT body FROM gates WHERE cluster = ? AND grp = ?", where).fetchone()
        if row is None:
            return None
        return Entry(self._gate(key.group, row[0]), row)

    def _gate(self, group: str, body: str) -> GateRecord:
        return self._gates.of(group, body, partial(_gate_from, group=group))

    def _slot(self, group: str, row: tuple[Any, ...]) -> Slot:
        """row: its number, and what is stored."""
        return self._slots.of((group, row[0]), row, partial(_slot, group))

    def _write_slot(self, db: sqlite3.Connection, slot: Slot) -> None:
        db.execute(
            f"INSERT OR REPLACE INTO slots (cluster, grp, number, {_SLOT})"  # noqa: S608
            f" VALUES (?, ?, ?, {_MARKS_})",
            (self._cluster, slot.group, slot.number, *(getattr(slot, c) for c in _COLUMNS)),
        )

    def _write_change(self, db: sqlite3.Connection, change: Change, stored: Entry | None) -> None:
        body = _text(as_json(change))
        row = (change.state.value, change.actor, change.token, change.counter, body)
        if stored is not None and not is_next(stored.value, change):
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

    def entries(self, space: Space, group: str) -> Mapping[str, Remark]:
        """A map of small values."""
        table, keys, values = _REMARKS[space]
        where, named = "cluster = ?", [self._cluster]
        if space is not Space.PAUSES:
            where, named = f"{where} AND grp = ?", [*named, group]
        with self._db.read() as db:
            rows = db.execute(
                f"SELECT {', '.join((*keys, *values))} FROM {table} WHERE {where}",  # noqa: S608
                named,
            ).fetchall()
        return {" ".join(map(str, row[: len(keys)])): _remark(space, group, row) for row in rows}

    def merge(self, space: Space, group: str | None, values: Remarks | None) -> int:
        """Replace these keys, None removes."""
        if values is None:
            values = dict.fromkeys(self.entries(space, group or ""))
        table, keys, columns = _REMARKS[space]
        there = 0
        with self._db.write() as db:
            for key, value in values.items():
                # A topic has no space in its name; a worker and a note are one column.
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
def _reading(what: str, group: str) -> Iterator[None]:
    """What cannot be read is as good as no answer: nobody concludes anything from it."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        why = "; ".join(str(error).splitlines()[:3])
        raise Damaged(
            f"{what} of group {group} cannot be read by this release ({why}): use the newer fleet "
            f"that wrote it; if none did, stop everything, move {DATABASE} away and start again: "
            "slots are rebuilt from fleet.yaml"
        ) from error


def _change_from(group: str, body: str) -> Change:
    with _reading("a change", group):
        return from_json(Change, json.loads(body))


def _gate_from(body: str, group: str) -> GateRecord:
    with _reading("the gate", group):
        return record_from_json(json.loads(body))


def _slot(group: str, row: tuple[Any, ...]) -> Slot:
    number, *values = row
    told = dict(zip(_COLUMNS, values, strict=True))
    with _reading(f"slot {number}", group):
        phase = Phase(told["phase"])
    return Slot(
        group=group,
        number=number,
        **{
            **told,
            "phase": phase,
            "clean": bool(told["clean"]),
            "holder_ended": bool(told["holder_ended"]),
        },
    )


def _row(value: Remark) -> tuple[object, ...]:
    if isinstance(value, WorkerReport):
        return (_text(as_json(value)),)
    if isinstance(value, Quarantine):
        return (value.offset, value.error, value.attempts, value.revision, value.at)
    if isinstance(value, Pause):
        return (value.reason, value.by, value.at)
    return (_text(value),)


def _remark(space: Space, group: str, row: tuple[Any, ...]) -> Remark:
    if space is Space.REPORTS:
        with _reading(f"the report of {row[0]}", group):
            return from_json(WorkerReport, json.loads(row[1]))
    if space is Space.NOTES:
        with _reading(f"the note {row[0]}", group):
            return dict(json.loads(row[1]))
    if space is Space.PAUSES:
        return Pause(group=row[0] or None, reason=row[1], by=row[2], at=row[3])
    return Quarantine(
        group=group,
        tp=TopicPartition(row[0], row[1]),
        offset=row[2],
        error=row[3],
        attempts=row[4],
        revision=row[5],
        at=row[6],
    )
