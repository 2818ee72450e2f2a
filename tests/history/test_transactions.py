"""The history behind an open transaction: its commits wait for its end, and nothing else waits.

Faults: a neighbour's commits or a rebalance behind it are missing until it ends; an aborted
transaction's commits are rows; a committed one's are missing or there twice, or win over what was
written after them; a writer that dies in between loses or doubles them.
"""

import json
import random
from collections import Counter
from contextlib import nullcontext

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import SystemClock
from fleet.history.digest import RETURNED, Task
from fleet.history.pipeline import Recorder
from fleet.history.tables import Tables
from fleet.kafka_source.bounds import log_bounds
from fleet.kafka_source.pieces import shares
from fleet.lag.snapshot import Logs
from fleet.log.readers.positions import key_to
from fleet.model import TopicPartition
from tests.history.test_exactly_once import TOPIC, held, scan
from tests.history.test_tables import opened
from tests.observe.test_tail import broker, config, topic
from tests.support import commits
from tests.support.transactions import Transactions, beside
from tests.support.waiting import until

__all__ = ["broker", "config", "topic"]
pytestmark = pytest.mark.broker


class Here:
    """The offsets topic of a real broker, its tasks run one after the other in this process."""

    def __init__(self, config, allow):
        self.config, self.allow = config, allow

    def bounds(self):
        """All partitions."""
        return log_bounds(self.config, TOPIC)

    def digest(self, ranges, *, led, since, **where):
        """In three tasks, so that stretches of one partition are dealt to different ones."""
        dealt = shares(ranges, 3, least=1)
        task = Task(
            dealt,
            options={
                **self.config,
                "leaderEpochs": json.dumps({str(p): epoch for p, epoch in led.items()}),
                "gapsFrom": json.dumps({str(p): offset for p, offset in since.items()}),
            },
            digest={"interval": 0, "allow": [self.allow]},
            **where,
        )
        found = [each for share in dealt for each in task.done(share)]
        return pa.Table.from_pylist(found, schema=RETURNED)

    def bounded(self, offsets):
        """In any time."""
        return nullcontext()

    def names(self, ids):
        """None."""
        return {}

    def ends(self, tps):
        """Nobody asks."""
        return Logs(at=0.0, starts={}, ends={})


class Dies(Exception):
    """Where a process would be killed."""


class History:
    """Tables of some groups, written by one writer after the other."""

    def __init__(self, path, config, allow):
        self.path, self.log = path, Here(config, allow)

    def catch_up(self, *, batch=10**9, dies=0):
        """One run; it may die before its so manieth state. What it remembers then."""
        writer = opened(self.path, SystemClock(), retention=10**9)
        save, left = writer._save, dies

        def dying(*arguments):
            nonlocal left
            left -= 1
            if not left:
                raise Dies
            save(*arguments)

        writer._save = dying
        recorder = Recorder(writer, self.log, say=lambda _: None, batch=batch)
        try:
            recorder.catch_up()
        except Dies:
            return None
        return recorder

    def rows(self):
        """Commit records by key, and the last of each."""
        found, last, _ = held(Tables(self.path))
        return found, last


def answered(config, group, topic):
    """By the coordinator."""
    asked = Consumer({**config, "group.id": group})
    found = asked.committed([KafkaPartition(topic, n) for n in range(4)], timeout=10)
    asked.close()
    return {tp.partition: tp.offset for tp in found if tp.offset >= 0}


def remembered(recorder, group):
    """By the job's memory."""
    return {key[2]: each.committed for key, each in recorder._memory.commits_of(group)}


def test_nothing_else_waits(config, topic, unique, tmp_path):
    """A neighbour's commit behind it is there at once; its own when it is committed, if ever."""
    group = f"exactly-{unique}"
    neighbour = beside(group)
    late = beside(neighbour)
    doomed = beside(late)
    history = History(tmp_path / "tables", config, rf"(exactly|woven)-{unique}.*")
    one, other, third = (Transactions(config, name) for name in (group, late, doomed))
    one.begin([KafkaPartition(topic, 0, 5), KafkaPartition(topic, 1, 6)])
    other.begin([KafkaPartition(topic, 0, 99)])
    third.begin([KafkaPartition(topic, 0, 8)])
    plain, own, gone = (
        Consumer({**config, "group.id": name}) for name in (neighbour, group, doomed)
    )
    commits.commit(plain, [KafkaPartition(topic, 0, 7)])
    recorder = history.catch_up()
    assert history.rows() == ({(neighbour, topic, 0): 1}, {(neighbour, topic, 0): 7})
    reached = recorder._writer.state
    ((partition, stable),) = reached.stable.items()
    assert stable < reached.positions[partition]
    commits.commit(own, [KafkaPartition(topic, 0, 50)])  # counts, whatever comes of the other one
    commits.commit(gone, [KafkaPartition(topic, 0, 3)])
    deleted = Producer({**config, "client.id": "__admin_client"})
    deleted.produce(TOPIC, None, key_to(doomed, TopicPartition(topic, 0)), partition=partition)
    assert deleted.flush(120) == 0
    history.catch_up()
    for transaction in (one, third):
        transaction.end(committed=True)
    # A coordinator answers before it has written the end into the log.
    until(
        lambda: history.catch_up()._memory.deleted.keys() == {(doomed, topic, 0)},
        "the deletion to be the newest word",
    )
    other.end(committed=False)
    until(lambda: not history.catch_up()._writer.state.stable, "nothing to be held back")
    recorder = history.catch_up()
    assert not recorder._memory.deleted
    assert remembered(recorder, group) == {0: 50, 1: 6} == answered(config, group, topic)
    assert remembered(recorder, doomed) == {}
    assert history.rows()[0][doomed, topic, 0] == 3  # in the transaction, outside, the deletion
    assert not any(key[0] == late for key in history.rows()[0])


def test_interleaved_producers_and_a_writer_that_dies(config, topic, unique, tmp_path):
    """Tables as who reads committed records to the end, memory as the coordinator answers."""
    rnd = random.Random(4)
    first = f"woven-{unique}"
    names = [first, beside(first), beside(beside(first))]
    history = History(tmp_path / "tables", config, rf"(exactly|woven)-{unique}.*")
    producers = [Transactions(config, name) for name in names]
    plain = [Consumer({**config, "group.id": name}) for name in names]
    still = [False] * 3
    history.catch_up()  # other tests' records: record by record is for this one's
    for step in range(40):
        number = rnd.randrange(3)
        offset = KafkaPartition(topic, rnd.randrange(4), rnd.randrange(1000))
        if rnd.random() < 0.3:
            commits.commit(plain[number], [offset])
        elif still[number]:
            producers[number].end(committed=rnd.random() < 0.6)
            still[number] = False
        else:
            producers[number].begin([offset])
            still[number] = True
        if step % 5 == 0:
            history.catch_up(batch=rnd.choice((1, 3, 10**9)), dies=rnd.choice((0, 1, 2)))
    for number in range(3):
        if still[number]:
            producers[number].end(committed=True)
    recorder = history.catch_up()
    assert not recorder._writer.state.stable
    real, last, _ = scan(config["bootstrap.servers"])
    mine = {key: count for key, count in real.items() if key[0] in names}
    assert history.rows() == (Counter(mine), {key: last[key] for key in mine})
    for name in names:
        assert remembered(recorder, name) == answered(config, name, topic)
