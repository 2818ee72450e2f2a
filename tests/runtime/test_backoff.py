"""A worker that ends is started again after its pause, whatever is done to the machine's time."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from fleet.act.local.process_table import Launch, ProcessRow
from fleet.act.local.supervisor import FIRST_DELAY, Supervisor, _Backoff
from fleet.clock import SystemClock
from fleet.slots import STEADY_SECONDS, UNHEALTHY_AFTER_ENDS
from fleet.system import processes
from fleet.system.log_files import thin_out
from tests.support.live_folders import files_below


class SetClock(SystemClock):
    """A machine whose time somebody sets."""

    set_by = 0.0

    def now(self) -> float:
        return super().now() + self.set_by


def row(launch: Launch, name: str = "w") -> ProcessRow:
    """A worker that is started so."""
    return ProcessRow(
        name=name, cluster="main", group="g", revision="r", launch=launch, shared_spark=False
    )


@pytest.mark.parametrize("hours", [-1.0, 1.0])
def test_a_clock_that_is_set_keeps_no_worker_from_starting(tmp_path: Path, hours: float):
    """Back an hour it used to stay down for an hour; forward it counted as well, and its back-off
    began anew.
    """
    clock = SetClock()
    supervisor = Supervisor(tmp_path, clock=clock)
    fails = Launch(argv=(sys.executable, "-S", "-c", "raise SystemExit(3)"))
    supervisor.table.add([row(fails)])

    def restarts() -> int:
        supervisor.look()
        return supervisor.table.rows()[0].restarts

    try:
        deadline = time.monotonic() + 300
        while not restarts():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        clock.set_by = 3600.0 * hours
        began = time.monotonic()
        while restarts() < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert time.monotonic() - began >= FIRST_DELAY
        assert supervisor.table.rows()[0].failures == 2
    finally:
        supervisor.end_all()
        supervisor.table.close()


def test_a_worker_that_cannot_be_started_says_why(tmp_path: Path):
    """Each try counts, ever more rarely: a change that waits for it ends with the reason, and
    does not ask for others in its place.
    """
    supervisor = Supervisor(tmp_path, clock=SystemClock())
    nothing = Launch(argv=("/no/such/python", "-m", "fleet.worker"))
    try:
        supervisor.table.add([row(nothing)])
        for tries in range(1, 4):
            supervisor.look()
            supervisor.look()  # its pause is not over
            (found,) = supervisor.table.rows()
            assert (found.restarts, found.failures) == (tries, tries)
            told = "it could not be started: no program /no/such/python"
            assert found.exit_reason == told
            supervisor._backoffs["w"].not_before = 0.0
        assert found.restarts >= UNHEALTHY_AFTER_ENDS
    finally:
        supervisor.table.close()


@pytest.mark.parametrize(
    ("number", "name"),
    [(9, "SIGKILL (kill -9, or the kernel when memory ran out)"), (40, "signal 40")],
)
def test_a_worker_that_a_signal_killed_says_which(tmp_path: Path, number: int, name: str):
    """Also by one that has no name: its supervisor lives on, and starts it again."""
    supervisor = Supervisor(tmp_path, clock=SystemClock())
    kills = Launch(argv=(sys.executable, "-S", "-c", f"import os; os.kill(os.getpid(), {number})"))
    supervisor.table.add([row(kills)])
    try:
        deadline = time.monotonic() + 300
        while not (found := supervisor.table.rows()[0]).restarts:
            assert time.monotonic() < deadline
            assert supervisor.look()
            time.sleep(0.02)
        assert found.exit_reason == f"killed by {name}"
    finally:
        supervisor.end_all()
        supervisor.table.close()


_KEEPS_FILES = """
import sys, time
from pathlib import Path
from fleet.system.memory_files import MemoryFolder
folder = MemoryFolder(Path(sys.argv[1]))
(folder.path / "1.parquet").write_bytes(bytes(1000))
time.sleep(60)
"""


def test_what_a_killed_worker_had_in_memory_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By the supervisor that sees its end; what a living one has stays."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("FLEET_SHM", str(memory))
    supervisor = Supervisor(tmp_path / "home", clock=SystemClock())
    keeps = Launch(argv=(sys.executable, "-c", _KEEPS_FILES, str(memory)))
    supervisor.table.add([row(keeps, name) for name in ("killed", "living")])

    def files() -> int:
        return sum(each.suffix == ".parquet" for each in files_below(memory))

    def until_there_are(wanted: int) -> None:
        deadline = time.monotonic() + 300
        while files() != wanted:
            assert time.monotonic() < deadline, files()
            supervisor.look()
            time.sleep(0.05)

    try:
        until_there_are(2)
        (killed,) = (r for r in supervisor.table.rows() if r.name == "killed")
        assert killed.process is not None
        os.kill(killed.process.pid, signal.SIGKILL)
        until_there_are(1)
    finally:
        supervisor.end_all()
        supervisor.table.close()


def test_a_new_supervisor_goes_on_with_the_back_off():
    """It knows how often it failed, not when: the last pause is made anew, and no longer one."""
    assert _Backoff.after(0, now=7.0).not_before == 0.0
    assert _Backoff.after(1, now=7.0).not_before == 7.0 + FIRST_DELAY
    assert _Backoff.after(3, now=7.0).not_before == 7.0 + 4 * FIRST_DELAY
    assert _Backoff.after(3, now=7.0).failures == 3


def test_a_long_life_is_measured_by_the_boots_own_clock():
    """Of this process, of one that never was here, and of one of another boot."""
    me = processes.identify(os.getpid())
    assert me is not None
    before = processes.age(me)
    time.sleep(0.02)
    assert 0.01 < processes.age(me) - before < STEADY_SECONDS
    assert processes.age(processes.ProcessId(me.pid, me.start_time, "another boot")) == 0.0


def test_logs_of_removed_workers_are_bounded(tmp_path: Path):
    """The latest stay, older halves go with them, and a living worker's is never touched."""
    for number in range(6):
        log = tmp_path / f"w-{number}.log"
        log.write_text("x")
        os.utime(log, (number, number))
    (tmp_path / "w-1.log.1").write_text("older")
    thin_out(tmp_path, living={tmp_path / "w-0.log"}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w-0.log", "w-4.log", "w-5.log"]
    thin_out(tmp_path / "nowhere", living=set())
