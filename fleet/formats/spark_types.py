"""Spark's type of an Avro or JSON schema, or the sentence why there is none.

Choice: what has one obvious column has a type here; whatever would be a guess is refused, with the
field that it is about. Every column may be null, so that a later schema can drop a field.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import types as t

from fleet.errors import FleetError

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
    """Of a schema that fastavro parsed; FleetError for what is not covered."""
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
    """Of a JSON Schema's simple types; FleetError for what is not covered."""
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
    """A type of Spark that JSON values can be; FleetError for others."""
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
    """The only type of a union beside null."""
    if len({each.json() for each in found}) != 1:
        names = ", ".join(each.simpleString() for each in found) or "null alone"
        raise FleetError(f"{at}: a union of {names} has no one type of Spark")
    return found[0]
