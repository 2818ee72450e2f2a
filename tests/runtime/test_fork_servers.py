"""A forked worker is what a started one is; nothing that befalls its server makes two of one."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.act.local.fork_servers import PART, ForkServers
from fleet.act.local.local_runtime import find_orphans, worker_arguments
from fleet.act.local.process_table import Launch, ProcessRow
from fleet.clock import ManualClock
from fleet.system.processes import (
    HomeProcess,
    ProcessId,
    alive,
    end,
    environment,
    home_processes,
    spawn,
)
from tests.support.declared import group_spec, settings_of
from tests.support.waiting import sizes, until

JOB = """
import json, os, random, sys
import numpy

def setup(spark):
    facts = {
        "environ": dict(os.environ), "argv": sys.argv[1:], "path": sys.path, "cwd": os.getcwd(),
        "chance": [random.random(), numpy.random.random()],
    }
    with open(os.environ["FLEET_WORKER"] + ".json", "w") as out:
        json.dump(facts, out)

def process(df, context):
    df.count()
"""


class Forks:
    """The fork servers of one home, and workers that wait for a Spark that never comes."""

    def __init__(self, folder: Path, spark: str = "sc://127.0.0.1:1") -> None:
        self.home = folder / "home"
        self.code = folder / "code"
        self.clock = ManualClock()
        self.servers = ForkServers(self.home, clock=self.clock)
        self.settings = folder / "settings.json"
        self.log = self.home / "workers" / "log"
        self.started: list[ProcessId] = []
        for made in (self.home / "supervisor", self.home / "workers", self.code):
            made.mkdir(parents=True)
        (self.code / "forked_job.py").write_text(JOB)
        worker = {"entrypoint": "forked_job:process", "spark": spark}
        self.settings.write_text(settings_of(group_spec(worker=worker)).model_dump_json())

    def row(self, name: str, **environ: str) -> ProcessRow:
        """A worker that is wanted."""
        path = f"{self.code}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        return ProcessRow(
            name=name,
            cluster="main",
            group="orders",
            revision="r1",
            launch=Launch(
                argv=tuple(worker_arguments(self.settings, name)),
                env={"PYTHONPATH": path, **environ},
            ),
            shared_spark=True,
        )

    def ready(self, row: ProcessRow) -> None:
        """Wait until it may be started."""
        until(
            lambda: self.servers.ready(row),
            "a fork server to be ready",
            progress=lambda: sizes([self.home / "supervisor" / "log"]),
            picture=self.told,
        )

    def fork(self, name: str, **environ: str) -> ProcessId:
        """Start it in the one way."""
        row = self.row(name, **environ)
        self.ready(row)
        process = self.servers.start(row, log=self.log)
        assert process is not None, self.told()
        self.started.append(process)
        return process

    def program(self, name: str) -> ProcessId:
        """And in the other."""
        row = self.row(name)
        env = environment(self.home, part="worker", extra=row.launch.env, worker=name)
        self.started.append(spawn(row.launch.argv, log=self.log, env=env, cwd=self.home))
        return self.started[-1]

    def server(self) -> ProcessId:
        """The only one; the kernel shows no environment of a program that begins this moment."""
        until(lambda: len(self.found(PART)) == 1, "one fork server", picture=self.told)
        (found,) = self.found(PART)
        return found.process

    def found(self, part: str) -> list[HomeProcess]:
        """What runs of the home; of servers themselves: one's child is there for a moment."""
        there = [each for each in home_processes(self.home) if each.part == part]
        return [each for each in there if each.leads or part != PART]

    def told(self) -> str:
        """What servers and workers wrote."""
        logs = [self.home / "supervisor" / "log", self.log]
        return "\n".join(log.read_text() for log in logs if log.exists())


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """Nothing of it runs afterwards."""
    made = Forks(tmp_path)
    yield made
    made.servers.close()
    for process in made.started:
        end(process, grace=0.0)
    assert list(home_processes(made.home)) == []


def shown(process: ProcessId) -> dict[str, object]:
    """What the kernel shows of it, as far as two workers have it in common."""
    place = Path(f"/proc/{process.pid}")
    status = dict(
        line.split(":\t", 1)
        for line in (place / "status").read_text().splitlines()
        if ":\t" in line
    )
    return {
        "arguments": [each for each in (place / "cmdline").read_text().split("\0") if each],
        "environment": {e for e in (place / "environ").read_text().split("\0") if e},
        "files": [(place / "fd" / number).readlink() for number in "012"],
        "folder": (place / "cwd").readlink(),
        "leads": (os.getsid(process.pid), os.getpgid(process.pid)) == (process.pid, process.pid),
        **{key: status[key] for key in ("SigIgn", "SigCgt", "Umask", "NoNewPrivs")},
    }


def parent(process: ProcessId) -> int:
    """Whose child it is."""
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


def signals(process: ProcessId, which: str) -> int:
    """Mask of those that it handles (SigCgt) or blocks (SigBlk); glibc blocks all for moments."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith(which))
    return int(line.split()[1], 16)


def handles_signals(process: ProcessId) -> bool:
    """Whether it has come to where it handles SIGTERM."""
    return bool(signals(process, "SigCgt") & 1 << (signal.SIGTERM - 1))


def test_the_kernel_shows_a_forked_worker_as_a_started_one(forks: Forks) -> None:
    """Arguments, environment with its marks, log, folder, session, signals."""
    forked, started = forks.fork("w-1"), forks.program("w-2")
    until(lambda: handles_signals(forked) and handles_signals(started), "both to run")
    assert parent(forked) != forks.server().pid, "an orphan, whom the supervisor inherits"
    one, other = shown(forked), shown(started)
    assert "--name=w-1" in one["arguments"]  # type: ignore[operator]
    for key in ("arguments", "environment"):
        one[key] = json.loads(json.dumps(sorted(one[key])).replace("w-1", "w-2"))  # type: ignore[call-overload]
        other[key] = sorted(other[key])  # type: ignore[call-overload]
    assert one == other
    for each in (forked, started):
        until(lambda who=each: not signals(who, "SigBlk"), "no signal to be blocked")  # type: ignore[misc]
    assert {(each.worker, each.leads) for each in forks.found("worker")} == {
        ("w-1", True),
        ("w-2", True),
    }


def test_a_worker_lives_on_without_its_server(forks: Forks) -> None:
    """It is no child of it, and holds nothing that keeps it."""
    worker = forks.fork("w-1")
    forks.servers.close()
    assert forks.found(PART) == []
    time.sleep(0.2)
    assert alive(worker)


def test_one_server_for_workers_that_differ_only_in_their_names(forks: Forks) -> None:
    """Another environment is loaded anew; what nobody needs ends."""
    forks.fork("w-1")
    first = forks.server()
    forks.fork("w-2")
    assert forks.server() == first
    forks.fork("w-3", OMP_NUM_THREADS="1")
    assert len(forks.found(PART)) == 2
    forks.servers.keep([forks.row("w-2")])
    assert forks.server() == first
    forks.servers.keep([])
    assert forks.found(PART) == []


def test_a_worker_with_a_spark_of_its_own_is_a_program(forks: Forks) -> None:
    """As is what is no worker of ours."""
    row = forks.row("w-1")
    of_its_own = ProcessRow(
        name="w", cluster="c", group="g", revision="r", launch=row.launch, shared_spark=False
    )
    stub = ProcessRow(
        name="w", cluster="c", group="g", revision="r", launch=Launch(argv=("true",)),
        shared_spark=True,
    )  # fmt: skip
    for each in (of_its_own, stub):
        assert forks.servers.ready(each)
        assert forks.servers.start(each, log=forks.log) is None
    assert forks.found(PART) == []


def test_changed_code_is_not_forked(forks: Forks) -> None:
    """What was loaded before it was changed is loaded anew."""
    site = forks.code / "sitecustomize.py"
    site.write_text("VERSION = 1\n")
    forks.fork("w-1")
    first = forks.server()
    site.write_text("VERSION = 22\n")
    assert forks.servers.start(forks.row("w-2"), log=forks.log) is None
    assert not alive(first)
    forks.fork("w-2")
    assert forks.server() != first


def test_threads_of_others_are_not_forked(forks: Forks) -> None:
    """An agent that is loaded into every Python: a fork would have it without its threads."""
    agent = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), name='agent', daemon=True).start()\n"
    )
    (forks.code / "sitecustomize.py").write_text(agent)
    row = forks.row("w-1")
    forks.ready(row)
    assert forks.servers.start(row, log=forks.log) is None
    assert forks.found(PART) == []
    assert forks.found("worker") == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_fails_is_done_without_for_a_minute(forks: Forks, how: int) -> None:
    """Killed or frozen: the worker is started as a program, once."""
    forks.fork("w-1")
    row, server = forks.row("w-2"), forks.server()
    os.kill(server.pid, how)
    assert forks.servers.start(row, log=forks.log) is None
    assert not alive(server)
    assert forks.servers.ready(row)
    assert forks.servers.start(row, log=forks.log) is None
    assert [each.worker for each in forks.found("worker")] == ["w-1"]
    forks.clock.sleep(61.0)
    forks.fork("w-2")


def test_a_server_that_cannot_load_is_done_without(forks: Forks) -> None:
    """A broken installation tells of itself."""
    (forks.code / "pyspark").mkdir()
    (forks.code / "pyspark" / "__init__.py").write_text("raise ImportError('broken')\n")
    row = forks.row("w-1")
    forks.ready(row)
    assert forks.servers.start(row, log=forks.log) is None
    assert forks.found(PART) == []
    assert "broken" in forks.told()


def test_a_server_that_does_not_come_to_its_end_of_loading(forks: Forks) -> None:
    """Half a minute is enough."""
    row = forks.row("w-1")
    assert not forks.servers.ready(row)
    os.kill(forks.server().pid, signal.SIGSTOP)
    assert not forks.servers.ready(row)
    forks.clock.sleep(31.0)
    assert forks.servers.ready(row)
    assert forks.found(PART) == []


def test_no_worker_is_left_that_nobody_knows(forks: Forks) -> None:
    """Fault: kill -9 of the supervisor between its order and the worker's word. The next one may
    have looked for marks before the worker had them, so it ends, as does the server.
    """
    row = forks.row("w-1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spawn(
        (*row.launch.argv[:3], "--fork-server", " " * 200),
        log=forks.home / "supervisor" / "log",
        env=environment(forks.home, part=PART, extra=row.launch.env, worker=" " * 50),
        stdin=theirs.fileno(),
    )
    theirs.close()
    with ours:
        assert ours.recv(100) == b"ready"
        order = {"name": "w-1", "argv": row.launch.argv, "log": str(forks.log)}
        ours.send(json.dumps(order).encode())
    until(lambda: not forks.found(PART), "the server to end")
    until(lambda: not forks.found("worker"), "the worker to end")


def test_an_order_that_cannot_be_carried_out(
    forks: Forks, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that cannot be written: the program's start then tells why."""
    row = forks.row("w-1")
    forks.ready(row)
    (forks.home / "workers" / "folder").mkdir()
    assert forks.servers.start(row, log=forks.home / "workers" / "folder") is None
    assert "Is a directory" in caplog.text
    assert forks.found("worker") == []


def test_a_worker_whose_word_was_not_heard_is_ended(forks: Forks) -> None:
    """It has its marks, and hangs before it tells its pid; its program would be the second."""
    row = forks.row("w-1")
    forks.ready(row)
    hangs = forks.home / "workers" / "no-reader"
    os.mkfifo(hangs)
    assert forks.servers.start(row, log=hangs) is None
    assert forks.found("worker") == []


def test_a_server_is_nobodys_orphan(forks: Forks) -> None:
    """`fleet doctor` told of a process that belongs to no known worker."""
    forks.ready(forks.row("w-1"))
    assert find_orphans(forks.home) == []


@pytest.mark.spark
def test_what_users_code_finds_in_a_forked_worker(tmp_path: Path, spark_address: str) -> None:
    """The environment, module path, arguments and folder of a program; chance is each one's own."""
    forks = Forks(tmp_path, spark_address)
    (forks.code / "sitecustomize.py").write_text("import numpy.random\n")  # before the fork
    try:
        for process in (forks.program("w-1"), forks.fork("w-2"), forks.fork("w-3")):
            assert alive(process)
        files = [forks.home / f"w-{number}.json" for number in (1, 2, 3)]
        until(
            lambda: all(file.exists() and file.stat().st_size for file in files),
            "all three to set up",
            progress=lambda: sizes([forks.log]),
            picture=forks.told,
        )
        facts = [json.loads(file.read_text()) for file in files]
    finally:
        forks.servers.close()
        for process in forks.started:
            end(process, grace=0.0)
    assert len({number for each in facts for number in each.pop("chance")}) == 6
    program, *forked = (json.dumps(each, sort_keys=True) for each in facts)
    assert [
        each.replace(name, "w-1") for each, name in zip(forked, ("w-2", "w-3"), strict=True)
    ] == [
        program,
        program,
    ]
