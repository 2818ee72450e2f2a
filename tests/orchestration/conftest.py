"""A cluster with plain consumers on it, and the fleet.yaml that names some of their groups."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.broker import Broker
from fleet.config.spec import FleetSpec
from fleet.dagster import live
from fleet.dagster.resources import FleetResource
from tests.support.brokers import running_broker

PARTITIONS = 4
RECORDS = 40


@dataclass
class Scene:
    """One topic of PARTITIONS partitions with RECORDS records; groups are named by `unique`."""

    bootstrap: str
    unique: str
    folder: Path

    @property
    def topic(self) -> str:
        return f"orders-{self.unique}"

    @property
    def plain(self) -> str:
        """A declared group of somebody else's consumers."""
        return f"plain.{self.unique}"

    @property
    def managed(self) -> str:
        """A declared group in mode act that has no workers yet."""
        return f"managed.{self.unique}"

    @property
    def stranger(self) -> str:
        """A group that fleet.yaml does not name."""
        return f"stranger.{self.unique}"

    @property
    def config(self) -> Path:
        return self.folder / "fleet.yaml"

    @property
    def spec(self) -> FleetSpec:
        return self.resource.spec

    @property
    def resource(self) -> FleetResource:
        """What sensors, schedules and checks open."""
        return FleetResource(config=str(self.config), home=str(self.folder / "home"))

    @contextlib.contextmanager
    def member(self, group: str) -> Iterator[None]:
        """A consumer of this group that has partitions and commits, polled by a thread."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        ready, over = threading.Event(), threading.Event()
        consumer.subscribe([self.topic])
        places = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]

        def poll() -> None:  # every call on the one thread: from another they may never return
            while not over.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    consumer.commit(message=message)
                elif message is None and not ready.is_set() and consumer.assignment():
                    committed = consumer.committed(places, timeout=10)
                    if sum(max(0, place.offset) for place in committed) == RECORDS:
                        ready.set()  # before that, the group's looks still change
            consumer.close()

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            assert ready.wait(120), f"{group} got no partition, or did not commit all records"
            yield
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="session")
def quiet_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests alone: a tick tells of at most 50 groups, so others' would count."""
    with running_broker(tmp_path_factory.mktemp("quiet")) as made:
        yield made.broker


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """What ticks keep open is closed after each test."""
    yield
    live.close_all()


@pytest.fixture
def scene(quiet_broker, unique, tmp_path) -> Scene:
    """The topic exists and holds records."""
    made = Scene(quiet_broker.status().bootstrap_servers, unique, tmp_path)
    admin = AdminClient({"bootstrap.servers": made.bootstrap})
    for done in admin.create_topics([NewTopic(made.topic, PARTITIONS, 1)]).values():
        done.result(120)
    producer = Producer({"bootstrap.servers": made.bootstrap})
    for n in range(RECORDS):
        producer.produce(made.topic, value=str(n), partition=n % PARTITIONS)
    producer.flush(120)
    made.config.write_text(
        f"""
cluster: {{name: main, bootstrap_servers: "{made.bootstrap}"}}
fleets:
  - group: {made.plain}
    topics: [{made.topic}]
    storm: {{rebalances: 1, window: 10m}}
  - group: {made.managed}
    topics: [{made.topic}]
    mode: act
    scaling: {{policy: fixed, workers: 2}}
    worker: {{entrypoint: "fleet.demo.orders:process"}}
"""
    )
    return made
