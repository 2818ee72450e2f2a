"""Marks of stopped partitions while two revisions run side by side, as in a roll [9, 22]."""

from fleet.model import TopicPartition
from fleet.slots import Quarantine
from tests.worker.driving import Drive, Driven

P = [TopicPartition("t", number) for number in range(2)]


def mark(driven: Driven, tp: TopicPartition, revision: str) -> Quarantine:
    """A partition that a worker of this revision has stopped."""
    made = Quarantine(group="g", tp=tp, offset=1, error="no", attempts=3, revision=revision, at=0.0)
    driven.store.quarantine(made)
    return made


def test_a_new_revision_tries_what_it_is_given_and_nothing_else(kafka, drive: Drive):
    """Fault: the old revision's other workers are told to read again what they stopped at."""
    driven = drive()
    mark(driven, P[0], "r0")
    others = mark(driven, P[1], "r0")
    kafka.assign(P[0])
    driven.until(lambda: kafka.committed(P[0])[-1:] == [3], "the partition that is tried again")
    assert driven.store.quarantines("g") == (others,)


def test_what_this_revision_stopped_stays_stopped(kafka, drive: Drive):
    """Whoever is assigned it next, and whatever else with it."""
    driven = drive()
    stopped = mark(driven, P[0], "r1")
    kafka.assign(*P)
    driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "the other one")
    driven.turns()
    assert driven.member.state.quarantined == {P[0]}
    assert driven.store.quarantines("g") == (stopped,)
    assert {tp for tp, _, _ in driven.rows} == {P[1]}
