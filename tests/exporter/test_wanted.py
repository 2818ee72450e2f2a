"""`fleet_group_wanted_members`: the policy's number, for KEDA and an HPA."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fleet.exporter import RefreshResult, WantedMembers, render
from fleet.model import GroupSnapshot, TopicPartition
from tests.docs.pages import blocks
from tests.support.declared import fleet_spec
from tests.support.seen_groups import group_seen, member_seen, partition_seen
from tests.support.snapshots import snapshot_of

EXTERNAL = {
    "group": "orders",
    "topics": ["orders"],
    "scaling": {"policy": "drain_time", "records_per_second": 1000},
}


def group(end: int, done: int, members: int = 2) -> GroupSnapshot:
    """Four partitions, each with so many records and commits."""
    tps = [TopicPartition("orders", number) for number in range(4)]
    return group_seen(
        members=[
            member_seen(f"m{n}", [tp for tp in tps if tp.partition % members == n])
            for n in range(members)
        ],
        partitions=[
            partition_seen(
                tp.partition, end - done, committed=done, log_end=end, owner=f"m{tp.partition % 2}"
            )
            for tp in tps
        ],
    )


def wanted(
    *seen: tuple[float, GroupSnapshot | None], storms: Sequence[int] = ()
) -> list[dict[str, int]]:
    """What each refresh of one exporter says; the group is in a storm at these."""
    looks = iter(seen)

    def snapshot(names: list[str]) -> Any:
        assert names == ["orders"]
        at, found = next(looks)
        groups = () if found is None else (found,)
        return snapshot_of(*groups, at=at, topics={"orders": 4})

    fleet: Any = SimpleNamespace(
        spec=fleet_spec(EXTERNAL, {"group": "other", "topics": ["o"]}),
        snapshot=snapshot,
        external_number=lambda _: None,
    )
    asked = WantedMembers(fleet)
    return [
        dict(asked.refresh({"orders"} if place in storms else {"other"}))
        for place in range(len(seen))
    ]


def test_an_external_group_gets_the_number_of_its_policy() -> None:
    """The first refresh has no rate, so it says what is there; only declared scaling counts."""
    told = wanted((100.0, group(0, 0)), (130.0, group(27_000, 15_000)))
    assert told == [{"orders": 2}, {"orders": 4}]


def test_a_group_that_nobody_reports_has_no_number() -> None:
    """A scaler then keeps what it has."""
    assert wanted((100.0, group(0, 0)), (130.0, None)) == [{"orders": 2}, {}]


@pytest.mark.parametrize(
    ("storms", "numbers"),
    [
        pytest.param([], [2, 4, 4], id="none"),
        pytest.param([1], [2, 2, 4], id="one-refresh"),
        pytest.param([1, 2], [2, 2, 2], id="it-lasts"),
        pytest.param([2], [2, 4, 4], id="the-last-number-counts"),
        pytest.param([0, 1], [None, None, 4], id="since-the-start"),
    ],
)
def test_a_storm_holds_the_number(storms: list[int], numbers: list[int | None]) -> None:
    """It costs no further rebalance; rates are measured all the time."""
    seen = ((100.0, group(0, 0)), (130.0, group(27_000, 15_000)), (160.0, group(54_000, 30_000)))
    told = wanted(*seen, storms=storms)
    assert [each.get("orders") for each in told] == numbers


@pytest.mark.prometheus
def test_the_query_of_the_page_is_the_number(tmp_path) -> None:
    """By Prometheus itself, from what the exporter answers."""
    result = RefreshResult(seen=snapshot_of(), wanted={"orders": 7, "other": 3})
    (line,) = [
        each
        for each in render(result).decode().splitlines()
        if each.startswith("fleet_group_wanted_members") and '"orders"' in each
    ]
    series, _, value = line.rpartition(" ")
    page = next(each.text for each in blocks() if "serverAddress" in each.text)
    query = yaml.safe_load(page)["triggers"][0]["metadata"]["query"]
    test = {
        "interval": "30s",
        "input_series": [{"series": series, "values": f"{value}x5"}],
        "promql_expr_test": [
            {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": "{}", "value": 7}]}
        ],
    }
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [], "tests": [test]}))
    promtool = shutil.which("promtool")
    assert promtool
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
