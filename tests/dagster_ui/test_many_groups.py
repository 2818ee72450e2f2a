"""300 declared groups: run workers, daemon and code server end by kill -9, alone and at once.

A long form (make faults). Real are the broker, Dagster's daemon, code server and run workers, and
all that a run does; the workers of groups in change are simulated (`SimulatedGroups`). Three groups
are rolled at a time: a run costs seconds of a core. The test is the supervisor that starts daemon
and code server again, as systemd and the kubelet do.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.instance.ref import InstanceRef

from fleet.config.first_job import dagster_yaml
from fleet.dagster.asset_keys import actor
from fleet.dagster.reconcile_schedule import UNFINISHED
from fleet.manager.cycle import Fleet
from fleet.slots import Change, ChangeState
from fleet.system import processes
from fleet.system.ports import free_ports
from fleet.system.processes import ProcessId
from tests.acting.simulated_groups import SimulatedGroups
from tests.acting.standbys import Behaviour
from tests.support.needs import repository
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

DECLARED, IN_CHANGE = 300, 3
LIMIT = 120.0
"""Seconds from the restart until all changes are done and no run is unfinished."""
LEASE = 10.0
"""The default on one machine."""
WARM_SECONDS = 15.0
"""Of a simulated worker: a roll lasts as long, and can be killed meanwhile."""


class ManyGroups(SimulatedGroups):
    """A fleet.yaml with DECLARED groups, of which a few have workers; the others want none."""

    release = 0

    def declare(self, **keys: Any) -> None:
        """Write fleet.yaml; another release is a roll of the groups that have workers."""
        super().declare(dagster={"schedules": ["reconcile"]}, **keys)
        spec = yaml.safe_load(self.config.read_text())
        (first, *_) = spec["fleets"]
        idle = {
            "replicas": {"min": 0, "max": 2, "standby": 0},
            "scaling": {"policy": "fixed", "workers": 0},
        }
        for each in spec["fleets"]:
            each["worker"] = {**each["worker"], "batch": {"max_wait": f"{self.release + 1}s"}}
        spec["fleets"] += [
            {**first, "group": f"{first['group']}-idle-{number:03}", **idle}
            for number in range(DECLARED - len(self.names))
        ]
        part = self.config.with_suffix(".part")
        part.write_text(yaml.safe_dump(spec))
        part.rename(self.config)

    def roll(self) -> None:
        """Ask for new workers of all groups that have some."""
        self.release += 1
        self.declare()


class Dagster:
    """A daemon and a code server, each a process that can be killed and started again."""

    def __init__(self, folder: Path, shop: ManyGroups) -> None:
        self.folder, self.shop = folder, shop
        (self.port,) = free_ports(1)
        state = folder / "dagster"
        (folder / "dagster.yaml").write_text(dagster_yaml(str(state)))
        server = {"host": "127.0.0.1", "port": self.port, "location_name": "fleet"}
        (folder / "workspace.yaml").write_text(
            yaml.safe_dump({"load_from": [{"grpc_server": server}]})
        )
        self.instance = DagsterInstance.from_ref(InstanceRef.from_dir(str(folder)))
        self.running: dict[str, ProcessId] = {}
        self.started: list[ProcessId] = []

    def start(self, name: str) -> None:
        """Start the daemon or the code server."""
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        words = {
            "daemon": ("dagster._daemon", "run", "-w", str(self.folder / "workspace.yaml")),
            "code": ("dagster", "api", "grpc", "-m", "fleet.dagster.project", *place),
        }[name]
        environ = {
            "PYTHONPATH": str(repository()),
            "DAGSTER_HOME": str(self.folder),
            "FLEET_CONFIG": str(self.shop.config),
            "FLEET_HOME": str(self.shop.home),
        }
        self.running[name] = processes.spawn(
            [sys.executable, "-m", *words],
            log=self.folder / f"{name}.log", env={**os.environ, **environ}, cwd=self.folder,
        )  # fmt: skip
        self.started.append(self.running[name])

    def kill(self, *names: str) -> None:
        """Kill these processes, and only them: the code server's runs live on without it."""
        for name in names:
            os.kill(self.running[name].pid, signal.SIGKILL)

    def end(self) -> None:
        """End everything, run workers too."""
        for each in self.started:
            processes.end(each, grace=10.0)

    def runs(self, *statuses: DagsterRunStatus) -> list[DagsterRun]:
        """Runs of these states, newest first."""
        return list(self.instance.get_runs(RunsFilter(statuses=list(statuses))))

    def pid(self, run: DagsterRun) -> int | None:
        """The process of a run, once there is one."""
        records = self.instance.get_records_for_run(
            run.run_id, of_type=DagsterEventType.ENGINE_EVENT
        )
        for record in records.records:
            if record.event_log_entry.message.startswith("Started process for run"):
                event = record.event_log_entry.dagster_event
                return int(event.engine_event_data.metadata["pid"].value)  # type: ignore[union-attr,arg-type]
        return None

    def kill_run(self, run: DagsterRun) -> None:
        """Kill its process."""
        pid = self.pid(run)
        if pid is not None and processes.identify(pid) is not None:
            os.kill(pid, signal.SIGKILL)


class Room:
    """The groups in change, and what the test waits for."""

    def __init__(self, fleet: Fleet, shop: ManyGroups, dagster: Dagster) -> None:
        self.fleet, self.shop, self.dagster = fleet, shop, dagster

    def changes(self) -> list[Change]:
        """The last change of each group that was asked for in this round."""
        found = [self.fleet.store.change(name) for name in self.shop.names]
        return [each for each in found if each is not None and each.started_at >= self.began]

    def processes(self) -> list[DagsterRun]:
        """Runs that have a process."""
        runs = self.dagster.runs(DagsterRunStatus.STARTING, DagsterRunStatus.STARTED)
        return [run for run in runs if self.dagster.pid(run) is not None]

    def begin(self) -> None:
        """Ask for a roll; each change from now on counts."""
        self.began = self.fleet.clock.now()
        self.shop.roll()

    def is_done(self) -> bool:
        """Every group has its change and its receipts, and no run is unfinished."""
        changes = self.changes()
        done = [c for c in changes if c.state is ChangeState.DONE and c.receipts]
        return len(done) == len(self.shop.names) and not self.dagster.runs(*UNFINISHED)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait as long as changes, runs or their events move."""
        return until(condition, what, progress=self.picture, picture=self.picture, every=0.3)

    def picture(self) -> str:
        """Changes and runs as they are."""
        lines = [f"{c.group}: {c.state} step {c.step} by {c.actor}" for c in self.changes()]
        for run in self.dagster.instance.get_runs(limit=12):
            last = self.dagster.instance.get_records_for_run(run.run_id, limit=1, ascending=False)
            said = last.records[0].event_log_entry.message if last.records else ""
            lines.append(
                f"{run.run_id[:8]} {run.tags.get('dagster/partition')} {run.status}: {said}"
            )
        return "\n".join(lines)


@pytest.fixture(scope="module")
def room(broker, tmp_path_factory) -> Iterator[Room]:
    """Groups at rest, and Dagster that ticks."""
    folder = tmp_path_factory.mktemp("many")
    names = [f"many-{folder.name[-4:]}-{os.getpid()}-{number}" for number in range(IN_CHANGE)]
    home = folder / "home"
    home.mkdir()
    shop = ManyGroups(
        home, broker.bootstrap_servers, names,
        lease=LEASE, bake=2.0, like=Behaviour(warm_after=WARM_SECONDS),
    )  # fmt: skip
    dagster = Dagster(folder, shop)
    with shop.running() as fleet:
        try:
            dagster.start("code")
            dagster.start("daemon")
            yield Room(fleet, shop, dagster)
        finally:
            dagster.end()


def starting(room: Room) -> list[DagsterRun]:
    """Runs that have a process and no change yet; first, where there is one."""
    changing = {change.actor for change in room.changes()}
    runs = room.processes()
    found = [run for run in runs if actor(run.run_id) not in changing]
    return [*found, *(run for run in runs if run not in found)] if found else []


def changing(room: Room) -> list[DagsterRun]:
    """Runs with a running change; first, where there is one."""
    changing = {c.actor for c in room.changes() if c.state is ChangeState.RUNNING}
    runs = room.processes()
    found = [run for run in runs if actor(run.run_id) in changing]
    return [*found, *(run for run in runs if run not in found)] if found else []


KINDS = {
    "all, in changes": (changing, IN_CHANGE, ("code", "daemon")),
    "all, before changes": (starting, IN_CHANGE, ("code", "daemon")),
    "a run worker before its change": (starting, 1, ()),
    "a run worker in its change": (changing, 1, ()),
    "the code server and a run worker": (changing, 1, ("code",)),
    "the code server": (changing, 0, ("code",)),
    "the daemon": (changing, 0, ("daemon",)),
}
"""What is killed: when, at most how many run workers, which processes."""


@pytest.mark.parametrize("kind", KINDS)
def test_all_changes_are_done_two_minutes_after_a_kill(room: Room, kind: str, capsys) -> None:
    """And no run of a dead process is left, without any work by hand."""
    moment, workers, names = KINDS[kind]
    room.begin()
    runs = room.until(lambda: moment(room), f"runs that are {moment.__name__}")
    room.dagster.kill(*names)
    for run in runs[:workers]:
        room.dagster.kill_run(run)
    killed = time.monotonic()
    for name in names:
        room.dagster.start(name)
    room.until(room.is_done, "all changes to be done")
    seconds = time.monotonic() - killed
    with capsys.disabled():
        print(f"\n{kind}: {seconds:.0f} s at load {os.getloadavg()[0]:.0f}")
    assert seconds <= LIMIT
