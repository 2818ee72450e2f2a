"""What trickled in, when partitions change hands: who processes it, and who goes first [52].

The real membership on a cluster in memory; each test names the fault that it is there for.
"""

import time

import pytest

from fleet.model import TopicPartition
from fleet.worker.slot.slot_life import Life
from tests.support.memory_kafka import MemoryKafka
from tests.worker.driving import Drive, Driven

P = [TopicPartition("t", number) for number in range(2)]
LONG = {"max_wait": "30s"}
"""Far longer than a batch takes, and than a test."""


def resting(drive: Drive, kafka: MemoryKafka, **worker) -> Driven:
    """A member of both partitions that waits for more records; its first batch is committed."""
    driven = drive(*P, **worker)
    driven.until(lambda: all(kafka.committed(tp)[-1:] == [3] for tp in P), "the first batch")
    driven.until(lambda: not driven.member.state.in_hand, "it to rest")
    return driven


def trickles(driven: Driven, tp: TopicPartition) -> None:
    """One record that the member reads, and keeps for its next batch."""
    driven.kafka.produce(tp, b"late")
    driven.turns(8)
    assert len(driven.contexts) == 1


@pytest.mark.parametrize("then", [Life.CLOSING, Life.HOLDING])
def test_a_drain_processes_what_trickled_in(kafka, drive: Drive, then: Life):
    """Fault: it waits until the rebalance is over and another one's batch is done."""
    driven = resting(drive, kafka, batch=LONG)
    trickles(driven, P[0])
    driven.member.become(then)
    if then is Life.HOLDING:
        driven.until(lambda: driven.member.state.phase == "drained", "the drain")
    else:
        driven.until(lambda: driven.member.ended is not None, "the end")
    assert kafka.committed(P[0])[-1] == 4
    assert driven.values().count(b"late") == 1


def test_one_more_batch_is_all(kafka, drive: Drive):
    """Fault: a member that drains reads on, and never ends under a stream."""
    driven = resting(drive, kafka, batch=LONG)
    trickles(driven, P[0])
    driven.may_end.clear()
    driven.member.become(Life.HOLDING)
    driven.until(lambda: len(driven.contexts) == 2, "the last batch")
    kafka.produce(P[0], b"later")
    driven.turns(8)
    driven.may_end.set()
    driven.until(lambda: driven.member.state.phase == "drained", "the drain")
    driven.turns(8)
    assert b"later" not in driven.values()
    assert kafka.committed(P[0])[-1] == 4


@pytest.mark.parametrize(("assignor", "done"), [("cooperative-sticky", 4), ("range", 3)])
def test_a_revocation_that_waits_anyway_processes_it(kafka, drive: Drive, assignor: str, done: int):
    """Fault: a cooperative member idles for the quarter of a second that it waits; or one that
    has to wait for nothing keeps its group from settling.
    """
    driven = resting(drive, kafka, assignor=assignor, batch=LONG)
    trickles(driven, P[0])
    kafka.revoke(*(P if assignor == "range" else P[:1]))
    driven.until(lambda: any(kind == "unassign" for kind, _ in kafka.done), "the answer")
    assert kafka.committed(P[0])[-1] == done
    assert driven.values().count(b"late") == done - 3


def test_who_took_partitions_over_goes_first(kafka, drive: Drive):
    """Fault: members that gave some up begin with what they kept in the same moment, and those
    who share their Spark, and read what has waited longest, take twice as long.
    """
    driven = resting(drive, kafka, assignor="cooperative-sticky", batch={"max_wait": "1500ms"})
    time.sleep(1.2)
    asked = time.monotonic()
    kafka.revoke(P[0])
    driven.until(lambda: any(kind == "unassign" for kind, _ in kafka.done), "the answer")
    kafka.produce(P[1], b"kept")
    driven.until(lambda: len(driven.contexts) == 2, "the next batch")
    assert time.monotonic() - asked > 0.25 + 1.5


def test_a_batch_that_waits_for_its_plan_takes_along_what_is_assigned(kafka, drive: Drive):
    """Fault: cut before the rebalance, and refused its plan by it, it is first in the new
    generation, and what was moved waits until it is done.
    """
    driven = drive(P[0])
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the first batch")
    asked = kafka.asked
    kafka.answers.extend([22] * 100_000)
    kafka.produce(P[0], b"late")
    driven.until(lambda: kafka.asked > asked + 2, "a plan that is refused")
    kafka.todo.append(lambda _: kafka.answers.clear())
    kafka.assign(P[1])
    driven.until(lambda: len(driven.contexts) == 2, "the next batch")
    assert [(r.partition, r.start, r.end) for r in driven.contexts[1].ranges] == [
        (0, 3, 4),
        (1, 0, 3),
    ]
