"""A local runtime whose workers are a tiny program, so that processes are real and fast."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.act.local.local_runtime import LocalRuntime
from fleet.clock import SystemClock
from fleet.slots import WorkerProcess
from fleet.system.processes import ProcessId, alive, home_processes
from tests.support.declared import group_spec, settings_of
from tests.support.waiting import sizes, until

GROUP = "orders"
REVISION = "abcdef0123"

# argv: journal, name. Writes "<name> <pid> <what>" lines; its life is in $STUB.
STUB = """
import os, signal, sys, time
journal, name = sys.argv[1:3]
def say(what):
    with open(journal, "a") as out:
        out.write(f"{name} {os.getpid()} {what}\\n")
def end(*_):
    say("term")
    time.sleep(float(os.environ.get("STUB_DRAIN", "0")))
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUB") == "deaf" else end)
say("start")
if os.environ.get("STUB") == "broken":
    print("no such table: orders", file=sys.stderr)
    sys.exit(3)
while True:
    time.sleep(0.05)
"""


def settings(**worker: object) -> str:
    """Settings of a revision whose workers need no Spark server."""
    group = group_spec(GROUP, worker={"spark": "local[1]", **worker})
    return settings_of(group, revision=REVISION).model_dump_json()


class Bench:
    """What the tests do with a runtime."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.journal = home.parent / "journal"
        self.runtime = LocalRuntime(
            home, cluster="main", clock=SystemClock(), arguments=self.arguments
        )

    def arguments(self, _settings: Path, name: str) -> list[str]:
        """The stub instead of a worker."""
        return [sys.executable, "-S", "-c", STUB, str(self.journal), name]

    def start(self, count: int, **worker: object) -> tuple[str, ...]:
        """Workers of the one revision."""
        self.runtime.publish(GROUP, REVISION, settings(**worker))
        return self.runtime.start(GROUP, REVISION, count)

    def worker(self, name: str) -> WorkerProcess:
        """One worker as the runtime sees it."""
        return next(w for w in self.runtime.workers() if w.name == name)

    def pids(self) -> dict[str, int | None]:
        """Name → pid of all workers."""
        return {w.name: w.pid for w in self.runtime.workers()}

    def entries(self, what: str) -> list[tuple[str, int]]:
        """(name, pid) of the journal's lines of this kind, in order."""
        lines = self.journal.read_text().split("\n") if self.journal.exists() else []
        fields = [line.split() for line in lines if line]
        return [(name, int(pid)) for name, pid, said in fields if said == what]

    def until(self, done: Callable[[], object]) -> None:
        """Wait until something holds."""
        until(
            done,
            "the runtime",
            progress=lambda: sizes([self.journal, self.home / "supervisor" / "log"]),
            picture=lambda: f"{self.runtime.workers()}\n{self.log()}",
            every=0.02,
        )

    def all_run(self, count: int) -> bool:
        """All are running, and so far that they have written their first line."""
        started = {pid for _, pid in self.entries("start")}
        pids = set(self.pids().values())
        return len(pids) == count and pids <= started

    def lives_again(self, name: str, before: int | None) -> bool:
        """Whether it runs as another process than before, at one and the same look."""
        found = self.worker(name)
        return found.running and found.pid not in {None, before}

    def kill_supervisor(self) -> ProcessId:
        """Kill it with -9; who it was."""
        running = self.runtime.supervisor()
        assert running is not None
        os.kill(running.pid, 9)
        self.until(lambda: not alive(running))
        return running

    def log(self) -> str:
        """What the supervisor said."""
        log = self.home / "supervisor" / "log"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A runtime in a fresh home; nothing of it runs after the test."""
    bench = Bench(tmp_path / "home")
    yield bench
    bench.runtime.down(grace=1.0)
    bench.runtime.close()
    assert list(home_processes(bench.runtime.home)) == []
