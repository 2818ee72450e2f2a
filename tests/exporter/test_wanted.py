"""`fleet_group_wanted_members`: the policy's number, for KEDA and an HPA."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fleet.config.load import load
from fleet.config.spec import ExternalScaling
from fleet.errors import ConfigError
from fleet.exporter import RefreshResult, WantedMembers, render
from fleet.model import GroupSnapshot, LagCase, TopicPartition
from tests.docs.pages import blocks
from tests.support.declared import declaration, fleet_spec
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
        dict(asked.refresh((), {"orders"} if place in storms else {"other"}))
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


LAG = {"policy": "lag", "records_per_worker": 10}
SIZED: list[dict[str, Any]] = [
    {"groups": {"allow": ["pay-.*"], "deny": ["pay-b"]}, "scaling": LAG},
    {
        "groups": {"deny": ["other-.*"]},
        "scaling": {"policy": "partitions", "per_worker": 1},
        "replicas": {"min": 1, "max": 2},
    },
]


def sized(*groups: GroupSnapshot, declared: Sequence[dict[str, Any]] = ()) -> dict[str, int]:
    """What the entries SIZED come to; each partition that is not of topic `tiny` is one of four."""
    seen = snapshot_of(*groups, topics={"orders": 4, "tiny": 1})
    fleet: Any = SimpleNamespace(
        spec=fleet_spec(*declared, exporter={"wanted_members": SIZED}),
        snapshot=lambda names: seen.only(set(names).__contains__),
        external_number=lambda _: None,
        reports=lambda _: (),
    )
    return dict(WantedMembers(fleet).refresh(seen.facts))


def test_groups_that_declare_nothing_get_the_number_of_an_entry() -> None:
    """Of the first that takes them, in its bounds, by the topics that they read."""
    waits = [partition_seen(number, 10) for number in range(4)]
    tiny = partition_seen(0, 10, topic="tiny")
    left = [partition_seen(n, 10, case=LagCase.LEFT) for n in range(4)]
    found = sized(
        group_seen("pay-a", partitions=waits),
        group_seen("pay-b", partitions=waits),
        group_seen("pay-small", partitions=[*waits, tiny], members=[member_seen()]),
        group_seen("moved-on", partitions=[tiny, *left]),
        group_seen("other-a", partitions=waits),
        group_seen("pay-empty"),
        group_seen("pay-shared", partitions=waits, type="share"),
        group_seen("", partitions=waits),
        group_seen("joined", members=[member_seen("m", [TopicPartition("orders", 0)])]),
    )
    assert found == {
        "pay-a": 4,
        "pay-b": 2,
        "pay-small": 5,
        "moved-on": 1,
        "": 2,
        "joined": 2,
    }


def test_a_declared_group_has_its_own_policy_if_it_declares_one() -> None:
    """Else that of the entry, also for workers of Fleet."""
    waits = [partition_seen(number, 10) for number in range(4)]
    own = {**EXTERNAL, "group": "pay-own", "scaling": {"policy": "fixed", "workers": 3}}
    ours = declaration("pay-ours")
    names = ("pay-own", "pay-ours")
    found = sized(*(group_seen(each, partitions=waits) for each in names), declared=[own, ours])
    assert found == {"pay-own": 3, "pay-ours": 4}


def test_what_is_remembered_ends_with_its_group() -> None:
    """An exporter runs for months, and groups come and go."""
    looks = iter([snapshot_of(group_seen("a", partitions=[partition_seen()])), snapshot_of()])
    fleet: Any = SimpleNamespace(
        spec=fleet_spec(exporter={"wanted_members": [{"scaling": {"policy": "lag"}}]}),
        snapshot=lambda _: next(looks),
        external_number=lambda _: None,
    )
    asked = WantedMembers(fleet)
    asked.refresh({"a"})
    assert set(asked._memories) == {"a"}
    asked.refresh(set())
    assert asked._memories == {}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{scaling: {policy: lags}}", "'lags' is not allowed; nearest: lag"),
        ("{groups: {allow: ['(']}, scaling: {policy: lag}}", "is not a regular expression"),
        ("{groups: {allow: [a]}}", "scaling: is missing"),
        (
            '{scaling: {floors: [{hours: "08:00-20:00", min: 20}]}}',
            "scaling.floors wants 20 slots .* but replicas.max is 12",
        ),
    ],
)
def test_an_entry_that_is_wrong_is_told_with_its_line(entry: str, why: str) -> None:
    """As everything in the file."""
    text = f"exporter:\n  wanted_members:\n    - {entry}\n"
    with pytest.raises(ConfigError, match=f"f:3: exporter.wanted_members.0..*{why}"):
        load(Path("f"), {}, text=text)


def test_an_entry_without_a_policy_goes_by_partitions(tmp_path: Path) -> None:
    """As a fleet does; its files lie beside fleet.yaml."""
    text = (
        "exporter:\n  wanted_members:\n    - scaling: {max_step: 2}\n"
        "    - scaling: {policy: external, url: 'https://a', ca_file: ca.pem}\n"
    )
    first, second = load(tmp_path / "f.yaml", {}, text=text).exporter.wanted_members
    assert first.scaling.policy == "partitions"
    assert isinstance(second.scaling, ExternalScaling)
    assert second.scaling.ca_file == str(tmp_path / "ca.pem")


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
