"""The demo's report: promises, table, JSON."""

from dataclasses import replace

import pytest
from rich.console import Console

from fleet.demo.view import StepResult, broken_guarantees, report_json, table

UP = StepResult(
    name="up",
    group="orders-enrichment",
    expected_rebalances=2,
    recorded_rebalances=2,
    moved_partitions=6,
    longest_downtime_s=0.4217,
    downtime_partition_s=1.2345,
    records=123456,
    lost=0,
    duplicates=0,
    seconds=31.26,
)
ROLL = replace(UP, name="roll", expected_rebalances=0, recorded_rebalances=0, moved_partitions=12)
BASELINE = replace(
    UP, name="baseline", group="orders-baseline", expected_rebalances=18, recorded_rebalances=17
)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        pytest.param([UP, ROLL, BASELINE], (), id="all held"),
        pytest.param(
            [UP], ("step roll was not reached", "baseline was not reached"), id="ended early"
        ),
        pytest.param(
            [replace(UP, recorded_rebalances=3), ROLL, BASELINE],
            ("up: the coordinator recorded 3 rebalances, the plan allows at most 2",),
            id="too many rebalances",
        ),
        pytest.param(
            [replace(UP, recorded_rebalances=0), ROLL, BASELINE],
            ("up: the coordinator recorded no rebalance",),
            id="nothing happened",
        ),
        pytest.param(
            [UP, replace(ROLL, lost=4, duplicates=2), BASELINE],
            ("roll: 4 records were never processed", "roll: 2 records were processed more than"),
            id="lost and duplicates",
        ),
        pytest.param(
            [UP, ROLL, replace(BASELINE, duplicates=9)], (), id="the baseline may repeat a batch"
        ),
        pytest.param(
            [UP, ROLL, replace(BASELINE, lost=9)],
            ("baseline: 9 records were never processed",),
            id="but loses nothing",
        ),
    ],
)
def test_promises(steps, said):
    """Exit 0 means that every promise held; otherwise each broken one is a sentence."""
    found = broken_guarantees(steps, ("up", "roll", "baseline"))
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence


def test_json_is_the_contract():
    """Keys and units of demo-report.json."""
    report = report_json("127.0.0.1:1", [UP, replace(ROLL, longest_downtime_s=None)])
    assert report == {
        "bootstrap_servers": "127.0.0.1:1",
        "steps": [
            {
                "name": "up",
                "group": "orders-enrichment",
                "expected_rebalances": 2,
                "recorded_rebalances": 2,
                "moved_partitions": 6,
                "longest_downtime_s": 0.422,
                "downtime_partition_s": 1.234,
                "records": 123456,
                "lost": 0,
                "duplicates": 0,
                "seconds": 31.3,
            },
            {**report["steps"][0], "name": "roll", "expected_rebalances": 0}
            | {"recorded_rebalances": 0, "moved_partitions": 12, "longest_downtime_s": None},
        ],
    }


def test_the_table_fits_a_page():
    """100 columns hold every figure unbroken."""
    console = Console(width=100, force_terminal=False)
    with console.capture() as shown:
        console.print(table([UP, ROLL, BASELINE]))
    lines = shown.get().splitlines()
    assert max(len(line) for line in lines) <= 100
    assert "123456" in shown.get()
    assert "…" not in shown.get()
    assert "≤ 2" in shown.get()
    assert "0.42 s" in shown.get()
    assert " 1.2 " in shown.get()
