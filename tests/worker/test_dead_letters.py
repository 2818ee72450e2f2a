"""Records that cannot be processed: put aside with their story, never lost [9]."""

import time
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import NewTopic

from fleet.slots import Phase
from tests.conftest import RunningBroker
from tests.worker.conftest import Group

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def dead(group: Group) -> str:
    """The dead-letter topic."""
    name = f"{group.name}-dead"
    group.admin.create_topics([NewTopic(name, 1, 1)])[name].result(120)
    return name


def letters(broker: RunningBroker, topic: str) -> list[Any]:
    """Everything in the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                if message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                continue
            found.append(message)
    finally:
        consumer.close()
    return found


def offset_of(message: Any) -> int:
    return int(dict(message.headers())["fleet.offset"])


def test_the_partition_goes_on(group: Group, broker: RunningBroker, dead: str):
    """Only the bad records are put aside, with where they come from and why; all is committed."""
    group.standbys("w1", dead_letter_topic=dead)
    group.produce(40)
    group.produce(1, b"poison", partition=2)
    group.produce(40)
    group.produce(1, b"poison", partition=2)
    group.produce(20)
    group.open(0)
    group.drained()
    found = letters(broker, dead)
    assert [offset_of(m) for m in found] == [10, 21]
    headers = dict(found[0].headers())
    assert found[0].value() == b"poison"
    assert headers["fleet.topic"].decode() == group.topic
    assert headers["fleet.partition"] == b"2"
    assert headers["fleet.group"].decode() == group.name
    assert headers["fleet.revision"] == b"r1"
    assert int(headers["fleet.attempts"]) > 3
    assert headers["fleet.error"].startswith(b"ValueError: poison (worker_job.py:")
    assert group.store.quarantines(group.name) == ()
    assert len(group.events("dead_letter")) == 2
    assert min(group.times_called()[2, at] for at in range(group.produced[2])) > 0
    # A flood: more than a bounded share of the partition is not poison any more.
    for _ in range(12):
        group.produce(1, b"poison", partition=3)
        group.produce(1, partition=3)
    group.until(lambda: bool(group.store.quarantines(group.name)), "the flood's mark")
    (mark,) = group.store.quarantines(group.name)
    assert mark.tp.partition == 3
    assert "more than 10 of the latest 1000 records" in mark.error
    assert len(letters(broker, dead)) <= 2 + 10


@pytest.mark.long
def test_kill_between_letter_and_commit_repeats_it(group: Group, broker: RunningBroker, dead: str):
    """The letter is acknowledged before the commit: a kill between the two sends it again."""
    env = {"FLEET_COMMIT_DELAY": "20"}
    group.standbys("w1", env=env, dead_letter_topic=dead)
    group.produce(20)
    group.produce(1, b"poison", partition=1)
    # Not waiting until it is active, which is after the commit.
    group.change_gate(lambda gate: replace(gate, open=frozenset({0}), open_at=time.time() + 1))
    group.until(lambda: bool(group.events("dead_letter")), "the letter")
    assert group.slot(0).holder == "w1"
    assert not group.events("committed")
    group.processes["w1"].kill()
    group.start("w2", dead_letter_topic=dead)
    group.until(lambda: group.slot(0).phase is Phase.ACTIVE, "the taker")
    group.drained()
    assert [offset_of(m) for m in letters(broker, dead)] == [5, 5]
    assert {worker["worker"] for worker in group.events("committed")} == {"w2"}
