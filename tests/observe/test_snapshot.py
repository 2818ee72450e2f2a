"""A snapshot says what Kafka's own ConsumerGroupCommand says, in a handful of requests."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.kafka_source.connections import Connections
from fleet.lag.end_history import EndHistory
from fleet.lag.snapshot import rates
from fleet.model import GroupState, LagCase, TopicPartition
from fleet.observe.admin import Observer
from tests.support import commits, kafka_tools
from tests.support.needs import repository
from tests.support.topics import create_topic


@pytest.fixture
def config(broker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture
def topic_of(config, unique) -> Callable[[str, int, int], str]:
    """Create a topic with a number of records in each partition."""

    def make(name: str, partitions: int, records: int) -> str:
        return create_topic(config, f"{name}-{unique}", partitions, records=records)

    return make


def observer(config: dict[str, str], ends: EndHistory | None = None) -> Observer:
    return Observer(cluster="test", config=config, clock=SystemClock(), ends=ends)


def consumer(config: dict[str, str], group: str, **extra: object) -> Consumer:
    return Consumer(
        {
            **config,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            **extra,
        }
    )


def commit(config: dict[str, str], group: str, topic: str, *offsets: int) -> None:
    client = consumer(config, group)
    asked = [KafkaPartition(topic, number, offset) for number, offset in enumerate(offsets)]
    commits.commit(client, asked)
    client.close()


def assigned(client: Consumer, partitions: int) -> None:
    end = time.monotonic() + 120
    while len(client.assignment()) < partitions and time.monotonic() < end:
        client.poll(0.1)
    assert len(client.assignment()) == partitions


def as_kafka_prints(rows: list[dict[str, str]]) -> dict[tuple[str, int], tuple[str, ...]]:
    return {
        (row["TOPIC"], int(row["PARTITION"])): (
            row["CURRENT-OFFSET"],
            row["LOG-END-OFFSET"],
            row["LAG"],
            row["CONSUMER-ID"],
        )
        for row in rows
    }


def as_we_say(snapshot, group: str) -> dict[tuple[str, int], tuple[str, ...]]:
    return {
        (state.tp.topic, state.tp.partition): tuple(
            "-" if value is None else str(value)
            for value in (state.committed, state.log_end, state.lag, state.owner)
        )
        for state in snapshot.groups[group].partitions
    }


def test_partitions_equal_kafkas_own_tool(broker, config, topic_of, unique):
    """Committed, log end, lag and owner of a running, an Empty and a half-committed group."""
    topic, doomed = topic_of("t", 3, 10), topic_of("doomed", 1, 5)
    running, empty, gone = f"running-{unique}", f"empty-{unique}", f"gone-{unique}"
    commit(config, empty, topic, 4, 10, 0)
    commit(config, gone, doomed, 2)
    client = consumer(config, running)
    client.subscribe([topic])
    assigned(client, 3)
    # Two of three partitions are committed: the third was never.
    client.commit(
        offsets=[KafkaPartition(topic, 0, 6), KafkaPartition(topic, 1, 10)], asynchronous=False
    )
    admin = AdminClient(config)
    admin.delete_topics([doomed])[doomed].result(120)
    time.sleep(1.0)  # the coordinator drops the deleted topic's offsets
    snapshot = observer(config).snapshot()
    # Without offsets and members it is no group once the coordinator cleans up, each ten minutes.
    there = (running, empty, *({gone} & snapshot.groups.keys()))
    for group in there:
        rows = kafka_tools.consumer_group_command(
            broker.broker, "--describe", "--group", group, "--offsets"
        )
        assert as_we_say(snapshot, group) == as_kafka_prints(rows), group
    found = snapshot.groups[running]
    assert (found.state, found.type, found.assignor) == (GroupState.STABLE, "classic", "range")
    assert [state.case for state in found.partitions] == [
        LagCase.OK,
        LagCase.OK,
        LagCase.NEVER_COMMITTED,
    ]
    assert found.lag == 4
    assert snapshot.groups[empty].lag == 16
    assert snapshot.topics[topic] == 3
    assert doomed not in snapshot.topics
    assert snapshot.problems == ()
    client.close()


def test_unknown_without_offsets_and_empty_are_three_answers(config, topic_of, unique):
    """KIP-88 alone cannot tell them apart; a person must."""
    topic = topic_of("t", 1, 3)
    commit(config, f"empty-{unique}", topic, 1)
    client = consumer(config, f"fresh-{unique}")
    client.subscribe([topic])
    assigned(client, 1)
    names = [f"unknown-{unique}", f"fresh-{unique}", f"empty-{unique}"]
    look = observer(config)
    unknown, fresh, empty = (look.snapshot(names).groups[name] for name in names)
    assert (unknown.exists, unknown.state, unknown.partitions) == (False, GroupState.DEAD, ())
    assert (fresh.exists, fresh.state, fresh.lag) == (True, GroupState.STABLE, None)
    assert [state.committed for state in fresh.partitions] == [None]
    assert (empty.exists, empty.state, empty.lag) == (True, GroupState.EMPTY, 2)
    # What a login may do is told of a group that does not exist, too.
    assert all("Read" in held for held in look.allowed_operations(names, []).values())
    assert len(look.allowed_operations(names, [])) == 3
    client.close()


def test_a_member_of_a_deleted_topic_is_named_so(config, topic_of, unique):
    """An assignment outlives its topic until the members notice."""
    topic = topic_of("doomed", 2, 3)
    client = consumer(config, f"g-{unique}", **{"topic.metadata.refresh.interval.ms": 600_000})
    client.subscribe([topic])
    assigned(client, 2)
    admin = AdminClient(config)
    admin.delete_topics([topic])[topic].result(120)
    time.sleep(0.5)
    found = observer(config).snapshot([f"g-{unique}"]).groups[f"g-{unique}"]
    assert {state.case for state in found.partitions} <= {LagCase.TOPIC_DELETED}
    assert found.lag is None
    assert topic not in admin.list_topics(timeout=10).topics  # looking did not create it again
    client.close()


def test_age_and_rates_come_from_looks_before(config, topic_of, unique):
    """Lag in seconds is unknown at first, then told by samples; rates need the last look."""
    topic = topic_of("t", 1, 10)
    group = f"g-{unique}"
    commit(config, group, topic, 10)
    watch = observer(config, EndHistory())
    first = watch.snapshot([group])
    assert first.groups[group].lag_seconds == 0.0
    producer = Producer(config)
    for _ in range(20):
        producer.produce(topic, b"x", partition=0)
    producer.flush(120)
    time.sleep(1.1)
    second = watch.snapshot([group])
    (state,) = second.groups[group].partitions
    assert state.lag == 20
    assert 0.5 < state.lag_seconds < 30.0
    produced, consumed = rates(first, second)[group]
    assert 0 < produced < 20
    assert consumed == 0.0


def sent_by(monkeypatch) -> list[Any]:
    """The requests that go out from now on."""
    sent: list[Any] = []
    original = Connections.send

    def spy(self, broker, request, **more):
        sent.append(request)
        return original(self, broker, request, **more)

    monkeypatch.setattr(Connections, "send", spy)
    return sent


def test_two_hundred_groups_take_a_handful_of_requests(config, topic_of, unique, monkeypatch):
    """One of each kind to the one broker there is, whatever the number of groups.

    And two in the first look, which ask for the times of records that were there before it.
    """
    topic = topic_of("t", 4, 5)
    groups = [f"many-{unique}-{number}" for number in range(200)]
    offsets = [KafkaPartition(topic, number, number + 1) for number in range(4)]
    commits.commit_groups(AdminClient(config), groups, offsets)
    look = observer(config)
    for asked in (4, 2, 2):
        with monkeypatch.context() as patched:
            sent = sent_by(patched)
            snapshot = look.snapshot(groups)
        lags = Counter(snapshot.groups[group].lag for group in groups)
        assert lags == {10: 200}, (lags, snapshot.problems)
        assert Counter(type(each).__name__ for each in sent) == {
            "MetadataRequest": 1,
            "ListGroupsRequest": 1,
            "DescribeGroupsRequest": 1,
            "OffsetFetchRequest": 1,
            "ListOffsetsRequest": asked,
        }


def test_one_groups_look_asks_for_no_other(config, topic_of, unique, monkeypatch):
    """However many there are: neither of one that is there, nor of one that is not."""
    topic = topic_of("t", 1, 5)
    for number in range(3):
        commit(config, f"one-{unique}-{number}", topic, 1)
    sent = sent_by(monkeypatch)
    mine, none = f"one-{unique}-1", f"none-{unique}"
    look = observer(config)
    assert look.snapshot([mine]).groups[mine].lag == 4
    described, offsets = (
        [each for each in sent if type(each).__name__ == name]
        for name in ("DescribeGroupsRequest", "OffsetFetchRequest")
    )
    assert [each.groups for each in described] == [[mine]]
    assert [[group.group_id for group in each.groups] for each in offsets] == [[mine]]
    sent.clear()
    assert not look.snapshot([none]).groups[none].exists
    assert {type(each).__name__ for each in sent} == {"MetadataRequest", "ListGroupsRequest"}


def test_no_groups_asked_for_gives_topics_only(config, topic_of):
    """An empty collection is not "all"."""
    topic = topic_of("t", 2, 1)
    snapshot = observer(config).snapshot([])
    assert (snapshot.groups, snapshot.topics[topic]) == ({}, 2)


def test_logs_of_single_partitions(config, topic_of):
    """What cannot be read is left out, the rest is there."""
    topic = topic_of("t", 2, 6)
    there, missing = TopicPartition(topic, 1), TopicPartition(topic, 9)
    look = observer(config)
    logs = look.logs([there, missing])
    assert (logs.starts, logs.ends) == ({there: 0}, {there: 6})
    assert [logs.is_deleted(tp) for tp in (there, missing)] == [False, True]
    assert look.logs([]).ends == {}
    assert look.partitions()[topic] == 2


def test_a_cluster_that_does_not_answer_is_said_in_time():
    """The sentence names the address; the wait is bounded."""
    config = {"bootstrap.servers": "127.0.0.1:1"}
    look = Observer(cluster="test", config=config, clock=SystemClock(), timeout=1.0)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached: nothing listens"):
        look.snapshot()
    assert time.monotonic() - began < 30.0


def test_several_threads_share_an_observer(config, topic_of, unique):
    """They take turns: kafka-python takes one thread at a time."""
    topic, group = topic_of("t", 2, 5), f"g-{unique}"
    commit(config, group, topic, 1, 1)
    look = observer(config)
    found: list[object] = []

    def ask() -> None:
        found.extend(
            (look.snapshot([group]).groups[group].lag, look.state(group)) for _ in range(5)
        )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(8, GroupState.EMPTY)] * 20


BEGINNING = """
import threading
from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.observe.admin import Observer

def ask(question):
    look = Observer(
        cluster="t", config={"bootstrap.servers": "127.0.0.1:1"}, clock=SystemClock(), timeout=0.2
    )
    try:
        question(look)
    except Unreachable:
        pass

questions = [lambda look: look.snapshot(), lambda look: look.allowed_operations(["g"], []),
             lambda look: look.state("g"), lambda look: look.partitions()]
threads = [threading.Thread(target=ask, args=(each,)) for each in questions]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_begin_at_once():
    """kafka-python's parts import each other in circles; in a new process it is not loaded yet."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING],
        env={**os.environ, "PYTHONPATH": str(repository())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_observer_that_is_dropped_closes_its_connections(config):
    """Without a word and without waiting for the garbage collector."""
    look = observer(config)
    look.snapshot([])
    net = look._net._net
    gc.disable()
    try:
        del look
        assert net._closed
    finally:
        gc.enable()
