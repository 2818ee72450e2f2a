"""The data source `consumer_offsets`: the coordinator's own topic as a DataFrame.

Problem: Spark's own Kafka source gives no row of `__consumer_offsets` and says nothing
(docs/contributing/protocol.md 3.6), and its rows would be bytes. Choice: a Python data source on
the ranges of `kafka_source`: ends are asked once, the offsets between are cut into equal shares,
and every task reads the record batches of its shares as bytes and yields the columns as Arrow
batches. It joins no group and commits nothing: a commit would be a record in the very topic that it
reads. Positions are the caller's (a streaming checkpoint, the tables' own). Its code travels by
value, as that of `kafka_source` does: executors need only PySpark, pyarrow, numpy, kafka-python and
google-crc32c. Cost: rows are ordered per partition within a task only; a task holds what two
answers of each broker hold, some 40 MB.

With the option `leaderEpochs` a row of type -2 stands where a partition's records begin to be of
another leader epoch: its groups have another coordinator (or the same one started again).

Compaction leaves gaps, which are nothing to it. Where the log begins after a wanted start, one row
with type -1 says in `problem` which offsets are gone, and reading goes on.

    register(spark)
    spark.read.format("consumer_offsets").option("bootstrap.servers", "localhost:9092").load()

Options: `fleet.history.read_options`, docs/reference/data-source.md. Columns:
`fleet.log.record_columns`.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fleet.history.read_options import EARLIEST, LATEST, ReadOptions, read_options
from fleet.kafka_source.arrow_arrays import sliced
from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.failures import RangeTruncated, RangeUnread
from fleet.kafka_source.login import resolve
from fleet.kafka_source.pieces import OffsetRange, Piece, shares
from fleet.kafka_source.source import SENT, Share, by_value
from fleet.kafka_source.tasks import read_ranges, reading
from fleet.log.record_columns import COLUMNS, LED, columns

FORMAT: Final = "consumer_offsets"
_SENT: Final = (
    *SENT,
    *(f"fleet.history.{name}" for name in ("read_options", "source")),
    *("fleet.log.record_columns", "fleet.log.records"),
    "fleet.model",
)
_SPARK_TYPES: Final = {
    pa.int16(): t.ShortType(),
    pa.int32(): t.IntegerType(),
    pa.int64(): t.LongType(),
    pa.string(): t.StringType(),
    pa.binary(): t.BinaryType(),
}
_PROBLEM_TYPE: Final = -1
DECODED: Final = 50_000
"""Records that are decoded at once: what a call costs is then little beside what a row costs."""
Decode: TypeAlias = Callable[[Any, Any, Any, pa.Array, pa.Array], pa.RecordBatch]
"""Place, keys and values of records → their columns."""


def register(spark: Any) -> None:
    """Make the format `consumer_offsets` known to a session; again is harmless."""
    with by_value(_SENT):
        spark.dataSource.register(ConsumerOffsets)


class ConsumerOffsets(DataSource):
    """The data source; see the module."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for spark.read.format."""
        return FORMAT

    def schema(self) -> t.StructType:
        """COLUMNS as Spark's own type."""
        return t.StructType([t.StructField(f.name, _SPARK_TYPES[f.type]) for f in COLUMNS])

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 - PySpark's signature
        """Creates the reader of one batch."""
        return OffsetsReader(read_options(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Micro-batches; positions are Spark's own checkpoint."""
        return OffsetsStream(read_options(self.options))


class OffsetsReader(DataSourceReader):
    """From `startingOffsets` to `endingOffsets`, each found once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """As many shares as tasks are wanted, fewer where little is there."""
        options, reach = self._options, _reach(self._options)
        start, end = _starts(options.starting, reach), _ends(options.ending, reach)
        _within(options.topic, start, reach)
        return _shares(options, {number: (start.get(number, 0), end[number]) for number in end})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads the rows of a task."""
        return _read(self._options, partition)


class OffsetsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets by partition, as Spark keeps them in its checkpoint: {"0": 120, …}."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - PySpark's name
        """Where a query without a checkpoint begins."""
        return _keyed(_starts(self._options.starting, _reach(self._options)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Returns the limit of `maxOffsetsPerTrigger`."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Where a batch ends: everything, or an equal part of what each partition has."""
        reach = _reach(self._options)
        _within(self._options.topic, {int(p): at for p, at in start.items()}, reach)
        end = self._target or _keyed({number: at for number, (_, at) in reach.items()})
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _limited(start, end, most)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - PySpark's name
        """For the query's progress."""
        return self._ends()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """What is there now is all that will be read."""
        self._target = self._ends()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """A partition that the start does not name is new, and read from its beginning."""
        return _shares(self._options, {int(p): (start.get(p, 0), end[p]) for p in end})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads the rows of a task."""
        return _read(self._options, partition)

    def _ends(self) -> dict[str, int]:
        return _keyed({number: end for number, (_, end) in _reach(self._options).items()})


def _keyed(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in sorted(offsets.items())}


def _limited(start: Mapping[str, int], end: Mapping[str, int], most: int | None) -> dict[str, int]:
    """`end`, or as much of it as `most` allows, the same part of every partition; at least 1."""
    behind = {p: max(0, offset - start.get(p, 0)) for p, offset in end.items()}
    total = sum(behind.values())
    if most is None or total <= most:
        return {p: max(offset, start.get(p, 0)) for p, offset in end.items()}
    return {p: start.get(p, 0) + -(-behind[p] * most // total) for p in end}


_Reach = Mapping[int, tuple[int, int]]


def _reach(options: ReadOptions) -> _Reach:
    """First offset and readable end of each partition."""
    found = log_bounds(_options(options), options.topic, timeout=options.read_timeout)
    return {n: (each.first, each.readable(options.isolation)) for n, each in found.items()}


def _options(options: ReadOptions) -> dict[str, str]:
    try:
        return resolve(options.login, os.environ)
    except ValueError as error:
        raise RangeUnread(str(error)) from None


def _within(topic: str, start: Mapping[int, int], reach: _Reach) -> None:
    """Refuse to wait for a log that is shorter than what was read of it: it was made anew."""
    for number, at in start.items():
        first, end = reach.get(number, (0, 0))
        if at > end:
            raise RangeTruncated(topic, number, at, first, end)


def _starts(wanted: int | Mapping[int, int], reach: _Reach) -> dict[int, int]:
    """An offset per partition; one that `wanted` does not name begins with its log."""
    if isinstance(wanted, int):
        wanted = dict.fromkeys(reach, wanted)
    wanted = {**dict.fromkeys(reach, EARLIEST), **wanted}
    return {number: _at(offset, reach.get(number)) for number, offset in wanted.items()}


def _ends(wanted: int | Mapping[int, int], reach: _Reach) -> dict[int, int]:
    """An offset per partition; one that `wanted` does not name is not read."""
    if isinstance(wanted, int):
        wanted = dict.fromkeys(reach, wanted)
    return {number: _at(offset, reach.get(number)) for number, offset in wanted.items()}


def _at(offset: int, reach: tuple[int, int] | None) -> int:
    first, end = reach or (0, 0)
    return {EARLIEST: first, LATEST: end}.get(offset, offset)


def _shares(options: ReadOptions, spans: _Reach) -> list[InputPartition]:
    ranges = [
        OffsetRange(options.topic, p, start, end) for p, (start, end) in sorted(spans.items())
    ]
    return [Share(each) for each in shares(ranges, options.tasks or os.cpu_count() or 1)]


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Share):  # else Spark's own, where there is no share at all
        yield from read_share(options, [OffsetRange(*each) for each in partition.ranges])


def read_share(
    options: ReadOptions, ranges: Sequence[OffsetRange], decode: Decode = columns
) -> Iterator[pa.RecordBatch]:
    """The records of the ranges, as a task reads them; rows of COLUMNS, or what `decode` makes."""
    pieces = read_ranges(
        reading(_options(options), isolation=options.isolation),
        ranges,
        read_timeout=options.read_timeout,
        make=partial(_piece, epochs=None if options.epochs is None else dict(options.epochs)),
        gone=lambda lost, count: OffsetsPiece(led=(_gone(lost, count),)),
        since={(options.topic, number): at for number, at in (options.gaps or {}).items()},
    )
    for held in _gathered(pieces):
        yield _decoded(held, groups=options.groups, pattern=options.pattern, decode=decode)


class OffsetsPiece(NamedTuple):
    """Records as they came, by column, and the rows that stand for none of them."""

    led: Sequence[Mapping[str, Any]] = ()
    partition: Any = ()
    offset: Any = ()
    timestamp: Any = ()
    keys: Any = ()
    values: Any = ()


def _piece(pieces: Sequence[Piece], *, epochs: dict[int, int] | None) -> OffsetsPiece:
    """Records of several partitions together."""
    read = [piece.records for piece in pieces]
    return OffsetsPiece(
        [row for piece in pieces for row in _led(piece, epochs)],
        np.repeat([p.partition for p in pieces], [len(each.offset) for each in read]),
        np.concatenate([each.offset for each in read]),
        np.concatenate([each.timestamp for each in read]),
        pa.concat_arrays([sliced(each.data, each.key_at, each.key_size) for each in read]),
        pa.concat_arrays([sliced(each.data, each.value_at, each.value_size) for each in read]),
    )


def _gathered(pieces: Iterable[OffsetsPiece]) -> Iterator[list[OffsetsPiece]]:
    """So many at a time that what decoding costs a call is little beside what it costs a row."""
    held: list[OffsetsPiece] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece.offset)
        if count >= DECODED:
            yield held
            held, count = [], 0
    if held:
        yield held


def _decoded(
    held: Sequence[OffsetsPiece],
    *,
    groups: frozenset[str] | None,
    pattern: str | None,
    decode: Decode,
) -> pa.RecordBatch:
    led = [row for piece in held for row in piece.led]
    full = [piece for piece in held if len(piece.offset)]
    if not full:
        return pa.RecordBatch.from_pylist(led, schema=COLUMNS)
    batch = decode(
        *(np.concatenate(each) for each in zip(*(piece[1:4] for piece in full), strict=True)),
        *(pa.concat_arrays(each) for each in zip(*(piece[4:] for piece in full), strict=True)),
    )
    if groups is not None or pattern is not None:
        batch = batch.filter(_chosen(batch.column("group"), groups, pattern))
    if not led:
        return batch
    return pa.concat_batches([pa.RecordBatch.from_pylist(led, schema=batch.schema), batch])


def _led(piece: Piece, epochs: dict[int, int] | None) -> list[dict[str, Any]]:
    """A row for each leader epoch that begins among the records; `epochs` is kept current.

    Epochs only grow in a log.
    """
    if epochs is None:
        return []
    rows = []
    known = epochs.get(piece.partition, -1)
    for at in np.flatnonzero(np.diff(piece.epochs, prepend=known) > 0).tolist():
        epoch = epochs[piece.partition] = int(piece.epochs[at])
        rows.append(
            {
                "partition": piece.partition,
                "offset": int(piece.records.offset[at]),
                "timestamp": int(piece.records.timestamp[at]),
                "type": LED,
                "leader_epoch": epoch,
            }
        )
    return rows


def _chosen(group: pa.Array, groups: frozenset[str] | None, pattern: str | None) -> pa.Array:
    """Rows of the groups asked for: of either, where both are given. Unreadable rows are none."""
    coded = group.dictionary_encode()
    chosen = [
        (groups is not None and name in groups)
        or (pattern is not None and re.fullmatch(pattern, name) is not None)
        for name in coded.dictionary.to_pylist()
    ]
    return pc.fill_null(pa.array(chosen, pa.bool_()).take(coded.indices), False)


def _gone(lost: OffsetRange, count: int | None) -> dict[str, Any]:
    """Builds a row for offsets that the log no longer has: `count`, or all before its first."""
    how = "the log begins behind them" if count is None else f"compaction took {count} of them"
    return {
        "partition": lost.partition,
        "offset": lost.start,
        "timestamp": time.time_ns() // 1_000_000,
        "type": _PROBLEM_TYPE,
        "problem": f"offsets {lost.start} to {lost.end - 1} are gone: {how}",
    }
