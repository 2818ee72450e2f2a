"""The back-test's model of a group, and the rules of others, by hand-computed cases."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.backtest.load import SHAPES, LoadSeries, mixed, read_traces, shape
from fleet.backtest.replay import Observation, Outcome, Setting, replay
from fleet.backtest.rules import (
    clairvoyant,
    clairvoyant_sizes,
    flink,
    floor_of,
    keda,
    packing_hours,
)
from fleet.errors import ConfigError


def load_of(*rows: Sequence[float], step: float = 600.0) -> LoadSeries:
    """A load with a row of records/s per step."""
    return LoadSeries(name="test", step=step, rates=np.array(rows, dtype=float))


def observed(lag: float, *, members: int, at: float = 0.0, partitions: int = 12) -> Observation:
    """A group whose first partition has all of the lag."""
    waiting = (lag, *(0.0,) * (partitions - 1))
    zero = (0.0,) * partitions
    return Observation(at, 30.0, members, 0, (0,) * partitions, zero, zero, waiting, 0.0, True)


def test_a_member_that_keeps_up_lets_nothing_wait() -> None:
    """Two workers for two partitions: paid time is time times workers."""
    found = replay(load_of([900.0, 900.0]), lambda _: 2, Setting(first=2))
    assert (found.late_hours, found.backlog_seconds, found.rebalances) == (0.0, 0.0, 0)
    assert found.worker_hours == pytest.approx(2 * 600 / 3600)


def test_an_overloaded_member_is_late_when_its_oldest_record_is_a_minute_old() -> None:
    """At twice the capacity, half of the time is missing: after 120 s the oldest is 60 s old."""
    found = replay(load_of([2000.0]), lambda _: 1, Setting())
    assert found.late_hours * 3600 == pytest.approx(600 - 120, abs=10)
    assert found.waiting[-1] == pytest.approx(1000 * 600)


def test_a_step_up_pays_from_its_decision_and_stops_what_moves() -> None:
    """The worker is paid while it starts; only moved partitions wait for an owner."""
    found = replay(load_of([100.0] * 4), lambda _: 2, Setting(every=30.0, start=60.0))
    assert [(each.at, each.before, each.after) for each in found.steps] == [(90.0, 1, 2)]
    assert found.worker_hours * 3600 == 600 + (600 - 30)
    eager = replay(load_of([100.0] * 4), lambda _: 2, Setting(protocol="range"))
    assert found.downtime > 0 < eager.downtime


def test_a_worker_that_starts_is_taken_back_before_a_member_leaves() -> None:
    """Asking for less before it joined costs no rebalance."""
    found = replay(
        load_of([100.0] * 2), lambda seen: 2 if seen.at == 30.0 else 1, Setting(start=60.0)
    )
    assert found.rebalances == 0


def test_a_stuck_sink_stops_all_members() -> None:
    """They are busy and read nothing."""
    blocked = replace(load_of([100.0], [100.0]), blocked=((300.0, 600.0),))
    seen: list[Observation] = []

    def rule(each: Observation) -> int:
        seen.append(each)
        return 1

    found = replay(blocked, rule, Setting())
    assert found.waiting.max() == pytest.approx(100 * 300)
    stuck = next(each for each in seen if each.at == 390.0)
    assert (sum(stuck.reads), stuck.busy_seconds) == (0.0, 30.0)


@pytest.mark.parametrize(
    ("lag", "members", "wanted"),
    [(0, 3, 1), (25_000, 1, 3), (31_000, 3, 3), (34_000, 3, 4), (900_000, 3, 7), (900_000, 8, 12)],
)
def test_keda_divides_lag_by_its_threshold(lag: float, members: int, wanted: int) -> None:
    """With the HPA's tolerance of 10 %, and at most twice as many, or 4 more, at once."""
    assert keda(10_000, stabilisation=0)(observed(lag, members=members)) == wanted


def test_keda_stabilises_and_counts_partitions_with_lag() -> None:
    """The largest number of the window stays; limitToPartitionsWithLag caps at those with lag."""
    rule = keda(10_000, stabilisation=300)
    assert rule(observed(50_000, members=5, at=0)) == 5
    assert rule(observed(0, members=5, at=300)) == 5
    assert rule(observed(0, members=5, at=330)) == 1
    assert keda(10_000, stabilisation=0, only_with_lag=True)(observed(50_000, members=1)) == 1


def run_flink(load: LoadSeries) -> Outcome:
    """Flink on a load, from one worker on."""
    return replay(load, flink(), Setting())


def test_flink_waits_for_its_window_and_takes_a_divisor() -> None:
    """20 minutes after the start: 3,800 records/s at 70 % need 6 workers, then 12 by backlog."""
    found = run_flink(load_of(*[[3_800.0 / 12] * 12] * 12))
    first = found.steps[0]
    assert first.at == pytest.approx(20 * 60 + 30, abs=60)
    assert 12 % first.after == 0
    later = run_flink(load_of(*[[300.0] * 12] * 20, *[[20.0] * 12] * 20))
    downs = [each for each in later.steps if each.after < each.before]
    assert downs
    assert downs[0].at - later.steps[0].at >= 3_600


def test_the_clairvoyant_is_never_later_than_the_floor() -> None:
    """It starts workers before the burst; a partition above the capacity is late anyway."""
    burst = load_of(*[[100.0] * 4] * 6, *[[700.0] * 4] * 3, *[[100.0] * 4] * 6)
    found = replay(burst, clairvoyant(burst, Setting()), Setting(protocol="roundrobin"))
    assert (found.late_hours, found.rebalances) == (0.0, 2)
    assert clairvoyant_sizes(burst, Setting()) == [1] * 6 + [4] * 3 + [1] * 6
    assert set(clairvoyant_sizes(burst, Setting(), price=1e9)) == {4}
    hot = load_of(*[[1_500.0, 10.0]] * 3)
    assert floor_of(hot, Setting())[0] * 3600 == pytest.approx(1800 - 180, abs=20)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_the_same_by_seed(name: str) -> None:
    """Each has the mean that was asked for."""
    made = [shape(name, partitions=6, days=1, mean=800, capacity=1e3, seed=3) for _ in range(2)]
    assert (made[0].rates == made[1].rates).all()
    assert made[0].rates.sum(axis=1).mean() == pytest.approx(800, rel=0.2)
    assert made[0].rates.shape == (1440, 6)


def test_a_trace_has_times_and_a_column_per_partition(tmp_path: Path) -> None:
    """Values are records of each step; several files stand side by side."""
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.write_text("time,a,b\n2026-01-01 00:00:00,60,0\n2026-01-01 00:01:00,120,30\n"
                   "2026-01-01 00:02:00,0,0\n")  # fmt: skip
    other.write_text("0,6\n60,12\n120,18\n")
    found = read_traces([one, other])
    assert found.step == 60.0
    assert found.rates.tolist() == [[1.0, 0.0, 0.1], [2.0, 0.5, 0.2], [0.0, 0.0, 0.3]]
    spread = mixed(found, partitions=5, seed=1)
    assert spread.partitions == 5
    assert spread.rates.sum() == pytest.approx(found.rates.sum())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("time,a\n0,1\n60,x\n120,3\n", ":3: could not convert string to float: 'x'"),
        ("0,1\n60,-2\n120,3\n", ":2: ['-2'] are no numbers of records"),
        ("0,1\n60,nan\n120,3\n", ":2: ['nan'] are no numbers of records"),
        ("0,1\n60,2,3\n120,3\n", ":2: has 2 values, the lines before 1"),
        ("0,1\n60,2\n", "needs at least 3 lines"),
        ("60,1\n0,2\n120,1\n", "oldest first"),
        ("", "needs at least 3 lines"),
    ],
)
def test_a_wrong_trace_names_its_line(tmp_path: Path, text: str, words: str) -> None:
    """What is wrong, where, and what to write."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_traces([path])
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_packing_needs_no_more_members_than_an_even_assignment() -> None:
    """700, 600, 400 and 300 fit two workers; round robin needs four."""
    load = load_of([700.0, 300.0, 600.0, 400.0], [100.0] * 4, step=3_600.0)
    assert packing_hours(load.rates, load.step, 1_000) == pytest.approx(2 + 1)
    assert clairvoyant_sizes(load, Setting(), price=0.0) == [4, 1]
