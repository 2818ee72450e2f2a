"""Starts processes that outlive their starter, and identifies them later.

Problem: a pid alone lies. It is reused, it survives as a zombie, and after a reboot it names
something else. Choice: a process is (pid, start time in clock ticks since boot, boot id), read
from /proc; each lives in a session of its own with default signal handlers, because a parent
that ignores SIGINT (a background job of a script) hands that on to its children. Cost: Linux
only, and one extra interpreter start (about 20 ms) per spawn, since resetting ignored signals
between fork and exec is not safe in a program with threads.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fleet
from fleet.errors import FleetError

_POLL_SECONDS: Final = 0.02

# Runs in the new session before the program: undo what is inherited through exec.
_LAUNCH: Final = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
os.execvp(sys.argv[1], sys.argv[1:])
"""

_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, never confused with a later one of the same pid."""

    pid: int
    start_time: int
    """Field 22 of /proc/<pid>/stat: clock ticks since boot."""
    boot_id: str

    def as_json(self) -> dict[str, Any]:
        """For a state file."""
        return {"pid": self.pid, "start_time": self.start_time, "boot_id": self.boot_id}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ProcessId":
        """From a state file; KeyError or ValueError where it is none."""
        return cls(int(value["pid"]), int(value["start_time"]), str(value["boot_id"]))


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    group: int
    threads: int
    start_time: int

    @property
    def dead(self) -> bool:
        """A zombie; one whose other threads still run holds its files and ports, and lives."""
        return self.state in "ZX" and self.threads <= 1


@dataclass(slots=True)
class _Inherited:
    """A child that another process forked, with what `subprocess.Popen` has of it."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, None while it runs, or as long as it is not our child."""
        if self.code is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if found:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code


# Our own children, kept so that they are reaped and their exit code is known.
_children: dict[ProcessId, subprocess.Popen[bytes] | _Inherited] = {}
_MOST_ENDED_CHILDREN: Final = 1000


def identify(pid: int) -> ProcessId | None:
    """The identity of a living process; None where there is none (a zombie is none)."""
    stat = _stat(pid)
    if stat is None or stat.dead:
        return None
    return ProcessId(pid, stat.start_time, _boot_id())


def alive(process: ProcessId) -> bool:
    """Whether exactly this process still runs. Reaps it where it is our dead child."""
    child = _children.get(process)
    if child is not None and child.poll() is not None:
        return False
    return identify(process.pid) == process


def age(process: ProcessId) -> float:
    """Seconds since it was started, alive or not, on this boot's own clock, which no setting of
    the time moves; 0 where it was of another boot.
    """
    if process.boot_id != _boot_id():
        return 0.0
    started = process.start_time / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def exit_code(process: ProcessId) -> int | None:
    """The exit code of our own dead child (negative: a signal); None where it is not known."""
    child = _children.get(process)
    return None if child is None else child.poll()


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> ProcessId:
    """Start a program in a session of its own; both its outputs are appended to `log`.

    No file but `stdin` is inherited, signals have their defaults. `env` is the whole environment
    (None: ours). Raises FileNotFoundError where there is no such
    program, FleetError where this is no Linux. Its own failure to start shows in the log and in
    its end.
    """
    if not Path("/proc").is_dir():
        raise FleetError(
            f"workers and the embedded broker need Linux, and this is {sys.platform}; observe, "
            "plan and export here, and run workers on Linux or on Kubernetes"
        )
    program = shutil.which(argv[0], path=(env or os.environ).get("PATH"))
    if program is None:
        raise FileNotFoundError(f"no program {argv[0]}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, program, *argv[1:]],
            stdin=stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
            close_fds=True,
        )
    return _kept(child, argv[0])  # a zombie at worst: only we can reap it


def inherit(pid: int, name: str) -> ProcessId:
    """Keep a process as our child that another one has forked, for us who inherit orphans.

    Raises ProcessLookupError where there is none.
    """
    return _kept(_Inherited(pid), name)


def inherit_orphans() -> None:
    """From now on a descendant whose parent ends is our child; `reap_orphans` is to be called."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Reap inherited children that have ended and that no caller waits for."""
    kept = {process.pid: c for process, c in _children.items() if c.poll() is None}
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        child = kept.get(found.si_pid) or _Inherited(found.si_pid)
        child.poll()


def _kept(child: subprocess.Popen[bytes] | _Inherited, name: str) -> ProcessId:
    stat = _stat(child.pid)
    if stat is None:
        raise ProcessLookupError(f"{name} vanished at its start")
    process = ProcessId(child.pid, stat.start_time, _boot_id())
    _forget_ended()
    _children[process] = child
    return process


def signal_group(process: ProcessId, number: int) -> None:
    """Signal the process and whatever it left in its group; nothing if all have ended."""
    if any(True for _ in _group(process)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return


def end(process: ProcessId, *, grace: float) -> bool:
    """SIGTERM the group, wait up to `grace` seconds, SIGKILL what is left.

    True where everything ended by itself within the grace. Nothing of the group runs after it.
    """
    signal_group(process, signal.SIGTERM)
    if wait_ended(process, timeout=grace):
        return True
    signal_group(process, signal.SIGKILL)
    wait_ended(process, timeout=10.0)
    return False


def wait_ended(process: ProcessId, *, timeout: float) -> bool:
    """Wait until the process and its group have ended; False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while alive(process) or any(True for _ in _group(process)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def find(*words: str) -> ProcessId | None:
    """The first process whose arguments contain all of `words` exactly; None where there is none.

    For a starter that was killed between starting a process and writing down who it is.
    """
    for pid in pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if pid != os.getpid() and set(words) <= set(arguments.split("\0")):
            return identify(pid)
    return None


def _forget_ended() -> None:
    if len(_children) > _MOST_ENDED_CHILDREN:
        for process, child in list(_children.items()):
            if child.poll() is not None:
                del _children[process]


def _group(process: ProcessId) -> Iterator[int]:
    """Living members of the process group that `process` leads or led.

    The kernel gives no pid away while a group or session of that number exists, so a leader
    with another start time means that the group has ended.
    """
    if process.boot_id != _boot_id():
        return
    leader = _stat(process.pid)
    if leader is not None and leader.start_time != process.start_time:
        return
    for pid in pids():
        stat = _stat(pid)
        if (
            stat is not None
            and stat.group == process.pid
            and stat.start_time >= process.start_time
            and not stat.dead
        ):
            yield pid


def pids() -> Iterator[int]:
    """Of all processes of this machine; none where it is no Linux."""
    found = Path("/proc").iterdir() if Path("/proc").is_dir() else ()
    return (int(entry.name) for entry in found if entry.name.isdigit())


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    return _Stat(fields[0], int(fields[2]), int(fields[17]), int(fields[19]))


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


# Processes that carry an id in their environment, which children inherit and the kernel shows: they
# are found again even if their starter was killed. Own processes only.


def carrying(variable: str, value: str) -> tuple[ProcessId, ...]:
    """Living processes with this in their environment, other than the caller; none of none."""
    if not value:
        return ()
    found = (identify(pid) for pid, env in _environments() if env.get(variable) == value)
    return tuple(each for each in found if each is not None)


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Other processes of this user, with the environment that each began with."""
    for pid in pids():
        if pid != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile, or of another user
                text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
                yield pid, dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def end_all(found: tuple[ProcessId, ...], *, grace: float) -> None:
    """End exactly these: SIGTERM to all, `grace` seconds, SIGKILL; none runs afterwards.

    One by one and not by process group: a leftover need not lead the group that it is in.
    """
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for process in found:
            if alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
        deadline = time.monotonic() + wait
        while any(alive(p) for p in found) and time.monotonic() < deadline:
            time.sleep(0.05)


# Every process that was started for this state directory, by marks in its environment, also if its
# starter was killed before it stored that. Reading /proc takes milliseconds: at starts and ends
# only.


HOME: Final = "FLEET_HOME"
PART: Final = "FLEET_PART"
"""worker | supervisor | spark | fork-server; a person's shell only has FLEET_HOME."""
WORKER: Final = "FLEET_WORKER"
CONNECT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Would turn a Spark server, or a process with a JVM of its own, into the client of another."""
_NOT_INHERITED: Final = frozenset({PART, WORKER, *CONNECT})


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeProcess:
    """One process of a state directory; `session`: the pid of the one that Fleet started itself."""

    process: ProcessId
    session: int
    part: str
    worker: str | None

    @property
    def leads(self) -> bool:
        """Whether Fleet started it itself, and not one of its children."""
        return self.process.pid == self.session


def environment(
    home: Path, *, part: str, extra: Mapping[str, str] | None = None, worker: str | None = None
) -> dict[str, str]:
    """The environment of a process of this state directory: ours, `extra`, and the marks.

    PYTHONPATH: extra's before ours, and where this package lies, so that a process runs the
    same fleet as its starter whether that is installed or not.
    """
    env = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    env.update(extra or {})
    env["PYTHONPATH"] = python_path((extra or {}).get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    env[HOME] = str(home)
    env[PART] = part
    if worker is not None:
        env[WORKER] = worker
    return env


def python_path(before: str | None, after: str | None = None) -> str:
    """A PYTHONPATH on which this package is found, between what is given."""
    paths = [before, str(Path(fleet.__file__).parents[1]), after]
    return os.pathsep.join(path for path in paths if path)


def home_processes(home: Path) -> Iterator[HomeProcess]:
    """All living processes of this state directory, with workers' children, without the caller."""
    for pid, env in _environments():
        process = identify(pid)
        if process is not None and env.get(HOME) == str(home) and PART in env:
            try:
                session = os.getsid(pid)
            except ProcessLookupError:
                continue
            yield HomeProcess(
                process=process,
                session=session,
                part=env[PART],
                worker=env.get(WORKER, "").strip() or None,
            )


# A process that is forked and starts no program shows its parent's arguments and variables: the
# text is written over in place, within its room. `os.environ` and `sys.argv` are left alone.
# Source: proc_pid_stat(5), arg_start to env_end.


_ARGUMENTS: Final = 48
_ENVIRONMENT: Final = 50
"""Numbers of the fields of /proc/PID/stat where these begin; they end where the next one says."""


def show_arguments(arguments: Sequence[str]) -> None:
    """Show these as the arguments; cut where there is no more room."""
    start, size = _area(_ARGUMENTS)
    text = b"".join(each.encode(errors="surrogateescape") + b"\0" for each in arguments)
    _write(start, text[: size - 1], size)


def show_variable(name: str, value: str) -> None:
    """Show this value of a variable that the program was started with.

    Raises ValueError where it was not, or where the value then was shorter than this one.
    """
    start, size = _area(_ENVIRONMENT)
    text = b"\0" + ctypes.string_at(start, size)
    mark = f"\0{name}=".encode()
    at = text.find(mark)
    if at < 0:
        raise ValueError(f"{name} was not in the environment at the start")
    first = at + len(mark)
    room = text.index(b"\0", first) - first
    new = value.encode(errors="surrogateescape")
    if len(new) > room:
        raise ValueError(f"{name} has room for {room} bytes, and its value has {len(new)}")
    _write(start + first - 1, new, room)


def _area(field: int) -> tuple[int, int]:
    """(address, bytes) of this process's."""
    text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = text.rpartition(")")[2].split()  # the first of these is number 3
    start, end = int(fields[field - 3]), int(fields[field - 2])
    return start, end - start


def _write(address: int, text: bytes, size: int) -> None:
    ctypes.memmove(address, text.ljust(size, b"\0"), size)
