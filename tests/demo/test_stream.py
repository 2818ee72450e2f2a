"""The stream on a real broker: steered, stopped, counted."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import SystemClock
from fleet.demo.measure import begin_at_the_end
from fleet.demo.producer import OrderStream, order_sender
from fleet.demo.stage import PARTITIONS, TOPIC
from fleet.model import TopicPartition


@pytest.fixture
def topic(broker, unique: str) -> str:
    """As many partitions as the demo's topic has; that name may be taken on this broker."""
    name = f"{TOPIC}-{unique}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        made.result(120)
    return name


def test_every_acknowledged_order_is_in_the_topic(broker, topic: str):
    """The stream ends cleanly, says how many there were, and the brokers agree."""
    clock, bootstrap = SystemClock(), broker.bootstrap_servers
    sender = order_sender(bootstrap)
    stream = OrderStream(sender, topic=topic, partitions=PARTITIONS, clock=clock)
    try:
        stream.start(240)
        clock.sleep(2.0)
        stream.rate(2400)
        clock.sleep(1.5)
        ends = stream.stop()
    finally:
        stream.end()
    assert 240 < sum(ends.values()) < 8000
    assert max(ends.values()) - min(ends.values()) <= 1
    found = begin_at_the_end(bootstrap, f"late-{topic}", topic)
    assert found == ends
    assert set(found) == {TopicPartition(topic, p) for p in range(PARTITIONS)}
