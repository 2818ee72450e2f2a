"""What one Spark task makes of its decoded records: rows of `commits` and `events`.

Problem: commits are nearly all of the topic, and as rows of their own they would cost Spark more
than reading them, and fill a disk: 50,000 a second are four thousand million rows a day. Choice:
where they are decoded, commits of one partition within one interval of record time become the
last of them with the number of them (`commits`), their first time and their first offset. A row
never reaches over an event of its group, so that the last commit before a rebalance and the
first after it keep their exact times. Nothing is dropped: the sum of `commits` is the number of
commit records read. Interval 0 keeps each commit as a row. Cost: some 0.3 µs a commit, and the
positions in between are gone.

Runs inside Spark's tasks, sent by value: it names only numpy, pyarrow and what is sent with it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FLUSH: Final = 200_000
"""Rows that a task thins at once; twice that is the most that it holds."""
_DAY_MS: Final = 86_400_000
STANDS_FOR: Final = ("commits", "first_timestamp", "previous_timestamp", "first_offset")
"""What a row of `commits` says of the commits that it stands for; decoded rows may bring it."""


class Rollup:
    """Collects decoded records of one task in the order of the log; one use.

    `interval` in ms, 0 = every commit is a row; `allow` and `deny` are patterns of whole group
    ids; records of no group (undecoded keys) are kept.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        interval: int,
        allow: Sequence[str] = (".*",),
        deny: Sequence[str] = (),
    ) -> None:
        self._schema = schema
        self._interval = interval
        # As fleet.config.spec reads them: a line break is a character like any other.
        self._allow = [re.compile(p, re.DOTALL) for p in allow]
        self._deny = [re.compile(p, re.DOTALL) for p in deny]
        self._every = tuple(allow) == (".*",) and not deny
        self._kept: dict[str, bool] = {}
        self._held: list[pa.Table] = []
        self._count = 0
        self._segments: dict[str, int] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of all batches."""
        for batch in batches:
            if batch.num_rows:
                yield from self._add(pa.Table.from_batches([batch]))
        yield from self._flush()

    def _add(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not self._every:
            table = table.filter(self._selected(table["group"]))
        is_commit = pc.and_(
            pc.is_in(table["type"], value_set=pa.array([0, 1], pa.int16())),
            pc.is_null(table["problem"]),
        )
        commits = pc.sum(is_commit).as_py() or 0
        if commits < table.num_rows:
            events = table.filter(pc.invert(is_commit))
            yield from self._rows(events, "events", commits=None)
            if not commits:
                self._count_events(events["group"])
                return
            segments = self._segmented(table, np.asarray(is_commit.combine_chunks()))
            table = table.filter(is_commit)
        else:
            segments = self._segmented(table, None)
        if not self._interval:
            yield from self._rows(table, "commits", commits=np.ones(table.num_rows, np.int64))
            return
        # At once: a chunk is mostly one partition's, where a key comes many times.
        fresh = "commits" not in table.column_names
        thin = (_for_itself(table) if fresh else table).append_column(
            "_segment", pa.array(segments)
        )
        if fresh:
            thin = self._thinned(thin)
        self._held.append(thin)
        self._count += thin.num_rows
        if self._count >= FLUSH:
            thin = self._thinned(pa.concat_tables(self._held))
            if thin.num_rows > FLUSH // 2:
                yield from self._out(thin)
            else:
                self._held, self._count = [thin], thin.num_rows

    def _selected(self, groups: pa.ChunkedArray) -> pa.Array:
        coded = groups.combine_chunks().dictionary_encode()
        keep = [name is None or self._keeps(name) for name in coded.dictionary.to_pylist()]
        wanted = pa.array([*keep, True], pa.bool_())
        return wanted.take(pc.fill_null(coded.indices, len(keep)))

    def _keeps(self, group: str) -> bool:
        if group not in self._kept:
            self._kept[group] = any(p.fullmatch(group) for p in self._allow) and not any(
                p.fullmatch(group) for p in self._deny
            )
        return self._kept[group]

    def _segmented(self, table: pa.Table, is_commit: Any) -> Any:
        """Per commit: how many events of its group this task has met before it."""
        if is_commit is None:
            if not self._segments:
                return np.zeros(table.num_rows, np.int64)
            return self._based(table["group"])
        rows = np.flatnonzero(~is_commit)
        commits = np.flatnonzero(is_commit)
        groups = table["group"].take(pa.array(rows)).to_pylist()
        wheres: dict[str, list[int]] = {}
        for row, group in zip(rows.tolist(), groups, strict=True):
            if group is not None:
                wheres.setdefault(group, []).append(row)
        names = table["group"].take(pa.array(commits))
        segments = self._based(names)
        known = list(wheres)
        index = np.asarray(
            pc.fill_null(pc.index_in(names, value_set=pa.array(known, pa.string())), -1)
        )
        for number, group in enumerate(known):
            mine = np.flatnonzero(index == number)
            segments[mine] += np.searchsorted(np.array(wheres[group]), commits[mine])
            self._segments[group] = self._segments.get(group, 0) + len(wheres[group])
        return segments

    def _based(self, groups: pa.ChunkedArray) -> Any:
        if not self._segments:
            return np.zeros(len(groups), np.int64)
        index = pc.index_in(groups, value_set=pa.array(list(self._segments), pa.string()))
        base = np.array([0, *self._segments.values()], np.int64)
        return base[np.asarray(pc.fill_null(index, -1)) + 1]

    def _count_events(self, groups: pa.ChunkedArray) -> None:
        for group in groups.to_pylist():
            if group is not None:
                self._segments[group] = self._segments.get(group, 0) + 1

    def _thinned(self, table: pa.Table) -> pa.Table:
        """The last row of each key with what it stands for; the rows' order is the log's."""
        table = table.combine_chunks()
        order, begins = runs(
            [
                codes(table["group"]),
                codes(table["topic"]),
                np.asarray(table["topic_partition"]),
                np.asarray(table["timestamp"]) // self._interval,
                np.asarray(table["_segment"]),
            ]
        )
        ends = np.append(begins[1:], len(order))
        last, first = order[ends - 1], order[begins]
        before = order[np.maximum(ends - 2, 0)]
        commits = np.add.reduceat(np.asarray(table["commits"])[order], begins)
        # Of the last two commits of the key, the first: inside a row that was thinned, or before.
        own = table["previous_timestamp"].take(pa.array(last))
        other = table["timestamp"].take(pa.array(before))
        several = pa.array(ends - begins > 1)
        previous = pc.coalesce(own, pc.if_else(several, other, pa.scalar(None, pa.int64())))
        now = {
            "commits": pa.array(commits),
            "first_timestamp": table["first_timestamp"].take(pa.array(first)),
            "first_offset": table["first_offset"].take(pa.array(first)),
            "previous_timestamp": previous,
        }
        thin = table.take(pa.array(last))
        for name, column in now.items():
            thin = thin.set_column(thin.column_names.index(name), name, column)
        return thin.take(pa.array(np.argsort(last)))

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if self._held:
            yield from self._out(self._thinned(pa.concat_tables(self._held)))

    def _out(self, thin: pa.Table) -> Iterator[pa.RecordBatch]:
        self._held, self._count = [], 0
        yield from self._rows(thin, "commits", commits=thin["commits"])

    def _rows(self, table: pa.Table, kind: str, *, commits: Any) -> Iterator[pa.RecordBatch]:
        count = table.num_rows
        own: dict[str, Any] = {
            "kind": pa.repeat(pa.scalar(kind), count),
            "day": days_of(table["timestamp"]),
        }
        if commits is not None:
            own["commits"] = commits
        columns = []
        for field in self._schema:
            if field.name in own:
                columns.append(own[field.name])
            elif kind == "commits" and field.name in _EVENTS_ONLY:
                columns.append(pa.nulls(count, field.type))
            elif field.name in table.column_names:
                columns.append(table[field.name].cast(field.type))
            elif field.name in _FIRST and kind == "commits":
                columns.append(table[_FIRST[field.name]])
            else:
                columns.append(pa.nulls(count, field.type))
        made = pa.Table.from_arrays(columns, schema=self._schema)
        yield from made.combine_chunks().to_batches(max_chunksize=50_000)


def _for_itself(table: pa.Table) -> pa.Table:
    """With STANDS_FOR of rows that stand for one commit each."""
    count = table.num_rows
    own = {
        "commits": pa.array(np.ones(count, np.int64)),
        "first_timestamp": table["timestamp"],
        "previous_timestamp": pa.nulls(count, pa.int64()),
        "first_offset": table["offset"],
    }
    for name in STANDS_FOR:
        table = table.append_column(name, own[name])
    return table


_FIRST: Final = {"first_timestamp": "timestamp", "first_offset": "offset"}
_EVENTS_ONLY: Final = frozenset({"type", "version", "member", "problem", "key", "value"})


def codes(strings: Any) -> Any:
    """A number for each distinct text of a column."""
    return np.asarray(strings.combine_chunks().dictionary_encode().indices)


def runs(keys: Sequence[Any]) -> tuple[Any, Any]:
    """The rows' order with equal keys together, in their own order, and where each key begins."""
    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        low = int(key.min())
        width = int(key.max()) - low + 1
        if int(code.max()) >= (1 << 62) // width:  # too many kinds for one number: renumber
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
        code = code * width + (key - low)
    order = np.argsort(code, kind="stable")
    ranked = code[order]
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    return order, begins


def days_of(timestamps: Any) -> pa.Array:
    """UTC days (2026-11-21) of times in ms; times before 1970 count as its first day."""
    numbers = np.maximum(np.asarray(timestamps), 0) // _DAY_MS
    distinct, where = np.unique(numbers, return_inverse=True)
    names = [str(np.datetime64(int(day), "D")) for day in distinct]
    return pa.DictionaryArray.from_arrays(
        pa.array(where.astype(np.int32)), pa.array(names, pa.string())
    ).cast(pa.string())
