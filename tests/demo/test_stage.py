"""The stage: what a demo writes, what it refuses to delete, what it finds again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.clock import SystemClock
from fleet.config.load import load
from fleet.config.spec import ClassicWorker
from fleet.demo.stage import BASELINE_GROUP, CLUSTER, GROUP, ID_VARIABLE, Stage, leftovers
from fleet.errors import Refused
from fleet.slots import SlotTargets
from fleet.slots.sqlite import SqliteStore
from fleet.system import processes
from fleet.system.processes import end_all
from tests.support.waiting import until


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path / "home")
    made.prepare(assignor="range")
    return made


def test_the_generated_file_is_a_good_one(stage: Stage):
    """It loads; the groups differ in membership only, and the second one waits for its turn."""
    spec = load(stage.config, {})
    managed, dynamic = spec.fleet(GROUP), spec.fleet(BASELINE_GROUP)
    assert managed is not None
    assert dynamic is not None
    assert isinstance(managed.worker, ClassicWorker)
    assert managed.worker.assignor == "range"
    assert managed.worker.model_copy(update={"membership": "dynamic"}) == dynamic.worker
    assert (spec.mode_of(managed), spec.mode_of(dynamic)) == ("act", "observe")
    stage.write_spec(assignor="range", baseline=True)
    again = load(stage.config, {})
    assert again.mode_of(dynamic.model_copy(update={"mode": "act"})) == "act"
    assert again.fleet(GROUP) == managed


def test_new_code_is_other_code(stage: Stage):
    """The roll is a real change of the entrypoint's file, made once."""
    before = stage.code.read_text()
    stage.new_code()
    after = stage.code.read_text()
    assert "VERSION = 2" in after
    assert sum(a != b for a, b in zip(before.split("\n"), after.split("\n"), strict=True)) == 2
    with pytest.raises(Refused, match="was edited during the demo"):
        stage.new_code()


@pytest.mark.parametrize("kept", ["broker/state.json", "fleet.db"])
def test_somebody_elses_home_is_refused(tmp_path: Path, kept: str):
    """A broker or slots without the demo's mark belong to a real fleet: nothing is deleted."""
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).touch()
    with pytest.raises(Refused, match=f"would delete the fleet in .* .{kept}."):
        Stage(tmp_path).prepare(assignor="range")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / kept]


def test_a_previous_demo_is_cleared(stage: Stage):
    """Its journal, its report and its broker go; what it did not make stays."""
    (stage.home / "notes.txt").write_text("mine")
    (stage.home / "fleet.db").write_text("")
    (stage.journal / "w.jsonl").write_text("{}\n")
    stage.report.write_text("{}")
    stage.new_code()
    stage.prepare(assignor="cooperative-sticky")
    assert list(stage.journal.iterdir()) == []
    assert not stage.report.exists()
    assert not (stage.home / "fleet.db").exists()
    assert "VERSION = 1" in stage.code.read_text()
    assert (stage.home / "notes.txt").read_text() == "mine"


def test_a_fleet_that_moved_in_where_a_demo_was_is_refused(stage: Stage):
    """The mark alone says nothing of who lives here now: the groups of its store do."""
    store = SqliteStore(stage.home / "fleet.db", cluster=CLUSTER, clock=SystemClock())
    store.write_targets(SlotTargets(group=GROUP))
    stage.prepare(assignor="range")
    for cluster, group in (("main", GROUP), (CLUSTER, "payments")):
        store = SqliteStore(stage.home / "fleet.db", cluster=cluster, clock=SystemClock())
        store.write_targets(SlotTargets(group=group))
        before = set(stage.home.rglob("*"))
        with pytest.raises(
            Refused, match=f"would delete the fleet in .* .group {group} of {cluster}."
        ):
            stage.prepare(assignor="range")
        assert set(stage.home.rglob("*")) >= before
        (stage.home / "fleet.db").unlink()


def test_a_store_that_cannot_be_read_is_not_deleted(stage: Stage):
    """Nobody knows whose it is."""
    (stage.home / "fleet.db").write_text("no database at all, but more than nothing")
    with pytest.raises(Refused, match="which it cannot read"):
        stage.prepare(assignor="range")


def test_what_was_purged_is_nobodys(stage: Stage):
    """After `fleet down --purge` a home is as if no demo had been there."""
    stage.forget()
    (stage.home / "fleet.db").write_text("somebody's")
    with pytest.raises(Refused, match="would delete the fleet in"):
        stage.prepare(assignor="range")


def test_leftovers_are_found_and_ended():
    """A process and its child in another group carry the demo's id; nobody else does."""
    name = "test-of-leftovers"
    child = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0);"
        "print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", child],
        env={**os.environ, ID_VARIABLE: name},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        # A program that has just begun shows no environment for a moment.
        found = until(lambda: (seen := leftovers(name))[1:] and seen, "both", every=0.05)
        assert len(found) == 2
        end_all(found, grace=2.0)
        parent.wait(timeout=120)
    assert leftovers(name) == ()
    assert not any(processes.alive(p) for p in found)
    assert leftovers("") == ()
