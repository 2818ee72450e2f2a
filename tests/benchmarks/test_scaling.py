"""`benchmarks scaling`: a small run, its answer, and its plot."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks.scaling import ScalingOptions, ScalingResult, decided_in, load_of, on_shape, plotted
from fleet.backtest.comparison import compare
from fleet.backtest.replay import Setting


@pytest.fixture(scope="module")
def result() -> ScalingResult:
    """Of one day, by three rules."""
    options = ScalingOptions(days=1.0)
    found = compare(load_of(options), Setting(), ["drain_time", "flink", "clairvoyant"])
    shapes = {"steady": on_shape("steady", seed=1, days=0.1, tries=6)}
    return ScalingResult(
        options=options, found=found, replayed=0.5, decided=decided_in(3), shapes=shapes
    )


def test_the_clairvoyant_is_as_late_as_the_floor(result: ScalingResult) -> None:
    """But for the minute in which a change takes effect; ours needs more workers."""
    best, ours = result.found.outcomes["clairvoyant"], result.found.outcomes["drain_time"]
    assert best.late_hours == pytest.approx(result.found.floor_hours, abs=0.05)
    assert best.worker_hours < ours.worker_hours < 2 * best.worker_hours
    assert [goal.what for goal in result.goals()][:3] == [
        "late hours",
        "worker hours",
        "rebalances",
    ]


def test_the_answer_has_the_cost_of_each_rule(result: ScalingResult) -> None:
    """As `fleet simulate scaling` names them, and what is held against them."""
    found = result.answer()
    assert found["policies"] == result.found.as_json()["policies"]
    assert len(found["goals"]) == 8
    steady = result.shapes["steady"]
    assert steady.keda_hours == pytest.approx(steady.worker_hours, rel=0.2)
    assert "met: steady: backlog, of KEDA's" in " ".join(found["goals"])


def test_the_plot_names_each_rule(result: ScalingResult) -> None:
    """It is an SVG."""
    root = ET.fromstring(plotted(result.found))
    words = " ".join(root.itertext())
    assert all(name in words for name in result.found.outcomes)
