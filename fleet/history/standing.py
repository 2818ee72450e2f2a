"""The job's memory between batches: replays of groups, and the last commit of every partition.

Problem: a rebalance is told by comparing with the group's last state, and lag by the last commit
of each partition, however long ago; the topic forgets both. Choice: both are kept with the
tables as rows of which the latest of a key counts; a batch writes the changed ones, compaction
makes one file of them. In memory: the replays as JSON text (some 100 bytes a member and
partition), the commits as small lists (some 400 bytes a partition of a group). Cost: a start
reads the state of all groups: in proportion to groups and partitions, not to the log.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.history.manifests import Manifest
from fleet.history.places import Place
from fleet.history.table_columns import STATE

Key = tuple[str, str, int]
"""Group, topic, partition."""
GROUPS: Final = "_groups"
STANDING: Final = "_standing"
DELETED: Final = -1
"""In place of a committed offset: it expired, or its group or topic went."""


class Kept(NamedTuple):
    """A group's replay as JSON, after the record at `offset` of `timestamp` (ms)."""

    partition: int
    offset: int
    timestamp: int
    state: str


class Commit(NamedTuple):
    """A commit of one partition of one group; `timestamp` in ms, `offset` its place.

    committed DELETED is never kept in the memory.
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


class Told(NamedTuple):
    """What the last row of `lag` said."""

    committed: int | None
    end: int | None
    at: float


class Memory:
    """Everything that a batch needs of those before it."""

    def __init__(self) -> None:
        self.groups: dict[str, Kept] = {}
        self.commits: dict[Key, Commit] = {}
        self.told: dict[Key, Told] = {}
        self._by_group: dict[str, set[Key]] = {}
        self._changed_groups: set[str] = set()
        self._changed: set[Key] = set()

    @classmethod
    def read(cls, place: Place, manifest: Manifest) -> "Memory":
        """What a manifest's state says."""
        made = cls()
        for table in (GROUPS, STANDING):
            for file in manifest.of(table):
                data = pq.read_table(place.full(file.name), filesystem=place.fs)
                made._take(table, data)
        made.saved()
        return made

    def _take(self, table: str, data: pa.Table) -> None:
        for batch in data.to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                if table == GROUPS:
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
            made = Commit(*(row[name] for name in Commit._fields))
            self.commit(key, made)
        if row["told_at"] is not None:
            self.told[key] = Told(row["told_committed"], row["told_end"], row["told_at"])

    # --- changes ----------------------------------------------------------------------------

    def keep(self, group: str, kept: Kept | None) -> None:
        """A group's replay; None forgets it."""
        if kept is None:
            self.groups.pop(group, None)
        else:
            self.groups[group] = kept
        self._changed_groups.add(group)

    def commit(self, key: Key, commit: Commit) -> None:
        """A newer last commit."""
        self.commits[key] = commit
        self._by_group.setdefault(key[0], set()).add(key)
        self._changed.add(key)

    def forget(self, key: Key) -> None:
        """The offset was deleted."""
        if self.commits.pop(key, None) is not None:
            self.told.pop(key, None)
            self._by_group[key[0]].discard(key)
        self._changed.add(key)

    def tell(self, key: Key, told: Told) -> None:
        """A row of `lag` was written."""
        self.told[key] = told
        self._changed.add(key)

    def commits_of(self, group: str) -> list[tuple[Key, Commit]]:
        """The last commits of one group, in order of the log."""
        keys = self._by_group.get(group, ())
        return sorted(((k, self.commits[k]) for k in keys), key=lambda item: item[1].offset)

    def forget_quiet(self, *, before: float) -> None:
        """Let go of groups without any commit whose last event is older than `before` (s)."""
        for group, kept in list(self.groups.items()):
            if kept.timestamp < before * 1000 and not self._by_group.get(group):
                self.keep(group, None)

    # --- rows -------------------------------------------------------------------------------

    def changed(self) -> Iterable[tuple[str, pa.Table]]:
        """Rows of what changed since `saved`, by table; nothing where nothing did."""
        groups = [self._group_row(group) for group in sorted(self._changed_groups)]
        standing = [self._standing_row(key) for key in sorted(self._changed)]
        for table, rows in ((GROUPS, groups), (STANDING, standing)):
            if rows:
                yield table, pa.Table.from_pylist(rows, schema=STATE[table][0])

    def whole(self, table: str) -> Iterable[pa.Table]:
        """All rows of one table of the memory."""
        if table == GROUPS:
            rows = [self._group_row(group) for group in sorted(self.groups)]
        else:
            rows = [self._standing_row(key) for key in sorted(self.commits)]
        yield pa.Table.from_pylist(rows, schema=STATE[table][0])

    def saved(self) -> None:
        """The changes are in a manifest."""
        self._changed_groups.clear()
        self._changed.clear()

    def _group_row(self, group: str) -> dict[str, Any]:
        kept = self.groups.get(group)
        return {"group": group, **({} if kept is None else kept._asdict())}

    def _standing_row(self, key: Key) -> dict[str, Any]:
        row: dict[str, Any] = dict(zip(("group", "topic", "topic_partition"), key, strict=True))
        commit, told = self.commits.get(key), self.told.get(key)
        row |= {} if commit is None else commit._asdict()
        if told is not None:
            row |= {"told_committed": told.committed, "told_end": told.end, "told_at": told.at}
        return row
