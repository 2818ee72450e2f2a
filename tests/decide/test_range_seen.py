"""The range assignor as computed here is the one that the real clients run."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.decide.plans import range_owners
from fleet.model import TopicPartition

pytestmark = pytest.mark.broker


def test_static_members_are_ordered_by_instance_id_as_bytes(broker: Any, unique: str) -> None:
    """Three static members, -2, -10 and -0: -10 comes second, in every topic."""
    topics = {f"a-{unique}": 5, f"b-{unique}": 4}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    made = admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
    for each in made.values():
        each.result(120)
    names = [f"g-{unique}-{n}" for n in (2, 10, 0)]
    consumers = {
        name: Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": f"g-{unique}",
                "group.instance.id": name,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 10_000,
                "enable.auto.commit": False,
            }
        )
        for name in names
    }
    try:
        for consumer in consumers.values():
            consumer.subscribe(list(topics))
        owners: dict[TopicPartition, str] = {}
        deadline = time.monotonic() + 300
        expected = range_owners(names, topics)
        while owners != expected and time.monotonic() < deadline:
            owners = {}
            for name, consumer in consumers.items():
                consumer.poll(0.1)
                for tp in consumer.assignment():
                    owners[TopicPartition(tp.topic, tp.partition)] = name
        assert owners == expected
        assert owners[TopicPartition(f"a-{unique}", 2)] == f"g-{unique}-10"
    finally:
        for consumer in consumers.values():
            consumer.close()
