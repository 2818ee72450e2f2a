"""`fleet simulate --group`: a group's next change of size, as its history shows it."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.clock import SystemClock
from fleet.decide.alternatives import RecordedGroup, build_scaling_scenario, recorded_group
from fleet.errors import FleetError
from fleet.history.tables import TablePlace, Writer, row_of
from fleet.model.rebalances import MembershipSpan, Rebalance
from fleet.sim.scenarios.play import play
from tests.asking.worlds import membership, partitions, rebalance
from tests.support.command import answer, said
from tests.support.declared import group_spec

REBALANCED = [
    rebalance(1, 0.0, assignor="range", members=1),
    rebalance(2, 10.0, assignor="cooperative-sticky", members=2),
]
SPANS = [
    membership("joined", "orders-0", 0.0, 6),
    membership("joined", "guest", 5.0, 0, instance_id=None),
    membership("left", "guest", 8.0, 0, instance_id=None),
    membership("owns", "orders-0", 10.0, 3),
    membership("joined", "orders-1", 10.0, partitions(3, first=3)),
]
FOUND = RecordedGroup(members=2, static=True, partitions=6, protocol="cooperative-sticky")


def test_a_group_is_as_its_last_rebalance_left_it() -> None:
    """Who has left counts no more, neither its partitions nor that it was dynamic."""
    assert recorded_group("orders", REBALANCED, SPANS) == FOUND
    dynamic = [*SPANS, membership("joined", "guest", 11.0, 0, instance_id=None)]
    assert not recorded_group("orders", REBALANCED, dynamic).static
    consumer = [rebalance(9, 10.0, protocol="consumer", assignor="uniform")]
    assert recorded_group("orders", consumer, SPANS).protocol == "consumer"


@pytest.mark.parametrize(
    ("rebalances", "spans", "why"),
    [
        ([], SPANS, "group orders has no recorded rebalance"),
        ([rebalance(1, 0.0, assignor="stream")], SPANS, "assignor stream, which is not modelled"),
        ([rebalance(1, 0.0, protocol="share")], SPANS, "has protocol share"),
        (REBALANCED, [*SPANS[:2], membership("left", "orders-0", 9.0)], "no member with a part"),
        ([replace(REBALANCED[-1], members=0)], SPANS, "no member with a partition"),
    ],
)
def test_what_cannot_be_played_is_said(
    rebalances: list[Rebalance], spans: list[MembershipSpan], why: str
) -> None:
    """No guess of a protocol, or of partitions."""
    with pytest.raises(FleetError, match=why):
        recorded_group("orders", rebalances, spans)


def test_fleet_opens_a_targets_where_processes_come_one_by_one() -> None:
    """Two more rounds for all, or for each."""
    rng = random.Random(1)
    worker = group_spec("orders").worker
    targets = play(build_scaling_scenario(FOUND, 6, worker, rng), rng)
    alone = play(build_scaling_scenario(FOUND, 6, None, rng), rng)
    assert (targets.rebalances, len(set(targets.owners))) == (2, 6)
    assert alone.rebalances > 2 * targets.rebalances
    assert len(set(alone.owners)) == 6


def test_fewer_leave_together_or_one_by_one() -> None:
    """One request of Fleet's; a static process that ends is missed at its session's end."""
    rng = random.Random(1)
    many = FOUND._replace(members=6, partitions=12)
    left = play(build_scaling_scenario(many, 3, group_spec("orders").worker, rng), rng)
    assert (left.rebalances, set(left.owners)) == (1, {0, 1, 2})
    alone = play(build_scaling_scenario(many, 3, None, rng), rng)
    assert set(alone.owners) == {0, 1, 2}
    assert alone.settled > 20 * left.settled


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with fleet.yaml of a cluster where nobody answers, and a history of it."""
    monkeypatch.setenv("FLEET_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    spec: dict[str, Any] = {"cluster": {"name": "main", "bootstrap_servers": "127.0.0.1:1"}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({**spec, "fleets": []}))
    writer = Writer(
        TablePlace(tmp_path / "history"), cluster="main", clock=SystemClock(), retention=1e10
    )
    files = (
        *writer.write("rebalances", map(row_of, REBALANCED)),
        *writer.write("memberships", map(row_of, SPANS)),
    )
    writer.commit("batch", files=files)
    return tmp_path


def test_the_command_asks_the_history(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By tables no broker is asked."""
    found = answer(capsys, "simulate", "--group", "orders", "--scale", "4", "--seeds", "3")
    assert (found["scenario"], found["members"], found["seeds"]) == ("orders from 2 to 4", 2, 3)
    assert (found["protocol"], found["static"]) == ("cooperative-sticky", True)
    assert found["figures"]["rebalances"]["p50"] >= 2
    out, err = said(capsys, "simulate", "--group", "orders", "--scale", "1")
    assert out.startswith("orders from 2 to 1: 2 static members by cooperative-sticky, 6 part")
    assert "from the history tables in" in err
    same = said(capsys, "simulate", "--group", "orders", "--scale", "2", code=2)
    assert "already has 2 members" in same[1]
    for wrong in (
        ("--group", "orders"),
        ("--scale", "2"),
        ("deploy", "--group", "o", "--scale", "2"),
    ):
        assert "--group and --scale need each other" in said(capsys, "simulate", *wrong, code=2)[1]
