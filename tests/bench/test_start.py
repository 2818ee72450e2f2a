"""What `fleet bench start` makes of its starts, and one small real run."""

import json

import pytest

from fleet.bench.figures import spread
from fleet.bench.start_bench import StartOptions, StartResult
from fleet.commands.bench.bench_start import answer
from tests.bench.test_commands import bench
from tests.support.json_contract import documented, shape

PARTS = [
    {"part": "interpreter", "when": "start", "cpu_seconds": 0.02, "seconds": None, "mb": 6.0},
    {"part": "pandas", "when": "first use", "cpu_seconds": 0.3, "seconds": 0.5, "mb": 33.0},
]


def result(*, cpu=(0.7, 0.8, 0.9), standby=(88.0, 90.0)):
    """Some starts."""
    return StartResult(
        options=StartOptions(),
        cpu=spread(cpu),
        seconds=spread([1.0, 2.0]),
        standby=spread(standby),
        worker=100.0,
        parts=PARTS,
    )


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({}, True),
        ({"cpu": (1.1, 1.2)}, False),
        ({"standby": (131.0,)}, False),
        ({"cpu": ()}, False),
    ],
)
def test_goals(figures, met):
    """1 s of CPU and 130 MB at p50; what was not measured is missed."""
    assert result(**figures).met is met


def test_the_table_says_when_a_part_is_paid_for():
    """A part without seconds has none; the whole stands below."""
    _, interpreter, pandas, whole = result().rows()
    assert interpreter == ("interpreter", "start", "0.02 s", "-", "+6.0 MB")
    assert pandas[1] == "first use"
    assert whole[2:] == ("0.80 s", "1.00 s", "88.0 MB")


def test_json_has_the_documented_shape():
    """Every key that is printed stands in docs/json.md with its kind, and no other."""
    told = json.loads(json.dumps(answer(result())))
    assert shape(told) == shape(documented("fleet bench start -o json"))


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
