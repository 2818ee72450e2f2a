"""Causes and durations of Java consumers' rebalances, live, against the coordinator's own log.

The short form is three groups of two members with sessions of 6 s; the long one (FLEET_LONG) adds
sessions of 20 and 45 s. No cause that is certain or likely may be wrong; durations must be known
for nine of ten rebalances, and right within a second or a quarter.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.act.kafka import GroupAdmin
from fleet.clock import SystemClock
from fleet.log.readers.tail import Tail
from fleet.model.rebalances import Cause, Confidence, Rebalance
from tests.support.brokers import RunningBroker
from tests.support.coordinator_log import Round, rounds
from tests.support.java_member import JavaGroup
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.slow]
KINDS = ("eager", "cooperative", "consumer")
BOTH = frozenset({"leave", "expiry", "batched leave"})


@dataclass
class Told:
    """What the live view told of a group, beside what the coordinator logged."""

    kind: str
    pairs: list[tuple[Rebalance, Round]]


def _script(group: JavaGroup, tail: Tail, *, whole: bool) -> None:
    """Created, joined, one killed; `whole`: another joins and leaves; the last one leaves."""

    def told(count: int) -> None:
        until(lambda: _members(tail, group.group) == count, f"{count} members of {group.group}")
        time.sleep(3)  # commits find their rhythm

    group.start("a")
    told(1)
    group.start("b")
    told(2)
    group.kill("b")
    told(1)
    if whole:
        group.start("c")
        told(2)
        group.leave("c")
        told(1)
    group.leave("a")


def _members(tail: Tail, group: str) -> int:
    found = tail.summaries().get(group)
    return 0 if found is None else found.members


def _producing(bootstrap: str, topic: str, ending: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    while not ending.wait(0.1):
        for partition in range(6):
            producer.produce(topic, b"x", partition=partition)
        producer.poll(0)


def play(broker: RunningBroker, folder: Path, *sessions: float, whole: bool) -> Iterator[Told]:
    """All kinds with all sessions, side by side."""
    bootstrap, mark = broker.bootstrap_servers, threading.get_native_id()
    topic = f"java-{mark}"
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic(topic, 6, 1)])[topic].result(120)
    ending = threading.Event()
    threads = [threading.Thread(target=_producing, args=(bootstrap, topic, ending))]
    groups = [
        JavaGroup(bootstrap, f"java-{kind}-{session:g}-{mark}", topic, kind, session, folder)
        for kind in KINDS
        for session in sessions
    ]
    with GroupAdmin(bootstrap=bootstrap, kafka_python_config={}) as admin:
        for group in groups:
            if group.kind == "consumer":
                for name, value in (("session.timeout", 1), ("heartbeat.interval", 3)):
                    ms = str(int(group.session_s * 1000 / value))
                    admin.set_group_setting(group.group, f"consumer.{name}.ms", ms)
    config = {"bootstrap.servers": bootstrap}
    with Tail(config, cluster="main", clock=SystemClock()).start() as tail:
        assert tail.catch_up(30)
        try:
            threads += [
                threading.Thread(target=_script, args=(each, tail), kwargs={"whole": whole})
                for each in groups
            ]
            for thread in threads:
                thread.start()
            for thread in threads[1:]:
                thread.join()
        finally:
            ending.set()
            threads[0].join()
            for group in groups:
                group.end()
        time.sleep(1)
        assert tail.catch_up(30)
        logs = [node.data.parent / "coordinator.log" for node in broker.broker.status().nodes]
        for group in groups:
            rows = tail.rebalances(group=group.group)
            judged = {each.number: each for each in rounds(logs, group.group)}
            yield Told(group.kind, [(row, judged[row.number]) for row in rows])


def judge(told: list[Told]) -> None:
    """What the module's head says."""
    causes: set[Cause] = set()
    for group in told:
        for row, said in group.pairs:
            if row.confidence is not Confidence.AMBIGUOUS:
                assert row.cause in said.causes()[0], (row, said)
                causes.add(row.cause)
            elif row.cause is Cause.REMOVAL:
                assert BOTH & frozenset().union(*said.causes()), (row, said)
    assert {Cause.CREATED, Cause.JOIN, Cause.EXPIRY, Cause.LEAVE} <= causes
    every = [(row, said) for group in told for row, said in group.pairs]
    timed = [(row, said) for row, said in every if row.is_timed]
    assert len(timed) >= 0.9 * len(every), [row for row, _ in every if not row.is_timed]
    for row, said in timed:
        if row.protocol == "classic":
            true = said.ended_at - said.started_at
            assert row.seconds is not None
            assert abs(row.seconds - true) <= max(1.0, 0.25 * true) + 0.2, (row, said)


def test_java_consumers_with_short_sessions(broker: RunningBroker, tmp_path: Path) -> None:
    """Eager, cooperative and KIP-848, 6 s."""
    judge(list(play(broker, tmp_path, 6.0, whole=False)))


@pytest.mark.long
def test_java_consumers_with_long_sessions(broker: RunningBroker, tmp_path: Path) -> None:
    """And 20 and 45 s, all side by side."""
    judge(list(play(broker, tmp_path, 6.0, 20.0, 45.0, whole=True)))
