"""Processes are known again, ended with their children, shown, left; a home is its owner's."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.broker import Broker
from fleet.broker.embedded import prepare
from fleet.broker.jars import Kafka
from fleet.broker.node_config import NodeConfig
from fleet.errors import FleetError
from fleet.system import processes
from fleet.system.home import make_home
from fleet.system.processes import ProcessId

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a spawned process writes."""
    return tmp_path / "logs" / "out.log"


def wait_for(log: Path, text: str) -> None:
    """Until the process has written `text`."""
    deadline = time.monotonic() + 300
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


def test_spawned_process_is_known_again(log) -> None:
    """Its identity survives JSON; ending it is seen."""
    process = processes.spawn(SLEEP, log=log)
    try:
        assert processes.alive(ProcessId.from_json(process.as_json()))
        assert processes.identify(process.pid) == process
        assert os.getsid(process.pid) == process.pid
    finally:
        assert processes.end(process, grace=5)
    assert not processes.alive(process)
    assert processes.identify(process.pid) is None
    assert processes.exit_code(process) == -signal.SIGTERM


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"start_time": 1}, id="pid-used-again"),
        pytest.param({"boot_id": "another"}, id="after-a-reboot"),
    ],
)
def test_same_pid_is_not_the_same_process(change) -> None:
    """Another process under the pid is neither alive nor signalled."""
    mine = processes.identify(os.getpid())
    other = replace(mine, **change)
    assert not processes.alive(other)
    processes.signal_group(other, signal.SIGKILL)
    assert processes.end(other, grace=0)


def test_zombie_is_dead() -> None:
    """A process that ended but was not reaped counts as gone, whoever its parent is."""
    child = subprocess.Popen(["true"])
    try:
        deadline = time.monotonic() + 300
        while processes.identify(child.pid) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.wait()


def test_output_is_appended_and_input_is_empty(log) -> None:
    """Both outputs land in the log behind what was there; reading input ends at once."""
    log.parent.mkdir()
    log.write_text("before\n")
    code = "import sys; print(sys.stdin.read() == '', file=sys.stderr); print('out')"
    process = processes.spawn([sys.executable, "-c", code], log=log)
    assert processes.wait_ended(process, timeout=10)
    assert processes.exit_code(process) == 0
    assert log.read_text().splitlines()[0] == "before"
    assert set(log.read_text().splitlines()) == {"before", "True", "out"}
    with pytest.raises(FileNotFoundError, match="no program /nowhere/at/all"):
        processes.spawn(["/nowhere/at/all"], log=log)


def test_ignored_signals_are_not_inherited(log) -> None:
    """Where the starter ignores SIGINT and blocks SIGTERM, what it starts does neither."""
    starter = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from fleet.system import processes\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "code = 'import signal, time; print(signal.getsignal(signal.SIGINT) is "
        "signal.default_int_handler, flush=True); time.sleep(60)'\n"
        "process = processes.spawn([sys.executable, '-c', code], log=Path(sys.argv[1]))\n"
        "print(process.pid)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", starter, str(log)],
        capture_output=True, text=True, check=True, env=environ,
    )  # fmt: skip
    process = processes.identify(int(done.stdout))
    assert process is not None, "it outlives its starter"
    try:
        wait_for(log, "True")
    finally:
        assert processes.end(process, grace=5), "SIGTERM ended it"


def test_no_files_are_inherited(log) -> None:
    """A pipe of the starter stays the starter's: its reader sees the end."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = processes.spawn(SLEEP, log=log)
    try:
        os.close(writer)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
        processes.end(process, grace=5)


def test_stubborn_process_is_killed(log) -> None:
    """After the grace SIGKILL follows, and the answer says so."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ready', flush=True); time.sleep(60)"
    )
    process = processes.spawn([sys.executable, "-c", code], log=log)
    wait_for(log, "ready")
    assert not processes.end(process, grace=0.2)
    assert not processes.alive(process)
    assert processes.exit_code(process) == -signal.SIGKILL


def test_children_of_a_dead_leader_are_ended_too(log) -> None:
    """What the process left in its group goes with it."""
    code = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen({SLEEP!r})\n"
        "print('child', child.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    process = processes.spawn([sys.executable, "-c", code], log=log)
    wait_for(log, "\n")
    child = processes.identify(int(log.read_text().split()[1]))
    assert child is not None
    while processes.alive(process):
        time.sleep(0.01)
    assert processes.alive(child)
    assert processes.end(process, grace=5)
    assert not processes.alive(child)


def test_find_by_arguments(log, unique) -> None:
    """A process that nobody wrote down is found by an argument, or a variable, of its own."""
    process = processes.spawn([*SLEEP, unique], log=log, env={**os.environ, "FLEET_MARK": unique})
    try:
        deadline = time.monotonic() + 300
        while processes.find(unique, sys.executable) != process:  # its launcher runs first
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert processes.find(unique, "other") is None
        assert processes.carrying("FLEET_MARK", unique) == (process,)
        assert processes.carrying("FLEET_MARK", "other") == processes.carrying("PATH", "") == ()
    finally:
        processes.end(process, grace=5)
    assert processes.find(unique) is None


ORPHANS = """
import os, subprocess, sys, time
from fleet.system import processes
if sys.argv[1] == "inherits":
    processes.inherit_orphans()
left = "import os, sys, time; p = os.fork(); p and print(p, flush=True); p and os._exit(0); " \
    "time.sleep(0.3); os._exit(7)"
pids = [int(subprocess.run([sys.executable, "-S", "-c", left], stdout=subprocess.PIPE).stdout)
        for _ in range(2)]
process = processes.inherit(pids[0], "w-1")
while processes.alive(process):
    time.sleep(0.01)
time.sleep(0.2)
processes.reap_orphans()
left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
print(processes.exit_code(process), len(left) if sys.argv[1] == "inherits" else 0)
"""


@pytest.mark.parametrize(("how", "told"), [("inherits", "7 0"), ("does not", "None 0")])
def test_orphans_are_inherited_and_reaped(how: str, told: str) -> None:
    """The exit code of one that is kept is known, and none stays as a zombie."""
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS, how], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (told, "")


def test_who_is_gone_is_not_inherited() -> None:
    """Between its word and our look."""
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessLookupError, match="w-1"):
        processes.inherit(child.pid, "w-1")


# --- a home is its owner's alone: its files hold records --------------------------------------


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """As a machine of many users has it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(folder: Path) -> int:
    """Who may do what with it."""
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_home_is_its_owners(tmp_path: Path) -> None:
    """One that is there already stays as somebody wanted it."""
    assert mode(make_home(tmp_path / "new")) == 0o700
    (tmp_path / "theirs").mkdir()
    assert mode(make_home(tmp_path / "theirs")) == 0o755


def test_one_that_the_broker_makes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fleet dev broker start` comes first where one tries the broker alone."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(FleetError, match="/nowhere"):
        Broker(tmp_path / "home").start()
    assert mode(tmp_path / "home") == 0o700


def test_a_nodes_files_are_its_owners_in_any_home(tmp_path: Path) -> None:
    """What ACLs keep from a user of the broker stands in them."""
    node = NodeConfig(id=1, port=9001, controller_port=9101, home=tmp_path / "broker" / "node-1")
    kafka = Kafka(Path("/bin/false"), tmp_path)
    with pytest.raises(FleetError, match="cannot format"):
        prepare(kafka, node, [node], cluster_id="c", overrides={})
    assert mode(node.home) == 0o700


# --- what comes before the end of a process that is not taken apart ---------------------------


LEAVING = """
import atexit, sys, threading, time
from fleet.process_exit import exit_process, mark_native_callbacks

class Kept:
    def __del__(self):
        sys.stderr.write("taken apart\\n")

kept = Kept()
atexit.register(lambda: sys.stdout.write(" atexit"))
threading.Thread(target=lambda: (time.sleep(0.2), sys.stdout.write("thread"))).start()
if sys.argv[1] == "called":
    mark_native_callbacks()
exit_process(7)
"""


@pytest.mark.parametrize(("how", "left"), [("called", ""), ("not called", "taken apart\n")])
def test_all_but_taking_apart(how: str, left: str) -> None:
    """Threads end, `atexit` runs, what is written arrives, the exit code is as said."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "thread atexit", left)


# --- what the kernel shows of a process, changed by itself ------------------------------------


SCRIPT = """
import os, sys
from fleet.system.processes import show_arguments, show_variable
what, name, value = sys.argv[1:4]
try:
    show_arguments(["x"] * 9000 if what == "many" else what.split())
    show_variable(name, value)
except ValueError as error:
    sys.exit(str(error))
place = f"/proc/{os.getpid()}/"
for kind in ("cmdline", "environ"):
    print([each for each in open(place + kind, "rb").read().split(b"\\0") if each])
print(os.environ["PART"], os.environ["PARTS"])
"""
ENVIRONMENT = {"XPART": "x", "PART": "fork-server", "PARTS": "1", "PATH": os.environ["PATH"]}


def shown(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What a process of this environment shows after it."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments, " " * 100],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_arguments_and_a_variable_are_shown() -> None:
    """Only these; the program's own `os.environ` is left alone."""
    arguments, environment, own = shown("python -m é", "PART", "worker").stdout.splitlines()
    assert arguments == str([b"python", b"-m", "é".encode()])
    found = environment[1:-1].split(", ")
    assert {"b'PART=worker'", "b'XPART=x'", "b'PARTS=1'"} <= set(found)
    assert own == "fork-server 1"


def test_what_has_no_room_is_cut() -> None:
    """Arguments are for people; the environment behind them stays whole."""
    arguments, environment, _ = shown("many", "PART", "w").stdout.splitlines()
    assert 300 < arguments.count("x") < 9000
    assert "b'XPART=x'" in environment


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PART", "fork-servers", "PART has room for 11 bytes, and its value has 12"),
        ("ART", "w", "ART was not in the environment"),
    ],
)
def test_a_variable_that_cannot_be_shown(name: str, value: str, told: str) -> None:
    """A mark that is wrong or cut would be another's."""
    done = shown("python", name, value)
    assert done.returncode == 1
    assert told in done.stderr
