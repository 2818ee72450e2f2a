"""What the coordinator says of a group, asked by a process that may die of it."""

import json
import os
import signal
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.config.spec import ClusterSpec
from fleet.errors import FleetError
from fleet.kafka_source.login import references
from fleet.model import TopicPartition
from fleet.worker.asking import Question, _asked
from tests.conftest import RunningBroker
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
        question = Question(at(broker.bootstrap_servers), group=unique, topics=[unique])
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
    monkeypatch.setattr("fleet.worker.asking.LONGEST", 120.0)
    with pytest.raises(FleetError, match="who is a member of g cannot be read: "):
        Question(at("127.0.0.1:1"), group="g").answer()


@pytest.mark.broker
def test_an_asker_that_is_killed_ends_only_itself():
    """As librdkafka ends it (#4605)."""
    question = Question(at("127.0.0.1:1"), group="g")
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
    question = Question({}, group="g", topics=["orders"])
    until(question.done, "the asker's end", every=0.01, still=10.0)
    assert len(question.answer().partitions) == 20_000


def test_no_process_to_ask_by_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    """Fault: whoever asks ends by an OSError: too many processes, no memory."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FleetError, match=r"^the coordinator of g cannot be asked: .*No such file"):
        Question({}, group="g")


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
