"""What `benchmarks start` makes of its starts, and one small real run."""

import json

import pytest

from benchmarks.command import answer
from benchmarks.figures import spread
from benchmarks.start import StartOptions, StartResult, Starts
from tests.benchmarks.test_commands import bench
from tests.support.json_contract import BENCHMARKS, documented, shape

PARTS = [
    {"part": "interpreter", "when": "load", "cpu_seconds": 0.02, "seconds": None, "mb": 6.0},
    {"part": "pandas", "when": "first use", "cpu_seconds": 0.3, "seconds": 0.5, "mb": 33.0},
]


def result(*, cpu=(0.1, 0.2, 0.3), standby=(56.0, 57.0)):
    """Some starts."""
    return StartResult(
        options=StartOptions(),
        forked=Starts(cpu=spread(cpu), seconds=spread([0.5, 0.7]), standby=spread(standby)),
        program=Starts.of([(0.7, 1.2, 91.0), (0.8, 1.3, 91.2)]),
        fork_server=40.0,
        worker=80.0,
        parts=PARTS,
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


def test_the_table_says_when_a_part_is_paid_for():
    """A part without seconds has none; the whole stands below, in both ways."""
    _, interpreter, pandas, program, fork = result().rows()
    assert interpreter == ("interpreter", "load", "0.02 s", "-", "+6.0 MB")
    assert pandas[1] == "first use"
    assert program[2:] == ("0.70 s", "1.20 s", "91.0 MB")
    assert fork[2:] == ("0.20 s", "0.50 s", "56.0 MB")


def test_json_has_the_documented_shape():
    """Every key that is printed stands in benchmarks/json.md with its kind, and no other."""
    told = json.loads(json.dumps(answer("start", result())))
    assert shape(told) == shape(documented("python -m benchmarks start -o json", BENCHMARKS))


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_start_for_real(tmp_path):
    """Each step of a start is there with its figures, and pandas is none of them."""
    code, told = bench(tmp_path, "start", "--starts", "1", "--max-cpu", "60")
    assert code == (0 if told["met"] else 1)
    assert told["cpu_seconds"]["measured"] == 1
    parts = {part["part"]: part for part in told["parts"]}
    assert {"interpreter", "PySpark", "Connect session", "dummy batch"} <= set(parts)
    assert parts["pandas"]["when"] == "first use"
    assert 20 < told["standby_mb"]["p50"] < 300
    assert told["worker_mb"] > 20
    assert told["fork_server_mb"] > 20
    assert told["cpu_seconds"]["p50"] < told["program"]["cpu_seconds"]["p50"]
    assert told["standby_mb"]["p50"] < told["program"]["standby_mb"]["p50"]
