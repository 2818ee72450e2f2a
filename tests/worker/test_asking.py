"""What the coordinator says of a group, asked by a process that may die of it."""

import os
import signal

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.config.spec import ClusterSpec
from fleet.errors import FleetError
from fleet.kafka_source.login import references
from fleet.model import TopicPartition
from fleet.worker.asking import Question
from tests.conftest import RunningBroker
from tests.support.waiting import until

pytestmark = pytest.mark.broker


def at(bootstrap: str) -> dict[str, dict[str, str]]:
    """A login as a worker has it."""
    return references(ClusterSpec(), bootstrap)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_and_what_they_own(broker: RunningBroker, unique: str, protocol: str):
    """Of both protocols, with the topic's partitions."""
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(unique, 3)])[unique].result(20)
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


def test_no_broker_is_said_in_a_sentence():
    """And not by a traceback."""
    with pytest.raises(FleetError, match="who is a member of g cannot be read: "):
        Question(at("127.0.0.1:1"), group="g").answer()


def test_an_asker_that_is_killed_ends_only_itself():
    """As librdkafka ends it (#4605)."""
    question = Question(at("127.0.0.1:1"), group="g")
    os.kill(question._asker.pid, signal.SIGABRT)
    with pytest.raises(FleetError, match="asking the coordinator of g ended with -6"):
        question.answer()
