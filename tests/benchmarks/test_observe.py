"""`benchmarks observe`: its answer, and one small real run.

What docs/contributing/benchmark-log.md shows is run here.
"""

import pytest

from benchmarks.figures import spread
from benchmarks.observe import ObserveOptions, ObserveResult, Size, _value
from tests.benchmarks.test_commands import bench


def size(groups: int, **found) -> Size:
    known = {
        "refreshes": spread([0.1, 0.2, 0.3]),
        "scrapes": spread([0.01, 0.1]),
        "megabytes": 80.0,
        "right": True,
    }
    return Size(groups=groups, **{**known, **found})


def test_goals_grow_with_the_groups_and_wrong_figures_miss():
    """Five times the groups may take five times as long, and memory as their rows."""
    assert [goal.limit for goal in size(5000).goals()] == [2.5, 1.0, 250.0]
    assert [goal.limit for goal in size(100).goals()] == [0.5, 0.2, 90.0]
    options = ObserveOptions(groups=(1000,))
    assert ObserveResult(options=options, sizes=[size(1000)]).met
    assert not ObserveResult(options=options, sizes=[size(1000, right=False)]).met
    assert not ObserveResult(options=options, sizes=[size(1000, megabytes=91.0)]).met
    assert not ObserveResult(options=options, sizes=[]).met


def test_values_are_found_in_metrics():
    """By name and label."""
    text = 'a_total{b="x"} 1.0\na_total{b="y"} 2.0\nlonger_a_total{b="y"} 3.0\n'
    assert _value(text, "a_total", 'b="y"') == 2.0
    assert _value(text, "a_total") == 1.0
    assert _value(text, "none") == -1.0


@pytest.mark.long
@pytest.mark.broker
def test_observe_for_real(tmp_path):
    """The goals, with all figures right."""
    code, told = bench(tmp_path, "observe", "--groups", "1000")
    (found,) = told["results"]
    assert code == 0, found["goals"]
    assert found["sizes"][0]["right"]
    assert not list((tmp_path / "bench").iterdir())
