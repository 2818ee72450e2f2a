"""What Spark's tasks make of the offsets topic: files of `commits`, and what the driver replays.

Problem: commits are nearly all of the topic. As rows of their own they would cost Spark more than
reading them, and fill a disk: 50,000 a second are four thousand million rows a day. Events are few,
but have to be replayed in order by one process. Choice: a task is a function over a share of the
ranges (`mapInArrow`). It reads with the reader of `consumer_offsets` and makes the commits of one
partition within one interval of record time one row: the last of them, with their number, their
first time and their first offset. A row never reaches over an event of its group. The rows go to
Parquet files, by pyarrow. To Spark the task returns the places of its files, and as compressed
Arrow what the driver needs: the events, not decoded but for their keys, and the last two commits of
each partition before each event. Cost: some 0.3 µs a commit, and the positions in between are gone;
executors reach an object store by pyarrow, so its credentials have to be in their environment.

Spark hands on what a task that succeeded has returned. Files of another attempt are in no table.
The code travels by value: it names only numpy, pyarrow and what is sent with it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fleet.errors import Unreachable
from fleet.history.read_options import ReadOptions, read_options
from fleet.history.source import _SENT as READ
from fleet.history.source import read_share
from fleet.history.tables import COMMITS, EVENTS, TABLES, TablePlace, decoded
from fleet.kafka_source.failures import RangeUnread
from fleet.kafka_source.pieces import OffsetRange, shares
from fleet.kafka_source.source import by_value
from fleet.log.record_columns import columns, only_commits

FLUSH: Final = 200_000
"""Rows that a task thins at once; twice that is the most that it holds."""
ROWS: Final = 100_000
"""Rows that a task holds at most before it writes them: a file for each day."""
STANDS_FOR: Final = ("commits", "first_timestamp", "previous_timestamp", "first_offset")
"""What a row of `commits` says of the commits that it stands for; decoded rows may bring it."""
RAW: Final = tuple(decoded(name) for name in EVENTS.names if name != "cluster")
"""Columns of events that the driver gets."""
NEAR: Final = tuple(decoded(name) for name in COMMITS.names if name not in {"cluster", "metadata"})
"""Columns of commits that the driver gets."""
RETURNED: Final = pa.schema(
    [
        ("table", pa.string()),
        ("day", pa.string()),
        ("name", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("partition", pa.int32()),
        ("data", pa.binary()),
    ]
)
"""What a task returns: a file of `commits` that is whole; the `count` of commits that it read; or
as `data` ids and names of `topics`, NEAR commits, or RAW events of one partition of the log."""
_OFFSET_BITS: Final = 40
_SENT: Final = (*READ, "fleet.errors", "fleet.history.digest", "fleet.history.tables")


class Rollup:
    """Collects decoded records of one task in the order of the log; one use.

    `interval` in ms, 0 = every commit is a row; `allow` and `deny` are patterns of whole group
    ids; records of no group (undecoded keys) are kept.
    """

    def __init__(
        self, *, interval: int, allow: Sequence[str] = (".*",), deny: Sequence[str] = ()
    ) -> None:
        self._interval = interval
        # As fleet.config.spec reads them: a line break is a character like any other.
        self._allow = [re.compile(p, re.DOTALL) for p in allow]
        self._deny = [re.compile(p, re.DOTALL) for p in deny]
        self._every = tuple(allow) == (".*",) and not deny
        self._kept: dict[str, bool] = {}
        self._held: list[pa.Table] = []
        self._count = 0
        self._events: list[pa.Table] = []
        """Events among the commits that are held, and after them."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
        """Makes the rows of all batches: `events` as they are, `commits` with STANDS_FOR."""
        for batch in batches:
            table = pa.Table.from_batches([batch])
            if not self._every:
                table = table.filter(self._selected(table["group"]))
            is_commit = pc.and_(
                pc.is_in(table["type"], value_set=pa.array([0, 1], pa.int16())),
                pc.is_null(table["problem"]),
            )
            events = table.filter(pc.invert(is_commit))
            if events.num_rows:
                self._events.append(events.select(["group", "offset"]))
                yield "events", events
                table = table.filter(is_commit)
            if table.num_rows:
                yield from self._add(table)
        if self._held:
            yield from self._out(self._thinned(pa.concat_tables(self._held)))

    def _add(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        fresh = "commits" not in table.column_names
        if fresh:
            table = _for_itself(table)
        if not self._interval:
            yield "commits", table
            return
        table = table.append_column("_stretch", pa.array(stretches(table, self._events)))
        if fresh:  # at once: a chunk is mostly one partition's, where a key comes many times
            table = self._thinned(table)
        self._held.append(table)
        self._count += table.num_rows
        if self._count >= FLUSH:
            thin = self._thinned(pa.concat_tables(self._held))
            if thin.num_rows > FLUSH // 2:
                yield from self._out(thin)
            else:
                self._held, self._count = [thin], thin.num_rows

    def _out(self, thin: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        self._held, self._count, self._events = [], 0, []
        yield "commits", thin.drop_columns("_stretch")

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

    def _thinned(self, table: pa.Table) -> pa.Table:
        """The last row of each key with what it stands for; the rows' order is the log's."""
        table = table.combine_chunks()
        order, begins = runs(
            [
                codes(table["group"]),
                codes(table["topic"]),
                np.asarray(table["topic_partition"]),
                np.asarray(table["timestamp"]) // self._interval,
                np.asarray(table["_stretch"]),
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


def stretches(commits: pa.Table, events: Sequence[pa.Table]) -> Any:
    """Counts for each commit the events of its group that stand before it in the log.

    All of a group stands in one partition of the log, so that offsets order it.
    """
    named = [each.filter(pc.is_valid(each["group"])) for each in events]
    if not sum(each.num_rows for each in named):
        return np.zeros(commits.num_rows, np.int64)
    told = pa.concat_tables([each.select(["group", "offset"]) for each in named])
    groups = pc.unique(told["group"])

    def ranks(table: pa.Table) -> Any:
        numbers = np.asarray(pc.index_in(table["group"], value_set=groups).fill_null(-1))
        return (numbers.astype(np.int64) << _OFFSET_BITS) + np.asarray(table["offset"])

    places, mine = np.sort(ranks(told)), ranks(commits)
    first = (mine >> _OFFSET_BITS) << _OFFSET_BITS
    return np.searchsorted(places, mine) - np.searchsorted(places, first)


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


def decode_last_commits(
    partition: Any,
    offset: Any,
    timestamp: Any,
    keys: pa.Array,
    values: pa.Array,
    *,
    interval: int,
) -> pa.RecordBatch:
    """Decodes the records, or only the last commit of each key and interval (ms).

    Decoding all commits to keep few of them costs more than finding out which they are. If a chunk
    is nothing but well-formed commits and their tombstones, rows are told apart by the bytes of
    their keys and the interval of their time; the last of each comes with STANDS_FOR. A chunk with
    anything else is decoded whole, as far as the driver does not decode it.
    """
    if not len(keys) or keys.null_count:
        return columns(partition, offset, timestamp, keys, values, events=False)
    coded = keys.dictionary_encode()
    if not only_commits(coded.dictionary, values):
        return columns(partition, offset, timestamp, keys, values, events=False)
    number, place, times = (np.asarray(e, np.int64) for e in (partition, offset, timestamp))
    order, begins = runs([np.asarray(coded.indices), times // interval])
    ends = np.append(begins[1:], len(order))
    last, first = order[ends - 1], order[begins]
    at = np.argsort(last)
    last, first, count = last[at], first[at], (ends - begins)[at]
    before = order[np.maximum(ends - 2, 0)][at]
    kept = pa.array(last)
    made = columns(number[last], place[last], times[last], keys.take(kept), values.take(kept))
    if made.column("problem").null_count < len(made):  # a text that is none: not so well-formed
        return columns(number, place, times, keys, values, events=False)
    own = {
        "commits": pa.array(count),
        "first_timestamp": pa.array(times[first]),
        "previous_timestamp": pa.array(times[before], mask=count == 1),
        "first_offset": pa.array(place[first]),
    }
    arrays = [*made.columns, *(own[name] for name in STANDS_FOR)]
    return pa.RecordBatch.from_arrays(arrays, [*made.schema.names, *STANDS_FOR])


class Task:
    """One batch, as its tasks know it: a function for `mapInArrow` over numbers of shares.

    `options` are those of `consumer_offsets` without offsets, `digest` what Rollup takes;
    `place` says where the files go, `cluster` is their first column.
    """

    def __init__(
        self,
        dealt: Sequence[Sequence[OffsetRange]],
        *,
        options: Mapping[str, str],
        digest: Mapping[str, Any],
        place: str,
        cluster: str,
    ) -> None:
        self._dealt = dealt
        self._options = dict(options)
        self._digest = dict(digest)
        self._place = place
        self._cluster = cluster

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Returns RETURNED of the shares that the rows name."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for each in self.done(self._dealt[number]):
                    yield pa.RecordBatch.from_pylist([each], schema=RETURNED)

    def done(self, ranges: Sequence[OffsetRange]) -> Iterator[dict[str, Any]]:
        """Reads, digests and writes these ranges."""
        for which in (None, True, False):
            mine = [each for each in ranges if each.transactions is which]
            if mine:
                yield from self._done(mine, self._wish(which))

    def _wish(self, transactions: bool | None) -> ReadOptions:
        """What is outside of transactions is read to the log's end; what is in them comes after
        its neighbours, of which gaps and leaders were told.
        """
        parsed = read_options(self._options)
        if transactions is None:
            return parsed
        if transactions:
            return parsed._replace(epochs=None, gaps=None)
        return parsed._replace(isolation="read_uncommitted")

    def _done(self, ranges: Sequence[OffsetRange], parsed: ReadOptions) -> Iterator[dict[str, Any]]:
        interval = self._digest["interval"]
        decode = partial(decode_last_commits, interval=interval)
        yield from self.returned(
            read_share(parsed, ranges, decode if interval else partial(columns, events=False))
        )

    def returned(self, read: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        """Digests decoded records; what a task returns of them."""
        held: dict[str, list[pa.Table]] = {"events": [], "commits": []}
        for kind, rows in Rollup(**self._digest).run(read):
            held[kind].append(rows)
            if sum(each.num_rows for mine in held.values() for each in mine) >= ROWS:
                yield from self._returned(**held)
                held = {"events": [], "commits": []}
        yield from self._returned(**held)

    def _returned(
        self, events: Sequence[pa.Table], commits: Sequence[pa.Table]
    ) -> Iterator[dict[str, Any]]:
        if commits:
            rows = pa.concat_tables(commits)
            yield from self._write(rows)
            yield {"table": "count", "rows": pc.sum(rows["commits"]).as_py()}
            named = rows.filter(pc.is_valid(rows["topic_id"]))
            yield _packed("topics", named.group_by(["topic_id", "topic"]).aggregate([]))
            yield _packed("commits", last_two(rows, events).select(NEAR))
        if events:
            told = pa.concat_tables(events).select(RAW)
            for partition in pc.unique(told["partition"]).to_pylist():
                mine = told.filter(pc.equal(told["partition"], partition))
                yield {**_packed("events", mine), "partition": partition}

    def _write(self, commits: pa.Table) -> Iterator[dict[str, Any]]:
        """Writes a file for each day. If the place is away, the driver can tell by the error."""
        own = {"cluster": pa.repeat(self._cluster, commits.num_rows)}
        schema = TABLES["commits"]
        data = pa.Table.from_arrays(
            [own[name] if name in own else commits[decoded(name)] for name in schema.names],
            schema=schema,
        )
        try:
            for file in TablePlace(self._place).write("commits", data):
                yield file._asdict()
        except Unreachable as error:
            raise RangeUnread(str(error)) from error


def _packed(table: str, rows: pa.Table) -> dict[str, Any]:
    """Rows as compressed Arrow."""
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return {"table": table, "data": out.getvalue().to_pybytes()}


def unpack(returned: pa.Table, table: str, partition: int | None = None) -> pa.Table | None:
    """Reads what tasks returned as `data`; None if there is nothing."""
    mine = returned.filter(
        pc.and_(pc.equal(returned["table"], table), pc.is_valid(returned["data"]))
    )
    if partition is not None:
        mine = mine.filter(pc.equal(mine["partition"], partition))
    found = [pa.ipc.open_stream(each).read_all() for each in mine["data"].to_pylist()]
    return pa.concat_tables(found) if found else None


def last_two(commits: pa.Table, events: Sequence[pa.Table] = ()) -> pa.Table:
    """The last two rows of each partition and stretch between events, in order of their offsets.

    Two, for the last one may stand for too few commits to show their rhythm: a batch may have
    been cut right before it, and a cause must not depend on where.
    """
    place = np.argsort(np.asarray(commits["offset"]), kind="stable")
    keys = [codes(commits[name]) for name in ("group", "topic")]
    keys += [np.asarray(commits["topic_partition"]), stretches(commits, events)]
    order, begins = runs([key[place] for key in keys])
    ends = np.append(begins[1:], len(order))
    found = np.concatenate([order[ends - 1], order[ends[ends - begins > 1] - 2]])
    return commits.take(pa.array(place[np.sort(found)]))


def digest_ranges(
    spark: Any, ranges: Iterable[OffsetRange], *, options: Mapping[str, str], **batch: Any
) -> pa.Table:
    """Has the ranges read and written; RETURNED of all tasks.

    As many tasks as the option `tasks` says, else as this machine has cores; `batch` is what Task
    takes.
    """
    parsed = read_options(options)
    dealt = shares(ranges, parsed.tasks or os.cpu_count() or 1)
    task = Task(dealt, options=options, **batch)
    numbers = spark.range(0, len(dealt), 1, len(dealt))
    with by_value(_SENT):
        return numbers.mapInArrow(task, _DDL).toArrow()


_DDL: Final = (
    "table string, day string, name string, rows bigint, bytes bigint, partition int, data binary"
)
