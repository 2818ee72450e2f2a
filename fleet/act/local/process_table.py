"""Which worker processes this home wants, and what became of them: one row each.

Problem: whoever asks for workers (a plan, a command) ends long before they do, and the
supervisor that keeps them alive may be killed at any moment. Choice: what is wanted is a row in the
home's SQLite file, written before anything is started; the supervisor makes it true and
writes down who the process is. Cost: it is done within one look of the supervisor
(0.2 s), not at once.
"""

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.slots.codec import as_json, from_json
from fleet.slots.sqlite import DATABASE, Database
from fleet.system.processes import ProcessId

_SEQUENCE: Final = "sequence"
_STOP: Final = "stop"
_SUPERVISOR: Final = "supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Holds the arguments of a process, and additions to the supervisor's environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    """Settings only: this is stored, so secrets reach a worker by inheritance or by file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """Describes one worker."""

    name: str
    cluster: str
    group: str
    revision: str
    launch: Launch
    shared_spark: bool
    """It needs the home's Spark Connect server."""
    wanted: bool = True
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL once it is not wanted."""
    restart_asked: bool = False
    """A person or a plan has sent it SIGTERM: its end is no failure."""
    process: ProcessId | None = None
    restarts: int = 0
    failures: int = 0
    """Ends in a row that were too soon or in error; decides the back-off."""
    started_at: float | None = None
    """Wall time, for people: how long it lived is known by its identity (`processes.age`)."""
    exit_reason: str | None = None


_FIELDS: Final = tuple(each.name for each in fields(ProcessRow))
_COLUMNS: Final = ", ".join("grp" if name == "group" else name for name in _FIELDS)
_MARKS: Final = ", ".join("?" for _ in _FIELDS)


class ProcessTable:
    """Stores the rows of workers, and the supervisor with its stop request."""

    def __init__(self, home: Path, *, clock: Clock) -> None:
        self._db = Database(home / DATABASE, clock=clock)

    def data_version(self) -> int:
        """Returns a value that changes with the database (see Database)."""
        return self._db.data_version()

    def close(self) -> None:
        """Closes the connections of all threads."""
        self._db.close()

    def numbers(self, count: int) -> range:
        """Returns `count` numbers that were never used before."""
        with self._db.write() as db:
            last = int(_meta(db, _SEQUENCE) or 0)
            _put_meta(db, _SEQUENCE, str(last + count))
        return range(last + 1, last + count + 1)

    def add(self, rows: Collection[ProcessRow]) -> None:
        """Adds wanted workers."""
        with self._db.write() as db:
            db.executemany(
                f"INSERT INTO workers ({_COLUMNS}) VALUES ({_MARKS})",  # noqa: S608
                [_values(row) for row in rows],
            )

    def rows(self) -> tuple[ProcessRow, ...]:
        """Returns all rows, by name."""
        with self._db.read() as db:
            found = db.execute(f"SELECT {_COLUMNS} FROM workers ORDER BY name").fetchall()  # noqa: S608
        return tuple(_row(each) for each in found)

    def unwant(self, names: Collection[str] | None, *, grace: float) -> None:
        """Marks these workers for removal (None: all)."""
        with self._db.write() as db:
            for row in [_row(r) for r in db.execute(f"SELECT {_COLUMNS} FROM workers")]:  # noqa: S608
                if names is None or row.name in names:
                    _write(db, replace(row, wanted=False, grace=grace))

    def ask_restart(self, name: str) -> ProcessRow | None:
        """Records a requested restart; returns the row, None if unknown."""
        return self._change(name, restart_asked=True)

    def started(self, name: str, process: ProcessId, *, at: float) -> ProcessRow | None:
        """Stores a worker's process; None if the worker was removed meanwhile."""
        return self._change(name, process=process, started_at=at, restart_asked=False)

    def ended(self, name: str, *, reason: str, failures: int, restarts: int) -> ProcessRow | None:
        """Stores why a wanted worker's process ended."""
        return self._change(
            name,
            process=None,
            exit_reason=reason,
            failures=failures,
            restarts=restarts,
            restart_asked=False,
        )

    def explain(self, name: str, reason: str) -> None:
        """Stores why a worker is not running."""
        self._change(name, exit_reason=reason)

    def delete(self, row: ProcessRow) -> None:
        """Deletes a stopped worker and its report."""
        with self._db.write() as db:
            db.execute("DELETE FROM workers WHERE name = ?", (row.name,))
            db.execute(
                "DELETE FROM entries WHERE cluster = ? AND space = 'reports' AND name = ?",
                (row.cluster, row.name),
            )

    # --- the supervisor -------------------------------------------------------------------

    def supervisor(self) -> ProcessId | None:
        """Returns the stored supervisor, which may be dead."""
        with self._db.read() as db:
            return _process(_meta(db, _SUPERVISOR))

    def enter(self, process: ProcessId) -> None:
        """Stores a new supervisor."""
        with self._db.write() as db:
            _put_meta(db, _SUPERVISOR, json.dumps(process.as_json()))

    def leave(self, *, only_if_stopped: bool) -> bool:
        """Removes the supervisor; refused if it should stop only with everything.

        One transaction with `call_up`: a caller that finds the supervisor written down after it
        has taken the stop back may rely on it to go on.
        """
        with self._db.write() as db:
            if only_if_stopped:
                left = db.execute("SELECT count(*) FROM workers").fetchone()[0]
                if _meta(db, _STOP) is None or left:
                    return False
                db.execute("DELETE FROM meta WHERE name = ?", (_STOP,))
            db.execute("DELETE FROM meta WHERE name = ?", (_SUPERVISOR,))
            return True

    def call_up(self) -> ProcessId | None:
        """Withdraws a stop request; returns the supervisor, which may be dead."""
        with self._db.write() as db:
            db.execute("DELETE FROM meta WHERE name = ?", (_STOP,))
            return _process(_meta(db, _SUPERVISOR))

    def stop_all(self, *, grace: float) -> None:
        """Requests the stop of all workers, the Spark server and the supervisor."""
        self.unwant(None, grace=grace)
        with self._db.write() as db:
            _put_meta(db, _STOP, "1")

    def stopping(self) -> bool:
        """Tells whether everything should stop."""
        with self._db.read() as db:
            return _meta(db, _STOP) is not None

    def _change(self, name: str, **fields: Any) -> ProcessRow | None:
        with self._db.write() as db:
            found = db.execute(
                f"SELECT {_COLUMNS} FROM workers WHERE name = ?",  # noqa: S608
                (name,),
            ).fetchone()
            if found is None:
                return None
            row = replace(_row(found), **fields)
            _write(db, row)
            return row


def _write(db: sqlite3.Connection, row: ProcessRow) -> None:
    db.execute(
        f"REPLACE INTO workers ({_COLUMNS}) VALUES ({_MARKS})",  # noqa: S608
        _values(row),
    )


def _meta(db: sqlite3.Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _put_meta(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("REPLACE INTO meta VALUES (?, ?)", (name, value))


def _process(text: str | None) -> ProcessId | None:
    return None if text is None else ProcessId.from_json(json.loads(text))


def _values(row: ProcessRow) -> tuple[Any, ...]:
    told = as_json(row).values()
    return tuple(json.dumps(each) if isinstance(each, dict) else each for each in told)


def _row(values: tuple[Any, ...]) -> ProcessRow:
    told = dict(zip(_FIELDS, values, strict=True))
    process = told["process"] and json.loads(told["process"])
    return from_json(ProcessRow, {**told, "launch": json.loads(told["launch"]), "process": process})
