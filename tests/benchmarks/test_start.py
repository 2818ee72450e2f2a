"""What `benchmarks start` makes of its starts, and one small real run."""

import pytest

from benchmarks.figures import spread
from benchmarks.start import StartResult, Starts
from tests.benchmarks.test_commands import bench


def result(*, cpu=(0.1, 0.2, 0.3), standby=(56.0, 57.0)):
    """Some starts."""
    return StartResult(
        forked=Starts(cpu=spread(cpu), seconds=spread([0.5, 0.7]), standby=spread(standby)),
        program=Starts.of([(0.7, 1.2, 91.0), (0.8, 1.3, 91.2)]),
        fork_server=40.0,
        worker=80.0,
        parts=[],
    )


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({}, True),
        ({"cpu": (0.6, 0.7)}, False),
        ({"standby": (75.0,)}, False),
        ({"cpu": ()}, False),
    ],
)
def test_goals(figures, met):
    """0.5 s of CPU and 74 MB at p50; what was not measured is missed."""
    assert result(**figures).met is met


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_start_for_real(tmp_path):
    """Each step of a start is there with its figures, and pandas is none of them."""
    code, answer = bench(tmp_path, "start", "--starts", "1")
    (told,) = answer["results"]
    assert code == (0 if told["met"] else 1)
    assert told["forked"]["cpu"]["measured"] == 1
    parts = {part["part"]: part for part in told["parts"]}
    assert {"interpreter", "PySpark", "Connect session", "dummy batch"} <= set(parts)
    assert parts["pandas"]["when"] == "first use"
    assert 20 < told["forked"]["standby"]["p50"] < told["program"]["standby"]["p50"] < 300
    assert told["worker"] > 20
    assert told["fork_server"] > 20
    assert told["forked"]["cpu"]["p50"] < told["program"]["cpu"]["p50"]
