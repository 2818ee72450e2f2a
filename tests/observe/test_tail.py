"""The live view of all groups equals what the coordinator answers, and leaves no trace."""

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import SystemClock
from fleet.log.readers.group_log import GroupLog
from fleet.log.readers.tail import Tail
from fleet.log.records import partition_for
from fleet.log.replay.causes import Replay
from fleet.model import Member
from fleet.model.rebalances import Cause, Rebalance
from fleet.observe.admin import Observer
from tests.support import commits
from tests.support.brokers import OFFSETS_PARTITIONS, running_broker
from tests.support.topics import create_topic
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One of its own: what a client writes to the coordinator's log puts the coordinator out of
    step with it, and other groups' transactions may not end.
    """
    with running_broker(tmp_path_factory.mktemp("tailed")) as made:
        yield made


@pytest.fixture
def config(broker) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture
def topic(config, unique) -> str:
    """Four partitions; the offsets topic is there too, since somebody has committed."""
    name = create_topic(config, f"tailed-{unique}", 4)
    somebody = Consumer({**config, "group.id": f"somebody-{unique}"})
    commits.commit(somebody, [KafkaPartition(name, 0, 0)])
    somebody.close()
    return name


@contextmanager
def tailing(config, **options) -> Iterator[Tail]:
    with Tail(config, cluster="test", clock=SystemClock(), **options).start() as tail:
        assert tail.catch_up(20)
        yield tail


@contextmanager
def members(config, topic, group, count, **extra) -> Iterator[list[Consumer]]:
    """So many polling members that own all four partitions between them."""
    made = [
        Consumer({**config, "group.id": group, "enable.auto.commit": False, **extra})
        for _ in range(count)
    ]
    for each in made:
        each.subscribe([topic])

    def settled() -> bool:
        for each in made:
            each.poll(0.02)
        return all(len(each.assignment()) == 4 // count for each in made)

    until(settled, "all to own their share")
    try:
        yield made
    finally:
        for each in made:
            each.close()


def present(tail: Tail, group: str) -> list[Member]:
    """Who is in the group, by the rows of its membership."""
    found = {row.member: row for row in tail.memberships(group=group)}
    return [
        Member(
            member_id=row.member_id,
            instance_id=row.instance_id,
            client_id=row.client_id,
            host=row.host,
            partitions=frozenset(row.owned),
        )
        for row in found.values()
        if row.event != "left"
    ]


def test_view_equals_the_coordinators_answers(config, topic, unique):
    """Members, assignments and offsets of a classic and a KIP-848 group, and their end."""
    classic, consumer = f"classic-{unique}", f"consumer-{unique}"
    with (
        tailing(config) as tail,
        members(config, topic, classic, 2) as some,
        members(config, topic, consumer, 1, **{"group.protocol": "consumer"}) as others,
    ):
        for number, each in enumerate([*some, *others]):
            asked = [KafkaPartition(topic, tp.partition, 7 + number) for tp in each.assignment()]
            commits.commit(each, asked)
        seen = Observer(cluster="test", config=config, clock=SystemClock()).snapshot(
            [classic, consumer]
        )
        assert tail.catch_up(10)
        for group, kind in ((classic, "classic"), (consumer, "consumer")):
            answer = seen.groups[group]
            assert tail.summaries()[group][::2] == (kind, len(answer.members))
            assert sorted(present(tail, group), key=str) == sorted(answer.members, key=str)
            positions = {tp: offset for tp, (offset, _) in tail.committed(group).items()}
            assert positions == {p.tp: p.committed for p in answer.partitions}
        last = tail.rebalances(group=classic)[-1]
        assert (last.number, last.assignor) == (tail.summaries()[classic].generation, "range")
        assert tail.age() < 10
        assert tail.problem is None
    with tailing(config) as again:
        assert [again.summaries()[group].members for group in (classic, consumer)] == [0, 0]
        assert present(again, classic) == present(again, consumer) == []


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def write(config, group: str, *records: tuple[bytes, bytes | None]) -> None:
    """What only the coordinator may write, on a broker that is ours.

    Only what it could have written itself: a record that it cannot read would keep it from
    loading the partition for ever (test_log_view.py has those).
    """
    producer = Producer({**config, "client.id": "__admin_client"})
    for key, value in records:
        producer.produce(
            "__consumer_offsets", value, key, partition=partition_for(group, OFFSETS_PARTITIONS)
        )
    assert producer.flush(120) == 0


def commit_of(group: str, partition: int, offset: int) -> tuple[bytes, bytes]:
    key = b"\x00\x01" + text(group) + text("made-up") + struct.pack(">i", partition)
    return key, struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", 0)


def test_groups_are_chosen_and_reading_may_begin_late(config, topic, unique):
    """A selection by group id; `since` leaves out what was written before."""
    early, late, denied = (f"{name}-{unique}" for name in ("early", "late", "denied"))
    for group in (early, denied):
        write(config, group, commit_of(group, 0, 1))
    time.sleep(0.2)
    between = time.time()
    time.sleep(0.2)
    write(config, late, commit_of(late, 0, 1))
    with tailing(config, groups=lambda group: group.endswith(unique) and group != denied) as tail:
        assert tail.groups() == {early, late, f"somebody-{unique}"}
    with tailing(config, since=between) as tail:
        assert late in tail.groups()
        assert early not in tail.groups()


def test_no_broker_is_a_sentence_and_an_age(config):
    """Nothing is raised by reading itself; nobody who waits waits longer than asked."""
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    with Tail(nowhere, cluster="test", clock=SystemClock()).start() as tail:
        assert not tail.catch_up(0.3)
        assert tail.age() is None
        assert tail.groups() == frozenset()


def test_rebalances_have_causes_and_are_counted(config, topic, unique):
    """As the replay tells them, with what the columns hold; counters begin with the reader."""
    group = f"turns-{unique}"
    with tailing(config) as tail:
        with members(config, topic, group, 1) as (one,):
            commits.commit(one, [KafkaPartition(topic, number, 1) for number in range(4)])
        assert tail.catch_up(10)
        (first, *_) = tail.rebalances(group=group)
        assert (first.cause, first.number, first.members) == (Cause.CREATED, 1, 1)
        assert tail.rebalances(group=group, cause=Cause.CREATED) == [first]
        assert tail.rebalances(group=group, since=first.ended_at + 0.001, cause=first.cause) == []
        assert tail.rebalances(until=first.ended_at, group=group) == []
        assert [m.event for m in tail.memberships(group=group)][:1] == ["joined"]
        assert tail.totals()[group].by_cause[Cause.CREATED] == 1
        rows = tail.rebalances(group=group)
        with GroupLog(config, clock=SystemClock()) as log:
            replay, number = Replay("test", group), log.partition_of(group)
            made = [each for record in log.read(group, 0) for each in replay.feed(number, record)]
        assert rows == [each for each in made if isinstance(each, Rebalance)], "commits were fed"
    with tailing(config) as again:
        assert again.rebalances(group=group) == rows, "for every reader, at any time"
        assert group not in again.totals(), "counters begin with the reader"
