"""`python -m benchmarks`: its help, and one small real run with its answer and exit code."""

import os
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.__main__ import NAMES, benchmarks
from fleet import cli
from fleet.broker import Broker
from tests.support.command import process
from tests.support.kafka_tools import generations


@pytest.mark.parametrize("name", NAMES)
def test_help_states_the_goals(name, capsys):
    """What exit code 1 means can be read before anything is run."""
    assert cli.run([name, "--help"], command=benchmarks) == 0
    assert re.search("Goals?\\b", capsys.readouterr().out) or name == "rebalance-table"


def bench(home, *arguments):
    """Run one benchmark; (exit code, answer)."""
    done = process(*arguments, home=home, program="benchmarks")
    assert not _running(home), "nothing is left running"
    return done.returncode, yaml.safe_load(done.stdout)


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
    """Two handovers, beside two restarts."""
    quick = ("roll", "--quick", "--protocol", "cooperative-sticky", "--keep")
    code, answer = bench(tmp_path, *quick)
    assert answer["bench"] == "roll"
    (found,) = answer["results"]
    assert code == (0 if found["met"] else 1)
    assert found["ours"]["rebalances"] == 0
    recorded = set(generations(Broker(Path(answer["home"])), "roll-cooperative-sticky"))
    assert recorded - {0} == {1, 2}, "DumpLogSegments: all joined, all left, nothing between"
    assert found["ours"]["handovers"] == 2
    assert found["ours"]["downtimes"]["measured"] == 4, "two partitions each"
    assert found["baseline"]["rebalances"] >= 2
    assert found["baseline"]["lost"] == 0


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
def test_sync_join_for_real(tmp_path):
    """Two joins by a synchronized join, two as they come."""
    code, answer = bench(tmp_path, "sync-join", "--quick", "--protocol", "range")
    assert not (tmp_path / "bench").exists(), "the home is gone"
    (found,) = answer["results"]
    assert code == (0 if found["met"] else 1)
    joins = found["joins"]
    assert joins["+2 synchronized"]["rebalances"] == {1: 1}
    assert joins["+2 synchronized"]["spread"]["max"] <= 0.1
    assert min(joins["+2 baseline, in turn"]["rebalances"]) >= 2
