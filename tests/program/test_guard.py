"""Nothing of a program outlives its starter, its starter's silence, its guard or its own end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.system import child_guard
from fleet.system.child_guard import GuardedProgram
from fleet.system.processes import carrying, end_all
from tests.support import waiting

MARK = "FLEET_TEST_PROGRAM"
FAMILY = "trap '' TERM; setsid sleep 600 & sleep 600 & touch {file}; wait; wait; sleep 600"
"""Ignores SIGTERM, with a child in its process group and one outside of it."""
STARTER = """
import os, sys, time
from fleet.system.child_guard import GuardedProgram
program = GuardedProgram(sys.argv[2:], env=dict(os.environ), limit=float(sys.argv[1]))
print(program.pid, flush=True)
while True:
    program.beat()
    time.sleep(0.02)
"""


@pytest.fixture
def mark(unique: str) -> str:
    """What the environment of this test's processes says."""
    return f"program-{unique}"


@contextmanager
def running(
    mark: str, *argv: str, limit: float = 600.0, code: int | None = None
) -> Iterator[GuardedProgram]:
    """A program; at its end nothing of it is left, and its exit code was this one."""
    made = GuardedProgram(argv, env={**os.environ, MARK: mark}, limit=limit)
    try:
        yield made
        waiting.until(lambda: made.ended() is not None, "the program to end", still=20.0)
        assert made.ended() == code
        waiting.until(lambda: not carrying(MARK, mark), "what it started to end", still=20.0)
    finally:
        made.close()


def family(tmp_path: Path) -> tuple[str, ...]:
    """The arguments of a program with children."""
    return "sh", "-c", FAMILY.format(file=tmp_path / "there")


def await_family(tmp_path: Path, mark: str) -> None:
    """Until its children run: guard, shell, two sleeps and the starter of the one outside."""
    waiting.until((tmp_path / "there").exists, "the program to run")
    waiting.until(lambda: len(carrying(MARK, mark)) >= 4, "its children to run")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 128 + 9),
        (("no-such-program",), 127),
        (("/etc/passwd",), 126),
        (("sh", "-c", "setsid sleep 600 & exit 3"), 3),
        (("sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x >&2; exit 4"), 4),
    ],
)
def test_its_end_is_told(argv, code, mark, capfd):
    """The exit code is the program's; what it left behind is ended, what it printed is not kept."""
    with running(mark, *argv, code=code):
        pass


def test_signals_reach_it(mark, tmp_path):
    """USR1 is forwarded; TERM ends it, and a child of a shell that dies at once may finish."""
    script = (
        f"trap 'touch {tmp_path}/heard' USR1; touch {tmp_path}/there; while :; do sleep 0.05; done"
    )
    with running(mark, "sh", "-c", script, code=128 + 15) as program:
        waiting.until((tmp_path / "there").exists, "the program to run")
        program.signal(signal.SIGUSR1)
        waiting.until((tmp_path / "heard").exists, "the signal to arrive")
        program.signal(signal.SIGTERM)
    closes = f"trap 'sleep 0.3; touch {tmp_path}/closed; exit' TERM"
    slow = f"({closes}; touch {tmp_path}/two; sleep 600 & wait) & wait"
    with running(mark, "sh", "-c", slow, code=128 + 15) as program:
        waiting.until((tmp_path / "two").exists, "the program to run")
        program.signal(signal.SIGTERM)
    assert (tmp_path / "closed").exists()


def test_a_kill_ends_all_of_it(mark, tmp_path):
    """What ignores SIGTERM, and what left its process group."""
    with running(mark, *family(tmp_path), code=128 + 9) as program:
        await_family(tmp_path, mark)
        program.signal(signal.SIGTERM)
        time.sleep(0.1)
        assert program.ended() is None
        program.signal(signal.SIGKILL)


def test_silence_ends_all_of_it(mark, tmp_path):
    """A starter that stands still no longer beats."""
    began = time.monotonic()
    with running(mark, *family(tmp_path), limit=1.5, code=128 + 9) as program:
        await_family(tmp_path, mark)
        while time.monotonic() - began < 2:
            program.beat()
            time.sleep(0.05)
        assert program.ended() is None


@pytest.mark.parametrize(
    ("argv", "processes"),
    [(("sh", "-c", "sleep 600 & sleep 600"), 4), (("setsid", "sleep", "600"), 2)],
)
def test_the_guard_is_killed(argv, processes, mark):
    """The kernel kills the program in any group, and its starter what is in its own."""
    with running(mark, *argv, code=128 + 9) as program:
        waiting.until(lambda: len(carrying(MARK, mark)) >= processes, "its children to run")
        time.sleep(0.2)
        os.kill(program.pid, signal.SIGKILL)


def test_a_guard_that_begins_too_late_starts_nothing(tmp_path):
    """Its starter stood still between its last look at the slot and the start."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    argv = [str(began - 2), "1", "touch", str(tmp_path / "started")]
    guard = [sys.executable, child_guard.__file__, *argv]
    assert subprocess.run(guard, stdin=subprocess.DEVNULL, check=False).returncode == 126
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_starter_is_killed_or_stopped(number, mark, tmp_path):
    """Nothing of the program runs soon after: at once, or after the limit."""
    limit = "600" if number == signal.SIGKILL else "1"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, limit, *family(tmp_path)],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
    )
    try:
        await_family(tmp_path, mark)
        time.sleep(1.2)  # longer than the limit
        assert len(carrying(MARK, mark)) >= 4
        os.kill(starter.pid, number)
        left = {starter.pid} if number == signal.SIGSTOP else set()
        waiting.until(
            lambda: {each.pid for each in carrying(MARK, mark)} <= left, "all to end", still=20.0
        )
    finally:
        starter.kill()
        end_all(carrying(MARK, mark), grace=0.0)  # else they keep its pipe open
        starter.communicate()
