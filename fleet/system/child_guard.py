"""Guards one program: it runs no longer than its starter lives and moves.

Problem: a program that Fleet did not write must end before another worker may take its slot, even
if its starter was killed (`kill -9`) or stands still (SIGSTOP, a frozen container), and with it all
that it has started. Choice: between both stands this process. It starts the program, inherits what
the program's processes leave behind (it is their subreaper), and kills all of them once its
starter's end of the pipe is closed or has been silent for `limit` seconds. The kernel kills the
program if the guard itself is killed. Cost: one process of 9 MB beside each program, and Linux.

As a program it has the arguments ASKED_AT LIMIT PROGRAM ARGUMENT…, and reads messages from standard
input. It ends with the program's exit code, 128 + N after signal N, once nothing of it runs.
"""

import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_MESSAGE: Final = struct.Struct("<Bd")
"""Number of a signal for the program, 0 for none; and when it was sent, since boot."""
_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl(2)
_IGNORED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_NOT_FOUND, _NOT_STARTED = 127, 126


class GuardedProgram:
    """One run of a program under a guard; used by its starter, from any thread."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], limit: float) -> None:
        """Starts it. limit: seconds without `beat` after which all of it is killed."""
        theirs, self._pipe = os.pipe()
        try:
            os.set_blocking(self._pipe, False)
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(_since_boot()), str(limit), *argv],
                stdin=theirs,
                env=dict(env),
                process_group=0,  # the program's too: signals of a terminal go to its starter
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        """Returns the pid of the guard, which is the process group of the program."""
        return self._guard.pid

    def beat(self) -> None:
        """Shows that the starter moves."""
        self.signal(0)

    def signal(self, number: int) -> None:
        """Sends a signal to the program and what is in its process group; SIGKILL to all of it."""
        with contextlib.suppress(OSError):  # it has ended, or is stopped and hears nothing
            os.write(self._pipe, _MESSAGE.pack(number, _since_boot()))

    def ended(self) -> int | None:
        """Returns the exit code once nothing of it runs, or is about to end; None before."""
        code = self._guard.poll()
        if code is None:
            return None
        if code < 0:  # the guard was killed: the kernel has killed the program, not its children
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._guard.pid, signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kills all of it and waits for that."""
        self.signal(signal.SIGKILL)
        try:
            self._guard.wait(5.0)
        except subprocess.TimeoutExpired:  # it was stopped
            self._guard.kill()
            self._guard.wait()
        self.ended()

    def close(self) -> None:
        """Kills all of it and frees the pipe."""
        if self._guard.returncode is None:
            self.kill()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _since_boot() -> float:
    """Returns a clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main(asked_at: float, limit: float, argv: Sequence[str]) -> int:
    """Runs the program; returns its exit code. A start that comes too late starts nothing."""
    deadline = asked_at + limit
    if _since_boot() >= deadline:
        return _NOT_STARTED
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    hears, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    program, code, asked = _start(argv), None, False
    while True:
        found, alone = _reaped(program)
        if found is not None:
            code = found
        if alone:
            return _NOT_STARTED if code is None else code
        if code is not None and not asked:
            _kill_all()  # it ended by itself: what it left behind is nobody's
        ready, _, _ = select.select([0, hears], [], [], max(0.0, deadline - _since_boot()))
        if hears in ready:
            os.read(hears, 4096)
        if 0 in ready:
            read = os.read(0, _MESSAGE.size * 400)
            if not read:
                return _killed(code)
            for number, at in _MESSAGE.iter_unpack(read):
                deadline = max(deadline, at + limit)
                asked |= number == signal.SIGTERM
                if number == signal.SIGKILL:
                    return _killed(code)
                if number:
                    os.killpg(0, number)
        if _since_boot() >= deadline:
            return _killed(code)


def _start(argv: Sequence[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (*_IGNORED, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(_NOT_STARTED)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(argv[0], list(argv))  # noqa: S606 - as it was given, and no shell
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED)
    finally:
        os._exit(_NOT_STARTED)


def _reaped(program: int) -> tuple[int | None, bool]:
    """Reaps what has ended; returns the program's exit code if it has, and whether none is left."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, True
        if not pid:
            return code, False
        if pid == program:
            told = os.waitstatus_to_exitcode(status)
            code = told if told >= 0 else 128 - told


def _killed(code: int | None) -> int:
    """Kills until nothing is left; returns the program's exit code."""
    while True:
        _kill_all()
        try:
            os.waitpid(-1, 0)  # orphans come to us, and are killed in the next turn
        except ChildProcessError:
            return 128 + signal.SIGKILL if code is None else code


def _kill_all() -> None:
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants() -> Iterator[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it has just ended
            state, parent = entry.read_bytes().rpartition(b")")[2].split()[:2]
            if state not in b"ZX":
                parents.setdefault(int(parent), []).append(int(entry.parent.name))
    fresh = parents.get(os.getpid(), [])
    while fresh:
        yield from fresh
        fresh = [child for pid in fresh for child in parents.get(pid, ())]


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
