"""What stands beside the slots: pauses, small memories, stopped partitions.

Problem: a person's pause, the policy's memory and a poisoned partition must outlive every
process and be obeyed by all of them. Choice: three small tables in the home's one file, the
last writer wins. Cost: no history; `Change` keeps what was done, these say what holds now.
"""

import json
from collections.abc import Mapping
from typing import Final

from fleet.act.database import Database
from fleet.model import TopicPartition
from fleet.slots import Pause, Quarantine

_ALL_GROUPS: Final = ""  # a group id is never empty


class Marks:
    """The part of `fleet.slots.SlotStore` that compares nothing before it writes."""

    def __init__(self, db: Database, *, cluster: str) -> None:
        self.cluster = cluster
        self._db = db

    def pause(self, pause: Pause) -> None:
        """Hold a group (or all); a second pause replaces the first."""
        with self._db.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO pauses VALUES (?, ?, ?, ?, ?)",
                (self.cluster, pause.group or _ALL_GROUPS, pause.reason, pause.by, pause.at),
            )

    def resume(self, group: str | None) -> bool:
        """True where a pause was lifted."""
        with self._db.write() as db:
            lifted = db.execute(
                "DELETE FROM pauses WHERE cluster = ? AND grp = ?",
                (self.cluster, group or _ALL_GROUPS),
            ).rowcount
        return lifted == 1

    def pauses(self) -> tuple[Pause, ...]:
        """All pauses, the one of all groups first."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT grp, reason, who, at FROM pauses WHERE cluster = ? ORDER BY grp",
                (self.cluster,),
            ).fetchall()
        return tuple(Pause(group=r[0] or None, reason=r[1], by=r[2], at=r[3]) for r in rows)

    def note(self, group: str, key: str) -> dict[str, object] | None:
        """A small JSON memory; None where there is none."""
        with self._db.read() as db:
            row = db.execute(
                "SELECT body FROM notes WHERE cluster = ? AND grp = ? AND name = ?",
                (self.cluster, group, key),
            ).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def put_note(self, group: str, key: str, value: Mapping[str, object] | None) -> None:
        """Replace it; None removes it."""
        name = (self.cluster, group, key)
        with self._db.write() as db:
            if value is None:
                db.execute("DELETE FROM notes WHERE cluster = ? AND grp = ? AND name = ?", name)
            else:
                db.execute(
                    "INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)",
                    (*name, json.dumps(value, separators=(",", ":"))),
                )

    def quarantine(self, mark: Quarantine) -> None:
        """Store the mark of a stopped partition; a newer one replaces it [9]."""
        with self._db.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO quarantines VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    self.cluster,
                    mark.group,
                    mark.tp.topic,
                    mark.tp.partition,
                    mark.offset,
                    mark.error,
                    mark.attempts,
                    mark.revision,
                    mark.at,
                ],
            )

    def quarantines(self, group: str) -> tuple[Quarantine, ...]:
        """The group's stopped partitions, in order."""
        with self._db.read() as db:
            rows = db.execute(
                "SELECT topic, part, start, error, attempts, revision, at FROM quarantines"
                " WHERE cluster = ? AND grp = ? ORDER BY topic, part",
                (self.cluster, group),
            ).fetchall()
        return tuple(
            Quarantine(
                group=group,
                tp=TopicPartition(row[0], row[1]),
                offset=row[2],
                error=row[3],
                attempts=row[4],
                revision=row[5],
                at=row[6],
            )
            for row in rows
        )

    def lift(self, group: str, tp: TopicPartition | None) -> int:
        """Remove marks (all of the group where tp is None); how many."""
        topic, part = (None, None) if tp is None else (tp.topic, tp.partition)
        with self._db.write() as db:
            return db.execute(
                "DELETE FROM quarantines WHERE cluster = ?1 AND grp = ?2"
                " AND (?3 IS NULL OR topic = ?3 AND part = ?4)",
                (self.cluster, group, topic, part),
            ).rowcount
