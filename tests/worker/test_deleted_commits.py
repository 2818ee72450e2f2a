"""`start_from: latest` after Kafka has deleted a group's commits: nothing is skipped [53].

On a real broker, whose own log of commits is what remembers. A deleted group is the same to it as
one whose offsets expired.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import SystemClock
from fleet.log.records import partition_for, record_key
from fleet.model import TopicPartition
from fleet.worker.offsets.assigning import Assigner, Start
from tests.conftest import RunningBroker
from tests.support.batch_parts import worker_context
from tests.support.brokers import running_broker
from tests.support.declared import group_spec, settings_of

pytestmark = pytest.mark.broker


class Scene:
    """A topic of two partitions with 100 records in each, and a group of the same name."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.config = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.config)
        self.said: list[str] = []
        self.make()

    def make(self) -> None:
        """The topic, with its records."""
        self.admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result(60)
        self.produce(100)

    def produce(self, count: int) -> None:
        """So many to each partition."""
        producer = Producer(self.config)
        for number in range(2 * count):
            producer.produce(self.name, b"x", partition=number % 2)
        producer.flush(60)

    def consumer(self, **more: Any) -> Consumer:
        """A member that never joins."""
        usual = {"group.id": self.name, "enable.auto.commit": False}
        return Consumer({**self.config, **usual, **more})

    def commit(self, *offsets: int, metadata: str = "") -> None:
        """Of partition 0, and of partition 1 where two are given."""
        consumer = self.consumer()
        entries = [
            KafkaPartition(self.name, number, offset, metadata=metadata)
            for number, offset in enumerate(offsets)
        ]
        consumer.commit(offsets=entries, asynchronous=False)
        consumer.close()

    def expire(self) -> None:
        """All that the group committed."""
        self.admin.delete_consumer_groups([self.name])[self.name].result(60)

    def commit_partitions(self) -> int:
        """Of the coordinator's log."""
        topics = self.admin.list_topics("__consumer_offsets", timeout=10).topics
        return len(topics["__consumer_offsets"].partitions)

    def starts(
        self, start_from: str = "latest", bootstrap: str | None = None, **more: Any
    ) -> list[Start]:
        """Of both partitions."""
        group = group_spec(worker={"start_from": start_from})
        settings = settings_of(group, bootstrap=bootstrap or self.config["bootstrap.servers"])
        context = worker_context(settings)
        context.events.log = self.said.append  # type: ignore[method-assign]
        assigner = Assigner(context, self.admin, **more)
        consumer = self.consumer()
        try:
            tps = [TopicPartition(self.name, number) for number in range(2)]
            return list(assigner.starts(consumer, tps))
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker of these tests alone.

    A record that a client writes to the coordinator's log puts the coordinator out of step with it:
    other groups' transactions would not end.
    """
    with running_broker(tmp_path_factory.mktemp("deleted")) as made:
        yield made


@pytest.fixture
def scene(own: RunningBroker, unique: str) -> Scene:
    """A new one."""
    return Scene(own.bootstrap_servers, f"deleted-{unique}")


def test_a_new_group_begins_at_the_end(scene: Scene) -> None:
    """Nothing is known of it, nor of the partition that another group read."""
    assert [each.position for each in scene.starts()] == [100, 100]
    assert all(each.expired is None for each in scene.starts())


def test_a_group_that_only_the_store_remembers_begins_at_the_start(scene: Scene) -> None:
    """The coordinator's log holds nothing of it any more; another topic of its is new."""
    begun = scene.starts(begun=lambda: {scene.name})
    assert [(each.position, each.expired, each.resumes) for each in begun] == [(0, 100, False)] * 2
    assert [each.position for each in scene.starts(begun=lambda: {"another"})] == [100, 100]


def test_a_group_goes_on_at_its_last_position(scene: Scene) -> None:
    """Of the partition that it had; a reset to an earlier offset was its last word."""
    scene.commit(90)
    scene.commit(60)
    scene.expire()
    scene.produce(100)
    start, other = scene.starts()
    assert (start.position, start.committed, start.lost) == (60, None, None)
    assert (start.expired, start.resumes, start.chosen) == (200, True, True)
    assert (other.position, other.expired) == (200, None)


def test_a_planned_range_is_repeated(scene: Scene) -> None:
    """The commit's metadata is believed as if it stood."""
    scene.commit(40, metadata=json.dumps({"v": 1, "next": 70, "rev": "r1"}))
    scene.expire()
    assert scene.starts()[0].replay_to == 70


def test_what_retention_took_is_a_named_loss(scene: Scene) -> None:
    """The log begins behind the last position."""
    scene.commit(50)
    scene.expire()
    for future in scene.admin.delete_records([KafkaPartition(scene.name, 0, 80)]).values():
        future.result(60)
    start = scene.starts()[0]
    assert (start.position, start.lost, start.resumes) == (80, (50, 80), False)


def test_a_position_behind_the_log_s_end_is_a_named_loss(scene: Scene) -> None:
    """As after an unclean election: the log was cut, and begins anew for this group."""
    scene.commit(900)
    scene.expire()
    start = scene.starts()[0]
    assert (start.position, start.lost, start.expired) == (0, (900, 0), 100)


def test_a_topic_made_again_is_read_from_its_start(scene: Scene) -> None:
    """The old topic's offset lies within the new one, or beyond its end."""
    scene.commit(40, 900)
    scene.expire()
    scene.admin.delete_topics([scene.name])[scene.name].result(60)
    _until(lambda: scene.name not in scene.admin.list_topics(timeout=10).topics)
    scene.make()
    assert [each.position for each in scene.starts()] == [0, 0]
    assert [each.expired for each in scene.starts()] == [100, 100]


def test_a_position_that_is_not_known_any_more_is_the_start(scene: Scene) -> None:
    """Compaction has left the tombstone alone."""
    producer = Producer({**scene.config, "client.id": "__admin_client"})
    producer.produce(
        "__consumer_offsets",
        key=record_key(1, scene.name, scene.name, 1),
        partition=partition_for(scene.name, scene.commit_partitions()),
    )
    producer.flush(60)
    start, other = scene.starts()
    assert (start.position, start.expired) == (100, None)
    assert (other.position, other.expired, other.resumes) == (0, 100, False)


def test_a_commit_of_an_aborted_transaction_counts_for_nothing(scene: Scene) -> None:
    """The position before it is the last."""
    scene.commit(30)
    with_offsets(scene, scene.name).abort_transaction(60)
    scene.expire()
    assert scene.starts()[0].position == 30


def test_an_open_transaction_of_another_group_holds_nothing_up(scene: Scene) -> None:
    """The reading ends before it, and what stands there counts."""
    scene.commit(30)
    scene.expire()
    partitions = scene.commit_partitions()
    here = partition_for(scene.name, partitions)
    others = (f"{scene.name}-{number}" for number in range(10_000))
    other = next(name for name in others if partition_for(name, partitions) == here)
    producer = with_offsets(scene, other)
    start = scene.starts()[0]
    producer.abort_transaction(60)
    assert (start.position, scene.said) == (30, [])


def with_offsets(scene: Scene, group: str) -> Producer:
    """A producer in a transaction that holds a commit of this group."""
    producer = Producer({**scene.config, "transactional.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = scene.consumer(**{"group.id": group})
    entry = KafkaPartition(scene.name, 0, 95)
    producer.send_offsets_to_transaction([entry], consumer.consumer_group_metadata(), 60)
    consumer.close()
    return producer


def test_brokers_that_cannot_be_read_are_named(scene: Scene) -> None:
    """Then the group is taken for a new one."""
    scene.commit(50)
    scene.expire()
    assert scene.starts(bootstrap="127.0.0.1:1")[0].position == 100
    assert "it is not known whether group" in scene.said[0]


def test_earliest_asks_nobody(scene: Scene) -> None:
    """It begins at the log's start whatever was committed."""
    scene.commit(50)
    scene.expire()
    assert [each.position for each in scene.starts("earliest")] == [0, 0]


def _until(condition: Callable[[], bool]) -> None:
    clock = SystemClock()
    end = clock.monotonic() + 60
    while not condition():
        assert clock.monotonic() < end, "the topic is still there"
        clock.sleep(0.1)
