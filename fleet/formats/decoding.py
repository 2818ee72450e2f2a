"""Decodes values that a schema registry's serializers wrote into a column of a batch.

Problem: a value names its schema by number only (before it, or by a GUID in a header). A job has to
know the column's type before it reads a value. Choice: the type is that of a reader's schema, which
the job gives or which is its subject's latest. Spark finds the schemas of the values, and the
worker asks for each once and sends them to the tasks. The tasks read each value into the reader's
schema (Avro's schema resolution, by fastavro). Cost: the batch's values are read twice, first for
the ids alone.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import time
from importlib import import_module
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from fleet.errors import FleetError
from fleet.extras import pip_line
from fleet.formats.schema_registry import (
    AVRO,
    JSON,
    KnownSchema,
    SchemaRegistry,
    UnreadSchema,
    avro_of,
)

# The function of a task: it turns values of a batch into a column of decoded ones.
#
# This module is sent by value, so that executors need fastavro and pyarrow and no `fleet`. Schemas
# are sent too, so that no task asks the registry. Sentences name types and places, not contents,
# because logs show them.


_HEAD: Final = 5
"""Bytes of the wire format: a zero and four bytes of the schema's id, big-endian."""
_GUID_HEAD: Final = 17
"""In a header: a one and the schema's GUID, or as above."""
SchemaKey = int | str
"""A schema's id, or its GUID."""


def schema_in_header(head: bytes) -> SchemaKey | None:
    """Returns the schema that a record's header names; None for another format."""
    if len(head) == _GUID_HEAD and head[0] == 1:
        return str(UUID(bytes=head[1:]))
    return schema_in_value(head) if len(head) == _HEAD else None


def schema_in_value(raw: bytes) -> int | None:
    """Returns the id before a value; None if there is none."""
    return int.from_bytes(raw[1:_HEAD], "big") if len(raw) >= _HEAD and raw[0] == 0 else None


@dataclass(frozen=True, kw_only=True)
class ValueDecoder:
    """For mapInArrow: each batch with one column more, and with `error` after it if requested.

    writers: schema → the Avro schema as fastavro parsed it, None for JSON. unread: schema → why its
    values cannot be read. reader: the Avro schema to read into, None for JSON. named: a column of
    the records' header `header`, which comes last and is not in the rows. Without it only the
    beginnings of values name schemas.
    """

    column: str
    into: str
    writers: Mapping[SchemaKey, Any]
    unread: Mapping[SchemaKey, str]
    reader: Any
    arrow: Any
    with_errors: bool
    install: str
    """The command that installs fastavro."""
    header: str = ""
    named: str | None = None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Raises ValueError with the record's place if errors have no column."""
        for batch in batches:
            values, errors = self.columns(batch)
            kept = [name for name in batch.schema.names if name != self.named]
            arrays = [*(batch.column(name) for name in kept), values]
            names = [*kept, self.into]
            if self.with_errors:
                arrays.append(pa.array(errors, pa.string()))
                names.append("error")
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def columns(self, batch: Any) -> tuple[Any, list[str | None]]:
        """Returns decoded values as an Arrow array, and what each of them lacks."""
        found: list[Any] = []
        errors: list[str | None] = []
        heads = batch.column(self.named).to_pylist() if self.named else [None] * len(batch)
        for row, (raw, head) in enumerate(
            zip(batch.column(self.column).to_pylist(), heads, strict=True)
        ):
            value, error = None, None
            try:
                value = None if raw is None else self._read(raw, head)
            except ValueError as problem:
                error = str(problem)
                if not self.with_errors:
                    raise ValueError(f"{_place(batch, row)}: {error}") from problem
            found.append(value)
            errors.append(error)
        try:
            return pa.array(found, self.arrow), errors
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return self._one_by_one(batch, found, errors), errors

    def _unknown(self, key: SchemaKey | None, raw: bytes, head: bytes | None) -> str:
        """Returns why no schema of a value is known; head: the content of the record's header."""
        if key is not None:
            return self.unread.get(key, f"schema {key} of {self.column} was not asked for")
        if head is not None:
            return f"header {self.header} of {len(head)} bytes holds no id and no GUID of a schema"
        where = f"no header {self.header} names one" if self.named else "the rows have no headers"
        return (
            f"{self.column} of {len(raw)} bytes does not begin with a zero and a schema id, and "
            f"{where}"
        )

    def _read(self, raw: bytes, head: bytes | None) -> Any:
        """Returns the value for pa.array.

        Raises ValueError with a sentence if its schema is unknown, or does not fit.
        """
        schema_id = schema_in_value(raw) if head is None else schema_in_header(head)
        if schema_id is None or schema_id not in self.writers:
            raise ValueError(self._unknown(schema_id, raw, head))
        start = _HEAD if head is None else 0
        try:
            if self.reader is None:
                read = json.loads(raw[start:])
            else:
                read = self._avro(raw, start, self.writers[schema_id])
        except Exception as error:  # fastavro raises many errors for a damaged value
            if isinstance(error, ImportError):
                raise
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            raise ValueError(f"{self.column} does not fit schema {schema_id} ({said})") from error
        return _fit(read, self.arrow, self.into)

    def _avro(self, raw: bytes, start: int, writer: Any) -> Any:
        try:
            from fastavro import schemaless_reader  # noqa: PLC0415 - only Avro needs it
        except ImportError as error:
            raise ImportError(
                f"Spark's tasks need fastavro, here and on executors: {self.install}"
            ) from error
        stream = io.BytesIO(raw)
        stream.seek(start)
        found = schemaless_reader(stream, writer, self.reader)
        if left := len(raw) - stream.tell():
            raise ValueError(f"{left} bytes are left over")
        return found

    def _one_by_one(self, batch: Any, found: list[Any], errors: list[str | None]) -> Any:
        for row, value in enumerate(found):
            try:
                pa.array([value], self.arrow)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as problem:
                said = f"{self.column} is no {self.arrow} ({type(problem).__name__})"
                if not self.with_errors:
                    raise ValueError(f"{_place(batch, row)}: {said}") from problem
                found[row], errors[row] = None, said
        return pa.array(found, self.arrow)


def _fit(value: Any, kind: Any, at: str) -> Any:
    """Returns the value for pa.array without a guess; ValueError with the wrong field."""
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {f.name: _fit(value.get(f.name), f.type, f"{at}.{f.name}") for f in kind}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(k, _fit(v, kind.item_type, f"{at}{{}}")) for k, v in value.items()]
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return [_fit(v, kind.value_type, f"{at}[]") for v in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000
        micros += value.microsecond
        return micros // 1000 if pa.types.is_int32(kind) else micros
    whole = not isinstance(value, float) or value.is_integer()
    if (
        pa.types.is_nested(kind)
        or isinstance(value, dict | list)
        or isinstance(value, bool) != pa.types.is_boolean(kind)
        or (isinstance(value, str) != pa.types.is_string(kind))
        or (pa.types.is_integer(kind) and not whole)
    ):
        raise ValueError(f"{at} is a {type(value).__name__}, no {kind}")
    return value


def _place(batch: Any, row: int) -> str:
    names = set(batch.schema.names)
    if not names >= {"topic", "partition", "offset"}:
        return "a record (the rows lack topic, partition, offset)"
    topic, partition, offset = (
        batch.column(name)[row].as_py() for name in ("topic", "partition", "offset")
    )
    return f"{topic}-{partition}, offset {offset}"


# Spark's type of an Avro or JSON schema, or the sentence why there is none: what would be a guess
# is refused, with its field. Every column may be null, so that a later schema can drop a field.


_AVRO: Final[Mapping[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "fixed": t.BinaryType(),
    "enum": t.StringType(),
}
_LOGICAL: Final[Mapping[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
    ("fixed", "uuid"): t.StringType(),
}
_JSON: Final[Mapping[str, t.DataType]] = {
    "string": t.StringType(),
    "integer": t.LongType(),
    "number": t.DoubleType(),
    "boolean": t.BooleanType(),
}
_FROM_JSON: Final = (
    *(t.StringType, t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType),
    *(t.FloatType, t.DoubleType),
)
_MOST_DIGITS: Final = 38


def of_avro(schema: Any) -> t.DataType:
    """Returns Spark's type of a parsed Avro schema; FleetError for unsupported parts."""
    if schema == "bytes" or (isinstance(schema, dict) and schema.get("type") == "bytes"):
        raise FleetError("a value that is bytes and no record has nothing to decode")
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return _avro(schema, named, "the value", ())


def _avro(schema: Any, named: Mapping[str, Any], at: str, above: tuple[str, ...]) -> t.DataType:
    def inner(of: Any, where: str) -> t.DataType:
        return _avro(of, named, where, above)

    if isinstance(schema, list):
        return _one([inner(each, at) for each in schema if each != "null"], at)
    if isinstance(schema, str):
        if schema in named:
            return _avro(named[schema], named, at, above)
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return inner(kind, at)
    if kind == "array":
        return t.ArrayType(inner(schema["items"], f"{at}[]"))
    if kind == "map":
        return t.MapType(t.StringType(), inner(schema["values"], f"{at}{{}}"))
    if kind == "record":
        if schema["name"] in above:
            raise FleetError(f"{at}: {schema['name']} holds itself, which no column of Spark can")
        above = (*above, schema["name"])
        return _struct({f["name"]: f["type"] for f in schema["fields"]}, at, inner)
    logical = str(schema.get("logicalType"))
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        if schema["precision"] > _MOST_DIGITS:
            raise FleetError(f"{at}: a decimal of more than {_MOST_DIGITS} digits")
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    found = _LOGICAL.get((kind, logical)) or _AVRO.get(kind)
    if found is None:
        raise FleetError(f"{at}: no type of Spark for Avro's {kind}")
    return found


def of_json(schema: Any) -> t.DataType:
    """Returns Spark's type of a JSON Schema's simple types; FleetError for unsupported parts."""
    return _json(schema, "the value")


def _json(schema: Any, at: str) -> t.DataType:
    if not isinstance(schema, dict):
        raise FleetError(f"{at}: a JSON schema that is no object says no type")
    if refused := sorted({"$ref", "allOf", "patternProperties", "if"} & schema.keys()):
        raise FleetError(f"{at}: {refused[0]} of a JSON schema is not covered: {_GIVE}")
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        some = [
            each for each in choices if not (isinstance(each, dict) and each.get("type") == "null")
        ]
        return _one([_json(each, at) for each in some], at)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _one([_json({**schema, "type": k}, at) for k in kind if k != "null"], at)
    if kind == "array":
        return t.ArrayType(_json(schema.get("items"), f"{at}[]"))
    if kind == "object" and schema.get("properties"):
        return _struct(schema["properties"], at, _json)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return t.MapType(t.StringType(), _json(schema["additionalProperties"], f"{at}{{}}"))
    found = _JSON.get(str(kind))
    if found is None:
        raise FleetError(f"{at}: a JSON schema of type {kind} without more is no column: {_GIVE}")
    return found


_GIVE: Final = "give decoded a StructType as schema="


def from_json(given: t.DataType, at: str = "the value") -> t.DataType:
    """Returns a type of Spark that JSON values can be; FleetError for others."""
    if isinstance(given, t.StructType):
        for each in given.fields:
            from_json(each.dataType, f"{at}.{each.name}")
    elif isinstance(given, t.ArrayType):
        from_json(given.elementType, f"{at}[]")
    elif isinstance(given, t.MapType) and isinstance(given.keyType, t.StringType):
        from_json(given.valueType, f"{at}{{}}")
    elif not isinstance(given, _FROM_JSON):
        raise FleetError(
            f"{at}: JSON has no {given.simpleString()}: read string, long or double and convert it "
            "in Spark"
        )
    return given


def _struct(
    fields: Mapping[str, Any], at: str, inner: Callable[[Any, str], t.DataType]
) -> t.StructType:
    return t.StructType(
        [t.StructField(name, inner(of, f"{at}.{name}")) for name, of in fields.items()]
    )


def _one(found: list[t.DataType], at: str) -> t.DataType:
    """Returns the only type of a union beside null."""
    if len({each.json() for each in found}) != 1:
        names = ", ".join(each.simpleString() for each in found) or "null alone"
        raise FleetError(f"{at}: a union of {names} has no one type of Spark")
    return found[0]


MOST_IDS: Final = 1000
"""Schemas of one batch: more are not ids, but other bytes after a zero."""
ERROR: Final = "error"
VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
"""The record's headers in which a serializer may name the schema, instead of before the value."""
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_NAMED: Final = "__named_schema"
"""A column that only tasks get, beside the rows."""


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
    """Returns the rows with one more column: the content of `column`, by each value's schema.

    schema: what to read into: an Avro or JSON schema (JSON text or a mapping), or for JSON a
    StructType. subject: read into its latest schema instead. on_error: "raise" fails the task with
    the record's place; "null" leaves the value out and says why in a column `error`. A record
    without value is null, and no error.

    Raises FleetError for a reader's schema that is invalid or has no type of Spark, and if the
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
    made = ValueDecoder(
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
    # For good: Spark Connect pickles a plan at each action, not when it is made.
    cloudpickle.register_pickle_by_value(  # type: ignore[no-untyped-call]
        import_module(__name__)
    )
    if on_error == "null":
        fields.append(t.StructField(ERROR, t.StringType()))
    return df.mapInArrow(made, t.StructType(fields))


def reader_of(schema: str | Mapping[str, Any]) -> KnownSchema:
    """Returns the Avro or JSON schema of a job; a JSON schema has `$schema` or `object`."""
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


def _schemas(df: Any, column: str, named: str | None) -> list[SchemaKey]:
    """Returns the schemas that the batch's records name: in a header, else before the value."""
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
        schema_in_value(bytes(row["value"]))
        if row["header"] is None
        else schema_in_header(bytes(row["header"]))
        for row in rows
    ]
    return sorted({key for key in found if key is not None}, key=str)


def _writers(
    registry: SchemaRegistry, ids: Sequence[SchemaKey], kind: str
) -> tuple[dict[SchemaKey, Any], dict[SchemaKey, str]]:
    """Returns schemas of values by id or GUID, and why those of others cannot be read."""
    writers: dict[SchemaKey, Any] = {}
    unread: dict[SchemaKey, str] = {}
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
