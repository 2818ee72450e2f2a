"""Slots, gates and changes of one cluster in the home's SQLite file.

Problem: several workers reach for one slot, several managers for one group, and each of them
may be stale or dead. Choice: every write is one transaction that compares what its caller saw
(version; holder and token; actor and token) and changes nothing where that is gone. The
contract is `fleet.slots.SlotStore`; Kubernetes keeps the same values in Lease objects. Cost:
a loser learns only that it lost (None, False or LostLease) and has to look again.
"""

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fleet.act.database import Database
from fleet.act.store_json import (
    change_as_json,
    change_from_json,
    gate_as_json,
    gate_from_json,
    report_as_json,
    report_from_json,
)
from fleet.act.store_marks import Marks
from fleet.clock import Clock
from fleet.errors import LostLease
from fleet.evidence import Writes
from fleet.model import Plan
from fleet.slots import (
    Change,
    ChangeState,
    Gate,
    Phase,
    Slot,
    WorkerReport,
    on_trial,
)

KEPT_CHANGES: Final = 200
"""Ended changes kept per group; older ones go when a new one begins."""

_SLOT: Final = (
    "number, holder, token, counter, phase, clean,"
    " member_id, spark_session, revision, batches, error"
)


class SqliteStore(Marks):
    """`fleet.slots.SlotStore` in one SQLite file; thread-safe, shared by all processes of a home.

    Raises SchemaTooNew where a newer version wrote the file, Unreachable where it stays locked
    for more than 5 s.
    """

    def __init__(self, path: Path, *, cluster: str, clock: Clock) -> None:
        super().__init__(Database(path, clock=clock), cluster=cluster)

    def data_version(self) -> int:
        """Differs whenever anything in the store has changed; for pollers (see Database)."""
        return self._db.data_version()

    def close(self) -> None:
        """Close the connections of all threads."""
        self._db.close()

    @property
    def writes(self) -> Writes:
        """Of this process: all of them go the way that a renewal goes."""
        return self._db.writes

    def beat(self, group: str) -> None:
        """A write of a row that nobody reads, where every renewal's goes."""
        with self._db.write() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"beat {group}", os.getpid()))

    # --- the gate and the slots ---------------------------------------------------------

    def gate(self, group: str) -> Gate:
        """The group's gate; version 0 and nothing open where none was written yet."""
        with self._db.read() as db:
            return self._gate(db, group)

    def write_gate(self, gate: Gate, *, by: Change | None = None) -> Gate | None:
        """Store `gate` if its version is still the stored one; None where it is not.

        LostLease where the change `by` has another actor or token, or has ended.
        """
        with self._db.write() as db:
            if by is not None:
                self._check_actor(db, by)
            if self._gate(db, gate.group).version != gate.version:
                return None
            stored = replace(gate, version=gate.version + 1)
            db.execute(
                "INSERT OR REPLACE INTO gates VALUES (?, ?, ?, ?)",
                (self.cluster, gate.group, stored.version, _text(gate_as_json(stored))),
            )
            for number in sorted(gate.open):
                self._create(db, gate.group, number)
            return stored

    def slots(self, group: str) -> tuple[Slot, ...]:
        """All slots that were ever opened, by number."""
        with self._db.read() as db:
            return self._slots(db, group)

    def take(
        self, seen: Slot, *, worker: str, revision: str, spark_session: str | None
    ) -> Slot | None:
        """Take the slot if it is still as seen and the gate lets this revision in; else None."""
        with self._db.write() as db:
            gate = self._gate(db, seen.group)
            if seen.number not in gate.open - gate.leaving - gate.quarantined:
                return None
            self._create(db, seen.group, seen.number)
            pinned = gate.handover.get(seen.number)
            if pinned is not None and pinned.revision != revision:
                return None
            slots = self._slots(db, seen.group)
            if pinned is None and on_trial(slots, self._slot(db, seen), revision):
                return None
            changed = db.execute(
                "UPDATE slots SET holder = ?, token = token + 1, phase = ?, clean = 0, batches = 0,"
                " error = NULL, revision = ?,"
                # A taker may die before it has ended the session of an unclean predecessor:
                # until its first renewal the slot names that one still [3].
                " spark_session = CASE WHEN clean = 0 THEN spark_session ELSE ? END"
                " WHERE cluster = ? AND grp = ? AND number = ?"
                " AND holder IS ? AND token = ? AND counter = ?",
                [
                    worker,
                    Phase.JOINING,
                    revision,
                    spark_session,
                    *self._key(seen),
                    seen.holder,
                    seen.token,
                    seen.counter,
                ],
            ).rowcount
            return self._slot(db, seen) if changed else None

    def renew(self, slot: Slot) -> Slot | None:
        """Write the holder's fields with counter + 1; None: somebody else has the slot."""
        if slot.holder is None:
            return None
        with self._db.write() as db:
            changed = db.execute(
                "UPDATE slots SET counter = counter + 1, phase = ?, member_id = ?,"
                " spark_session = ?, batches = ?, error = ?"
                " WHERE cluster = ? AND grp = ? AND number = ? AND holder = ? AND token = ?",
                [
                    slot.phase,
                    slot.member_id,
                    slot.spark_session,
                    slot.batches,
                    slot.error,
                    *self._key(slot),
                    slot.holder,
                    slot.token,
                ],
            ).rowcount
            return self._slot(db, slot) if changed else None

    def release(self, slot: Slot, *, clean: bool) -> bool:
        """Give the slot up; False where it was not the caller's any more."""
        phase = Phase.CLOSED if slot.phase is Phase.CLOSED else Phase.FREE
        with self._db.write() as db:
            changed = db.execute(
                "UPDATE slots SET holder = NULL, phase = ?, clean = ?"
                " WHERE cluster = ? AND grp = ? AND number = ? AND holder = ? AND token = ?",
                (phase, clean, *self._key(slot), slot.holder, slot.token),
            ).rowcount
        return changed == 1

    def clear(self, slot: Slot) -> bool:
        """After a leave: forget member, revision and a dead holder, if the token is as seen."""
        with self._db.write() as db:
            changed = db.execute(
                "UPDATE slots SET member_id = NULL, holder = NULL, revision = NULL, phase = ?"
                " WHERE cluster = ? AND grp = ? AND number = ? AND token = ?",
                (Phase.FREE, *self._key(slot), slot.token),
            ).rowcount
        return changed == 1

    # --- workers' reports ------------------------------------------------------------------

    def report(self, report: WorkerReport) -> None:
        """Replace the worker's report."""
        with self._db.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?)",
                (self.cluster, report.worker, report.group, _text(report_as_json(report))),
            )

    def reports(self, group: str) -> tuple[WorkerReport, ...]:
        """All stored reports of the group's workers, by name."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT body FROM reports WHERE cluster = ? AND grp = ? ORDER BY worker",
                (self.cluster, group),
            ).fetchall()
        return tuple(report_from_json(json.loads(row[0])) for row in rows)

    def forget_worker(self, worker: str) -> None:
        """Drop the report of a worker that was removed."""
        with self._db.write() as db:
            db.execute(
                "DELETE FROM reports WHERE cluster = ? AND worker = ?", (self.cluster, worker)
            )

    # --- changes -----------------------------------------------------------------------------

    def begin(self, plan: Plan, *, actor: str, started_at: float) -> Change | None:
        """Start a change; None where one is running. The token grows over all changes."""
        with self._db.write() as db:
            last = self._changes(db, plan.group, limit=1)
            if last and last[0].state is ChangeState.RUNNING:
                return None
            change = Change(
                group=plan.group,
                plan=plan,
                state=ChangeState.RUNNING,
                actor=actor,
                token=last[0].token + 1 if last else 1,
                counter=0,
                step=0,
                started_at=started_at,
            )
            db.execute(
                "INSERT INTO changes (cluster, grp, state, actor, token, counter, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.cluster, change.group, *_change_row(change)),
            )
            db.execute(
                "DELETE FROM changes WHERE cluster = ?1 AND grp = ?2 AND id NOT IN (SELECT id"
                " FROM changes WHERE cluster = ?1 AND grp = ?2 ORDER BY id DESC LIMIT ?3)",
                (self.cluster, change.group, KEPT_CHANGES),
            )
            return change

    def change(self, group: str) -> Change | None:
        """The running change, or else the last one."""
        return next(iter(self.changes(group, limit=1)), None)

    def adopt(self, seen: Change, *, actor: str) -> Change | None:
        """Take over a running change that is still as seen; None where it is not."""
        with self._db.write() as db:
            last = self._changes(db, seen.group, limit=1)
            if not last or last[0].state is not ChangeState.RUNNING:
                return None
            stored = last[0]
            if (stored.actor, stored.token, stored.counter) != (
                seen.actor,
                seen.token,
                seen.counter,
            ):
                return None
            adopted = replace(stored, actor=actor, token=stored.token + 1)
            self._write_change(db, adopted, token=stored.token)
            return adopted

    def advance(self, change: Change) -> Change:
        """Write the change's progress with counter + 1; LostLease where it is another's now."""
        with self._db.write() as db:
            last = self._check_actor(db, change)
            stored = replace(change, plan=last.plan, counter=last.counter + 1)
            self._write_change(db, stored, token=change.token)
            return stored

    def changes(self, group: str, *, limit: int = 20) -> tuple[Change, ...]:
        """Latest first."""
        with self._db.read() as db:
            return self._changes(db, group, limit=limit)

    # --- rows ----------------------------------------------------------------------------------

    def _check_actor(self, db: sqlite3.Connection, change: Change) -> Change:
        """The change as stored; LostLease where it is another actor's by now."""
        last = next(iter(self._changes(db, change.group, limit=1)), None)
        if last is None or (last.actor, last.token) != (change.actor, change.token):
            raise lost(change, last)
        return last

    def _key(self, slot: Slot) -> tuple[str, str, int]:
        return (self.cluster, slot.group, slot.number)

    def _gate(self, db: sqlite3.Connection, group: str) -> Gate:
        row = db.execute(
            "SELECT body FROM gates WHERE cluster = ? AND grp = ?", (self.cluster, group)
        ).fetchone()
        return Gate(group=group) if row is None else gate_from_json(json.loads(row[0]))

    def _create(self, db: sqlite3.Connection, group: str, number: int) -> None:
        db.execute(
            "INSERT OR IGNORE INTO slots (cluster, grp, number, token, counter, phase, clean,"
            " batches) VALUES (?, ?, ?, 0, 0, ?, 1, 0)",
            (self.cluster, group, number, Phase.FREE),
        )

    def _slots(self, db: sqlite3.Connection, group: str) -> tuple[Slot, ...]:
        rows = db.execute(
            f"SELECT {_SLOT} FROM slots WHERE cluster = ? AND grp = ? ORDER BY number",  # noqa: S608
            (self.cluster, group),
        ).fetchall()
        return tuple(_slot(group, row) for row in rows)

    def _slot(self, db: sqlite3.Connection, slot: Slot) -> Slot:
        row = db.execute(
            f"SELECT {_SLOT} FROM slots WHERE cluster = ? AND grp = ? AND number = ?",  # noqa: S608
            self._key(slot),
        ).fetchone()
        return _slot(slot.group, row)

    def _changes(self, db: sqlite3.Connection, group: str, *, limit: int) -> tuple[Change, ...]:
        rows = db.execute(
            "SELECT body FROM changes WHERE cluster = ? AND grp = ? ORDER BY id DESC LIMIT ?",
            (self.cluster, group, limit),
        ).fetchall()
        return tuple(change_from_json(json.loads(row[0])) for row in rows)

    def _write_change(self, db: sqlite3.Connection, change: Change, *, token: int) -> None:
        db.execute(
            "UPDATE changes SET state = ?, actor = ?, token = ?, counter = ?, body = ?"
            " WHERE cluster = ? AND grp = ? AND token = ?",
            (*_change_row(change), self.cluster, change.group, token),
        )


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _change_row(change: Change) -> tuple[str, str, int, int, str]:
    body = _text(change_as_json(change))
    return (change.state.value, change.actor, change.token, change.counter, body)


def _slot(group: str, row: tuple[Any, ...]) -> Slot:
    return Slot(
        group=group,
        number=row[0],
        holder=row[1],
        token=row[2],
        counter=row[3],
        phase=Phase(row[4]),
        clean=bool(row[5]),
        member_id=row[6],
        spark_session=row[7],
        revision=row[8],
        batches=row[9],
        error=row[10],
    )


def lost(change: Change, last: Change | None) -> LostLease:
    """Why its actor has to stop. last: the change as stored."""
    holder = f"{last.actor} (token {last.token})" if last else "nobody"
    return LostLease(
        f"the change of group {change.group} belongs to {holder} now, not to {change.actor} "
        f"(token {change.token}): stop acting on it; `fleet status {change.group}` shows how it "
        "goes on"
    )
