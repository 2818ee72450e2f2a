"""How old a position is, by the ends of its log: interpolated, never guessed."""

import math
import sqlite3
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.lag.end_history import EndHistory, EndStore
from fleet.lag.gap import is_early, usual_gap
from fleet.model import TopicPartition

TP = TopicPartition("t", 0)


def ages(history, offsets, now, tps=(TP,)):
    """(exact, least) of each offset; of one partition, or of each its own."""
    which = np.arange(len(offsets)) if len(tps) > 1 else np.zeros(len(offsets), dtype=np.int64)
    found = history.ages(list(tps), which, np.array(offsets), now)
    return [tuple(None if math.isnan(x) else x for x in each) for each in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("looks", "committed", "age", "least"),
    [
        pytest.param([], 5, None, None, id="no-looks"),
        pytest.param([(90.0, 10)], 10, 0.0, 0.0, id="one-look-caught-up"),
        pytest.param([(90.0, 10)], 9, None, 10.0, id="one-look-behind"),
        pytest.param([(80.0, 0), (90.0, 10)], 5, 15.0, 15.0, id="between"),
        pytest.param([(80.0, 0), (90.0, 10)], 0, 20.0, 20.0, id="at-a-look"),
        pytest.param([(80.0, 5), (90.0, 10)], 4, None, 20.0, id="older-than-the-first"),
        pytest.param([(70.0, 5), (80.0, 5), (90.0, 10)], 5, 20.0, 20.0, id="after-standing-still"),
        pytest.param([(70.0, 5), (80.0, 9), (90.0, 9)], 9, 0.0, 0.0, id="stands-still"),
        pytest.param([(60.0, 50), (80.0, 0), (90.0, 10)], 5, 15.0, 15.0, id="recreated"),
        pytest.param([(60.0, 5), (80.0, 0)], 4, 0.0, 0.0, id="recreated-empty"),
        pytest.param([(90.0, 10), (110.0, 20)], 19, 0.0, 0.0, id="clock-behind-the-looks"),
    ],
)
def test_age_of_a_position(looks, committed, age, least, tmp_path):
    """By this process, or others before it that left the ends in the store."""
    history = EndHistory()
    for at, end in looks:
        history.add(at, {TP: end})
    assert ages(history, [committed], 100.0) == [(age, least)]
    path = tmp_path / "ends.db"
    for at, end in looks:
        store = EndStore(path)
        last = EndHistory("c", store)
        last.add(at, {TP: end})
        if (at, end) != looks[-1]:
            store.close()
    if looks:
        assert ages(last, [committed], 100.0) == [(age, least)]


def by_one_and_one(samples, committed, now):
    """The same for one position, written as one would say it."""
    if committed >= samples[-1][1]:
        return 0.0, 0.0
    for (t0, end0), (t1, end1) in pairwise(samples):
        if end0 <= committed < end1:
            age = now - t0 - (t1 - t0) * (committed - end0) / (end1 - end0)
            return pytest.approx(age), pytest.approx(age)
    return None, now - samples[0][0]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=12),
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.integers(0, 12),
)
def test_all_ages_at_once_are_those_of_one_partition(steps, committed, first):
    """Also where the first looks were another process's."""
    store = EndStore(None)
    here, before, later = EndHistory(), EndHistory("c", store), EndHistory("c", store)
    at, end, samples = 1000.0, 0, []
    for index, (seconds, grown) in enumerate(steps):
        at, end = at + seconds, end + grown
        samples.append((at, end))
        here.add(at, {TP: end})
        (before if index < min(first, len(steps) - 1) else later).add(at, {TP: end})
    now = at + 5.0
    expected = [by_one_and_one(samples, each, now) for each in committed]
    assert ages(here, committed, now) == expected
    assert ages(later, committed, now) == expected


def test_another_log_under_the_same_name_begins_anew():
    """Ends that fell are another topic's: no age is told by them."""
    history = EndHistory()
    for at, end in ((1000.0, 50), (1010.0, 90), (1020.0, 10), (1030.0, 20)):
        history.add(at, {TP: end})
    assert ages(history, [15, 5], 1030.0) == [(5.0, 5.0), (None, 10.0)]


@pytest.mark.parametrize("kept", [False, True])
def test_a_clock_that_was_set_back_begins_anew(kept, tmp_path):
    """An hour back: what waits since then has an age at once, not in an hour."""
    store = EndStore(tmp_path / "ends.db") if kept else None
    history = EndHistory("c", store)
    for at, end in ((10_000.0, 5), (10_010.0, 7)):
        history.add(at, {TP: end})
    history.add(9_990.0, {TP: 8})  # of a thread that looked in between: not the clock
    assert ages(history, [6], 10_010.0) == [(5.0, 5.0)]
    history.add(6_400.0, {TP: 7})
    history.add(6_410.0, {TP: 9})
    assert ages(history, [8, 9], 6_430.0) == [(25.0, 25.0), (0.0, 0.0)]
    assert ages(history, [5], 6_430.0) == [(None, 30.0)]


def test_ages_go_on_where_they_cannot_be_stored(tmp_path):
    """From this process's own looks; why is told with every look, until it can be stored again."""
    path = tmp_path / "ends.db"
    store = EndStore(path)
    store._db.execute("PRAGMA busy_timeout=20")
    history = EndHistory("c", store)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        for at, end in ((80.0, 0), (90.0, 10)):
            history.add(at, {TP: end})
        assert ages(history, [5], 100.0) == [(15.0, 15.0)]
        assert "database is locked" in (history.problem or "")
    other.close()
    history.add(95.0, {TP: 20})
    assert history.problem is None


def test_old_looks_are_thinned_and_stored_ones_loaded():
    """Two hours of looks stay a few rows, and still tell ages."""
    history = EndHistory()
    for second in range(0, 7300, 5):
        history.add(10_000.0 + second, {TP: second * 10})
    assert len(history._times) < 150
    ((exact, _),) = ages(history, [69_990], 17_299.0)
    assert exact == pytest.approx(300.0, abs=1.0)
    store, other = EndStore(None), TopicPartition("u", 3)
    store.record("c", 100.0, {TP: 0})
    store.record("c", 150.0, {other: 7})
    store.record("c", 200.0, {TP: 1000, other: 7})
    loaded = EndHistory("c", store)
    loaded.load()
    loaded.add(210.0, {TP: 1100, other: 9})
    assert ages(loaded, [500, 8], 210.0, (TP, other)) == [(60.0, 60.0), (5.0, 5.0)]


def test_all_that_is_stored_is_loaded_in_little_memory():
    """Partition by partition: of 48,000 partitions all rows at once were a gigabyte."""
    store, many = EndStore(None), [TopicPartition("t", number) for number in range(250)]
    for look in range(60):
        store.record("c", 1e6 + 5.0 * look, dict.fromkeys(many, 10 * look))
    loaded = EndHistory("c", store)
    tracemalloc.start()
    loaded.load()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(loaded._times) == 60
    assert most < 10 * 60 * 250 * 8
    loaded.add(1e6 + 300.0, dict.fromkeys(many, 600))
    assert ages(loaded, [505, 595], 1e6 + 300.0, many[-2:]) == [(47.5, 47.5), (2.5, 2.5)]


def test_partitions_that_no_look_sees_any_more_are_forgotten():
    """Topics that live for a day: their ends go with the looks that saw them."""
    history = EndHistory()
    for day in range(100):
        of_day = TopicPartition(f"of-{day}", 0)
        history.add(1e9 + day * 86_400.0, {of_day: 7, TP: day})
        gone = TopicPartition("of-1", 0)
        assert len(ages(history, [3, 3], 1e9 + day * 86_400.0, (gone, of_day))) == 2
    assert len(history._columns) <= 35
    assert {len(look) for look in history._looks} <= set(range(36))
    assert ages(history, [98], 1e9 + 99 * 86_400.0) == [(86_400.0, 86_400.0)]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("hours", [3.0, 40.0, 30 * 24.0])
def test_the_age_of_what_waits_for_long_is_told(hours, kept):
    """As old as `max_lag` can be, 30 days; here or by who looked before. It stays a few rows."""
    store = EndStore(None) if kept else None
    looks = EndHistory("c", store)
    days, every = 31, 1800.0
    for look in range(int(days * 86_400 / every)):
        looks.add(1e9 + look * every, {TP: look * 100})
    now = 1e9 + days * 86_400
    waits = int((days * 86_400 - hours * 3600) / every * 100)
    ((exact, _),) = ages(looks, [waits], now)
    assert exact == pytest.approx(hours * 3600, rel=0.001)
    assert len(looks._times) < 100
    if store is not None:
        loaded, asked = EndHistory("c", store), EndHistory("c", store)
        loaded.load()
        asked.add(now, {TP: int(days * 86_400 / every * 100)})
        for each in (loaded, asked):
            ((exact, _),) = ages(each, [waits], now)
            assert exact == pytest.approx(hours * 3600, rel=0.001)


@pytest.mark.parametrize("load", [False, True])
def test_a_log_that_stood_is_as_old_as_it_is(load):
    """A new process knows when it stopped, and that what came then was written then."""
    store = EndStore(None)
    before, hour, minute = EndHistory("c", store), 3600.0, 60.0
    at, end = 1e9, 0
    for seconds, grows in ((25 * minute, True), (39 * hour, False), (10 * hour, True)):
        for _ in range(int(seconds / minute)):
            at += minute
            end += 10 * grows
            before.add(at, {TP: end})
    later = EndHistory("c", store)
    if load:
        later.load()
    later.add(at + 1.0, {TP: end})
    now, stopped = at + 1.0, 250
    (last, _), (first, _) = ages(later, [stopped - 1, stopped], now)
    assert last == pytest.approx(49 * hour, rel=0.02)
    assert first == pytest.approx(10 * hour, rel=0.1)


def test_the_usual_gap_follows_a_new_rhythm():
    """A first gap is taken as it is; many at once count as many."""
    assert usual_gap(None, 8.0) == 8.0
    assert usual_gap(10.0, 20.0) == pytest.approx(13.0)
    assert usual_gap(10.0, 20.0, times=2) == pytest.approx(usual_gap(usual_gap(10.0, 20.0), 20.0))
    assert usual_gap(10.0, 20.0, times=50) == pytest.approx(20.0)
    assert [is_early(gap, usual) for gap, usual in ((4.0, 10.0), (5.0, 10.0), (1.0, None))] == [
        True, False, False,
    ]  # fmt: skip
