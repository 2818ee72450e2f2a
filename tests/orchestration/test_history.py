"""The history as assets: recorded outside of the step, told inside, ended with the run."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from dagster import DagsterInstance, materialize

from fleet.clock import SystemClock
from fleet.config.spec import FleetSpec
from fleet.dagster.asset_keys import history_key
from fleet.dagster.history_assets import TABLES, build_history_assets
from fleet.dagster.resources import FleetResource
from fleet.errors import LostLease
from fleet.history.tables import TablePlace, Tables, Writer
from fleet.system.processes import home_processes
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]

# A run worker of the asset, as Dagster interrupts one.
WORKER = """
import sys
from dagster import materialize, DagsterInstance
from fleet.dagster.history_assets import build_history_assets
from fleet.dagster.resources import FleetResource

materialize(
    [build_history_assets(FleetResource(config=sys.argv[1], home=sys.argv[2]))],
    instance=DagsterInstance.ephemeral(),
    raise_on_error=False,
)
"""


def recorded(scene):
    """One run of the asset in this process; metadata by table."""
    done = materialize(
        [build_history_assets(scene.resource)],
        instance=DagsterInstance.ephemeral(),
    )
    assert done.success
    events = done.get_asset_materialization_events()
    return {e.asset_key.path[-1]: e.materialization.metadata for e in events}


@contextmanager
def somebody_writing(path):
    """Another job, which commits more often than a run can."""
    enough = threading.Event()

    def write():
        while not enough.is_set():
            with suppress(LostLease):
                clock = SystemClock()
                writer = Writer(TablePlace(path), cluster="main", clock=clock, retention=86400.0)
                while not enough.wait(0.05):
                    writer.commit("look")

    work = threading.Thread(target=write)
    work.start()
    try:
        yield
    finally:
        enough.set()
        work.join()


def of_home(home):
    """Processes that a run started for this home, Spark's server among them."""
    found = [m.process.pid for m in home_processes(home)]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"history" in arguments and f"FLEET_HOME={home}".encode() in environ:
                found.append(int(entry.name))
    return found


@pytest.mark.spark
def test_a_run_records_tells_and_can_be_ended(scene, tmp_path, monkeypatch):
    """Rows of every table, the last rebalances; ended half-way, nothing runs on, all is whole."""
    monkeypatch.setenv("FLEET_SPARK_MEMORY", "700m")
    home = tmp_path / "home"
    with scene.member(scene.plain):
        pass
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(scene.config), str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        until((home / "spark" / "log").exists, "the run to start Spark")
        time.sleep(2.0)
        worker.send_signal(signal.SIGINT)
        worker.wait(120)
    finally:
        worker.kill()
    assert of_home(home) == []
    assert Tables(home / "history").rebalances() == []

    told = recorded(scene)
    assert told.keys() == TABLES.keys()
    tables = Tables(home / "history")
    assert {name: told[name]["dagster/row_count"].value for name in told} == tables.rows()
    assert [r.members for r in tables.rebalances(group=scene.plain)] == [1, 0]
    shown = told["rebalances"]
    assert shown["in 48 h"].value >= shown["in the last hour"].value >= 2
    latest = [r.data["group"] for r in shown["latest"].records]
    assert latest.count(scene.plain) == 2, "beside those of other tests' groups"
    assert told["commits"]["rows added"].value == tables.rows()["commits"]
    assert of_home(home) == []

    with scene.member(scene.plain), somebody_writing(home / "history"):
        told = recorded(scene)
    assert "rows added" not in told["commits"]
    assert told["commits"]["dagster/row_count"].value == tables.rows()["commits"]


def test_every_table_is_an_asset_with_a_freshness_policy():
    """And the schedule waits until somebody turns it on."""
    made = build_history_assets(
        FleetResource.of(FleetSpec.model_validate({"cluster": {"name": "main"}, "fleets": []}))
    )
    assert {spec.key for spec in made.specs} == {history_key("main", t) for t in TABLES}
    assert all(spec.freshness_policy is not None for spec in made.specs)
