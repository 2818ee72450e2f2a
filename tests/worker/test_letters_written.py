"""Dead letters are acknowledged before the batch may be committed."""

import os
import re
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.testing import make_batch
from fleet.worker.batch.batch_reader import Prepared
from fleet.worker.batch.dead_letters import DeadLetters
from fleet.worker.batch.poison_search import PoisonRecord
from tests.conftest import RunningBroker
from tests.support.batch_parts import events_of
from tests.worker.test_failures import batch


def letters(bootstrap: str, topic: str, seconds: float) -> DeadLetters:
    return DeadLetters(
        topic=topic,
        group="g",
        revision="r1",
        options={"bootstrap.servers": bootstrap},
        events=events_of(),
        seconds=seconds,
    )


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
