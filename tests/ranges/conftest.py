"""Workers and a Spark server as in tests/worker, and Kafka topics with gaps in them."""

from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.kafka_source.pieces import LogBounds, OffsetRange
from fleet.model import TopicPartition
from fleet.worker.batch.ranges import PartitionEnds
from tests.conftest import RunningBroker
from tests.support.waiting import until
from tests.worker.conftest import group

__all__ = ["group"]


@dataclass
class Topic:
    """A topic of one partition, what its leader says of it, and ways to make gaps."""

    name: str
    bootstrap: str

    def __post_init__(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    @property
    def tp(self) -> TopicPartition:
        """Its partition."""
        return TopicPartition(self.name, 0)

    def create(self, **config: str) -> None:
        """Make it."""
        made = self.admin.create_topics([NewTopic(self.name, 1, 1, config=config)])
        made[self.name].result(120)

    def producer(self, **options: str) -> Producer:
        """A client."""
        return Producer({"bootstrap.servers": self.bootstrap, **options})

    def truncate(self, before: int) -> None:
        """Delete records as retention would."""
        asked = self.admin.delete_records([KafkaPartition(self.name, 0, before)])
        for future in asked.values():
            future.result(120)

    def look(self, isolation: str) -> LogBounds:
        """What Fleet's own question is answered with."""
        ends = PartitionEnds(admin=self.admin, isolation=isolation, say=print)
        found: dict[TopicPartition, LogBounds] = {}

        def answered() -> bool:
            if not ends.pending:
                ends.ask([self.tp])
            found.update(ends.answer() or {})
            return self.tp in found

        until(answered, "an answer to ListOffsets")
        return found[self.tp]

    def decided(self) -> int:
        """Its end, once every transaction's marker is written: EndTxn is answered before that."""
        until(
            lambda: self.look("read_committed").stable == self.look("read_uncommitted").stable,
            "the markers of all transactions",
        )
        return self.look("read_committed").stable

    def range(self, start: int, end: int) -> OffsetRange:
        """A range of it."""
        return OffsetRange(self.name, 0, start, end)


@pytest.fixture
def topic(broker: RunningBroker, unique: str) -> Topic:
    """A topic, not yet made."""
    return Topic(f"ranges-{unique}", broker.bootstrap_servers)
