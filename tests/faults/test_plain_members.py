"""What plain members of confluent-kafka do where the matrix has more than the coordinator's rules.

Brokers that are away for longer than `max.poll.interval.ms`: a commit that waits for its answer
waits for as long as they are away, meanwhile the application polls nothing, and once they are back
librdkafka leaves the group and joins again. With dynamic members that rebalances, with static ones
it does not. A worker commits before it gives up a partition, by the same call.

A topic that is recreated begins at leader epoch 0. A consumer that knew higher ones of the topic
before fetches nothing of it, wherever it is assigned and subscribed anew; a new consumer does.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.brokers import RunningBroker, running_broker
from tests.support.kafka_tools import rebalances
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

POLL_INTERVAL = 10.0
WAYS: dict[str, tuple[dict[str, Any], bool, range]] = {
    "range": ({"partition.assignment.strategy": "range"}, True, range(1)),
    "KIP-848": ({"group.protocol": "consumer"}, True, range(1)),
    "range, dynamic": ({"partition.assignment.strategy": "range"}, False, range(1, 3)),
    "cooperative-sticky, dynamic": (
        {"partition.assignment.strategy": "cooperative-sticky"},
        False,
        range(1, 5),
    ),
    "KIP-848, dynamic": ({"group.protocol": "consumer"}, False, range(1, 5)),
}
"""Way → (settings, static, rebalances that are seen)."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker that may be killed."""
    with running_broker(tmp_path) as made:
        yield made


class Member:
    """Polls, and commits what it got; the commit waits for its answer."""

    def __init__(self, options: dict[str, Any], topic: str) -> None:
        self.owned: set[int] = set()
        self._stop = threading.Event()
        self._consumer = Consumer(options)
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self._thread = threading.Thread(target=self._live)
        self._thread.start()

    def _assigned(self, _consumer: Consumer, partitions: list[Any]) -> None:
        self.owned |= {tp.partition for tp in partitions}

    def _revoked(self, _consumer: Consumer, partitions: list[Any]) -> None:
        self.owned -= {tp.partition for tp in partitions}

    def _live(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                try:
                    self._consumer.commit(message, asynchronous=False)
                except KafkaException as error:
                    print(error, flush=True)
        self._consumer.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)


@pytest.mark.parametrize("way", WAYS)
def test_brokers_away_for_longer_than_the_poll_interval(way: str, own: RunningBroker) -> None:
    """Two members with a commit in hand; the outage costs what the way says."""
    settings, static, due = WAYS[way]
    admin = AdminClient({"bootstrap.servers": own.bootstrap_servers})
    admin.create_topics([NewTopic("plain", 4, 1)])["plain"].result(120)
    common = {
        "bootstrap.servers": own.bootstrap_servers,
        "group.id": "plain",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "max.poll.interval.ms": int(POLL_INTERVAL * 1000),
        "log_level": 0,
    }
    if settings.get("group.protocol") != "consumer":
        common["session.timeout.ms"] = 6000
        common["heartbeat.interval.ms"] = 1000
    producing = Producer({"bootstrap.servers": own.bootstrap_servers, "linger.ms": 0})
    members = []
    try:
        for number in range(2):
            instance = {"group.instance.id": f"plain-{number}"} if static else {}
            members.append(Member({**common, **settings, **instance}, "plain"))

        def shared() -> bool:
            parts = [member.owned for member in members]
            return all(parts) and sorted(p for each in parts for p in each) == list(range(4))

        until(shared, "both to have partitions")
        time.sleep(12)
        before = rebalances(own.broker, "plain")
        for partition in range(4):
            producing.produce("plain", b"x", partition=partition)
        producing.flush(60)
        for partition in range(4):  # on their way, or to be committed, when the broker goes
            for _ in range(2000):
                producing.produce("plain", b"x", partition=partition)
        producing.flush(60)
        own.broker.kill()
        time.sleep(POLL_INTERVAL + 5)
        own.broker.start(wait=300)
        time.sleep(5)
        until(shared, "both to have partitions again")
        time.sleep(12)
        assert rebalances(own.broker, "plain") - before in due
    finally:
        for member in members:
            member.end()


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_topic_made_again_after_its_leaders_changed(restarts: int, own: RunningBroker) -> None:
    """Each restart of its broker raises the epoch."""
    bootstrap = {"bootstrap.servers": own.bootstrap_servers}
    options = {
        **bootstrap,
        "group.id": "again",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
        "log_level": 0,
    }

    admin = AdminClient(bootstrap)

    def make() -> None:
        admin.create_topics([NewTopic("again", 1, 1)])["again"].result(120)

    def write() -> None:
        producer = Producer({**bootstrap, "log_level": 0})
        for _ in range(20):
            producer.produce("again", b"x", partition=0)
        assert producer.flush(60) == 0

    make()
    write()
    old = Consumer(options)
    old.subscribe(["again"])
    try:
        assert read(old, 20, 120.0) == 20
        for _ in range(restarts):
            own.broker.kill()
            own.broker.start(wait=300)
            write()
            assert read(old, 20, 120.0) == 20
        admin.delete_topics(["again"])["again"].result(120)
        read(old, 1, 4.0)
        make()
        write()
        read(old, 1, 3.0)
        there = [TopicPartition("again", 0, 0)]
        old.incremental_unassign(there)
        old.incremental_assign(there)
        assert read(old, 20, 20.0) == (0 if restarts else 20)
    finally:
        old.close()
    new = Consumer(options)
    new.subscribe(["again"])
    try:
        assert read(new, 20, 120.0) == 20
    finally:
        new.close()


def read(consumer: Consumer, wanted: int, seconds: float) -> int:
    """So many records, or those that come within so many seconds."""
    since, found = time.monotonic(), 0
    while found < wanted and time.monotonic() - since < seconds:
        message = consumer.poll(0.2)
        found += message is not None and message.error() is None
    return found
