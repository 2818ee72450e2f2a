"""What a record looks like in a table: the columns of Spark's own Kafka source, defined once.

The member that reads inline and Spark's tasks that read ranges build the same Arrow columns here.
Kafka checks neither timestamps (where the topic allows it, nanoseconds stand in for milliseconds)
nor header keys: a field that no row can hold is null in it, and told as `Odd`; the record itself
is read like any other.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from fleet.kafka_source.arrow_arrays import binaries, lists, numbers, repeated, sliced
from fleet.kafka_source.pieces import Piece
from fleet.kafka_source.record_fields import Header

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Columns of Spark's own Kafka source (with includeHeaders)."""
_HEADERS: Final = SCHEMA.field("headers").type
_DAY: Final = 86_400_000
_FIRST_TIME: Final = -62_135_596_800_000 + _DAY
_LAST_TIME: Final = 253_402_300_799_999 - _DAY
"""Milliseconds: what Python's datetime holds in every time zone, which is less than Spark does."""


class Odd(NamedTuple):
    """A field that is null in a record's row because no row can hold it."""

    topic: str
    partition: int
    offset: int
    field: str
    raw: str
    """What stands in the record instead."""

    def __str__(self) -> str:
        return (
            f"the {self.field} of offset {self.offset} of {self.topic}-{self.partition} is null "
            f"in its row: {self.raw}"
        )


Tell = Callable[[Odd], None]


def to_stderr() -> Tell:
    """Where a task says it: in its executor's log, each field once."""
    told: set[str] = set()

    def tell(odd: Odd) -> None:
        if odd.field not in told:
            told.add(odd.field)
            sys.stderr.write(f"fleet: {odd}\n")

    return tell


def no_rows() -> pa.Table:
    """A table of these columns without a row.

    One batch of it: PySpark without Connect takes no column of none. `SCHEMA.empty_table()` would
    load pandas.
    """
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def spark_schema() -> Any:
    """The same as Spark's own type."""
    from pyspark.sql import types as t  # noqa: PLC0415 - a member starts without PySpark

    header = t.StructType(
        [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
    )
    return t.StructType(
        [
            t.StructField("key", t.BinaryType()),
            t.StructField("value", t.BinaryType()),
            t.StructField("topic", t.StringType()),
            t.StructField("partition", t.IntegerType()),
            t.StructField("offset", t.LongType()),
            t.StructField("timestamp", t.TimestampType()),
            t.StructField("timestampType", t.IntegerType()),
            t.StructField("headers", t.ArrayType(header)),
        ]
    )


def batch_of(topic: str, partition: int, messages: Sequence[Any], tell: Tell) -> pa.RecordBatch:
    """Messages of one partition as columns; timestampType as in Spark: 0 create, 1 append.

    No message makes it fail: `tell` hears of the first timestamp and the first headers in it that
    are null because no row can hold them. To be called once for a message.
    """
    count = len(messages)
    stamps = [m.timestamp() for m in messages]
    kinds = np.asarray(array("i", [kind for kind, _ in stamps]))
    given = array("q", [at for _, at in stamps])  # a third of the time that numpy takes for a list
    times, odd_time = _times(numbers(given, pa.int64(), valid=kinds != 0))
    headers, odd_headers = _headers_of(messages)
    for field, odd in (("timestamp", odd_time), ("headers", odd_headers)):
        if odd is not None:
            at, raw = odd
            tell(Odd(topic, partition, messages[at].offset(), field, raw))
    columns = [
        binaries([m.key() for m in messages]),
        binaries([m.value() for m in messages]),
        repeated(topic, count),
        numbers(np.full(count, partition), pa.int32()),
        numbers(array("q", [m.offset() for m in messages]), pa.int64()),
        times,
        numbers(kinds - 1, pa.int32()),  # confluent: 0 none, 1, 2
        _headers(headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch_of_pieces(pieces: Sequence[Piece], tell: Tell) -> pa.RecordBatch:
    """Records of several partitions as columns; see batch_of."""
    made = [_batch_of_piece(each, tell) for each in pieces]
    return made[0] if len(made) == 1 else pa.concat_batches(made)


def table_of_pieces(pieces: Sequence[Piece], tell: Tell) -> pa.Table:
    """The same, in as many chunks as there are pieces: nothing is copied."""
    return pa.Table.from_batches([_batch_of_piece(each, tell) for each in pieces], SCHEMA)


def _batch_of_piece(piece: Piece, tell: Tell) -> pa.RecordBatch:
    records, count = piece.records, len(piece.records.offset)
    times, odd_time = _times(numbers(records.timestamp, pa.int64()))
    headers, odd_headers = _headers_read(records.headers or ())
    for field, odd in (("timestamp", odd_time), ("headers", odd_headers)):
        if odd is not None:
            at, raw = odd
            tell(Odd(piece.topic, piece.partition, int(records.offset[at]), field, raw))
    columns = [
        sliced(records.data, records.key_at, records.key_size),
        sliced(records.data, records.value_at, records.value_size),
        repeated(piece.topic, count),
        numbers(np.full(count, piece.partition), pa.int32()),
        numbers(records.offset, pa.int64()),
        times,
        numbers(records.appended, pa.int32()),
        _headers(headers or [None] * count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _headers_read(headers: Sequence[Sequence[Header]]) -> tuple[list[Any], "_First"]:
    """Headers by record; None, and the first of these told, where a key is not UTF-8."""
    found: list[Any] = []
    first: _First = None
    for at, each in enumerate(headers):
        try:
            found.append([(key.decode(), value) for key, value in each])
        except UnicodeDecodeError as error:
            first = first or (at, _raw_key(error))
            found.append(None)
    return found, first


_First = tuple[int, str] | None
"""Index of a message, and the raw value of its field."""


def _times(numbers: pa.Array) -> tuple[pa.Array, _First]:
    """Milliseconds as the column; the first that is null in it for being out of range."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 9 MB, not before there are records

    ends = pc.min_max(numbers)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    first = None
    if least is not None and (least < _FIRST_TIME or most > _LAST_TIME):
        outside = pc.or_(pc.less(numbers, _FIRST_TIME), pc.greater(numbers, _LAST_TIME))
        at = pc.index(outside, True).as_py()
        first = (at, f"{numbers[at].as_py()} is no time in milliseconds")
        numbers = pc.if_else(outside, pa.scalar(None, pa.int64()), numbers)
    return numbers.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")), first


def _headers_of(messages: Sequence[Any]) -> tuple[list[Any], _First]:
    """Headers by message; the first that cannot be had, because a key is not UTF-8.

    After its error a message must not be asked again: confluent-kafka then answers with a tuple
    that has no key in it at all (*seen*: 2.16.1), and touching that ends the process.
    """
    found: list[Any] = []
    first: _First = None
    while len(found) < len(messages):
        try:
            for message in messages[len(found) :]:
                found.append(message.headers())  # noqa: PERF401 - an error leaves what was found
        except (ValueError, SystemError) as error:
            first = first or (len(found), _raw_key(error))
            found.append(None)
    return found, first


def _raw_key(error: BaseException) -> str:
    cause = error if isinstance(error, UnicodeDecodeError) else error.__cause__
    raw = cause.object if isinstance(cause, UnicodeDecodeError) else error
    return f"the key {raw!r} is not UTF-8"


def _headers(headers: Sequence[Any]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), _HEADERS)
    rows = [each or None for each in headers]
    every = [header for each in rows if each for header in each]
    keys = binaries([key.encode() for key, _ in every], pa.string())
    return lists(_HEADERS, rows, [keys, binaries([_bytes(value) for _, value in every])])


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
