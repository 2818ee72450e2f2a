"""`benchmarks rebalance-table`: cells, data, small runs of the model.

What docs/contributing/benchmark-log.md shows is run here.
"""

import csv
import re
from dataclasses import replace
from random import Random
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks.__main__ import benchmarks
from benchmarks.rebalance_table import (
    SIZES,
    Cell,
    Outcome,
    SizedChange,
    in_order,
    markdown,
    read_cells,
    sized_changes,
    tally,
    write_cells,
)
from fleet import cli
from fleet.errors import ConfigError
from fleet.sim.scenarios.group_scenario import FLEET_RESUBSCRIBE
from fleet.sim.scenarios.play import play
from tests.test_repo import ROOT

KEY = SizedChange("join", "range", "dynamic", "one", 10)

DATA = ROOT / "docs" / "data" / "rebalance-table.csv"


def outcome(rebalances: int = 1, settled: float | None = 2.0, **told: float) -> Outcome:
    """Of one run."""
    return Outcome(rebalances, settled, told.get("longest", 1.0), told.get("mean", 0.25))


def cell(key: SizedChange = KEY, **told: Any) -> Cell:
    """Of one run."""
    return replace(tally(key, [outcome()]), **told)


def test_a_cell_with_a_run_that_did_not_settle_has_no_duration() -> None:
    """Its pauses are known."""
    told = tally(KEY, [outcome(), outcome(settled=None)])
    assert (told.duration, told.duration_max, told.longest_downtime) == (None, None, 1.0)
    assert told.shown().startswith("- / ")


def test_data_of_another_run_stays(tmp_path) -> None:
    """A cell that is played again takes the place of the old one; the order is the table's."""
    path = tmp_path / "data.csv"
    later = cell(KEY._replace(change="restart", members=3), duration=None, duration_max=None)
    assert write_cells(path, [later, cell()]) == [cell(), later]
    again = cell(KEY, duration=9.5)
    larger = cell(KEY._replace(members=200))
    kept = write_cells(path, [larger, again])
    assert kept == read_cells(path) == [again, larger, later]


def test_every_way_is_a_story_of_its_own() -> None:
    """Fifteen for each protocol; a tenth is two at least; Fleet's are static and heard at once."""
    every = list(sized_changes(3))
    assert len(every) == len(set(every)) == 45
    assert {each.changed for each in every if each.way != "one"} == {2}
    assert {each.changed for each in sized_changes(450)} == {1, 45}
    fleet = SizedChange("leave", "range", "static", "fleet", 20).scenario(7)
    (leave,) = fleet.events
    assert (leave.at, leave.do, leave.member, leave.together) == (60_007, "batched-leave", 18, 2)
    assert (fleet.static, fleet.heartbeat_interval, fleet.session_timeout) == (True, 500, 180_000)
    joins = SizedChange("join", "consumer", "static", "fleet", 20).scenario()
    assert joins.resubscribe == FLEET_RESUBSCRIBE
    for change, members in (("join", 3), ("restart", 1)):
        (happening,) = SizedChange(change, "range", "dynamic", "tenth", 3).scenario().events
        assert (happening.member, happening.together) == (members, 2)


@pytest.mark.parametrize("members", [3, 10])
def test_for_real(tmp_path, capsys, members: int) -> None:
    """Two sizes: all settle; what is known of each protocol holds."""
    path = tmp_path / "data.csv"
    plot = tmp_path / "plot.svg"
    args = ["--members", str(members), "--seeds", "2", "--data", str(path)]
    if members == 3:
        args += ["--plot", str(plot)]
    assert cli.run(["rebalance-table", *args], command=benchmarks) == 0
    cells = {each.key[:4]: each for each in read_cells(path)}
    assert len(cells) == 45
    told = capsys.readouterr().out
    assert re.findall("^### (.*)", told, re.MULTILINE) == ["Join", "Leave", "Restart"]
    assert f"{members} members" in told
    for (change, protocol, membership, way), found in cells.items():
        fleet = cells[change, protocol, "static", "fleet"]
        assert found.duration is not None
        assert found.longest_downtime <= found.duration + 0.001, "nothing pauses before and after"
        assert fleet.longest_downtime <= found.longest_downtime + 0.05, (change, protocol, way)
        if change == "restart":
            assert (found.rebalances_max == 0) is (membership == "static"), (protocol, way)
        elif protocol == "cooperative-sticky" and change == "join":
            assert found.rebalances == 2
    if members == 3:
        drawn = ET.parse(plot)
        assert len(drawn.findall(".//{*}polyline")) == 9 * 5 * 2


def test_heartbeats_stand_apart() -> None:
    """Members of one round would heartbeat together, and a rebalance be short."""
    story = KEY.scenario()
    drifted = [play(story, Random(seed)).longest for seed in range(5)]
    together = [play(story._replace(drifts_at=0), Random(seed)).longest for seed in range(5)]
    assert max(together) < 300
    assert min(drifted) > 1_500


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "--data .*cannot be used"),
        ("change,protocol\n", "is no data of the rebalance table"),
        ("cut", "is no data of the rebalance table"),
    ],
)
def test_data_that_cannot_be_used_is_told_before_anything_is_played(tmp_path, made, told):
    """Minutes of work would be lost; a file that was cut names its line."""
    (tmp_path / "file").write_text("")
    path = tmp_path / ("file/cells.csv" if made is None else "cells.csv")
    if made == "cut":
        write_cells(path, [cell()])
        path.write_text(path.read_text()[:-20])
    elif made:
        path.write_text(made)
    before = path.read_text() if made else None
    assert (
        cli.run(["rebalance-table", "--members", "10", "--data", str(path)], command=benchmarks)
        == 2
    )
    with pytest.raises(ConfigError, match=told):
        write_cells(path, [])
    assert before is None or path.read_text() == before


def test_the_page_is_written_from_its_data() -> None:
    """docs/contributing/benchmark-log.md ends with the tables; sizes are the command's."""
    cells = read_cells(DATA)
    assert {each.members for each in cells} <= set(SIZES)
    assert cells == in_order(cells)
    with DATA.open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 45 * len({each.members for each in cells})
    page = (ROOT / "docs" / "contributing" / "benchmark-log.md").read_text(encoding="utf-8")
    assert page.endswith(markdown(cells))


def test_the_pages_data_is_what_the_model_says(tmp_path) -> None:
    """Its smallest group, played again with the same seeds."""
    path = tmp_path / "data.csv"
    assert (
        cli.run(["rebalance-table", "--members", "10", "--data", str(path)], command=benchmarks)
        == 0
    )
    assert read_cells(path) == [each for each in read_cells(DATA) if each.members == 10]
