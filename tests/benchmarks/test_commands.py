"""`python -m benchmarks`: its help, and one small real run with its JSON and exit code."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.__main__ import benchmarks
from fleet import cli
from fleet.broker import Broker
from tests.support.command import process
from tests.support.kafka_tools import generations


@pytest.mark.parametrize("name", ["roll", "sync-join", "failover"])
def test_help_states_the_goals(name, capsys):
    """What exit code 1 means can be read before anything is run."""
    assert cli.run([name, "--help"], command=benchmarks) == 0
    told = capsys.readouterr().out
    assert "Goals" in told
    assert "--protocol [range|cooperative-sticky|consumer|all]" in told


def bench(home, *arguments):
    """Run one benchmark; (exit code, answer)."""
    done = process(*arguments, "-o", "json", home=home, program="benchmarks")
    assert not _running(home), "nothing is left running"
    return done.returncode, json.loads(done.stdout)


def _running(home: Path) -> list[str]:
    """Living processes that were told of this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and int(entry.name) != os.getpid() and str(home).encode() in told:
            found.append(told.decode(errors="replace"))
    return found


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_roll_for_real(tmp_path):
    """Two handovers; the goal that no pause can keep makes it exit 1."""
    quick = ("roll", "--quick", "--protocol", "cooperative-sticky", "--max-downtime", "0", "--keep")
    code, answer = bench(tmp_path, *quick)
    assert code == 1
    assert answer["bench"] == "roll"
    assert answer["met"] is False
    (found,) = answer["protocols"]
    missed = [goal["goal"] for goal in found["goals"] if not goal["met"]]
    assert missed == ["downtime of a partition at p95, seconds"]
    assert found["fleet"]["rebalances"] == 0
    recorded = set(generations(Broker(Path(answer["home"])), "roll-cooperative-sticky"))
    assert recorded - {0} == {1, 2}, "DumpLogSegments: all joined, all left, nothing between"
    assert found["fleet"]["handovers"] == 2
    assert found["fleet"]["downtime_seconds"]["measured"] == 4, "two partitions each"
    assert found["baseline"]["rebalances"] >= 2
    assert found["baseline"]["lost"] == 0


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_sync_join_for_real(tmp_path):
    """Two joins by a synchronized join, two as they come."""
    code, answer = bench(
        tmp_path,
        *(
            "sync-join",
            "--quick",
            "--protocol",
            "range",
            "--max-settled",
            "60",
            "--max-downtime",
            "60",
        ),
    )
    assert not (tmp_path / "bench").exists(), "the home is gone"
    (found,) = answer["protocols"]
    assert code == (0 if answer["met"] else 1)
    assert answer["met"], found["goals"]
    (joins,) = found["joins"]
    assert [run["rebalances"] for run in joins["sync_join"]] == [1]
    assert sum(each["joined"] for each in joins["sync_join"][0]["rounds"]) == 2
    assert joins["spread_seconds"]["max"] <= 0.1
    assert joins["baseline_in_turn"][0]["rebalances"] >= 2
