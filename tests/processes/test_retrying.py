"""What may fail for a moment is tried again: each step with its first failure planted."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.broker import jars
from fleet.errors import FleetError, Unreachable
from fleet.system import retrying
from fleet.system.ports import PortTaken, free_ports, is_free, is_listening, on_free_ports
from fleet.system.retrying import retry
from k8s.images import image_build
from tests.support import fail_once
from tests.support.needs import repository


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many attempts, at once."""
    monkeypatch.setattr(retrying, "PAUSES", [0.0, 0.0])


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what fails once, from now on; real programs are in tmp_path/real."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'real'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, text in {
        "buildah": 'echo "$@"',
        "unshare": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "mmdebstrap": 'while [ $# -gt 2 ]; do shift; done; echo base > "$1"',
        "apt-get": "echo 'Debian|deb no such'",
        "sudo": 'exec "$@"',
        "java": f"mkdir -p '{tmp_path}/ivy/libs'",
    }.items():
        program = tmp_path / "real" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} >> '{tmp_path}/ran'\n{text}\n")
        program.chmod(0o755)
    folder = tmp_path / "planted"
    for key, value in fail_once.plant(folder).items():
        monkeypatch.setenv(key, value)
    return folder


def ran(tmp_path: Path, name: str) -> int:
    """How often the real program was run."""
    return (tmp_path / "ran").read_text().splitlines().count(name)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_the_reason_of_each_failure_is_logged(
    failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Two failures are survived, and every one of them told."""
    reasons = [f"reason {number}" for number in range(failures)]
    left = list(reasons)

    def attempt() -> str:
        if left:
            raise FleetError(left.pop(0))
        return "done"

    with caplog.at_level(logging.WARNING):
        assert retry("the step", attempt) == "done"
    assert len(caplog.messages) == failures
    for reason, told in zip(reasons, caplog.messages, strict=True):
        assert reason in told
        assert "the step" in told


def test_what_fails_for_good_fails_with_its_own_words() -> None:
    """After three attempts; an error of another kind at once."""
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        raise Unreachable("no such host")

    with pytest.raises(Unreachable, match=r"^no such host$"):
        retry("the step", attempt)
    assert len(tries) == 3
    with pytest.raises(Unreachable):
        retry("the step", attempt, on=PortTaken)
    assert len(tries) == 4


def test_buildah(planted: Path, tmp_path: Path) -> None:
    """Each of its commands."""
    assert "images --format={{.Name}}:{{.Tag}}" in image_build.names()[0]
    image_build._buildah("build", "--quiet", "--tag=a", str(tmp_path))
    image_build._buildah("build", "--quiet", "--tag=b", str(tmp_path))
    assert [each.split()[0] for each in fail_once.failed(planted)] == ["buildah"] * 3


def test_mmdebstrap(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base of images is made from packages that it downloads."""
    image_build.make("python", tmp_path / "base.tar")
    assert (tmp_path / "base.tar").read_text() == "base\n"
    assert [each.split()[0] for each in fail_once.failed(planted)] == ["mmdebstrap"]
    assert ran(tmp_path, "mmdebstrap") == 1


def test_wheels(planted: Path, tmp_path: Path) -> None:
    """Fleet's own is built, others are fetched by pip."""
    image_build.own(tmp_path / "own")
    (made,) = (tmp_path / "own").glob("*.whl")
    image_build._pip(
        "wheel", "--no-deps", "--no-index", "--wheel-dir", str(tmp_path / "to"), str(made)
    )
    assert [each.name for each in (tmp_path / "to").iterdir()] == [made.name]
    assert [each.split()[1] for each in fail_once.failed(planted)] == ["hatchling", "pip"]


def test_jars(planted: Path, tmp_path: Path) -> None:
    """Ivy fetches them; a second module is another step."""
    work = tmp_path / "ivy"
    work.mkdir()
    java = Path(str(shutil.which("java")))
    for module in ("<first/>", "<second/>", "<second/>"):
        assert jars.fetch(java, module, work, settings=None).exists()
    assert [each.split()[0] for each in fail_once.failed(planted)] == ["ivy", "ivy"]
    assert ran(tmp_path, "java") == 3


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_packages_of_the_system(planted: Path, tmp_path: Path) -> None:
    """`make deps`: lists of packages, then packages."""
    done = subprocess.run(
        ["make", "deps", "PROGRAMS=no-such-program:wanted", "UNITS="],
        cwd=repository(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("planted: Device or resource busy") == 2
    assert done.stderr.count("failed (status 1), trying again in 1 s") == 2
    assert ran(tmp_path, "apt-get") == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_environment(planted: Path, tmp_path: Path) -> None:
    """`make .venv`: the lock's packages, here none."""
    clone = tmp_path / "clone"
    (clone / ".ci").mkdir(parents=True)
    for name in ("Makefile", ".ci/retry"):
        shutil.copy(repository() / name, clone / name)
    (clone / "requirements.lock").touch()
    done = subprocess.run(
        ["make", f"PYTHON={sys.executable}", ".venv/.locked"],
        cwd=clone, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "planted: Device or resource busy" in done.stderr
    assert [each.split()[:3] for each in fail_once.failed(planted)] == [["-m", "pip", "install"]]


def test_a_command_that_fails_for_good_fails() -> None:
    """With its status."""
    done = subprocess.run(
        [str(repository() / ".ci" / "retry"), "sh", "-c", "echo tried; exit 7"],
        env={**os.environ, "PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.count(b"tried")) == (7, 3)


SERVER = """
import contextlib, logging, socket, subprocess, sys, time
from fleet.system.ports import is_listening, on_free_ports

@contextlib.contextmanager
def serve(port):
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )
    try:
        while not is_listening(server.pid, port):
            if server.poll() is not None:
                raise RuntimeError(server.stderr.read().decode())
            time.sleep(0.02)
        yield port
    finally:
        server.kill()

with on_free_ports("the server", serve) as port:
    print("serves")
"""


def test_a_server_whose_port_is_taken_gets_another(planted: Path) -> None:
    """By a process that listens on it; the reason is told."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "serves\n"), done.stderr
    assert "starting the server failed (attempt 1 of 3)" in done.stderr
    assert "Address already in use" in done.stderr
    assert fail_once.failed(planted) == ["port of <string> <module>"]


def test_only_a_port_that_is_taken_is_a_reason_for_another() -> None:
    """A server that fails by itself is started once, and its own error is raised."""
    tries: list[int] = []

    def serve(port: int) -> Any:
        tries.append(port)
        raise ValueError("no such option")

    with pytest.raises(ValueError, match="no such option"), on_free_ports("the server", serve):
        pass
    assert len(tries) == 1


def test_whose_port_it_is() -> None:
    """Of this process, and of no other one."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_listening(os.getpid(), port)
        assert not is_listening(os.getppid(), port)
        assert not is_free(port)
        with pytest.raises(FleetError, match="no 1 free ports"):
            free_ports(1, candidates=[port])
    assert not is_listening(os.getpid(), port)
    assert is_free(port)


BROKER = """
import sys
from pathlib import Path
from fleet.broker import Broker
broker = Broker(Path(sys.argv[1]))
print(broker.start(wait=200).running)
broker.purge()
"""


@pytest.mark.broker
def test_a_broker_whose_port_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made anew on other ports."""
    folder = tmp_path / "planted"
    done = subprocess.run(
        [sys.executable, "-c", BROKER, str(tmp_path / "home")],
        env=fail_once.plant(folder), capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert fail_once.failed(folder) == ["port of embedded.py _new"]
    assert "starting the broker failed (attempt 1 of 3)" in done.stderr


SPARK = """
import sys
from pathlib import Path
from fleet.act import spark_server
from fleet.clock import SystemClock
home = Path(sys.argv[1])
spark_server.start(home)
try:
    print(spark_server.wait_ready(home, timeout=250.0, clock=SystemClock()))
finally:
    spark_server.stop(home)
"""


@pytest.mark.spark
def test_a_spark_server_whose_port_is_taken(tmp_path: Path) -> None:
    """It ends, and is started again on another one: another program's listener is not it."""
    folder = tmp_path / "planted"
    done = subprocess.run(
        [sys.executable, "-c", SPARK, str(tmp_path / "home")],
        env=fail_once.plant(folder), capture_output=True, text=True, check=False, timeout=290,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sc://localhost:")
    assert fail_once.failed(folder) == ["port of spark_server.py _port"]
    assert "starting the Spark server failed (attempt 1 of 3)" in done.stderr
