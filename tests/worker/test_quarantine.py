"""Marks of stopped partitions while two revisions run side by side, as in a roll [9, 22]."""

import json

import pytest

from fleet.model import TopicPartition
from fleet.slots import DAMAGED, Quarantine
from tests.worker.driving import Drive, Driven

P = [TopicPartition("t", number) for number in range(2)]


def mark(
    driven: Driven, tp: TopicPartition, revision: str, *, offset: int = 1, attempts: int = 3
) -> Quarantine:
    """A partition that a worker of this revision has stopped."""
    made = Quarantine(
        group="g", tp=tp, offset=offset, error="no", attempts=attempts, revision=revision, at=0.0
    )
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


# --- what the log does not hold is no matter of code ------------------------------------------


@pytest.mark.parametrize("attempts", [0, DAMAGED])
@pytest.mark.parametrize("revision", ["r0", "r1"])
def test_a_stop_of_the_log_outlives_a_revision(kafka, drive: Drive, revision: str, attempts: int):
    """Another tool committed 2 where 1 was the end; what came meanwhile would never be read."""
    kafka.commits[P[0]] = (2, "")
    driven = drive()
    mark(driven, P[0], revision, offset=2, attempts=attempts)
    kafka.assign(*P)
    driven.until(lambda: kafka.committed(P[1])[-1:] == [3], "the other one")
    driven.turns()
    assert driven.member.state.quarantined == {P[0]}
    assert [(m.tp, m.revision, m.of_log) for m in driven.store.quarantines("g")] == [
        (P[0], "r1", True)
    ]
    assert {tp for tp, _, _ in driven.rows} == {P[1]}


def test_another_commit_ends_a_stop_of_the_log(kafka, drive: Drive):
    """A person has decided where to go on, also under the revision that stopped it."""
    kafka.commits[P[0]] = (1, "")
    driven = drive()
    mark(driven, P[0], "r1", offset=2, attempts=0)
    kafka.assign(P[0])
    driven.until(lambda: driven.values() == [b"b", b"c"], "what follows that commit")
    assert driven.store.quarantines("g") == ()


def test_a_commit_past_the_end_is_skipped_by_name(kafka, drive: Drive):
    """`skip` goes on at the log's start, as the stop said, though the log has grown beyond it."""
    kafka.commits[P[0]] = (2, "")
    driven = drive(on_truncated="skip")
    mark(driven, P[0], "r0", offset=2, attempts=0)
    kafka.assign(P[0])
    driven.until(lambda: driven.values() == [b"a", b"b", b"c"], "all that is there")
    assert kafka.committed(P[0])[0] == 0, "chosen, and committed before it is read [42]"
    told = [json.loads(line) for line in driven.events_at.read_text().splitlines()]
    assert [(e["first"], e["after"]) for e in told if e["event"] == "lost_records"] == [(2, 0)]


def test_a_damaged_record_batch_is_read_again_under_skip(kafka, drive: Drive):
    """It may be whole by now; Fault: the partition begins at the log's start once more."""
    kafka.commits[P[0]] = (1, "")
    driven = drive(on_truncated="skip")
    mark(driven, P[0], "r0", offset=1, attempts=DAMAGED)
    kafka.assign(P[0])
    driven.until(lambda: driven.values() == [b"b", b"c"], "what follows the stop")
    assert driven.store.quarantines("g") == ()


def test_a_commit_past_the_end_stays_stopped_when_the_log_has_grown(kafka, drive: Drive):
    """From its discovery on, through the next owner's assignment."""
    kafka.commits[P[0]] = (5, "")
    driven = drive(P[0])
    driven.until(lambda: driven.member.state.quarantined == {P[0]}, "the quarantine")
    (made,) = driven.store.quarantines("g")
    assert (made.offset, made.of_log) == (5, True)
    kafka.revoke(P[0])
    kafka.produce(P[0], *[b"x"] * 7)
    kafka.assign(P[0])
    driven.turns()
    assert driven.member.state.quarantined == {P[0]}
    assert driven.rows == []
