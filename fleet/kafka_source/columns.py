"""What a record looks like in a table: the columns of Spark's own Kafka source, defined once.

The member that reads inline and Spark's tasks that read ranges build the same Arrow columns here.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

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
Part = tuple[str, int, Sequence[Any]]
"""A topic, a partition, and messages of it in their order."""


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


def batch_of(topic: str, partition: int, messages: Sequence[Any]) -> pa.RecordBatch:
    """Messages of one partition as columns; timestampType as in Spark: 0 create, 1 append."""
    count = len(messages)
    stamps = [m.timestamp() for m in messages]
    kinds = [kind - 1 for kind, _ in stamps]  # confluent: 0 none, 1, 2
    times = [at if kind else None for kind, at in stamps]
    headers = [m.headers() for m in messages]
    columns = [
        pa.array([m.key() for m in messages], pa.binary()),
        pa.array([m.value() for m in messages], pa.binary()),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array(kinds, pa.int32()),
        _headers(headers) if any(headers) else pa.nulls(count, _HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batch_of_parts(parts: Sequence[Part]) -> pa.RecordBatch:
    """Messages of several partitions as columns."""
    made = [batch_of(*part) for part in parts]
    return made[0] if len(made) == 1 else pa.concat_batches(made)


def _headers(headers: Sequence[Any]) -> pa.Array:
    rows = [[{"key": k, "value": _bytes(v)} for k, v in each] if each else None for each in headers]
    return pa.array(rows, _HEADERS)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
