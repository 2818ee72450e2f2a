"""Values that confluent-kafka's own serializers wrote, through a registry and Spark's tasks."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import schemaless_writer
from pyspark import cloudpickle
from pyspark.sql import types as t

from fleet.errors import FleetError, Unreachable
from fleet.formats import SchemaRegistry, decoded
from fleet.formats.decoding import _writers, reader_of
from fleet.testing import make_batch
from tests.support.fresh_interpreter import ran_without_fleet
from tests.support.needs import repository
from tests.support.schema_registry import RegistryServer, registry_server

OLD = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}
AT = {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {**AT, "default": None}]}
MOMENT = datetime(2024, 2, 29, 1, 2, 3, 456000, tzinfo=UTC)
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """One without schemas."""
    with registry_server() as made:
        yield made


def avro_bytes(server: RegistryServer, schema: Any, value: Any) -> bytes:
    """What a producer sends."""
    client = SchemaRegistryClient({"url": server.url})
    made: bytes = AvroSerializer(client, json.dumps(schema))(value, VALUE)
    return made


def frame(spark: Any, *values: bytes | None) -> Any:
    """A batch of orders-0."""
    return make_batch([{"value": each} for each in values], topic="orders").frame(spark)


@pytest.mark.spark
def test_avro_of_two_versions(server: RegistryServer, spark: Any):
    """Each value by its own schema, all into the latest; each schema is asked for once."""
    values = [
        avro_bytes(server, OLD, {"n": 1}),
        avro_bytes(server, NEW, {"n": 2, "at": MOMENT}),
    ]
    server.asked.clear()
    for _ in range(2):
        df = decoded(
            frame(spark, *values, None), SchemaRegistry(url=server.url), subject="orders-value"
        )
        rows = df.selectExpr("offset", "decoded.n", "unix_millis(decoded.at) AS at").collect()
        assert [tuple(row) for row in rows] == [
            (0, 1, None),
            (1, 2, int(MOMENT.timestamp() * 1000)),
            (2, None, None),
        ]
    assert server.asked.count("/schemas/ids/1") == 1
    assert sum("latest" in path for path in server.asked) == 1
    assert df.columns[-2:] == ["headers", "decoded"], "every other column is there"


@pytest.mark.spark
def test_a_schema_that_a_header_names(server: RegistryServer, spark: Any):
    """By its GUID, as confluent-kafka writes it; the content is no id then, however it begins."""
    client = SchemaRegistryClient({"url": server.url})
    schema = {"type": "record", "name": "P", "fields": [{"name": "p", "type": "string"}]}
    conf = {"schema.id.serializer": header_schema_id_serializer}
    rows: list[dict[str, Any]] = []
    for text in ("", "x" * 55, "no schema"):
        context = SerializationContext("orders", MessageField.VALUE, headers=[("a", b"b")])
        value = AvroSerializer(client, json.dumps(schema), conf=conf)({"p": text}, context)
        rows.append({"value": value, "headers": dict(context.headers)})
    assert rows[0]["value"] == b"\0"
    rows[0]["value"] = None
    rows[2]["headers"] = {"__value_schema_id": b"1"}
    rows += [{"value": avro_bytes(server, schema, {"p": "before"})}, {"value": b'{"p": 1}'}]
    df = make_batch(rows, topic="orders").frame(spark)
    registry = SchemaRegistry(url=server.url)
    got = decoded(df, registry, schema=schema, on_error="null")
    assert got.columns == [*df.columns, "decoded", "error"]
    no_id = "header __value_schema_id of 1 bytes holds no id and no GUID of a schema"
    no_schema = "value of 8 bytes does not begin with a zero and a schema id, and "
    assert [tuple(row) for row in got.select("decoded.p", "error").collect()] == [
        (None, None),
        ("x" * 55, None),
        (None, no_id),
        ("before", None),
        (None, no_schema + "no header __value_schema_id names one"),
    ]
    rest = decoded(df.drop("headers").where("offset = 4"), registry, schema=schema, on_error="null")
    assert rest.select("error").collect()[0][0] == no_schema + "the rows have no headers"


@pytest.mark.spark
def test_values_that_cannot_be_read(server: RegistryServer, spark: Any):
    """Told beside the rows, or by the task, with the record's place."""
    good = avro_bytes(server, OLD, {"n": 1})
    unknown = b"\0\0\0\0\x63" + good[5:]
    registry = SchemaRegistry(url=server.url)
    batch = frame(spark, good, b"plain", unknown)
    rows = decoded(batch, registry, schema=OLD, on_error="null").select("decoded.n", "error")
    values = [tuple(row) for row in rows.collect()]
    assert values[0] == (1, None)
    assert values[1][1].startswith("value of 5 bytes does not begin with a zero and a schema id")
    assert values[2] == (None, f"the schema registry at {server.url} has no schema of id 99")
    with pytest.raises(Exception, match="orders-0, offset 1: value of 5 bytes does not begin"):
        decoded(batch, registry, schema=OLD).collect()


@pytest.mark.spark
def test_json_and_its_types(server: RegistryServer, spark: Any):
    """By the subject's JSON Schema, and into a type that the job gives."""
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
    client = SchemaRegistryClient({"url": server.url})
    value = JSONSerializer(json.dumps(schema), client)({"n": 7, "tags": ["a", "b"]}, VALUE)
    registry, batch = SchemaRegistry(url=server.url), frame(spark, value)
    derived = decoded(batch, registry, subject="orders-value", into="order")
    assert [tuple(row) for row in derived.select("order.n", "order.tags").collect()] == [
        (7, ["a", "b"])
    ]
    given = t.StructType([t.StructField("n", t.IntegerType())])
    assert decoded(batch, registry, schema=given).select("decoded.n").collect()[0][0] == 7
    (mixed,) = decoded(batch, registry, schema=OLD, on_error="null").select("error").collect()
    assert mixed[0] == "schema 1 is JSON, and AVRO is read here"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({}, "one of both"),
        ({"schema": OLD, "on_error": "skip"}, "on_error 'skip'"),
        ({"schema": OLD, "column": "topic"}, "column topic is string"),
        ({"schema": OLD, "column": "body"}, "column body is not there"),
        ({"schema": OLD, "into": "offset"}, "a column offset already"),
    ],
    ids=["no schema", "on_error", "no bytes", "no column", "taken"],
)
def test_wrong_arguments(wrong: dict[str, Any], sentence: str, spark: Any):
    """Said before anything is asked."""
    with pytest.raises(ValueError, match=sentence):
        decoded(frame(spark), SchemaRegistry(url="http://127.0.0.1:1"), **wrong)


def test_executors_need_no_fleet(server: RegistryServer):
    """The function of the tasks brings its code, in this release's form."""
    from fleet.formats import decoding
    from tests.formats.test_types import batch, decoder, framed

    cloudpickle.register_pickle_by_value(decoding)
    made = cloudpickle.dumps((decoder(OLD), batch(framed(b"\x02"))))
    cloudpickle.unregister_pickle_by_value(decoding)
    code = (
        "decode, batch = made\n"
        "print([row['decoded'] for out in decode(iter([batch])) for row in out.to_pylist()])"
    )
    assert ran_without_fleet(made, code) == "[{'n': 1}]"


def test_types_of_other_subjects(server: RegistryServer):
    """A schema may take named types from others, and these again."""
    client = SchemaRegistryClient({"url": server.url})

    def register(subject: str, schema: Any, *refers: tuple[str, str]) -> int:
        references = [SchemaReference(name, of, 1) for name, of in refers]
        return int(client.register_schema(subject, Schema(json.dumps(schema), "AVRO", references)))

    def holding(name: str, of: Any) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": "x", "type": of}]}

    register("a", holding("A", "int"))
    register("b", holding("B", "A"), ("A", "a"))
    number = register("c", holding("C", ["null", "B"]), ("B", "b"))
    known = SchemaRegistry(url=server.url).schema(number)
    out = BytesIO()
    schemaless_writer(out, known.body, {"x": {"x": {"x": 5}}})
    whole = holding("C", ["null", holding("B", holding("A", "int"))])
    assert reader_of(whole).kind == known.kind
    from fleet.formats.decoding import of_avro

    assert of_avro(known.body) == of_avro(reader_of(whole).body)


def one_field(**field: Any) -> str:
    """A record's schema."""
    return json.dumps({"type": "record", "name": "A", "fields": [{"name": "a", **field}]})


BAD = {
    "a default of another type": one_field(type="int", default="x"),
    "a type that nobody names": one_field(type="No"),
    "fields that are none": '{"type": "record", "name": "A", "fields": 5}',
    "no JSON": "{",
}


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_one_schema_that_is_none_is_its_values_matter(server: RegistryServer, kind: str, text: str):
    """Java's Avro took it, fastavro does not: values of the other schemas are read."""
    server.register("good", {"schema": json.dumps(OLD), "schemaType": "AVRO"})
    server.register("bad", {"schema": text, "schemaType": kind})
    writers, unread = _writers(SchemaRegistry(url=server.url), [1, 2, 3], "AVRO")
    assert list(writers) == [1]
    sentence = f"the schema registry at {server.url} gives for id 2 no "
    assert unread[2].startswith(sentence if kind == "AVRO" or text == "{" else "schema 2 is JSON")
    assert unread[3].endswith("has no schema of id 3")


def test_what_is_about_no_schema_ends_the_batch(server: RegistryServer):
    """A login that is not set, or not let in: nothing is known of any value."""
    with pytest.raises(FleetError, match="to be in SR_USER, not set here"):
        _writers(SchemaRegistry(url=server.url, user_env="SR_USER", password_env="P"), [1], "AVRO")
    server.basic("ann", "s3cret")
    with pytest.raises(Unreachable, match="refuses id 1"):
        _writers(SchemaRegistry(url=server.url), [1], "AVRO")


def test_logins_by_names(server: RegistryServer, monkeypatch: pytest.MonkeyPatch):
    """Basic and bearer; what is wrong is said without the secret."""
    number = SchemaRegistryClient({"url": server.url}).register_schema(
        "s", Schema(json.dumps(OLD), "AVRO")
    )
    server.basic("ann", "s3cret:x")
    basic = SchemaRegistry(url=server.url, user_env="SR_USER", password_env="SR_PASSWORD")
    with pytest.raises(FleetError, match="to be in SR_USER, not set here"):
        basic.schema(number)
    monkeypatch.setenv("SR_USER", "ann")
    monkeypatch.setenv("SR_PASSWORD", "s3cret:x")
    assert basic.schema(number).kind == "AVRO"
    monkeypatch.setenv("SR_TOKEN", "t0ken")
    bearer = SchemaRegistry(url=server.url, token_env="SR_TOKEN")
    with pytest.raises(Unreachable, match="refuses id 1: Unauthorized") as refused:
        bearer.schema(number)
    assert "t0ken" not in str(refused.value)
    server.login = "Bearer t0ken"
    assert bearer.schema(number).kind == "AVRO"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "https://ann:s3cret@sr"},
        {"url": "https://sr,https://:s3cret@other:8081"},
        {"url": "https://ann:s3cret/more@sr"},
        {"url": "https://sr", "user_env": "A"},
        {"url": "https://sr", "user_env": "A", "password_env": "B", "token_env": "C"},
    ],
    ids=["user and password", "password alone", "slash", "no password", "two logins"],
)
def test_no_login(wrong: dict[str, str]):
    """Refused where it is written."""
    with pytest.raises(ValueError, match=r"^(url|user_env)") as refused:
        SchemaRegistry(**wrong)
    assert "s3cret" not in str(refused.value)


def test_no_such_subject(server: RegistryServer):
    """Named, with the registry."""
    with pytest.raises(FleetError, match="has no schema of subject orders-value"):
        SchemaRegistry(url=server.url).latest("orders-value")


def test_the_page_compiles():
    """Its Python, and what it imports."""
    page = (repository() / "docs/how-to/schema-registry.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        names: dict[str, Any] = {}
        exec(compile(block, "docs/how-to/schema-registry.md", "exec"), names)
        assert callable(names["process"])
