"""A transaction with offsets that does not end holds back its own commits and nothing else.

Faults: a neighbour's commits, members or a new group behind it are not seen; an aborted
transaction's commits count; a committed one's do not, or win over what was written after them.
"""

import contextlib
import random
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.log.readers.log_view import PendingCommits, PendingRecord
from fleet.log.records import partition_for
from tests.observe.test_tail import broker, config, members, tailing, topic
from tests.support import commits
from tests.support.brokers import OFFSETS_PARTITIONS
from tests.support.transactions import Transactions, beside
from tests.support.waiting import until

__all__ = ["broker", "config", "topic"]


@pytest.mark.broker
def test_nothing_else_waits(config, topic, unique):
    """Commits, members and a group that is new, while it is open, and what counts behind it."""
    group = f"exactly-{unique}"
    neighbour = beside(group)
    new = beside(neighbour)
    within = Transactions(config, group)
    within.begin([KafkaPartition(topic, 0, 5), KafkaPartition(topic, 1, 6)])
    with tailing(config) as tail, members(config, topic, neighbour, 1) as (one,):
        commits.commit(one, [KafkaPartition(topic, 0, 7)])
        with members(config, topic, new, 1):
            assert tail.catch_up(10)
            assert [offset for offset, _ in tail.committed(neighbour).values()] == [7]
            assert [tail.summaries()[name].members for name in (neighbour, new)] == [1, 1]
        (held,) = tail.open_transactions()
        assert (held.partition, held.commits) == (partition_for(group, OFFSETS_PARTITIONS), 2)
        assert time.time() - 60 < held.since <= time.time()
        assert tail.committed(group) == {}
        within.end(committed=True)
        until(lambda: tail.catch_up(10) and not tail.open_transactions(), "the marker")
        assert sorted(offset for offset, _ in tail.committed(group).values()) == [5, 6]
        within.begin([KafkaPartition(topic, 0, 99)])
        within.end(committed=False)
        until(lambda: tail.catch_up(10) and not tail.open_transactions(), "the marker")
        assert sorted(offset for offset, _ in tail.committed(group).values()) == [5, 6]


@pytest.mark.broker
@pytest.mark.parametrize("first", [0, 1])
def test_of_two_transactions_the_later_commit_counts(config, topic, unique, first):
    """Whichever ends first: of one position the record counts that was written last."""
    group = f"twice-{unique}"
    producers = [Transactions(config, f"{n}-{group}", group=group) for n in (0, 1)]
    with tailing(config) as tail:
        for producer, offset in zip(producers, (5, 3), strict=True):
            producer.begin([KafkaPartition(topic, 0, offset)])
        for number in (first, 1 - first):
            producers[number].end(committed=True)
        until(lambda: tail.catch_up(10) and not tail.open_transactions(), "the markers")
        assert [offset for offset, _ in tail.committed(group).values()] == [3]
    with contextlib.closing(Consumer({**config, "group.id": group})) as asked:
        (answer,) = asked.committed([KafkaPartition(topic, 0)], timeout=10)
    assert answer.offset == 3


@pytest.mark.broker
def test_interleaved_producers_as_the_coordinator_answers(config, topic, unique):
    """Three of them in random order, two of which commit the same group's partitions."""
    rnd = random.Random(3)
    group = f"woven-{unique}"
    names = [group, beside(group), group]
    producers = [Transactions(config, f"{n}-{name}", group=name) for n, name in enumerate(names)]
    still = [False] * 3
    with tailing(config) as tail:
        for _ in range(60):
            number = rnd.randrange(3)
            if still[number]:
                producers[number].end(committed=rnd.random() < 0.5)
            else:
                offset = KafkaPartition(topic, rnd.randrange(2), rnd.randrange(1000))
                producers[number].begin([offset])
            still[number] = not still[number]
        for number in range(3):
            if still[number]:
                producers[number].end(committed=True)

        def answered(name: str) -> dict[int, int]:
            asked = Consumer({**config, "group.id": name, "isolation.level": "read_committed"})
            found = asked.committed([KafkaPartition(topic, n) for n in range(4)], timeout=10)
            asked.close()
            return {tp.partition: tp.offset for tp in found if tp.offset >= 0}

        def equal() -> bool:
            assert tail.catch_up(10)
            seen = [
                {tp.partition: offset for tp, (offset, _) in tail.committed(name).items()}
                for name in names
            ]
            return seen == [answered(name) for name in names]

        until(equal, "the coordinator's answers")


def record(offset: int, key: bytes, value: bytes | None = b"v") -> PendingRecord:
    return PendingRecord(offset, 1000 * offset, key, value)


def test_what_counts_when_a_transaction_ends():
    """The last of each key, unless it was written otherwise since; nothing of an aborted one."""
    held = PendingCommits()
    for at, key in enumerate((b"a", b"b", b"a", b"c")):
        held.add_record(4, 7, record(at, key))
    held.add_record(4, 8, record(9, b"a"))
    held.drop_overtaken(4, record(5, b"c"))
    held.drop_overtaken(4, record(1, b"a"))
    held.drop_overtaken(5, record(6, b"b"))
    assert [tuple(each) for each in held.open()] == [(4, 7, 0.0, 2), (4, 8, 9.0, 1)]
    assert [(r.offset, r.key) for r in held.end(4, 7, committed=True)] == [(1, b"b"), (2, b"a")]
    assert held.has_open(4)
    assert held.end(4, 8, committed=False) == ()
    assert not held.has_open(4)
    assert held.end(4, 8, committed=True) == ()
