"""`fleet bench start`: what a worker's start costs, by part, and what a standby and a worker weigh.

Problem: a fleet that is rolled or repaired waits for starts, and every standby is paid for as long
as it waits. Choice: workers are started one after the other as their supervisor does, on a warm
shared Spark server and beside a worker that holds a slot; CPU and seconds count from the start of
the process to its word that it is a warm standby, memory is its PSS then. What the parts cost is
told by a process that does the same step by step (`start_probe`). Seconds say as much of the
machine as of us, CPU and memory do not. Cost: Linux; a minute.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.act import spark_server
from fleet.act.local.local_runtime import worker_arguments
from fleet.bench.figures import Goal, Judged, Spread, spread
from fleet.bench.ground import Ground
from fleet.bench.spent import cpu_of, pss_of
from fleet.errors import FleetError
from fleet.system.home_processes import environment
from fleet.system.processes import end, spawn

GROUP: Final = "bench-start"
_LONGEST: Final = 120.0
"""Seconds until a worker must be warm."""
_LOOK: Final = 0.02
_SETTLE: Final = 1.0
Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What is to be measured, and the goals."""

    starts: int = 5
    max_cpu: float = 1.0
    max_memory: float = 130.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult(Judged):
    """CPU and seconds to a warm standby, MB of it and of a worker with a slot; the parts."""

    options: StartOptions
    cpu: Spread | None
    seconds: Spread | None
    standby: Spread | None
    worker: float
    parts: Sequence[Part]

    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""
        return (
            Goal(
                what="CPU seconds of a start, p50",
                limit=self.options.max_cpu,
                measured=None if self.cpu is None else self.cpu.p50,
            ),
            Goal(
                what="PSS of a standby, MB, p50",
                limit=self.options.max_memory,
                measured=None if self.standby is None else self.standby.p50,
            ),
        )

    def figures(self) -> dict[str, Any]:
        """See Judged."""
        return {
            "met": self.met,
            "cpu_seconds": None if self.cpu is None else self.cpu.as_json(),
            "seconds": None if self.seconds is None else self.seconds.as_json(),
            "standby_mb": None if self.standby is None else self.standby.as_json(),
            "worker_mb": round(self.worker, 1),
            "parts": [_rounded(part) for part in self.parts],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a heading, a line per part, and the whole."""
        head = ("part", "when", "CPU", "seconds", "PSS")
        lines = [
            (
                str(part["part"]),
                str(part["when"]),
                f"{part['cpu_seconds']:.2f} s",
                "-" if part["seconds"] is None else f"{part['seconds']:.2f} s",
                f"{part['mb']:+.1f} MB",
            )
            for part in self.parts
        ]
        return [head, *lines, ("a standby's start, p50", "", *self._whole())]

    def _whole(self) -> tuple[str, str, str]:
        if self.cpu is None or self.seconds is None or self.standby is None:
            return ("-", "-", "-")
        return (
            f"{self.cpu.p50:.2f} s",
            f"{self.seconds.p50:.2f} s",
            f"{self.standby.p50:.1f} MB",
        )

    def remarks(self) -> list[str]:
        """What the table has no column for."""
        return [f"PSS of a worker with a slot, after its first batches: {self.worker:.1f} MB"]


def _rounded(part: Part) -> dict[str, Any]:
    seconds = part["seconds"]
    return {
        "part": part["part"],
        "when": part["when"],
        "cpu_seconds": round(part["cpu_seconds"], 3),
        "seconds": None if seconds is None else round(seconds, 3),
        "mb": round(part["mb"], 1),
    }


# --- the run --------------------------------------------------------------------------------


def run(ground: Ground, options: StartOptions) -> StartResult:
    """All of it. Raises FleetError where a worker does not become warm."""
    replicas = {"min": 0, "max": 1, "standby": 0}
    ground.declare(GROUP, protocol="range", slots=1, replicas=replicas)
    ground.start_group(GROUP)
    ground.apply(GROUP)
    ground.steady(GROUP)
    found = [_start(ground, number) for number in range(options.starts)]
    (holder,) = ground.worker_pids(GROUP)
    worker = pss_of(holder)
    ground.say("the parts of a start")
    parts = _parts(ground)
    ground.apply(GROUP, wanted=0)
    ground.dismiss(GROUP)
    return StartResult(
        options=options,
        cpu=spread(each[0] for each in found),
        seconds=spread(each[1] for each in found),
        standby=spread(each[2] for each in found),
        worker=worker,
        parts=parts,
    )


def _start(ground: Ground, number: int) -> tuple[float, float, float]:
    """One more worker until it is a warm standby: CPU seconds, seconds, MB."""
    name = f"standby-{number}"
    (holder,) = ground.runtime.workers(GROUP)
    settings = ground.runtime.revision_dir(GROUP, holder.revision) / "settings.json"
    began = ground.clock.monotonic()
    process = spawn(
        worker_arguments(settings, name),
        log=ground.log(name),
        env=environment(ground.home, part="worker", worker=name),
        cwd=ground.home,
    )
    try:
        while (name, "phase") not in {told[:2] for told in ground.events(GROUP)}:
            if ground.clock.monotonic() - began > _LONGEST:
                raise FleetError(f"{name} is not warm after {_LONGEST:g} s; see {ground.home}")
            ground.clock.sleep(_LOOK)
        cpu, seconds = cpu_of(process.pid), ground.clock.monotonic() - began
        ground.clock.sleep(_SETTLE)
        memory = pss_of(process.pid)
        ground.say(f"start {number + 1}: {cpu:.2f} s of CPU, {seconds:.2f} s, {memory:.1f} MB")
        return cpu, seconds, memory
    finally:
        end(process, grace=10.0)


def _parts(ground: Ground) -> list[Part]:
    token = ground.home / "spark" / "token"
    url = spark_server.connect_url(ground.home)
    assert url is not None
    done = subprocess.run(
        [sys.executable, "-m", "fleet.bench.start_probe", url, str(token), ground.fleet.bootstrap],
        env=environment(ground.home, part="worker", worker="probe"),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FleetError(f"the parts could not be measured: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
