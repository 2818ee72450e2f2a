"""What the coordinator says of a group, asked by a process that may die of it, and what for."""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.clock import ManualClock
from fleet.config.spec import ClusterSpec
from fleet.errors import FleetError
from fleet.kafka_source.login import references
from fleet.model import Member, TopicPartition
from fleet.slots import Handover, Phase, Slot, SlotTargets
from fleet.worker.group_query import (
    CHECK_EVERY,
    GRACE,
    GroupQuery,
    GroupQueryAnswer,
    OrphanWatch,
    _asked,
)
from tests.conftest import RunningBroker
from tests.support.batch_parts import worker_context
from tests.support.declared import group_spec, settings_of
from tests.support.waiting import until


def at(bootstrap: str) -> dict[str, dict[str, str]]:
    """A login as a worker has it."""
    return references(ClusterSpec(), bootstrap)


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_what_they_own(broker: RunningBroker, unique: str, protocol: str):
    """Of both protocols, with the topic's partitions."""
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(unique, 3)])[unique].result(120)
    until(
        lambda: len(admin.list_topics(unique, timeout=5).topics[unique].partitions) == 3,
        "the topic",
    )
    session = {"session.timeout.ms": 6000} if protocol == "classic" else {}
    member = Consumer(
        {
            **config,
            **session,
            "group.id": unique,
            "group.instance.id": "fixed",
            "group.protocol": protocol,
            "client.id": "mine",
        }
    )
    try:
        member.subscribe([unique])

        def owning() -> bool:
            member.poll(0.2)
            return len(member.assignment()) == 3

        until(owning, "all partitions", every=0)
        question = GroupQuery(at(broker.bootstrap_servers), group=unique, topics=[unique])
        while not question.done():
            member.poll(0.1)
        answer = question.answer()
    finally:
        member.close()
    assert answer.state == "STABLE"
    (seen,) = answer.members
    assert (seen.instance_id, seen.client_id) == ("fixed", "mine")
    assert seen.partitions == answer.partitions == {TopicPartition(unique, p) for p in range(3)}


@pytest.mark.broker
def test_no_broker_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    """And not by a traceback. On a busy core the asker may take as long to begin as it may ask."""
    monkeypatch.setattr("fleet.worker.group_query.ANSWER_TIMEOUT", 120.0)
    with pytest.raises(FleetError, match="cannot read who is a member of g: "):
        GroupQuery(at("127.0.0.1:1"), group="g").answer()


@pytest.mark.broker
def test_an_asker_that_is_killed_ends_only_itself():
    """As librdkafka ends it (#4605)."""
    question = GroupQuery(at("127.0.0.1:1"), group="g")
    os.kill(question._asker.pid, signal.SIGABRT)
    with pytest.raises(FleetError, match="asking the coordinator of g ended with -6"):
        question.answer()


def test_an_answer_of_any_size_is_heard_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Fault: whoever asks reads at the end, for which the asker waits: a pipe holds 64 KiB."""
    partitions = [("orders", number) for number in range(20_000)]
    answer = {"state": "STABLE", "members": [], "partitions": partitions}
    (tmp_path / "answer").write_text(json.dumps(answer))
    asker = tmp_path / "asker"
    asker.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {tmp_path}/answer\n")
    asker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(asker))
    question = GroupQuery({}, group="g", topics=["orders"])
    until(question.done, "the asker's end", every=0.01, still=10.0)
    assert len(question.answer().partitions) == 20_000


def test_no_process_to_ask_by_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    """Fault: whoever asks ends by an OSError: too many processes, no memory."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FleetError, match=r"^cannot ask the coordinator of g: .*No such file"):
        GroupQuery({}, group="g")


class Admin:
    """A cluster with an empty group and one topic of two partitions."""

    def describe_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, "Future[Any]"]:
        return {groups[0]: told(SimpleNamespace(state=SimpleNamespace(name="STABLE"), members=[]))}

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, "Future[Any]"]:
        there = SimpleNamespace(name="t", partitions=[SimpleNamespace(id=n) for n in range(2)])
        gone = KafkaException(KafkaError(3))
        return {name: told(there if name == "t" else gone) for name in topics.topic_names}


def told(what: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(what, Exception):
        future.set_exception(what)
    else:
        future.set_result(what)
    return future


def test_a_topic_that_is_not_there_hides_no_other():
    """Fault: the whole answer is an error, and the other topics are watched by nobody."""
    assert _asked(Admin(), "g", ["gone", "t"])["partitions"] == [("t", 0), ("t", 1)]


# --- a rebalance is asked for where nobody owns a partition -----------------------------------


class Kafka:
    """Answers at once about a group that owns these partitions of four."""

    def __init__(self, *owned: int, state: str = "STABLE", why: str = "") -> None:
        self.owned, self.state, self.why, self.asked = owned, state, why, 0

    def ask(self, topics: Sequence[str]) -> "Kafka":
        """A question; one member has all that is owned."""
        assert topics == ["t"]
        self.asked += 1
        return self

    def done(self) -> bool:
        return True

    def answer(self) -> GroupQueryAnswer:
        """As it was made."""
        if self.why:
            raise FleetError(self.why)
        owned = frozenset(TopicPartition("t", p) for p in self.owned)
        member = Member(member_id="m", instance_id=None, client_id="c", host="/h", partitions=owned)
        due = frozenset(TopicPartition("t", p) for p in range(4))
        return GroupQueryAnswer(state=self.state, members=(member,), partitions=due)


Ask = Callable[[Sequence[str]], Kafka]


def asks(
    kafka: Kafka,
    targets: SlotTargets,
    *,
    number: int = 0,
    seconds: float = 2 * GRACE,
    ask: Ask | None = None,
) -> int:
    """How often a rebalance is asked for in so many seconds; every slot has token 1."""
    return len(asked_at(kafka, targets, number=number, seconds=seconds, ask=ask))


def asked_at(
    kafka: Kafka,
    targets: SlotTargets,
    *,
    number: int = 0,
    seconds: float,
    frozen: float = 0.0,
    ask: Ask | None = None,
) -> list[float]:
    """When; the machine is frozen for so long after half a minute."""
    clock, asked = ManualClock(at=0.0), []
    context = worker_context(settings_of(group_spec("g", topics=["t"])), clock=clock)
    watch = OrphanWatch(context, rejoin=lambda: asked.append(clock.at), ask=ask or kafka.ask)
    slots = [Slot(group="g", number=n, owner=f"w{n}", token=1, phase=Phase.ACTIVE) for n in (0, 1)]
    while clock.at < seconds:
        watch.step(number, targets, slots)
        clock.at += 0.5
        if clock.at == 30.0:
            clock.at += frozen
    return asked


TARGETS = SlotTargets(group="g", open=frozenset({0, 1}))


def pinned(token: int) -> SlotTargets:
    """With a pin of slot 1."""
    return SlotTargets(group="g", handover={1: Handover(token=token, revision="r2")})


def rejoining(token: int) -> SlotTargets:
    """With slot 1 asked for a forced rebalance."""
    return SlotTargets(group="g", rejoin={1: token})


def test_an_orphan_is_given_an_owner_once_grace_ends():
    """Once, and not before: members find an added partition themselves."""
    assert asks(Kafka(0, 1, 2), TARGETS, seconds=GRACE) == 0
    assert asks(Kafka(0, 1, 2), TARGETS, seconds=GRACE + 3 * CHECK_EVERY) == 1


@pytest.mark.parametrize(
    ("kafka", "targets", "number"),
    [
        pytest.param(Kafka(0, 1, 2, 3), TARGETS, 0, id="all owned"),
        pytest.param(Kafka(0, state="PREPARING_REBALANCING"), TARGETS, 0, id="rebalancing"),
        pytest.param(Kafka(0, why="no answer"), TARGETS, 0, id="no answer"),
        pytest.param(Kafka(0), TARGETS, 1, id="another owner looks"),
        pytest.param(
            Kafka(0), SlotTargets(group="g", leaving=frozenset({1})), 0, id="a change runs"
        ),
        pytest.param(Kafka(0), pinned(token=1), 0, id="an owner is asked to hand over"),
        pytest.param(Kafka(0), rejoining(token=1), 0, id="an owner is asked to join again"),
    ],
)
def test_otherwise_nothing_is_asked(kafka: Kafka, targets: SlotTargets, number: int):
    """Nor is Kafka asked for nothing."""
    assert asks(kafka, targets, number=number) == 0
    assert kafka.asked <= 2 * GRACE / CHECK_EVERY


@pytest.mark.parametrize("targets", [pinned(token=0), rejoining(token=0)], ids=["pin", "rejoin"])
def test_what_is_asked_of_a_former_owner_blinds_nobody(targets: SlotTargets):
    """Its plan has ended, its manager or that owner died: it asks nobody for anything any more."""
    assert asks(Kafka(0, 1, 2), targets, seconds=GRACE + 3 * CHECK_EVERY) == 1


def test_a_question_that_cannot_be_put_is_put_again():
    """No process is to be had for the moment: Kafka has its owner as a member all the same."""
    kafka, refused = Kafka(0, 1, 2), [FleetError("no room for a process")] * 3

    def ask(topics: Sequence[str]) -> Kafka:
        if refused:
            raise refused.pop()
        return kafka.ask(topics)

    assert asks(kafka, TARGETS, seconds=GRACE + 6 * CHECK_EVERY, ask=ask) == 1


def test_a_frozen_machine_asks_for_nothing_at_once():
    """Between two looks it saw nothing, so that grace period begins anew [39]."""
    asked = asked_at(Kafka(0, 1, 2), TARGETS, seconds=400.0, frozen=100.0)
    assert asked
    assert asked[0] >= 130.0 + GRACE
