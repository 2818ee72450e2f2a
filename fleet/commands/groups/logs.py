"""`fleet logs`: what the workers of a group write, here or in their pods.

Problem: whose log to read changes while one reads: workers come, go and pass their slots on.
Choice: the runtime is asked at every look which workers there are, and for what each has written
since the last (`fleet.act.runtime`); no cluster is asked, so that the log of a fleet whose broker
is away can be read. Cost: who follows sees a line up to a second late.
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
from fleet.errors import Refused
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.act.runtime import Runtime
    from fleet.config.spec import FleetSpec
    from fleet.system.log_files import LogLine

_LOOK_SECONDS: Final = 0.5


@click.command(epilog="Examples:  fleet logs orders --follow  |  fleet logs orders --slot 2 -n 20")
@group_argument
@click.option(
    "--slot",
    type=click.IntRange(min=0),
    metavar="N",
    shell_complete=slot_numbers,
    help="Log of this slot's owner only.",
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "--since",
    type=Moment(),
    metavar="TIME",
    help="Start of the time to look at: 10m (ago) or 2026-11-21T14:30 (UTC).",
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="LINES",
    help="Print the last lines of each worker, this many at most.",
)
@output_as("text", "json", json_is="an object per line (documentation: reference/json)")
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
    """What the workers of a group write.

    Each line begins with its worker. Workers that come while you follow are read from their
    first line on. Lines of the job's own `logging` have the level and the logger's name.
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
                raise Refused(
                    f"group {group} has no worker"
                    + ("" if slot is None else f" in slot {slot}")
                    + f": see `fleet status {group}`"
                )
            while follow:
                time.sleep(_LOOK_SECONDS)
                for line in reading.more():
                    _say(line, output)


def _open(invocation: Invocation) -> "tuple[FleetSpec, Runtime]":
    """The file and its runtime, without the cluster."""
    from fleet.system.home import fleet_home, make_home

    spec = invocation.spec()
    make_home(fleet_home())
    return spec, runtime_of(spec)


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """A line with whose it is, as JSON has it."""

    worker: str
    slot: int | None
    at: float | None
    line: str


@dataclass(slots=True, kw_only=True)
class _Reading:
    """The logs of a group's workers, each read on from where it was."""

    runtime: "Runtime"
    group: str
    slot: int | None
    after: float | None
    most: int
    workers: dict[str, str] = field(default_factory=dict)
    """Worker → the place to which its log was read."""

    def first(self) -> list[LoggedLine]:
        """The last lines of each, in order of time."""
        told: list[LoggedLine] = []
        for worker, slot in self._wanted():
            lines = [each for each in self._read(worker) if self._is_wanted(each)]
            last = lines[len(lines) - self.most :]
            told += [LoggedLine(worker, slot, each.at, each.text) for each in last]
        return sorted(told, key=lambda each: each.at or 0.0)

    def more(self) -> Iterator[LoggedLine]:
        """What came since the last look; of a new worker all, of one that is gone the rest."""
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
        except Refused:  # gone since the look
            return ()
        self.workers[worker] = part.place
        return part.lines

    def _is_wanted(self, line: "LogLine") -> bool:
        return self.after is None or (line.at is not None and line.at >= self.after)


def _say(told: LoggedLine, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(as_answer(told)))
        return
    text = told.line.replace(f" {told.worker}: ", " ", 1)
    click.echo(f"{click.style(told.worker, fg='cyan')} {visible(text)}")


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C is how one stops to follow; so is a reader of the pipe that is gone."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
