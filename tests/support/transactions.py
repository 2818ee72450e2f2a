"""Transactions with offsets, and groups whose coordinator writes into the same partition."""

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.log.records import partition_for
from tests.support.brokers import OFFSETS_PARTITIONS


def beside(group: str) -> str:
    """Another group of the same partition of the offsets topic."""
    wanted = partition_for(group, OFFSETS_PARTITIONS)
    names = (f"{group}-{number}" for number in range(1000))
    return next(name for name in names if partition_for(name, OFFSETS_PARTITIONS) == wanted)


class Transactions:
    """A producer that commits a group's offsets in transactions; the group's name is its own."""

    def __init__(self, config: dict[str, str], name: str, *, group: str | None = None) -> None:
        patient = {"transactional.id": name, "transaction.timeout.ms": 600_000}
        self.producer = Producer({**config, **patient})
        self.producer.init_transactions(20)
        self.consumer = Consumer({**config, "group.id": group or name})

    def begin(self, offsets: list[KafkaPartition]) -> None:
        """Offsets in a transaction that stays open."""
        self.producer.begin_transaction()
        metadata = self.consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(offsets, metadata, 20)

    def end(self, *, committed: bool) -> None:
        """Either way."""
        (self.producer.commit_transaction if committed else self.producer.abort_transaction)(20)
