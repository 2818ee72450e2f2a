"""What is computed for all rows at once equals what is computed one by one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decide.verdicts import LagVerdict, Patience, partition_verdict
from fleet.log.readers.positions import NONE, Commits, Positions
from fleet.model import GroupState, LagCase, TopicPartition
from fleet.observe.ends import EndHistory
from fleet.observe.lag import lag_of, lag_seconds
from fleet.observe.overview import CASES, GroupFacts, Overview, _lags
from fleet.picturing import _doubtful, _progress, around, picture_of, verdicts

TP = TopicPartition("t", 0)
offsets = st.integers(0, 20)
maybe = st.one_of(st.none(), offsets)


@given(st.lists(st.tuples(offsets, maybe, maybe, st.booleans()), min_size=1, max_size=20))
def test_lag_and_case_are_those_of_one_partition(rows):
    """`_lags` is `lag_of`."""
    rows = [row for row in rows if row[1] is None or row[2] is None or row[1] <= row[2]] or [
        (0, 0, 0, False)
    ]
    committed, start, end, deleted = zip(*rows, strict=True)
    lag, case = _lags(
        np.array(committed),
        start=np.array([NONE if each is None else each for each in start]),
        end=np.array([NONE if each is None else each for each in end]),
        deleted=np.array(deleted),
    )
    for index, (one, first, last, gone) in enumerate(rows):
        expected = lag_of(committed=one, log_start=first, log_end=last, deleted=gone)
        found = None if lag[index] == NONE else int(lag[index])
        assert (CASES[case[index]], found) == expected


@given(
    st.lists(st.tuples(st.integers(1, 30), offsets), min_size=1, max_size=12),
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
)
def test_ages_are_those_of_one_partition(steps, committed):
    """`EndHistory.ages` is `lag_seconds`; where that knows nothing, the least is told."""
    history, samples = EndHistory(), []
    at, end = 1000.0, 0
    for seconds, grown in steps:
        at, end = at + seconds, end + grown
        samples.append((at, end))
        history.add(at, {TP: end})
    now = at + 5.0
    columns = history.columns([TP] * len(committed))
    exact, least = history.ages(columns, np.array(committed), now)
    for index, each in enumerate(committed):
        expected = lag_seconds(samples, each, now)
        if expected is None:
            assert math.isnan(exact[index])
            assert least[index] == now - samples[0][0]
        else:
            assert exact[index] == pytest.approx(expected)
            assert least[index] == pytest.approx(expected)


def test_another_log_under_the_same_name_begins_anew():
    """Ends that fell are another topic's: no age is told by them."""
    history = EndHistory()
    for at, end in ((1000.0, 50), (1010.0, 90), (1020.0, 10), (1030.0, 20)):
        history.add(at, {TP: end})
    exact, least = history.ages(history.columns([TP]), np.array([15]), 1030.0)
    assert exact[0] == pytest.approx(5.0)
    exact, least = history.ages(history.columns([TP]), np.array([5]), 1030.0)
    assert math.isnan(exact[0])
    assert least[0] == pytest.approx(10.0)


def test_old_looks_are_thinned_and_stored_ones_loaded():
    """Two hours of looks stay a few rows, and still tell ages."""
    history = EndHistory()
    for second in range(0, 7300, 5):
        history.add(10_000.0 + second, {TP: second * 10})
    assert len(history._times) < 150
    now = 17_299.0
    exact, _ = history.ages(history.columns([TP]), np.array([69_990]), now)
    assert exact[0] == pytest.approx(300.0, abs=1.0)
    other = TopicPartition("u", 3)
    loaded = EndHistory()
    loaded.load({TP: ((100.0, 0), (200.0, 1000)), other: ((150.0, 7), (200.0, 7))})
    loaded.add(210.0, {TP: 1100, other: 9})
    exact, _ = loaded.ages(loaded.columns([TP, other]), np.array([500, 8]), 210.0)
    assert exact.tolist() == pytest.approx([60.0, 5.0])


def overview(rows, *, state=GroupState.STABLE, now=1_000_000.0) -> Overview:
    """One group; rows are (lag, case, waited, since commit, since moved, fell by, gained)."""
    count = len(rows)
    lag, case, waited, commit, moved, fell, gained = zip(*rows, strict=True)

    def ms(ago):
        return np.array([int((now - each) * 1000) for each in ago])

    committed = np.full(count, 1000)
    commits = Commits(
        groups=("g",),
        topics=("t",),
        group=np.zeros(count, dtype=np.int32),
        topic=np.zeros(count, dtype=np.int32),
        partition=np.arange(count, dtype=np.int32),
        committed=committed,
        at=ms(commit),
        moved=ms(moved),
        peak=np.array([1000 + each if each else NONE for each in fell]),
        fell=ms([10.0 if each else 0.0 for each in fell]),
        gap=np.full(count, 5000.0),
        row=np.arange(count, dtype=np.int32),
    )
    return Overview(
        cluster="c",
        at=now,
        took=0.1,
        from_log=True,
        log_age=0.0,
        groups={"g": GroupFacts(state=state, type="classic", members=1, generation=4)},
        commits=commits,
        lag=np.array([NONE if c is not LagCase.OK else n for n, c in zip(lag, case, strict=True)]),
        end=committed + 1000,
        case=np.array([CASES.index(each) for each in case], dtype=np.int8),
        seconds=np.array([math.nan if each is None else each for each in waited]),
        waited=np.array([math.nan if each is None else each for each in waited]),
        gained=np.array(gained, dtype=np.float64),
        over=300.0,
    )


ages = st.one_of(st.just(1.0), st.just(59.0), st.just(61.0), st.floats(0, 2000))
row = st.tuples(
    st.integers(0, 5),
    st.sampled_from([LagCase.OK, LagCase.OK, LagCase.OK, LagCase.BEYOND_END]),
    st.one_of(st.none(), ages),
    ages,
    ages,
    st.integers(0, 3),
    st.floats(-100, 300),
)


@given(st.lists(row, min_size=1, max_size=15), st.sampled_from(list(GroupState)))
def test_rows_left_out_are_ok(rows, state):
    """The condition in columns leaves out no row that a rule objects to."""
    seen = overview(rows, state=state)
    kept = set(_doubtful(seen, Patience()).tolist())
    judged = around(seen.groups["g"], seen.at)
    for index in range(len(rows)):
        if index not in kept:
            found = partition_verdict(_progress(seen, index), judged)
            assert found.verdict is LagVerdict.OK, found
    assert verdicts(seen)["g"].partitions == len(rows)


def test_a_picture_sums_by_topic_and_leaves_out_what_is_unknown():
    """One topic with a known and an unknown lag; the oldest known age."""
    ok, beyond = LagCase.OK, LagCase.BEYOND_END
    seen = overview(
        [(3, ok, 2.0, 1, 1, 0, 0.0), (4, ok, None, 1, 1, 0, 0.0), (0, beyond, None, 1, 1, 0, 0.0)]
    )
    made = picture_of(
        seen, totals={}, owners={"g": "team"}, decode_errors={}, records=7, partitions=True
    )
    (group,) = made.groups
    (topic,) = group.topics
    assert (topic.topic, topic.lag, topic.seconds) == ("t", 7, 2.0)
    assert group.cases == {"ok": 2, "committed beyond log end": 1}
    assert (group.owner, group.verdict, group.generation) == ("team", "OK", 4)
    assert [part.lag for part in group.partitions] == [3, 4, None]


def test_rows_of_positions_follow_their_commits():
    """Forward, back, back to where it was, gone; and the place of a group is used again."""
    kept, key, tp = Positions(), b"k", TopicPartition("t", 1)
    for ms, committed in ((1000, 5), (2000, 9), (4000, 3), (5000, 7)):
        kept.put(key, "g", tp, committed, ms)
    seen = kept.copy()
    assert (seen.committed[0], seen.at[0], seen.moved[0]) == (7, 5000, 5000)
    assert (seen.peak[0], seen.fell[0]) == (9, 4000)
    kept.put(key, "g", tp, 9, 6000)
    seen = kept.copy()
    assert (seen.peak[0], seen.fell[0]) == (NONE, NONE)
    assert kept.of_group("g") == {tp: (9, 6000)}
    assert kept.commit(key, None, 7000)
    assert kept.groups() == frozenset()
    assert len(kept.copy()) == 0
    kept.put(b"other", "h", tp, 1, 8000)
    seen = kept.copy()
    assert (seen.groups, len(seen)) == (("h",), 1)
    assert (seen.moved[0], seen.peak[0], seen.gap[0]) == (8000, NONE, NONE)
    for number in range(3000):
        kept.put(b"%d" % number, f"g{number % 7}", TopicPartition("u", number), number, 9000)
    assert len(kept.copy()) == 3001
