"""The columns of a record, which are those of Spark's own Kafka source.

The member that reads inline and Spark's tasks that read ranges build the same Arrow columns here.
Kafka checks neither timestamps nor header keys. (If the topic allows it, nanoseconds may stand for
milliseconds.) A field that no row can hold is null and reported as `UnreadableField`. The record
itself is read like any other.
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
"""Milliseconds that Python's datetime can hold in every time zone; Spark's range is larger."""
_LAST_TIME: Final = 253_402_300_799_999 - _DAY
"""Milliseconds: what Python's datetime holds in every time zone, which is less than Spark does."""


class UnreadableField(NamedTuple):
    """A field that is null in a record's row because no row can hold its value."""

    topic: str
    partition: int
    offset: int
    field: str
    raw: str
    """The value in the record."""

    def __str__(self) -> str:
        return (
            f"the {self.field} of offset {self.offset} of {self.topic}-{self.partition} is null "
            f"in its row: {self.raw}"
        )


ReportField = Callable[[UnreadableField], None]


def to_stderr() -> ReportField:
    """Returns a reporter for tasks: it writes each field once to the executor's log."""
    told: set[str] = set()

    def tell(odd: UnreadableField) -> None:
        if odd.field not in told:
            told.add(odd.field)
            sys.stderr.write(f"fleet: {odd}\n")

    return tell


def no_rows() -> pa.Table:
    """Returns a table of these columns without rows.

    It has one batch, because PySpark without Connect takes no column of none.
    `SCHEMA.empty_table()` would load pandas.
    """
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)


def spark_schema() -> Any:
    """Returns the same columns as Spark's type."""
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


def batch_of(
    topic: str, partition: int, messages: Sequence[Any], tell: ReportField
) -> pa.RecordBatch:
    """Returns messages of one partition as columns; timestampType as in Spark: 0 create, 1 append.

    No message makes it fail. `tell` gets the first timestamp and the first headers that are null
    because no row can hold them. Call it once per message.
    """
    count = len(messages)
    stamps = [m.timestamp() for m in messages]
    kinds = np.asarray(array("i", [kind for kind, _ in stamps]))
    given = array("q", [at for _, at in stamps])  # a third of numpy's time for a list
    times, odd_time = _times(numbers(given, pa.int64(), valid=kinds != 0))
    headers, odd_headers = _headers_of(messages)
    for field, odd in (("timestamp", odd_time), ("headers", odd_headers)):
        if odd is not None:
            at, raw = odd
            tell(UnreadableField(topic, partition, messages[at].offset(), field, raw))
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


def batch_of_pieces(pieces: Sequence[Piece], tell: ReportField) -> pa.RecordBatch:
    """Returns records of several partitions as columns; see batch_of."""
    made = [_batch_of_piece(each, tell) for each in pieces]
    return made[0] if len(made) == 1 else pa.concat_batches(made)


def table_of_pieces(pieces: Sequence[Piece], tell: ReportField) -> pa.Table:
    """Returns the same in one chunk per piece, without copying."""
    return pa.Table.from_batches([_batch_of_piece(each, tell) for each in pieces], SCHEMA)


def _batch_of_piece(piece: Piece, tell: ReportField) -> pa.RecordBatch:
    records, count = piece.records, len(piece.records.offset)
    times, odd_time = _times(numbers(records.timestamp, pa.int64()))
    headers, odd_headers = _headers_read(records.headers or ())
    for field, odd in (("timestamp", odd_time), ("headers", odd_headers)):
        if odd is not None:
            at, raw = odd
            tell(UnreadableField(piece.topic, piece.partition, int(records.offset[at]), field, raw))
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
    """Returns headers by record, and the first that is no UTF-8 and therefore null."""
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
    """Returns milliseconds as the column, and the first that is out of range and therefore null."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 9 MB, not before there are records

    ends = pc.min_max(numbers)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    first = None
    if least is not None and (least < _FIRST_TIME or most > _LAST_TIME):
        outside = pc.or_(pc.less(numbers, _FIRST_TIME), pc.greater(numbers, _LAST_TIME))
        at = pc.index(outside, True).as_py()
        first = (at, f"{numbers[at].as_py()} is not a time in milliseconds")
        numbers = pc.if_else(outside, pa.scalar(None, pa.int64()), numbers)
    return numbers.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")), first


def _headers_of(messages: Sequence[Any]) -> tuple[list[Any], _First]:
    """Returns headers by message, and the first that cannot be read because a key is not UTF-8.

    Do not ask a message again after its error: confluent-kafka then returns a tuple without a key
    (*seen*: 2.16.1), and its use ends the process.
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
