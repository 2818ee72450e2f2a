"""Keeps the job's memory between batches: replays of groups, and each partition's last commit.

Problem: a rebalance follows from the group's last state, and lag from each partition's last commit,
however old; the topic forgets both. Choice: the table `state` keeps both as rows, of which the
latest of a key counts. A batch writes the changed rows, and after many batches all of them. In
memory, replays are JSON text (some 100 bytes a member and partition) and commits small lists (some
400 bytes a partition of a group). Cost: a start reads the state of all groups, in proportion to
groups and partitions, not to the log.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from fleet.history.tables import STATE, Writer

Key = tuple[str, str, int]
"""Group, topic, partition."""
GROUPS: Final = "groups"
STANDING: Final = "standing"
DELETED: Final = -1
"""In place of a committed offset: it expired, or its group or topic went."""


class Kept(NamedTuple):
    """A group's replay as JSON, after the record at `offset` of `timestamp` (ms)."""

    partition: int
    offset: int
    timestamp: int
    state: str


class LastCommit(NamedTuple):
    """A commit of one partition of one group; `timestamp` in ms, `offset` its place.

    committed DELETED is kept only while a commit from before it may still come (`deleted`).
    """

    committed: int
    timestamp: int
    leader_epoch: int | None
    topic_id: str | None
    partition: int
    offset: int
    gap: int | None = None
    """The usual time between two commits (ms); None where there was one."""
    early: bool = False
    """This one came sooner than half of it: a revocation, a drain."""


class ReportedLag(NamedTuple):
    """What the last row of `lag` said."""

    committed: int | None
    end: int | None
    at: float


class JobMemory:
    """Everything that a batch needs of those before it."""

    def __init__(self) -> None:
        self.groups: dict[str, Kept] = {}
        self.commits: dict[Key, LastCommit] = {}
        self.deleted: dict[Key, LastCommit] = {}
        """Deletions where an open transaction may hold an earlier commit of the same."""
        self.told: dict[Key, ReportedLag] = {}
        self._by_group: dict[str, set[Key]] = {}
        self._changed_groups: set[str] = set()
        self._changed: dict[Key, None] = {}

    kinds: Final = (GROUPS, STANDING)

    @classmethod
    def read(cls, writer: Writer) -> "JobMemory":
        """Reads what the state says."""
        made = cls()
        for kind in cls.kinds:
            for batch in writer.memory(kind):
                made._take(kind, batch)
        made.saved()
        return made

    def _take(self, kind: str, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            if kind == GROUPS:
                known = row["state"] is not None
                kept = Kept(*(row[name] for name in Kept._fields)) if known else None
                self.keep(row["group"], kept)
            else:
                self._take_standing(row)

    def _take_standing(self, row: Mapping[str, Any]) -> None:
        key = (row["group"], row["topic"], row["topic_partition"])
        if row["committed"] is None:
            self.forget(key)
        else:
            made = LastCommit(*(row[name] for name in LastCommit._fields))
            if made.committed == DELETED:
                self.forget(key, made)
            else:
                self.commit(key, made)
        if row["told_at"] is not None:
            self.told[key] = ReportedLag(row["told_committed"], row["told_end"], row["told_at"])

    # --- changes ----------------------------------------------------------------------------

    def keep(self, group: str, kept: Kept | None) -> None:
        """A group's replay; None forgets it."""
        if kept is None:
            self.groups.pop(group, None)
        else:
            self.groups[group] = kept
        self._changed_groups.add(group)

    def commit(self, key: Key, commit: LastCommit) -> None:
        """A newer last commit."""
        self.deleted.pop(key, None)
        self.commits[key] = commit
        self._by_group.setdefault(key[0], set()).add(key)
        self._changed[key] = None

    def forget(self, key: Key, deletion: LastCommit | None = None) -> None:
        """The offset was deleted; `deletion` where that has to be remembered until `settle`."""
        self.deleted.pop(key, None)
        if deletion is not None:
            self.deleted[key] = deletion
        if self.commits.pop(key, None) is not None:
            self.told.pop(key, None)
            self._by_group[key[0]].discard(key)
        self._changed[key] = None

    def settle(self, waiting: Collection[int]) -> None:
        """Let go of deletions in all but these partitions of the offsets topic."""
        for key in [k for k, each in self.deleted.items() if each.partition not in waiting]:
            self.forget(key)

    def report_lag(self, key: Key, told: ReportedLag) -> None:
        """A row of `lag` was written."""
        self.told[key] = told
        self._changed[key] = None

    def commits_of(self, group: str) -> list[tuple[Key, LastCommit]]:
        """The last commits of one group, in order of the log."""
        keys = self._by_group.get(group, ())
        return sorted(((k, self.commits[k]) for k in keys), key=lambda item: item[1].offset)

    def forget_quiet(self, *, before: float, there: Collection[str] = ()) -> None:
        """Let go of groups without any commit whose last event is older than `before` (s).

        there: groups that are not to be forgotten, as they were just seen.
        """
        gone = {
            group
            for group, kept in self.groups.items()
            if kept.timestamp < before * 1000
            and not self._by_group.get(group)
            and group not in there
        }
        for group in gone:
            self.keep(group, None)
        if gone:  # polling tells lag without knowing commits
            self.told = {key: told for key, told in self.told.items() if key[0] not in gone}

    # --- rows -------------------------------------------------------------------------------

    def changed(self, kind: str) -> pa.Table:
        """Rows of what changed since `saved`."""
        if kind == GROUPS:
            return self._group_rows(sorted(self._changed_groups))
        return self._standing_rows(list(self._changed))

    def whole(self, kind: str) -> pa.Table:
        """All rows of one kind."""
        if kind == GROUPS:
            return self._group_rows(sorted(self.groups))
        return self._standing_rows(sorted({*self.commits, *self.deleted}))

    def saved(self) -> None:
        """The changes are in the state."""
        self._changed_groups.clear()
        self._changed.clear()

    def _group_rows(self, groups: Sequence[str]) -> pa.Table:
        kept = [self.groups.get(group) for group in groups]
        return _table(("group",), [(group,) for group in groups], (Kept._fields, kept))

    def _standing_rows(self, keys: Sequence[Key]) -> pa.Table:
        return _table(
            ("group", "topic", "topic_partition"),
            keys,
            (LastCommit._fields, [self.commits.get(k) or self.deleted.get(k) for k in keys]),
            (_TOLD, [self.told.get(key) for key in keys]),
        )


_TOLD: Final = ("told_committed", "told_end", "told_at")


def _table(
    key: Sequence[str],
    keys: Sequence[tuple[Any, ...]],
    *parts: tuple[Sequence[str], Sequence[tuple[Any, ...] | None]],
) -> pa.Table:
    """Rows of STATE by column, which is much quicker than row by row; None is a row of nulls.

    One list after the other: a zip of so many rows wakes Python's collector.
    """
    columns: dict[str, list[Any]] = {}
    for names, rows in ((key, keys), *parts):
        nothing = (None,) * len(names)
        full = [nothing if row is None else row for row in rows]
        columns |= {name: [row[number] for row in full] for number, name in enumerate(names)}
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(len(keys), field.type)
        for field in STATE
    ]
    return pa.Table.from_arrays(arrays, schema=STATE)
