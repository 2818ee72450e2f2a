"""Statistics and verdicts of the benchmarks, on values made by hand."""

import pytest

from benchmarks.figures import Goal, all_met, plain, ratio, seconds_between, spread


def test_spread_is_of_values_that_were_measured():
    """Nearest rank: each figure is one of the values."""
    found = spread([5.0, *(0.1 * n for n in range(1, 100))])
    assert found is not None
    assert found.measured == 100
    assert found.p50 == pytest.approx(5.0)
    assert found.p95 == pytest.approx(9.4)
    assert found.max == pytest.approx(9.9)
    assert spread([]) is None


def test_figures_are_rounded_to_milliseconds():
    """And names how many values there were."""
    found = spread([0.12345, 0.2])
    assert found is not None
    assert plain(found) == {"measured": 2, "p50": 0.123, "p95": 0.2, "max": 0.2, "total": 0.323}


@pytest.mark.parametrize(
    ("at_least", "measured", "met"),
    [
        *((False, each, True) for each in (0.0, 1.0)),
        *((True, each, True) for each in (1.0, 2.0)),
        *((False, 1.01, False), (True, 0.99, False), (False, None, False), (True, None, False)),
    ],
)
def test_a_goal_that_was_not_measured_is_missed(at_least, measured, met):
    """The limit itself is allowed."""
    goal = Goal("pause", 1.0, measured, at_least=at_least)
    assert goal.met is met
    assert goal.sentence().startswith("met" if met else "MISSED")


def test_no_goals_is_no_success():
    """A benchmark that measured nothing has failed."""
    good = Goal("x", 1, 1)
    assert all_met([good])
    assert not all_met([good, Goal("y", 0, 1)])
    assert not all_met([])


def test_ratio_to_nothing_is_no_number():
    """Our 0 rebalances are not infinitely better, in figures."""
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(12.0, 0) is None
    assert ratio(None, 2.0) is None


def test_seconds_between_events_of_one_worker():
    """A batch that was given up is no batch; workers do not mix; other events are left."""
    events = [
        ("a", "batch", 1.0),
        ("b", "batch", 1.5),
        ("a", "committed", 2.0),
        ("a", "committed", 2.5),
        ("b", "void", 2.6),
        ("b", "batch", 3.0),
        ("b", "committed", 3.25),
    ]
    assert seconds_between(events, begin="batch", end="committed") == [1.0, 0.25]
