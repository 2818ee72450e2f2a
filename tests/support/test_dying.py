"""A pytest that is interrupted, however rudely, leaves nothing running."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dying import MARK, carrying
from tests.support.needs import repository
from tests.support.waiting import until

CONFTEST = """
from pathlib import Path
from tests.support import dying

def pytest_configure(config):
    dying.watch(None if hasattr(config, "workerinput") else Path(__file__).parent / "cluster")
"""
STARTS = """
import os, sys, time
from pathlib import Path
from fleet.system.processes import spawn
from tests.support.dying import for_the_run

def test_starts():
    here = Path(__file__).parent
    name = Path(__file__).stem
    sleep = [sys.executable, "-c", "import subprocess, sys, time; "
             "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); "
             "time.sleep(300)"]
    spawn(sleep, log=here / "log")
    with for_the_run():
        shared = spawn(sleep, log=here / "log")
    (here / f"{name}.part").write_text(f"{os.getpid()} {shared.pid}")
    (here / f"{name}.part").rename(here / f"{name}.started")
    time.sleep(300)
"""
BROKER = """
import os, time
from pathlib import Path
from tests.support.brokers import HOME, shared_broker

def test_starts(tmp_path):
    os.environ[HOME.variable] = str(tmp_path)
    shared_broker()
    here = Path(__file__).parent
    (here / "part").write_text(f"{os.getpid()} 0")
    (here / "part").rename(here / "a.started")
    time.sleep(300)
"""


API_SERVER = """
import os, time
from pathlib import Path
from tests.support.kube_api import KubeApi
from tests.support.kube_controllers import controllers

def test_starts(tmp_path):
    with controllers(KubeApi(tmp_path / "api").start(), tmp_path):
        here = Path(__file__).parent
        (here / "part").write_text(f"{os.getpid()} 0")
        (here / "part").rename(here / "a.started")
        time.sleep(300)
"""


@contextmanager
def running(folder: Path, unique: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A pytest over the tests of a folder, in a process group of its own, under our mark."""
    (folder / "conftest.py").write_text(CONFTEST)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder)),
            *("-c", os.devnull, f"--basetemp={folder / 'base'}", *arguments, str(folder)),
        ],
        env={**environ, "PYTHONPATH": str(repository()), MARK: f"{os.environ[MARK]}:{unique}"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def started(folder: Path, *names: str) -> dict[str, tuple[int, int]]:
    """Name of a test file → (pid of the pytest process that ran it, pid of what it shares)."""
    files = [folder / f"{name}.started" for name in names]
    until(lambda: all(file.exists() for file in files), f"{names} to have started", every=0.02)
    found = [[int(pid) for pid in file.read_text().split()] for file in files]
    return {name: (pids[0], pids[1]) for name, pids in zip(names, found, strict=True)}


def gone(unique: str) -> None:
    """Nothing of that pytest is left."""
    until(lambda: not carrying(unique), "nothing to be left", every=0.02)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whole_group(how: signal.Signals, tmp_path: Path, unique: str) -> None:
    """Ctrl-C, SIGTERM to the group and kill -9: sessions of their own are ended with it.

    So is the cluster, if it was begun.
    """
    (tmp_path / "test_a.py").write_text(STARTS)
    cluster = tmp_path / "cluster"
    if how == signal.SIGKILL:
        cluster.mkdir()
    with running(tmp_path, unique) as process:
        started(tmp_path, "test_a")
        until(lambda: len(carrying(unique)) == 5, "two processes with a child each", every=0.02)
        os.killpg(process.pid, how)
        gone(unique)
        until(lambda: not cluster.exists(), "the cluster's home to be gone", every=0.02)


def test_a_process_of_xdist_and_then_the_controller(tmp_path: Path, unique: str) -> None:
    """Killed with -9: the one takes its own, what belongs to the run stays until that ends."""
    for name in ("test_a", "test_b"):
        (tmp_path / f"{name}.py").write_text(STARTS)
    with running(tmp_path, unique, "-n", "2", "--max-worker-restart=0") as process:
        at_work = started(tmp_path, "test_a", "test_b")
        worker, shared = at_work["test_a"]
        until(lambda: len(carrying(unique)) == 3 + 2 * 4, "all to have started", every=0.02)
        os.kill(worker, signal.SIGKILL)
        until(lambda: len(carrying(unique)) == 2 + 2 * 4 - 2, "its own to be gone", every=0.02)
        assert shared in carrying(unique)
        assert at_work["test_b"][0] in carrying(unique)
        process.kill()
        gone(unique)


@pytest.mark.broker
def test_broker(tmp_path: Path, unique: str) -> None:
    """The one that processes of a run share, whose environment is made by its starter."""
    (tmp_path / "test_a.py").write_text(BROKER)
    with running(tmp_path, unique) as process:
        started(tmp_path, "a")
        assert len(carrying(unique)) == 2
        process.kill()
        gone(unique)


@pytest.mark.kubernetes
def test_api_server(tmp_path: Path, unique: str) -> None:
    """With its etcd and its controllers, each in a session of its own."""
    (tmp_path / "test_a.py").write_text(API_SERVER)
    with running(tmp_path, unique) as process:
        started(tmp_path, "a")
        assert len(carrying(unique)) == 4
        process.kill()
        gone(unique)
