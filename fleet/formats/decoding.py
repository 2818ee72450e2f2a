"""Values that a schema registry's serializers wrote, as a column of a batch.

Problem: a value names its schema by number only (before it, or by a GUID in a header), and a job
has to know the column's type before it reads one. Choice: the type is that of a reader's schema,
which the job gives or its subject's latest; the schemas of the values are found in Spark, asked for
once by the worker, and sent to the tasks, which read each value into the reader's (Avro's schema
resolution, by fastavro). Cost: the batch's values are looked at twice, first for the ids alone.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from fleet.errors import FleetError
from fleet.extras import pip_line
from fleet.formats import value_decoder
from fleet.formats.schema_registry import (
    AVRO,
    JSON,
    KnownSchema,
    SchemaRegistry,
    UnreadSchema,
    avro_of,
)
from fleet.formats.spark_types import from_json, of_avro, of_json

MOST_IDS: Final = 1000
"""Schemas of one batch: more are no ids, but other bytes behind a zero."""
ERROR: Final = "error"
VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
"""The record's headers in which a serializer may name the schema, instead of before the value."""
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_NAMED: Final = "__named_schema"
"""A column that tasks get beside the rows."""


def decoded(
    df: Any,
    registry: SchemaRegistry,
    *,
    column: str = "value",
    into: str = "decoded",
    schema: str | Mapping[str, Any] | t.StructType | None = None,
    subject: str | None = None,
    on_error: str = "raise",
) -> Any:
    """The rows with a column more: what `column` holds, by the schema that each value names.

    schema: what to read into: an Avro or JSON schema (JSON text or a mapping), or for JSON a
    StructType. subject: its latest is read into instead. on_error: "raise" fails the task with
    the record's place; "null" leaves the value out and says why in a column `error`. A record
    without value is null, and no error.

    Raises FleetError for a reader's schema that is none or has no type of Spark, and where the
    registry does not answer; ValueError for a wrong argument.
    """
    if on_error not in {"raise", "null"}:
        raise ValueError(f'on_error {on_error!r}: write "raise" or "null"')
    if (schema is None) == (subject is None):
        raise ValueError("decoded takes schema= or subject=, one of both")
    _refuse_columns(df, column, [into, *([ERROR] if on_error == "null" else [])])
    reader, kind = _reader(registry, schema, subject)
    fields = [*df.schema.fields, t.StructField(into, kind)]
    header = KEY_HEADER if column == "key" else VALUE_HEADER
    with_headers = ("headers", _HEADERS) in df.dtypes
    named = _NAMED if with_headers else None
    if named is not None:
        first = f"get(filter(headers, each -> each.key = '{header}'), 0).value"
        df = df.selectExpr("*", f"{first} AS {named}")
    writers, unread = _writers(registry, _schemas(df, column, named), reader.kind)
    made = value_decoder.ValueDecoder(
        column=column,
        into=into,
        writers=writers,
        unread=unread,
        reader=reader.body if reader.kind == AVRO else None,
        arrow=to_arrow_type(kind, timezone="UTC"),
        with_errors=on_error == "null",
        install=pip_line("formats"),
        header=header,
        named=named,
    )
    # For good: Spark Connect pickles a plan at each action, not where it is made.
    cloudpickle.register_pickle_by_value(  # type: ignore[no-untyped-call]
        import_module(value_decoder.__name__)
    )
    if on_error == "null":
        fields.append(t.StructField(ERROR, t.StringType()))
    return df.mapInArrow(made, t.StructType(fields))


def reader_of(schema: str | Mapping[str, Any]) -> KnownSchema:
    """An Avro or JSON schema that a job gives; a JSON schema says `$schema` or `object`."""
    try:
        body = json.loads(schema) if isinstance(schema, str) else dict(schema)
    except ValueError as error:
        raise FleetError(f"schema= is no JSON: {error}") from error
    if isinstance(body, dict) and ("$schema" in body or body.get("type") == "object"):
        return KnownSchema(JSON, body)
    return KnownSchema(AVRO, avro_of(body, {}))


def _reader(
    registry: SchemaRegistry,
    schema: str | Mapping[str, Any] | t.StructType | None,
    subject: str | None,
) -> tuple[KnownSchema, t.DataType]:
    if isinstance(schema, t.StructType):
        return KnownSchema(JSON, None), from_json(schema)
    reader = registry.latest(str(subject)) if schema is None else reader_of(schema)
    if reader.kind not in {AVRO, JSON}:
        raise FleetError(f"subject {subject} is {reader.kind}; decoded reads {AVRO} and {JSON}")
    return reader, of_avro(reader.body) if reader.kind == AVRO else of_json(reader.body)


def _refuse_columns(df: Any, column: str, new: list[str]) -> None:
    kinds = {field.name: field.dataType for field in df.schema.fields}
    has = kinds[column].simpleString() if column in kinds else "not there"
    if has != "binary":
        raise ValueError(f"column {column} is {has}: decoded takes a column of bytes")
    if there := [name for name in new if name in kinds]:
        raise ValueError(f"the rows have a column {there[0]} already: rename it, or give into=")


def _schemas(df: Any, column: str, named: str | None) -> list[value_decoder.SchemaKey]:
    """The schemas that the batch's records name: in a header, else before the value itself."""
    name = f"`{column.replace('`', '``')}`"
    rows = (
        df.where(f"{name} IS NOT NULL")
        .selectExpr(
            f"{named or 'CAST(NULL AS BINARY)'} AS header", f"substring({name}, 1, 5) AS value"
        )
        .selectExpr("header", "CASE WHEN header IS NULL THEN value END AS value")
        .where("header IS NOT NULL OR (length(value) = 5 AND hex(value) LIKE '00%')")
        .distinct()
        .limit(MOST_IDS + 1)
        .collect()
    )
    if len(rows) > MOST_IDS:
        raise FleetError(
            f"{column} names more than {MOST_IDS:,} schemas in one batch: are these values of a "
            "schema registry's serializers?"
        )
    found = [
        value_decoder.schema_in_value(bytes(row["value"]))
        if row["header"] is None
        else value_decoder.schema_in_header(bytes(row["header"]))
        for row in rows
    ]
    return sorted({key for key in found if key is not None}, key=str)


def _writers(
    registry: SchemaRegistry, ids: Sequence[value_decoder.SchemaKey], kind: str
) -> tuple[dict[value_decoder.SchemaKey, Any], dict[value_decoder.SchemaKey, str]]:
    """Schemas of values by id or GUID, and why those of others cannot be read."""
    writers: dict[value_decoder.SchemaKey, Any] = {}
    unread: dict[value_decoder.SchemaKey, str] = {}
    for each in ids:
        try:
            found = registry.schema(each)
        except UnreadSchema as error:
            unread[each] = str(error)
            continue
        if found.kind == kind:
            writers[each] = found.body if kind == AVRO else None
        else:
            unread[each] = f"schema {each} is {found.kind}, and {kind} is read here"
    return writers, unread
