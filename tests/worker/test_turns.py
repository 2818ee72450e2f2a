"""Partitions take turns however small batches are: none waits while another is read for long."""

import itertools

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.worker.member.protocols import reading_options
from tests.conftest import RunningBroker
from tests.support.declared import group_spec, settings_of

pytestmark = pytest.mark.broker

PARTITIONS = 4
EACH = 5_000
SIZE = 100
LARGE = 300_000


def test_a_backlog_is_read_from_all_partitions_in_turn(broker: RunningBroker, unique: str) -> None:
    """Records that arrived a few at a time, and one that is larger than a share."""
    topic = f"turns-{unique}"
    bootstrap = broker.bootstrap_servers
    config = {"bootstrap.servers": bootstrap}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(120)
    producer = Producer({**config, "batch.num.messages": 20, "linger.ms": 50})
    for number in range(PARTITIONS * EACH):
        value = b"x" * (LARGE if number == EACH else SIZE)
        producer.produce(topic, value, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(120) == 0
    settings = settings_of(group_spec(topic, topics=[topic]), bootstrap=bootstrap)
    read: list[tuple[int, int]] = []
    reader = Consumer({**config, **reading_options(settings.group.worker), "group.id": topic})
    try:
        reader.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        still = 0
        while len(read) < PARTITIONS * EACH:
            found = [m for m in reader.consume(50, 1.0) if m.error() is None]
            read += [(m.partition(), len(m.value())) for m in found]
            still = 0 if found else still + 1
            assert still < 120, f"{len(read)} records were read, and no more came"
    finally:
        reader.close()
    assert sum(size == LARGE for _, size in read) == 1
    runs = [len(list(run)) for _, run in itertools.groupby(number for number, _ in read)]
    assert max(runs) * SIZE <= 4 * 65536
    assert sorted(runs)[len(runs) // 2] * SIZE <= 65536


def test_a_batch_that_unpacks_to_much_is_read(broker: RunningBroker, unique: str) -> None:
    """Packed by zstd, 88 MB are 11 KB; librdkafka's own bound for what it unpacks is lower."""
    topic, many = f"unpacks-{unique}", 880
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    as_one = {"linger.ms": 5_000, "batch.size": 92_000_000, "message.max.bytes": 95_000_000}
    producer = Producer({**config, **as_one, "compression.type": "zstd"})
    for _ in range(many):
        producer.produce(topic, b"z" * 100_000)
    assert producer.flush(120) == 0
    settings = settings_of(group_spec(topic, topics=[topic]), bootstrap=broker.bootstrap_servers)
    reader = Consumer({**config, **reading_options(settings.group.worker), "group.id": topic})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        found = []
        while len(found) < many and (some := reader.consume(many, 30.0)):
            found += [each for each in some if each.error() is None]
            assert {e.code() for each in some if (e := each.error())} <= {KafkaError._PARTITION_EOF}
        assert len(found) == many
    finally:
        reader.close()
