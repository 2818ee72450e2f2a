"""Dead letters are acknowledged before the batch may be committed."""

import os
import re
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from fleet import model
from fleet.sinks import write_delta
from fleet.testing import make_batch
from fleet.worker.batch.batches import Prepared
from fleet.worker.batch.poison_search import DeadLetters, PoisonRecord
from tests.conftest import RunningBroker
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.memory_kafka import MemoryKafka
from tests.worker.driving import Drive
from tests.worker.test_failures import batch

PARTITIONS = [model.TopicPartition("t", number) for number in range(2)]


def letters(bootstrap: str, topic: str, seconds: float) -> DeadLetters:
    group = group_spec("g", worker={"dead_letter_topic": topic})
    return DeadLetters(worker_context(settings_of(group, bootstrap=bootstrap)), seconds=seconds)


def letter(offset: int) -> PoisonRecord:
    whole = batch(0)
    (each,) = whole.ranges
    part = whole.part(each.tp, offset, offset + 1)
    return PoisonRecord(tp=each.tp, offset=offset, part=part, error="E", attempts=4)


def test_what_is_sent_is_there(mock_broker: str, unique: str):
    """Once `send` returns, for whoever reads then."""
    sent = letters(mock_broker, f"dead-{unique}", 20.0)
    assert sent.send([letter(2), letter(5)], None) is None
    reader = Consumer(
        {
            "bootstrap.servers": mock_broker,
            "group.id": unique,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    parts = reader.list_topics(f"dead-{unique}", timeout=10).topics[f"dead-{unique}"].partitions
    ends = [
        reader.get_watermark_offsets(TopicPartition(f"dead-{unique}", number), timeout=10)[1]
        for number in parts
    ]
    reader.close()
    assert sum(ends) == 2


def test_what_nobody_acknowledges_is_not_passed_over():
    """No broker: why, so that the partition is stopped instead."""
    why = letters("127.0.0.1:1", "dead", 0.2).send([letter(2)], None)
    assert why is not None
    assert why.startswith("the dead-letter topic dead cannot be written: ")


def test_rows_that_a_sink_refuses_go_there_alone(
    kafka: MemoryKafka, drive: Drive, mock_broker: str, unique: str, tmp_path: Path
):
    """From a table's rule through the worker: the others are in the table once, and committed."""
    topic, place = f"dead-{unique}", str(tmp_path / "table")
    fields = {"topic": "string", "partition": "integer", "offset": "long", "value": "string"}
    made = Schema([Field(name, PrimitiveType(kind)) for name, kind in fields.items()])
    DeltaTable.create(place, made).alter.add_constraint({"known": "value <> 'b'"})
    driven = drive(letters=letters(mock_broker, topic, 20.0))
    of_table = pa.schema(made.to_arrow())
    driven.sink = lambda table, context: write_delta(table.cast(of_table), place, context)
    kafka.assign(*PARTITIONS)
    for tp in PARTITIONS:
        driven.until(lambda tp=tp: kafka.committed(tp)[-1:] == [3], f"all of {tp}")
    reader = Consumer({"bootstrap.servers": mock_broker, "group.id": unique})
    parts = reader.list_topics(topic, timeout=10).topics[topic].partitions
    reader.assign([TopicPartition(topic, number, 0) for number in parts])
    found = [reader.poll(20) for _ in PARTITIONS]
    reader.close()
    told = [dict(each.headers()) for each in found]
    assert sorted(each["fleet.partition"] for each in told) == [b"0", b"1"]
    assert {each["fleet.offset"] for each in told} == {b"1"}
    assert {each.value() for each in found} == {b"b"}
    assert all(b"failed validation" in each["fleet.error"] for each in told)
    rows = DeltaTable(place).to_pyarrow_table().to_pylist()
    good = [(number, at, value) for number in range(2) for at, value in ((0, "a"), (2, "c"))]
    assert sorted((r["partition"], r["offset"], r["value"]) for r in rows) == good
    assert (driven.store.quarantines("g"), driven.member.state.dead_letters) == ((), 2)


class Rows:
    """A part of one record, as its source's readers have it."""

    def __init__(self, value: bytes) -> None:
        self._table = make_batch([{"key": b"k", "value": value}], topic="t").table

    def rows(self, _: object) -> pa.Table:
        return self._table


@pytest.mark.broker
@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        (5_000_000, os.urandom(3_000_000), None),
        (5_000_000, os.urandom(999_800), None),
        (None, b"packed" * 800_000, None),
        (60_000, os.urandom(50_000), None),
        (60_000, os.urandom(70_000), r"of 70,\d{3} bytes .*\(max\.message\.bytes is 60,000\)"),
    ],
)
def test_the_topic_decides_what_is_too_large(
    broker: RunningBroker, unique: str, limit: int | None, value: bytes, told: str | None
):
    """A bound of librdkafka was told as the broker's; small records were refused as one batch."""
    topic = f"dead-{unique}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {} if limit is None else {"max.message.bytes": str(limit)}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(120)
    ten = [
        PoisonRecord(tp=batch(0).ranges[0].tp, offset=at, part=part, error="E" * 250, attempts=4)
        for at, part in enumerate([cast("Prepared", Rows(value))] * 10)
    ]
    why = letters(broker.bootstrap_servers, topic, 60.0).send(ten, None)
    if told is None:
        assert why is None
    else:
        assert why is not None
        assert re.search(rf"topic {topic} cannot be written: a record {told}: raise the", why)
