"""The Kafka sink over a batch of many partitions: how many producers there are at any moment.

The cluster is a stand-in; `test_kafka_topic.py` has a real one.
"""

import gc
import json
import resource
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.errors import FleetError
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks import kafka_topic, write_kafka
from tests.sinks.cases import as_values, batch, range_of

FILES = 400
"""That this process may open: room for 20 producers."""


class Cluster:
    """What one cluster was told, and the producers that are connected to it."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.offsets: dict[tuple[str, int], KafkaPartition] = {}
        self.opened: list[str] = []
        self.most = 0
        """Producers at one moment."""
        self.refuses: set[str] = set()
        """Transactional ids whose transactions it does not take."""
        self._alive: weakref.WeakSet[Transactions] = weakref.WeakSet()
        self._lock = threading.Lock()

    def connect(self, producer: "Transactions") -> None:
        """A producer begins."""
        with self._lock:
            self._alive.add(producer)
            self.opened.append(producer.name)
            self.most = max(self.most, len(self._alive))

    def producer(self, options: dict[str, Any]) -> "Transactions":
        """As `confluent_kafka.Producer`."""
        return Transactions(self, options["transactional.id"])

    def consumer(self, _options: dict[str, Any]) -> Any:
        """As `confluent_kafka.Consumer`, of the side group."""

        def committed(asked: list[KafkaPartition], timeout: float) -> list[KafkaPartition]:
            assert timeout > 0
            return [self.offsets.get((each.topic, each.partition), each) for each in asked]

        return SimpleNamespace(committed=committed, consumer_group_metadata=lambda: None)


class Transactions:
    """As `confluent_kafka.Producer`: what it was given is there once it commits."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._values: list[dict[str, Any]] = []
        self._ends: list[KafkaPartition] = []
        cluster.connect(self)

    def init_transactions(self, _timeout: float) -> None:
        """Nothing to end."""

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        """It is there."""
        assert timeout > 0
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def begin_transaction(self) -> None:
        """Empty."""
        self._values, self._ends = [], []

    def produce(self, _topic: str, value: str, _key: object, **_more: Any) -> None:
        """One row."""
        self._values.append(json.loads(value))

    def poll(self, _timeout: float) -> int:
        """Nothing to tell."""
        return 0

    def send_offsets_to_transaction(
        self, ends: list[KafkaPartition], _metadata: object, _timeout: float
    ) -> None:
        """Of the side group."""
        self._ends = ends

    def commit_transaction(self, _timeout: float) -> None:
        """All of it, or an error."""
        if self.name in self._cluster.refuses:
            del self  # librdkafka's errors hold no producer
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        self._cluster.values += self._values
        self._cluster.offsets |= {(each.topic, each.partition): each for each in self._ends}

    def abort_transaction(self, _timeout: float) -> None:
        """What it was given is not there."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One for this test's process, which may open few files."""
    made = Cluster()
    monkeypatch.setattr(kafka_topic, "Producer", made.producer)
    monkeypatch.setattr(kafka_topic, "Consumer", made.consumer)
    monkeypatch.setattr(kafka_topic, "_writers", {})
    monkeypatch.setattr(kafka_topic, "topic_limit", lambda *_: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (FILES, FILES))
    gc.disable()
    yield made
    gc.enable()
    assert made.most <= FILES // 20


def ranges(start: int, end: int, partitions: int = 50) -> tuple[BatchRange, ...]:
    """Of so many partitions."""
    return tuple(range_of(start, end, partition) for partition in range(partitions))


def write(rows: pa.Table, context: BatchContext) -> int:
    """Rows as JSON, into topic `to`."""
    return write_kafka(as_values(rows), "to", context, client={})


def places(cluster: Cluster) -> list[tuple[int, int]]:
    """Partition and offset of each row that is there."""
    return sorted((each["partition"], each["offset"]) for each in cluster.values)


def test_a_batch_of_many_partitions_is_written_in_parts(cluster: Cluster):
    """Each row once; the next batch begins with the producers that are open."""
    assert write(*batch(*ranges(0, 2))) == 50
    assert write(*batch(*ranges(0, 2))) == 0
    assert write(*batch(*ranges(2, 3))) == 50
    assert places(cluster) == [(partition, at) for partition in range(50) for at in range(3)]
    assert len(cluster.opened) <= 50 + 2 * (50 - FILES // 20)


def test_a_part_that_cannot_be_written_leaves_no_producer_more(cluster: Cluster):
    """What was written before it stays; the repetition writes the rest."""
    cluster.refuses = {f"g/to/t/{partition}" for partition in range(30, 50)}
    for _ in range(3):
        with pytest.raises(FleetError, match="cannot be written to to"):
            write(*batch(*ranges(0, 2)))
    cluster.refuses = set()
    assert write(*batch(*ranges(0, 2))) < 50
    assert places(cluster) == [(partition, at) for partition in range(50) for at in range(2)]


def test_rows_are_told_from_others_by_the_whole_batch(cluster: Cluster):
    """Not by the part that is written: the last one has a single partition."""
    rows, context = batch(*ranges(0, 1, 41))
    with pytest.raises(FleetError, match="writes a batch of 41 partitions partition by"):
        write_kafka(pa.table({"value": ["x"]}), "to", context, client={})
    odd, _ = batch(range_of(0, 1, 77))
    with pytest.raises(FleetError, match="partition 77, but the batch has t-0"):
        write(pa.concat_tables([rows, odd]), context)
    assert cluster.values == []
    assert write(rows, context) == 41


def test_a_process_without_a_limit_keeps_a_hundred(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """And one with very few files has one."""
    for files, most in ((resource.RLIM_INFINITY, 100), (1024, 51), (1_000_000, 100), (15, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert kafka_topic._most_open() == most
    assert not cluster.opened
