"""Which column of Spark an Avro or JSON schema is, and what is refused; without Spark."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from fleet.errors import FleetError
from fleet.extras import pip_line
from fleet.formats.decoding import (
    ValueDecoder,
    from_json,
    of_avro,
    of_json,
    reader_of,
    schema_in_header,
)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    """An Avro record."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": k} for n, k in fields]}


def avro(schema: Any) -> t.DataType:
    """Of a schema as it is written down."""
    return of_avro(reader_of(json.dumps(schema)).body)


def logical(kind: str, meaning: str, **more: Any) -> dict[str, Any]:
    """A type with a meaning of its own."""
    return {"type": kind, "logicalType": meaning, **more}


AVRO = {
    "whole numbers": (record(("a", "int"), ("b", "long")), "struct<a:int,b:bigint>"),
    "other numbers": (record(("a", "float"), ("b", "double")), "struct<a:float,b:double>"),
    "text and bytes": (record(("a", "string"), ("b", "bytes")), "struct<a:string,b:binary>"),
    "no record": ("string", "string"),
    "or null": (record(("a", ["null", "int"])), "struct<a:int>"),
    "times": (
        record(
            ("a", logical("long", "timestamp-millis")),
            ("b", logical("long", "timestamp-micros")),
            ("c", logical("long", "local-timestamp-millis")),
            ("d", logical("int", "date")),
            ("e", logical("int", "time-millis")),
            ("f", logical("long", "time-micros")),
        ),
        "struct<a:timestamp,b:timestamp,c:timestamp_ntz,d:date,e:int,f:bigint>",
    ),
    "decimals": (
        record(
            ("a", logical("bytes", "decimal", precision=9, scale=2)),
            ("b", logical("fixed", "decimal", name="F", size=8, precision=12)),
        ),
        "struct<a:decimal(9,2),b:decimal(12,0)>",
    ),
    "uuid": (record(("a", logical("string", "uuid"))), "struct<a:string>"),
    "unknown meaning": (record(("a", logical("long", "of-life"))), "struct<a:bigint>"),
    "enum and fixed": (
        record(
            ("a", {"type": "enum", "name": "E", "symbols": ["X"]}),
            ("b", {"type": "fixed", "name": "F", "size": 2}),
        ),
        "struct<a:string,b:binary>",
    ),
    "nested": (
        record(
            ("a", record(("x", "int"), name="In")),
            ("b", {"type": "array", "items": ["null", "In"]}),
            ("c", {"type": "map", "values": "In"}),
        ),
        "struct<a:struct<x:int>,b:array<struct<x:int>>,c:map<string,struct<x:int>>>",
    ),
}
REFUSED_AVRO = {
    "several types": (record(("a", ["int", "string"])), r"value\.a: a union of int, string has no"),
    "in itself": (record(("next", ["null", "R"])), r"value\.next: R holds itself"),
    "too long": (
        record(("a", logical("bytes", "decimal", precision=39, scale=2))),
        r"value\.a: a decimal of more than 38 digits",
    ),
    "only null": (record(("a", "null")), r"value\.a: no type of Spark for Avro's null"),
    "only bytes": ("bytes", "has nothing to decode"),
    "no schema": (record(("a", "integer")), "no Avro schema: UnknownType"),
}


def obj(**properties: Any) -> dict[str, Any]:
    """A JSON Schema."""
    return {"type": "object", "properties": properties}


JSON = {
    "simple": (
        obj(
            a={"type": "string"}, b={"type": "integer"}, c={"type": "number"}, d={"type": "boolean"}
        ),
        "struct<a:string,b:bigint,c:double,d:boolean>",
    ),
    "or null": (
        obj(a={"type": ["null", "integer"]}, b={"oneOf": [{"type": "null"}, {"type": "string"}]}),
        "struct<a:bigint,b:string>",
    ),
    "nested": (
        obj(
            a={"type": "array", "items": obj(x={"type": "integer"})},
            b={"type": "object", "additionalProperties": {"type": "number"}},
        ),
        "struct<a:array<struct<x:bigint>>,b:map<string,double>>",
    ),
}
REFUSED_JSON = {
    "reference": (obj(a={"$ref": "#/x"}), r"value\.a: \$ref of a JSON schema is not covered"),
    "any": (obj(a={}), r"value\.a: a JSON schema of type None without more is no column"),
    "several": (obj(a={"type": ["string", "integer"]}), r"value\.a: a union of string, bigint"),
    "any object": ({"type": "object"}, "a JSON schema of type object without more"),
}


@pytest.mark.parametrize(("schema", "kind"), AVRO.values(), ids=AVRO)
def test_avro(schema: Any, kind: str):
    """One obvious type each."""
    assert avro(schema).simpleString() == kind


@pytest.mark.parametrize(("schema", "sentence"), REFUSED_AVRO.values(), ids=REFUSED_AVRO)
def test_avro_that_is_no_column(schema: Any, sentence: str):
    """Named with the field."""
    with pytest.raises(FleetError, match=sentence):
        avro(schema)


@pytest.mark.parametrize(("schema", "kind"), JSON.values(), ids=JSON)
def test_json(schema: Any, kind: str):
    """The simple types of JSON Schema."""
    assert of_json(schema).simpleString() == kind


@pytest.mark.parametrize(("schema", "sentence"), REFUSED_JSON.values(), ids=REFUSED_JSON)
def test_json_that_is_no_column(schema: Any, sentence: str):
    """Named with the field."""
    with pytest.raises(FleetError, match=sentence):
        of_json(schema)


def test_types_that_json_has_not():
    """A date is text in JSON: a job that wants one converts it."""
    inner = t.StructType([t.StructField("d", t.DateType())])
    with pytest.raises(FleetError, match=r"value\.a\[\]\.d: JSON has no date"):
        from_json(t.StructType([t.StructField("a", t.ArrayType(inner))]))


def decoder(schema: Any, *, with_errors: bool = True) -> ValueDecoder:
    """Of values whose schema 1 is what is read into; 2 is unknown."""
    reader = reader_of(json.dumps(schema))
    is_avro = reader.kind == "AVRO"
    return ValueDecoder(
        column="value",
        into="decoded",
        writers={1: reader.body if is_avro else None},
        unread={2: "there is no schema 2"},
        reader=reader.body if is_avro else None,
        arrow=to_arrow_type(
            of_avro(reader.body) if is_avro else of_json(reader.body), timezone="UTC"
        ),
        with_errors=with_errors,
        install=pip_line("formats"),
    )


def batch(*values: bytes | None) -> pa.RecordBatch:
    """Records of orders-3 from offset 10 on."""
    return pa.RecordBatch.from_pylist(
        [
            {"topic": "orders", "partition": 3, "offset": 10 + at, "value": value}
            for at, value in enumerate(values)
        ],
        pa.schema({"topic": "string", "partition": "int32", "offset": "int64", "value": "binary"}),
    )


def framed(data: bytes, schema_id: int = 1) -> bytes:
    """As a registry's serializers write it."""
    return b"\0" + schema_id.to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("head", "key"),
    [
        (b"\1" + UUID(int=7).bytes, str(UUID(int=7))),
        (b"\0\0\0\0\7", 7),
        (b"\2" + UUID(int=7).bytes, None),
        (b"\1" + UUID(int=7).bytes[:15], None),
        (b"\0\0\0\0\7more", None),
        (b"", None),
    ],
)
def test_what_a_header_names(head: bytes, key: int | str | None):
    """A one and a GUID, or a zero and an id, and nothing behind it."""
    assert schema_in_header(head) == key


def test_every_logical_type_arrives():
    """Micros, digits, days and text as Spark's Arrow has them."""
    schema = record(
        ("at", logical("long", "timestamp-micros")),
        ("day", logical("int", "date")),
        ("sum", logical("bytes", "decimal", precision=9, scale=2)),
        ("id", logical("string", "uuid")),
        ("of_day", logical("int", "time-millis")),
        ("by", {"type": "map", "values": "long"}),
    )
    value = {
        "at": datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
        "day": date(1969, 12, 31),
        "sum": Decimal("-12.50"),
        "id": "00000000-0000-0000-0000-00000000000a",
        "by": {"x": 2**62},
    }
    out = BytesIO()
    schemaless_writer(out, reader_of(schema).body, {**value, "of_day": 61_001})
    (made,) = decoder(schema)(iter([batch(framed(out.getvalue()))]))
    assert made.column("error").to_pylist() == [None]
    (got,) = made.column("decoded").to_pylist()
    assert got == {**value, "by": [("x", 2**62)], "of_day": 61_001}


STRAY = {
    "not framed": (b"{}", "value of 2 bytes does not begin with a zero and a schema id"),
    "unknown id": (framed(b"{}", 2), "there is no schema 2"),
    "no JSON": (framed(b"{"), r"value does not fit schema 1 \(JSONDecodeError: Expecting"),
    "text for a number": (framed(b'{"n": "secret"}'), r"decoded\.n is a str, no int64"),
    "part of a number": (framed(b'{"n": 1.5}'), r"decoded\.n is a float, no int64"),
    "yes for a number": (framed(b'{"n": true}'), r"decoded\.n is a bool, no int64"),
    "no object": (framed(b"[1]"), r"decoded is a list, no struct"),
    "too great": (framed(b'{"n": 9223372036854775808}'), r"value is no struct.*\((Overflow|Arrow)"),
}


@pytest.mark.parametrize(("value", "sentence"), STRAY.values(), ids=STRAY)
def test_values_that_do_not_fit(value: bytes, sentence: str):
    """Its neighbours arrive, or the record is named; what it holds is in no sentence."""
    schema = obj(n={"type": "integer"})
    good = framed(b'{"n": 1.0, "more": 2}')
    values, errors = decoder(schema).columns(batch(good, value, None, good))
    assert values.to_pylist() == [{"n": 1}, None, None, {"n": 1}]
    assert [each is None for each in errors] == [True, False, True, True]
    with pytest.raises(ValueError, match=f"^orders-3, offset 11: .*{sentence}") as refused:
        list(decoder(schema, with_errors=False)(iter([batch(good, value)])))
    assert "secret" not in str(refused.value)


def test_avro_that_ends_early_or_late():
    """Damaged, or written with another schema than it names."""
    out = BytesIO()
    schema = record(("a", "string"))
    schemaless_writer(out, reader_of(schema).body, {"a": "xyz"})
    whole = framed(out.getvalue())
    _, errors = decoder(schema).columns(batch(whole, whole[:-1], whole + b"!"))
    assert errors[0] is None
    assert "value does not fit schema 1 (EOFError" in str(errors[1])
    assert "1 bytes are left over" in str(errors[2])
