"""`make bench-start`: what a worker's start costs, by part, and what a standby and a worker weigh.

Problem: a fleet that is rolled or repaired waits for starts, and every standby is paid for as long
as it waits. Choice: workers are started one after the other by their supervisor, which forks them
from one that has loaded all modules, and as programs, as a pod is started; on a warm shared Spark
server and beside a worker that holds a slot. CPU and seconds count from the start of the process to
its word that it is a warm standby, memory is its PSS then. What the parts cost is told by a process
that does the same step by step (`start_probe`). Seconds say as much of the machine as of us, CPU
and memory do not. Cost: Linux; a minute.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, Goal, Spread, cpu_of, pss_of, spread
from benchmarks.ground import Ground
from fleet.act import spark_server
from fleet.act.local.fork_servers import PART as FORK_SERVER
from fleet.act.local.local_runtime import worker_arguments
from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.slots import WorkerProcess
from fleet.system.home import fleet_home
from fleet.system.processes import ProcessId, age, end, environment, home_processes, identify, spawn

GROUP: Final = "bench-start"
_LONGEST: Final = 120.0
"""Seconds until a worker must be warm."""
_LOOK: Final = 0.02
_SETTLE: Final = 1.0
Part = Mapping[str, Any]


MOST_CPU: Final = 0.5
MOST_MEMORY: Final = 74.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """CPU and seconds to a warm standby, and MB of it."""

    cpu: Spread | None
    seconds: Spread | None
    standby: Spread | None

    @classmethod
    def of(cls, found: Sequence[tuple[float, float, float]]) -> "Starts":
        """From (CPU seconds, seconds, MB) of each."""
        return cls(
            cpu=spread(each[0] for each in found),
            seconds=spread(each[1] for each in found),
            standby=spread(each[2] for each in found),
        )


@dataclass(frozen=True, kw_only=True)
class StartResult(BenchmarkResult):
    """Starts of both ways, MB of the fork server and of a worker with a slot, and the parts."""

    forked: Starts
    program: Starts
    fork_server: float
    """MB."""
    worker: float
    """MB, with a slot and after its first batches."""
    parts: Sequence[Part]

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        return (
            Goal(
                "CPU seconds of a start, p50",
                MOST_CPU,
                None if self.forked.cpu is None else self.forked.cpu.p50,
            ),
            Goal(
                "PSS of a standby, MB, p50",
                MOST_MEMORY,
                None if self.forked.standby is None else self.forked.standby.p50,
            ),
        )


# --- the run --------------------------------------------------------------------------------


def run(ground: Ground, starts: int) -> StartResult:
    """All of it. Raises FleetError where a worker does not become warm."""
    replicas = {"min": 0, "max": 1, "standby": 0}
    ground.declare(GROUP, protocol="range", slots=1, replicas=replicas)
    ground.start_group(GROUP)
    ground.apply(GROUP)
    ground.steady(GROUP)
    forked = [_forked(ground, number) for number in range(starts)]
    (owner,) = ground.worker_pids(GROUP)
    worker = pss_of(owner)
    servers = [each for each in home_processes(ground.home) if each.part == FORK_SERVER]
    fork_server = sum(pss_of(each.process.pid) for each in servers)
    program = [_program(ground, number) for number in range(starts)]
    ground.say("the parts of a start")
    parts = _parts(ground)
    ground.apply(GROUP, wanted=0)
    ground.dismiss(GROUP)
    return StartResult(
        forked=Starts.of(forked),
        program=Starts.of(program),
        fork_server=fork_server,
        worker=worker,
        parts=parts,
    )


def _forked(ground: Ground, number: int) -> tuple[float, float, float]:
    """One more worker of the supervisor's until it is a warm standby: CPU seconds, seconds, MB."""
    owner = _owner(ground)
    (name,) = ground.runtime.start(GROUP, owner.revision, 1)
    try:
        return _warmed(ground, name, f"fork {number + 1}", lambda: _process_of(ground, name))
    finally:
        ground.runtime.remove((name,), grace=10.0)
        ground.wait(lambda: name not in _names(ground), _LONGEST, f"{name} to be removed")


def _program(ground: Ground, number: int) -> tuple[float, float, float]:
    """The same of a worker that is started as a program."""
    name = f"standby-{number}"
    settings = ground.runtime.revision_dir(GROUP, _owner(ground).revision) / "settings.json"
    process = spawn(
        worker_arguments(settings, name),
        log=ground.log(name),
        env=environment(ground.home, part="worker", worker=name),
        cwd=ground.home,
    )
    try:
        return _warmed(ground, name, f"program {number + 1}", lambda: process)
    finally:
        end(process, grace=10.0)


def _warmed(
    ground: Ground, name: str, what: str, process_of: Callable[[], ProcessId | None]
) -> tuple[float, float, float]:
    deadline = ground.clock.monotonic() + _LONGEST
    while (name, "phase") not in {told[:2] for told in ground.events(GROUP)}:
        if ground.clock.monotonic() > deadline:
            raise FleetError(f"{name} is not warm after {_LONGEST:g} s; see {ground.home}")
        ground.clock.sleep(_LOOK)
    process = process_of()
    if process is None:
        raise FleetError(f"{name} has ended; see {ground.home}")
    cpu, seconds = cpu_of(process.pid), age(process)
    ground.clock.sleep(_SETTLE)
    memory = pss_of(process.pid)
    ground.say(f"{what}: {cpu:.2f} s of CPU, {seconds:.2f} s, {memory:.1f} MB")
    return cpu, seconds, memory


def _owner(ground: Ground) -> WorkerProcess:
    (owner,) = ground.runtime.workers(GROUP)
    return owner


def _names(ground: Ground) -> list[str]:
    return [worker.name for worker in ground.runtime.workers(GROUP)]


def _process_of(ground: Ground, name: str) -> ProcessId | None:
    pids = [worker.pid for worker in ground.runtime.workers(GROUP) if worker.name == name]
    return identify(pids[0]) if pids and pids[0] is not None else None


def _parts(ground: Ground) -> list[Part]:
    token = ground.home / "spark" / "token"
    url = spark_server.connect_url(ground.home)
    assert url is not None
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start_probe", url, str(token), ground.fleet.bootstrap],
        env=environment(ground.home, part="worker", worker="probe"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FleetError(f"the parts could not be measured: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@click.command(epilog="Example:  make bench-start ARGS='--starts 10'")
@number_option("--starts", 5, "Number of workers to start.", 1, 1000)
def start(*, starts: int) -> None:
    """Start workers until they are warm standbys.

    Goals: CPU from the start of the process to a warm standby at most 0.5 s, a standby's memory
    (PSS) at most 74 MB, both at p50, of workers that their supervisor forks. Beside them those
    that start as a program, as in a pod, the memory of a worker with a slot, what each part of a
    start costs, and what is loaded only when it is first used. The Spark server is shared and
    warm. A minute and a half.
    """
    with (
        running("start") as (say, ending),
        Ground(
            parent=fleet_home(),
            partitions=2,
            rate=100,
            clock=SystemClock(),
            say=say,
            ending=ending,
        ) as ground,
    ):
        result = run(ground, starts)
    tell("start", [result])
