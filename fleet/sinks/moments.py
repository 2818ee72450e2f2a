"""Timestamps as every sink takes them.

Problem: Spark hands over moments with its session's time zone in the column's type; Iceberg takes
UTC only, and a Parquet file would name a zone that depends on who wrote it. Choice: the same
moments in UTC, which changes the type and no value. Sent to Spark's tasks by value.
"""

from typing import Any


def in_utc(rows: Any) -> Any:
    """A table or a batch whose moments are in UTC; the same one where they are."""
    import pyarrow as pa  # noqa: PLC0415 - executors load it, the worker may not have it

    schema = utc_schema(rows.schema)
    if schema.equals(rows.schema):
        return rows
    if isinstance(rows, pa.RecordBatch):
        (made,) = pa.Table.from_batches([rows]).cast(schema).to_batches()
        return made
    return rows.cast(schema)


def utc_schema(schema: Any) -> Any:
    """Its columns, nested ones too."""
    import pyarrow as pa  # noqa: PLC0415 - see in_utc

    return pa.schema([_field(each) for each in schema], schema.metadata)


def _field(field: Any) -> Any:
    return field.with_type(_kind(field.type))


def _kind(kind: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - see in_utc

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_field(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    return kind
