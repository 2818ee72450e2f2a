"""Random topics on a real broker, row for row as librdkafka reads them, in both isolations."""

import random
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.columns import batch_of, batch_of_pieces, to_stderr
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import read_ranges, reading
from tests.ranges.conftest import Topic
from tests.support.sampling import LONG

pytestmark = pytest.mark.broker

SEEDS = range(200 if LONG else 8)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGEST = 10_000_000


def written(topic: Topic, rnd: random.Random) -> None:
    """Some hundred records: codecs, transactions that end in every way, odd fields, large ones."""
    topic.create(
        **{
            "max.message.bytes": str(2 * LARGEST),
            "message.timestamp.type": rnd.choice(("CreateTime", "LogAppendTime")),
        }
    )
    for number in range(rnd.randrange(2, 5)):
        within = rnd.random() < 0.5
        producer = topic.producer(
            **{"compression.type": rnd.choice(CODECS), "message.max.bytes": str(2 * LARGEST)},
            **({"transactional.id": f"{topic.name}-{number}"} if within else {}),
        )
        if within:
            producer.init_transactions(20)
        for _ in range(rnd.randrange(1, 5)):
            if within:
                producer.begin_transaction()
            for _ in range(rnd.randrange(0, 60)):
                some(topic, producer, rnd)
            if not within:
                producer.flush(120)
            elif rnd.random() < 0.5:
                producer.commit_transaction(20)
            else:
                producer.flush(120)
                producer.abort_transaction(20)
    if rnd.random() < 0.3:
        topic.truncate(rnd.randrange(1, 20))


def some(topic: Topic, producer: Producer, rnd: random.Random) -> None:
    """One record."""

    def field(most: int) -> bytes | None:
        return None if rnd.random() < 0.1 else rnd.randbytes(rnd.choice((0, 5, 70, most)))

    large = LARGEST if rnd.random() < 0.002 else 300
    headers = [(rnd.choice("abc"), field(9)) for _ in range(3)] if rnd.random() < 0.2 else None
    producer.produce(topic.name, field(large), field(20), headers=headers, partition=0)


def theirs(topic: Topic, isolation: str, first: int, end: int) -> list[dict[str, Any]]:
    """What librdkafka reads up to the end, as the same columns."""
    consumer = Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": "compares",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 3 * LARGEST,
            "receive.message.max.bytes": 8 * LARGEST,
        }
    )
    consumer.assign([KafkaPartition(topic.name, 0, first)])
    messages: list[Any] = []
    try:
        for _ in range(200):
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    messages.append(message)
                elif message.offset() >= end:
                    return batch_of(topic.name, 0, messages, print).to_pylist()
    finally:
        consumer.close()
    raise AssertionError(f"librdkafka did not reach {end}")


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_equal(topic: Topic, seed: int):
    """All columns of all records."""
    written(topic, random.Random(seed))
    login = {"bootstrap.servers": topic.bootstrap}
    for isolation in ("read_committed", "read_uncommitted"):
        log = log_bounds(login, topic.name)[0]
        first, end = log.first, log.readable(isolation)
        if first == end:
            continue
        wanted = [OffsetRange(topic.name, 0, first, end)]
        log = reading(login, isolation=isolation)
        make = partial(batch_of_pieces, tell=to_stderr())
        found = read_ranges(log, wanted, read_timeout=20.0, make=make)
        ours = [row for batch in found for row in batch.to_pylist()]
        assert ours == theirs(topic, isolation, first, end)
