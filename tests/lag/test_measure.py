"""Lag in records is never negative and names its case; in seconds it is never guessed."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.lag import lag_columns
from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import NONE, Commits
from fleet.lag.snapshot import CASES, GroupFacts, Logs, measure_lag
from fleet.model import GroupState, LagCase, TopicPartition

TP = TopicPartition("t", 0)


def lag_of(committed, start, end, *, unreadable=False, **logs):
    """The case and the records of one row."""
    found = measure_lag(
        np.array([NONE if committed is None else committed]),
        tps=[TP],
        which=np.array([0]),
        logs=Logs(
            at=100.0,
            starts={} if start is None else {TP: start},
            ends={} if end is None else {TP: end},
            **logs,
        ),
        unreadable=np.array([unreadable]),
    )
    records = int(found.records[0])
    return CASES[found.case[0]], None if records == NONE else records


@pytest.mark.parametrize(
    ("offsets", "answer", "case", "lag"),
    [
        pytest.param((5, 0, 9), {}, LagCase.OK, 4, id="behind"),
        pytest.param((9, 0, 9), {}, LagCase.OK, 0, id="caught-up"),
        pytest.param((9, 9, 9), {}, LagCase.OK, 0, id="all-taken-by-retention"),
        pytest.param((None, 0, 9), {}, LagCase.NEVER_COMMITTED, None, id="never-committed"),
        pytest.param((-2, 0, 9), {}, LagCase.NEVER_COMMITTED, None, id="a-negative-offset-is-none"),
        pytest.param((5, 7, 9), {}, LagCase.BELOW_START, 2, id="below-start-counts-the-readable"),
        pytest.param((50, 0, 9), {}, LagCase.BEYOND_END, None, id="recreated-topic"),
        pytest.param(
            (5, 0, 9), {"deleted": frozenset({"t"})}, LagCase.TOPIC_DELETED, None, id="deleted"
        ),
        pytest.param(
            (5, None, None), {"partitions": {"t": 0}}, LagCase.TOPIC_DELETED, None,
            id="created-anew-with-fewer-partitions",
        ),
        pytest.param((5, None, None), {}, LagCase.UNKNOWN, None, id="log-unreadable"),
        pytest.param(
            (None, 0, 9), {"unreadable": True}, LagCase.UNKNOWN, None, id="offsets-unreadable"
        ),
    ],
)  # fmt: skip
def test_every_situation_has_a_case(offsets, answer, case, lag):
    """Only where a number of records means something is there one."""
    assert lag_of(*offsets, **answer) == (case, lag)


OFFSETS = st.one_of(st.none(), st.integers(0, 1 << 40))


@given(OFFSETS, OFFSETS, OFFSETS, st.booleans())
def test_lag_is_never_negative(committed, start, end, unreadable):
    """Whatever the offsets are."""
    last = None if end is None or start is None else max(start, end)
    _, lag = lag_of(committed, start, last, unreadable=unreadable)
    assert lag is None or lag >= 0


def test_a_row_is_as_old_as_the_record_at_which_reading_goes_on():
    """Below the log start that is its first one; beyond the end there is none."""
    before = EndHistory()
    for at, end in ((80.0, 0), (90.0, 10)):
        before.add(at, {TP: end})
    found = measure_lag(
        np.array([5, 2, 10, 11, NONE]),
        tps=[TP],
        which=np.zeros(5, dtype=np.int64),
        logs=Logs(at=100.0, starts={TP: 4}, ends={TP: 10}, before=before),
    )
    assert found.seconds[:3].tolist() == [15.0, 16.0, 0.0]
    assert np.isnan(found.seconds[3:]).all()


def test_many_rows_are_measured_as_one_by_one(monkeypatch):
    """In portions, the last of which is not full; rows of all cases."""
    monkeypatch.setattr(lag_columns, "_PORTION", 7)
    draw = np.random.default_rng(3)
    tps = [TopicPartition("t", number) for number in range(5)]
    committed, which = draw.integers(-6, 30, 40).clip(NONE), draw.integers(0, 5, 40)
    before = EndHistory()
    for at, end in ((80.0, 0), (90.0, 20)):
        before.add(at, {tp: end + 2 * tp.partition for tp in tps})
    logs = Logs(
        at=100.0,
        starts={tp: 5 + tp.partition for tp in tps[:4]},
        ends={tp: 20 + 2 * tp.partition for tp in tps},
        deleted=frozenset(),
        partitions={"t": 4},
        before=before,
    )
    untold = draw.integers(0, 5, 40) == 0
    together = measure_lag(committed, tps=tps, which=which, logs=logs, unreadable=untold)
    assert len(np.unique(together.case)) == 6
    for row in range(40):
        one = slice(row, row + 1)
        alone = measure_lag(
            committed[one], tps=tps, which=which[one], logs=logs, unreadable=untold[one]
        )
        for column in fields(alone):
            np.testing.assert_array_equal(
                getattr(together, column.name)[one], getattr(alone, column.name)
            )


def test_rows_are_found_in_another_readers_columns():
    """By names, though each numbers them in its own order."""
    mine = Commits.of(
        [("a", TP, 1), ("b", TP, 2), ("c", TopicPartition("u", 3), 3), ("a", TP, None)]
    )
    other = Commits.of([("x", TP, 0), ("c", TopicPartition("u", 3), 0), ("c", TP, 0), ("a", TP, 0)])
    assert mine.places_in(other).tolist() == [3, NONE, 1, 3]
    assert mine.places_in(Commits.of([])).tolist() == [NONE] * 4
    assert Commits.of([]).places_in(mine).tolist() == []
    assert mine.of_groups({"a"}).tolist() == [True, False, False, True]
    assert Commits.of([]).of_groups({"a"}).tolist() == []


@pytest.mark.parametrize(
    ("start", "counted", "lag", "seconds", "waited"),
    [
        pytest.param(30, 0, 0, 0.0, 0.0, id="all-is-done-though-the-start-stays"),
        pytest.param(98, 2, 2, 1.0, 1.0, id="done-in-order"),
        pytest.param(30, 2, 2, None, 1.0, id="done-out-of-order-at-least-so-old"),
        pytest.param(2, 60, 60, None, 30.0, id="begun-below-the-log-start"),
        pytest.param(100, NONE, 0, 0.0, 0.0, id="nothing-open-by-an-older-broker"),
        pytest.param(30, NONE, None, None, None, id="an-older-broker-tells-no-count"),
    ],
)
def test_a_share_groups_lag_is_what_its_coordinator_counts(start, counted, lag, seconds, waited):
    """What is done behind the first open record is no lag; ages are those of what waits."""
    before = EndHistory()
    for at in range(50, 101):
        before.add(float(at), {TP: 2 * (at - 50)})
    found = measure_lag(
        np.array([start]),
        tps=[TP],
        which=np.array([0]),
        logs=Logs(at=100.0, starts={TP: 20}, ends={TP: 100}, before=before),
        counted=np.array([counted]),
    )
    ages = [None if np.isnan(each[0]) else float(each[0]) for each in (found.seconds, found.waited)]
    records = int(found.records[0])
    assert (None if records == NONE else records, *ages) == (lag, seconds, waited)
    case = LagCase.UNKNOWN if lag is None else LagCase.OK
    assert CASES[found.case[0]] is case


@pytest.mark.parametrize(
    ("state", "topics", "left"),
    [
        pytest.param(GroupState.STABLE, {"a"}, True, id="reads-another-topic-now"),
        pytest.param(GroupState.STABLE, {"a", "t"}, False, id="one-member-still-reads-it"),
        pytest.param(GroupState.STABLE, {"t.*"}, False, id="by-a-pattern"),
        pytest.param(GroupState.STABLE, {"t.+"}, True, id="which-is-matched-whole"),
        pytest.param(GroupState.STABLE, {"("}, False, id="a-pattern-of-another-dialect"),
        pytest.param(GroupState.STABLE, None, False, id="subscriptions-are-not-known"),
        pytest.param(GroupState.STABLE, set(), False, id="nobody-subscribes-to-anything"),
        pytest.param(GroupState.PREPARING, {"a"}, False, id="it-is-not-settled"),
        pytest.param(GroupState.EMPTY, {"a"}, False, id="nobody-is-there"),
    ],
)
def test_a_topic_is_left_once_a_settled_group_reads_others_alone(state, topics, left):
    """Whatever was committed there; a deleted topic is deleted."""
    known = None if topics is None else frozenset(topics)
    facts = GroupFacts(state=state, type="classic", members=1, topics=known)
    assert facts.has_left("t") is left
    fields = {"tps": [TP], "which": np.array([0]), "left": np.array([left])}
    found = measure_lag(np.array([5]), **fields, logs=Logs(at=1.0, starts={TP: 0}, ends={TP: 9}))
    assert (CASES[found.case[0]] is LagCase.LEFT, int(found.records[0])) == (
        left, NONE if left else 4,
    )  # fmt: skip
    gone = Logs(at=1.0, starts={}, ends={}, deleted=frozenset({"t"}))
    assert CASES[measure_lag(np.array([5]), **fields, logs=gone).case[0]] is LagCase.TOPIC_DELETED


def test_rows_of_two_readers_stand_in_one():
    """Names that both know are one; each keeps its rows."""
    mine = Commits.of([("a", TP, 1), ("b", TP, 2)])
    other = Commits.of([("c", TP, 3), ("a", TopicPartition("u", 3), 4)])
    both = mine.plus(other)
    figures = [
        (both.groups[group], both.topics[topic], number, committed)
        for group, topic, number, committed in zip(
            *(c.tolist() for c in (both.group, both.topic, both.partition, both.committed)),
            strict=True,
        )
    ]
    assert figures == [("a", "t", 0, 1), ("b", "t", 0, 2), ("c", "t", 0, 3), ("a", "u", 3, 4)]
    assert mine.plus(Commits.of([])) is mine
    assert Commits.of([]).plus(mine).committed.tolist() == [1, 2]
