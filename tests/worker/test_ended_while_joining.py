"""A member that is to end while its join is under way ends, whatever it is given yet [51]."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.model import TopicPartition
from fleet.worker.member.member_state import End
from fleet.worker.slot.slot_life import Life
from tests.support.memory_kafka import MemoryKafka
from tests.support.waiting import until
from tests.worker.driving import Drive, Driven

PARTS = (TopicPartition("t", 0), TopicPartition("t", 1))
ANSWERED = 5.0
"""Seconds that a question of this test may take."""


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_what_it_is_given_while_it_closes_is_given_back(
    kafka: MemoryKafka, drive: Drive, assignor: str
) -> None:
    """It asks for no offsets, reads nothing, commits nothing, and its end is a clean one."""
    kafka.at_close = PARTS
    joining = drive(assignor=assignor)
    joining.until(lambda: bool(kafka.done), "the join, with nothing yet")
    asked = kafka.asked
    joining.member.become(Life.CLOSING)
    assert joining.member.join(20), "it asks until its patience is over"
    ended = joining.member.ended
    assert ended is not None
    assert (ended.how, ended.clean) == (End.CLOSED, True)
    assert [what for what, _ in kafka.done[-3:]] == ["assign", "unassign", "close"]
    assert set(kafka.done[-3][1]) == set(PARTS)
    assert kafka.asked == asked
    assert not kafka.commits


def test_who_is_to_end_before_it_subscribed_does_not_join(
    kafka: MemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dynamic member would cost two rebalances, the gate being open or not."""
    asked = Driven(kafka, tmp_path, monkeypatch)
    asked.member.become(Life.CLOSING)
    asked.member.start()
    assert asked.member.join(20)
    ended = asked.member.ended
    asked.end()
    assert ended is not None
    assert (ended.how, ended.clean) == (End.CLOSED, True)
    assert kafka.subscribed == []


@pytest.mark.parametrize("answer", [False, None])
def test_a_slot_of_another_worker_is_not_joined(
    kafka: MemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | None
) -> None:
    """Its join would fence the new owner; a silent store is waited for, until it is to end [54]."""
    joining = Driven(kafka, tmp_path, monkeypatch)
    joining.confirmed = answer
    joining.member.start()
    if answer is None:
        assert not joining.member.join(1.5), "it waits"
        joining.member.become(Life.CLOSING)
    assert joining.member.join(20)
    joining.end()
    assert joining.member.ended is not None
    assert (joining.member.ended.how, joining.member.ended.clean) == (End.CLOSED, True)
    assert kafka.subscribed == []


@pytest.mark.parametrize("confirmed", [True, None])
def test_who_is_to_end_while_it_leaves_to_join_again_ends(
    kafka: MemoryKafka, drive: Drive, confirmed: bool | None
) -> None:
    """It is no member by then: where the store is silent it does not join at all [54]."""
    joined = drive(*PARTS)
    joined.until(lambda: bool(joined.member.state.partitions), "its partitions")
    joined.confirmed = confirmed
    joined.member.become(Life.REJOINING)
    joined.until(lambda: not joined.member.state.partitions, "its leave")
    joined.member.become(Life.CLOSING)
    assert joined.member.join(20)
    assert joined.member.ended is not None
    assert joined.member.ended.how is End.CLOSED
    assert len(kafka.subscribed) == (2 if confirmed else 1)


def test_a_member_joins_once_the_store_answers(
    kafka: MemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its probe sees it move meanwhile."""
    joining = Driven(kafka, tmp_path, monkeypatch)
    joining.confirmed = None
    joining.member.start()
    assert not joining.member.join(1.5), "it waits"
    assert joining.member.state.moves(time.monotonic(), stalled=5.0, patience=5.0)
    assert kafka.subscribed == []
    joining.confirmed = True
    joining.until(lambda: bool(kafka.subscribed), "its join")
    joining.end()


@pytest.mark.broker
def test_librdkafka_answers_nothing_about_offsets_while_it_closes(broker, unique) -> None:
    """Why: the assignment of a join that was answered comes inside close()."""
    topic = f"t-{unique}"
    told = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(told)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(120)
    named = {**told, "group.id": f"g-{unique}", "group.instance.id": "i", "log_level": 0}

    def joined(consumer: Consumer) -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    first = Consumer(named)
    first.subscribe([topic])
    until(lambda: joined(first), "the first member")
    first.close()  # a static one: its successor's join is answered at once

    found: list[object] = []

    def assigned(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        try:
            found.append(consumer.committed(partitions, ANSWERED))
        except KafkaException as error:
            found.append(error)
        consumer.assign(partitions)

    again = Consumer(named)
    again.committed([KafkaPartition(topic, 0)], 60)  # the coordinator is known
    again.subscribe([topic], on_assign=assigned)
    again.poll(0)
    time.sleep(1.0)  # the answer has come, and nobody has polled
    again.close()
    assert found, "no assignment came inside close(): the join was not answered yet"
    assert isinstance(found[0], KafkaException), found
