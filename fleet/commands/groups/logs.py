"""`fleet logs`: prints the logs of a group's workers, here or in their pods.

Problem: workers start, stop and hand their slots over while their logs are read. Choice: each
refresh asks the runtime (`fleet.act.runtime`) for the workers and for the lines since the last
refresh. It asks no cluster, so logs can be read while the brokers are away. Cost: --follow shows a
line up to a second late.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.answers import as_answer
from fleet.commands.groups.rebalances import Moment, wall
from fleet.commands.invocation import (
    Invocation,
    common,
    group_argument,
    output_as,
    runtime_of,
    slot_numbers,
    with_worker,
)
from fleet.errors import FleetError, Refused
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.act.runtime import Runtime
    from fleet.config.spec import FleetSpec
    from fleet.system.log_files import LogLine

_REFRESH_SECONDS: Final = 0.5


@click.command(epilog="Examples:  fleet logs orders --follow  |  fleet logs orders --slot 2 -n 20")
@group_argument
@click.option(
    "--slot",
    type=click.IntRange(min=0),
    metavar="N",
    shell_complete=slot_numbers,
    help="Print only the log of the owner of slot N.",
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "--since",
    type=Moment(),
    metavar="TIME",
    help="Start of the period: 10m (ago) or 2026-11-21T14:30 (UTC).",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Print at most the last N lines of each worker.",
)
@output_as("text", "json", json_is=" (one object per line)")
@common
def logs(
    invocation: Invocation,
    group: str,
    *,
    slot: int | None,
    follow: bool,
    since: datetime | float | None,
    lines: int,
    output: str,
) -> None:
    """Print the logs of a group's workers.

    Each line begins with its worker. With --follow, new workers are printed from their first line
    on. Lines of the job's own `logging` have the level and the logger's name.
    """
    from fleet.clock import SystemClock

    after = wall(since, SystemClock().now())
    spec, runtime = _open(invocation)
    with contextlib.closing(runtime):
        with_worker(spec, group, invocation.path())
        reading = _Reading(runtime=runtime, group=group, slot=slot, after=after, most=lines)
        with _until_interrupted():
            for line in reading.first():
                _say(line, output)
            if not reading.workers and not follow:
                raise FleetError(
                    f"group {group} has no worker"
                    + ("" if slot is None else f" in slot {slot}")
                    + f": `fleet up {group}` starts them"
                )
            while follow:
                time.sleep(_REFRESH_SECONDS)
                for line in reading.more():
                    _say(line, output)


def _open(invocation: Invocation) -> "tuple[FleetSpec, Runtime]":
    """Opens the file and its runtime, without the cluster."""
    from fleet.system.home import fleet_home, make_home

    spec = invocation.spec()
    make_home(fleet_home())
    return spec, runtime_of(spec)


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """Holds a line and its worker, as JSON has them."""

    worker: str
    slot: int | None
    at: float | None
    line: str


@dataclass(slots=True, kw_only=True)
class _Reading:
    """Reads the logs of a group's workers, each from where the last read ended."""

    runtime: "Runtime"
    group: str
    slot: int | None
    after: float | None
    most: int
    workers: dict[str, str] = field(default_factory=dict)
    """Worker → position up to which its log was read."""

    def first(self) -> list[LoggedLine]:
        """Returns the last lines of each, in order of time."""
        found: list[LoggedLine] = []
        for worker, slot in self._wanted():
            lines = [each for each in self._read(worker) if self._is_wanted(each)]
            last = lines[len(lines) - self.most :]
            found += [LoggedLine(worker, slot, each.at, each.text) for each in last]
        return sorted(found, key=lambda each: each.at or 0.0)

    def more(self) -> Iterator[LoggedLine]:
        """Yields the lines since the last refresh, and the rest of removed workers."""
        now = dict(self._wanted())
        for worker in [*now, *(each for each in self.workers if each not in now)]:
            for each in self._read(worker):
                if self._is_wanted(each):
                    yield LoggedLine(worker, now.get(worker), each.at, each.text)
            if worker not in now:
                del self.workers[worker]

    def _wanted(self) -> list[tuple[str, int | None]]:
        slots = {s.owner: s.number for s in self.runtime.store.slots(self.group) if s.owner}
        names = [worker.name for worker in self.runtime.workers(self.group)]
        return [(n, slots.get(n)) for n in names if self.slot is None or slots.get(n) == self.slot]

    def _read(self, worker: str) -> "tuple[LogLine, ...]":
        try:
            part = self.runtime.read_log(worker, self.workers.get(worker))
        except Refused:  # removed since the refresh
            return ()
        self.workers[worker] = part.place
        return part.lines

    def _is_wanted(self, line: "LogLine") -> bool:
        return self.after is None or (line.at is not None and line.at >= self.after)


def _say(logged: LoggedLine, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(as_answer(logged)))
        return
    text = logged.line.replace(f" {logged.worker}: ", " ", 1)
    click.echo(f"{click.style(logged.worker, fg='cyan')} {visible(text)}")


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ends quietly on Ctrl-C, and when the reader of the pipe exits."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
