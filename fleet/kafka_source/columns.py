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


def batch_of(messages: Sequence[Any]) -> pa.RecordBatch:
    """Messages of confluent-kafka as columns; timestampType as in Spark: 0 create, 1 append."""
    stamps = [m.timestamp() for m in messages]
    headers = [m.headers() for m in messages]
    columns = [
        pa.array([m.key() for m in messages], pa.binary()),
        pa.array([m.value() for m in messages], pa.binary()),
        pa.array([m.topic() for m in messages], pa.string()),
        pa.array([m.partition() for m in messages], pa.int32()),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array([at * 1000 if kind else None for kind, at in stamps], pa.int64()).cast(
            pa.timestamp("us", "UTC")
        ),
        pa.array([kind - 1 for kind, _ in stamps], pa.int32()),  # confluent: 0 none, 1, 2
        pa.array(
            [[{"key": k, "value": _bytes(v)} for k, v in h] if h else None for h in headers]
            if any(headers)
            else [None] * len(messages),
            SCHEMA.field("headers").type,
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def table_of(messages: Sequence[Any]) -> pa.Table:
    """The same as a table."""
    return pa.Table.from_batches([batch_of(messages)])


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
