"""A topic with records in each of its partitions."""

from collections.abc import Mapping

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


def create_topic(
    config: Mapping[str, str], topic: str, partitions: int, *, records: int = 0, copies: int = 1
) -> str:
    """Creates it by a client's configuration, and writes so many records to each partition."""
    admin = AdminClient(dict(config))
    admin.create_topics([NewTopic(topic, partitions, copies)])[topic].result(120)
    producer = Producer(dict(config))
    for partition in [*range(partitions)] * records:
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(120) == 0
    return topic
