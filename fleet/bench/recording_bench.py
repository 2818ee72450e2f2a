"""The history end to end: commits of a real topic into tables, and catching up again.

Problem: a decoder's figure says nothing of a job, and a fresh process' first batch measures class
loading. Choice: the job of `fleet history` on a filled topic, as a tail runs it: its session is
open and a small first batch is behind it. Then a second process catches up with little that is
new, and with nothing. What the tables hold is counted against what was written. Cost: Spark's
start, some 10 s.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet.act import spark_server
from fleet.bench.offset_commits import write
from fleet.bench.spent import Pids, Spent, below, peak
from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.history.job import Recorder
from fleet.history.tables import Tables
from fleet.manager.cycle import Fleet
from fleet.manager.history_session import recording

Say = Callable[[str], None]
BURROW: Final = 45_000.0
"""Commits per second of Burrow, on the machine on which the goals were set."""
GOAL_RATE: Final = 3 * BURROW
GOAL_RATIO: Final = 0.8
"""Of what two bare consumers read in the same run."""
_WARM: Final = 50_000
_RESTART: Final = 20_000


@dataclass(slots=True, kw_only=True)
class RecordingResult:
    """What was measured; seconds are wall time, sizes MB."""

    commits: int
    """Recorded while the clock ran."""
    seconds: float
    rows: int
    """Of `commits`, for these."""
    missing: int
    """Commits written less commits that the tables stand for, over everything."""
    again_seconds: float = 0.0
    """A new process catches up with 20,000 commits, from its first look to the last manifest."""
    process_seconds: float = 0.0
    """The same with the process' own start."""
    nothing_seconds: float = 0.0
    memory: dict[str, float] = field(default_factory=dict)
    """Peak of resident memory: the job's process, Spark's server, its Python workers together."""
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds while the clock ran, of these and of the broker."""

    @property
    def rate(self) -> float:
        """Commits per second into tables."""
        return self.commits / self.seconds

    def as_json(self) -> dict[str, Any]:
        """For `-o json`."""
        return {
            "commits": self.commits,
            "commits_per_second": round(self.rate),
            "ratio_to_burrow": round(self.rate / BURROW, 2),
            "rows": self.rows,
            "missing": self.missing,
            "seconds": round(self.seconds, 2),
            "catching_up": {
                "commits": _RESTART,
                "seconds": round(self.again_seconds, 2),
                "process_seconds": round(self.process_seconds, 2),
                "nothing_new_seconds": round(self.nothing_seconds, 2),
            },
            "memory_mb": {name: round(size) for name, size in self.memory.items()},
            "cpu_seconds": {name: round(spent, 2) for name, spent in self.cpu.items()},
        }

    def sentences(self) -> list[str]:
        """For people."""
        memory = ", ".join(f"{name} {size:.0f} MB" for name, size in self.memory.items())
        return [
            f"{self.rows:,} rows stand for {self.commits:,} commits, read in {self.seconds:.1f} s",
            (
                f"{_RESTART:,} new commits after a restart: {self.again_seconds:.1f} s, with the "
                f"process {self.process_seconds:.1f} s; nothing new: {self.nothing_seconds:.2f} s"
            ),
            f"peak memory: {memory}",
            f"CPU: {told(self.cpu, self.commits)}",
        ]


def told(cpu: Mapping[str, float], commits: int) -> str:
    """Seconds by process, and of all of them microseconds a commit."""
    each = ", ".join(f"{name} {spent:.2f} s" for name, spent in cpu.items())
    return f"{each}; {sum(cpu.values()) / commits * 1e6:.2f} µs a commit"


def record(
    home: Path,
    bootstrap: str,
    *,
    written: int,
    groups: int,
    every: bool,
    clock: Clock,
    say: Say,
    broker: Pids,
) -> RecordingResult:
    """Record a topic that holds `written` commits of so many groups; ends the Spark it starts.

    every: a row for each commit, not the last of 10 s with their number. broker: its processes.
    """
    config = home / "fleet.yaml"
    config.write_text(
        f'cluster: {{name: bench, bootstrap_servers: "{bootstrap}"}}\n'
        f"history: {{interval: {0 if every else 10}s}}\n",
        encoding="utf-8",
    )
    spark_server.start(home)
    try:
        found = _measured(home, config, written=written, clock=clock, say=say, broker=broker)
        say(f"another process catches up with {_RESTART:,}, then with nothing")
        write(bootstrap, _RESTART, groups=groups, clock=clock, say=lambda _: None)
        began = clock.monotonic()
        found.again_seconds = _command(home, config)
        found.process_seconds = clock.monotonic() - began
        found.nothing_seconds = _command(home, config)
        return found
    finally:
        spark_server.stop(home)


def _measured(
    home: Path, config: Path, *, written: int, clock: Clock, say: Say, broker: Pids
) -> RecordingResult:
    with (
        Fleet.open(config, home=home, clock=clock) as fleet,
        recording(fleet, spark="shared", polled=False, say=lambda _: None) as recorder,
    ):
        assert isinstance(recorder, Recorder)
        say("Spark starts, and a small first batch warms it")
        usual, recorder.batch = recorder.batch, _WARM
        looks = iter((False, True, True, True))
        warm = recorder.catch_up(stopped=lambda: next(looks))
        recorder.batch = usual
        say("the history records the rest")
        server = spark_server.process(home)
        jvm = [server.pid] if server is not None else []
        spent = Spent(
            {
                "job": lambda: [os.getpid()],
                "Spark": lambda: jvm,
                "Spark's Python": lambda: [child for pid in jvm for child in below(pid)],
                "broker": broker,
            }
        )
        began = clock.monotonic()
        done = recorder.catch_up()
        seconds = clock.monotonic() - began
        cpu = spent.seconds()
        memory = _memory(home)
    import pyarrow.compute as pc  # noqa: PLC0415 - a command that only prints loads none

    held = Tables(home / "history").read("commits", columns=["group_id", "commits"])
    mine = held.filter(pc.starts_with(held["group_id"], "group-"))
    return RecordingResult(
        commits=done.commits,
        seconds=seconds,
        rows=done.rows["commits"],
        missing=written - int(pc.sum(mine["commits"]).as_py() or 0) if warm.batches else written,
        memory=memory,
        cpu=cpu,
    )


def _command(home: Path, config: Path) -> float:
    """Seconds that `fleet history run` took by its own account."""
    done = subprocess.run(
        [sys.executable, "-m", "fleet", "history", "run", "-o", "json"],
        env={**os.environ, "FLEET_CONFIG": str(config), "FLEET_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FleetError(f"`fleet history run` failed: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout)["seconds"])


def _memory(home: Path) -> dict[str, float]:
    server = spark_server.process(home)
    found = {"job": peak(os.getpid())}
    if server is not None:
        found["Spark"] = peak(server.pid)
        found["Spark's Python"] = sum(peak(pid) for pid in below(server.pid))
    return found
