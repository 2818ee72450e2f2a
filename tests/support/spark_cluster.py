"""A Spark standalone cluster and a Connect server in it, as people run them.

What the master says of its nodes and applications is asked of itself, by its own JSON.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from fleet.act.spark_server import TOKEN_ENV
from tests.support.waiting import until

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
NO_FLEET = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "fleet":
            raise ModuleNotFoundError("no fleet on this machine", name=name)

sys.meta_path.insert(0, Hidden())
"""


def free_port(host: str) -> int:
    """One that nobody listens to."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class Standalone:
    """A master, and nodes on which `fleet` cannot be imported."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.host = host
        self.url = f"spark://{host}:{free_port(host)}"
        self.page = f"http://{host}:{free_port(host)}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        hidden = folder / "no-fleet"
        hidden.mkdir(parents=True)
        (hidden / "sitecustomize.py").write_text(NO_FLEET)
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "FLEET_"))},
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(hidden),
        }
        self._master = self._start(
            "master.Master",
            *("--host", host, "--port", self.url.rpartition(":")[2]),
            *("--webui-port", self.page.rpartition(":")[2]),
        )

    def _start(
        self, what: str, *arguments: str, before: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        spark_class = str(HOME / "bin" / "spark-class")
        command = [*before, spark_class, f"org.apache.spark.deploy.{what}", *arguments]
        with (self.folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)

    def add_node(self, *, cores: int = 1, memory: str = "1g", own_disk: Path | None = None) -> None:
        """One machine more; its applications' folders are in `node-<n>`.

        own_disk: a folder under whose name this node has a disk of its own; needs root.
        """
        options = ("--cores", str(cores), "--memory", memory, "--webui-port", "0")
        folder = str(self.folder / f"node-{len(self.nodes)}")
        place = ("--work-dir", folder, "--host", self.host)
        mounted = f"mount -t tmpfs own '{own_disk}' && exec \"$@\""
        before = ("unshare", "--mount", "sh", "-c", mounted, "-") if own_disk else ()
        self.nodes.append(self._start("worker.Worker", *options, *place, self.url, before=before))

    def ready(self) -> None:
        """Wait until the master knows all nodes."""
        until(lambda: self._alive() == len(self.nodes), "the master and its nodes")

    def _alive(self) -> int:
        try:
            return int(self.says()["aliveworkers"])
        except (OSError, json.JSONDecodeError):  # its page is there before what it says
            return -1

    def says(self) -> dict[str, Any]:
        """The master's own account: nodes, applications, cores."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:
            return dict(json.load(answer))

    def application(self) -> dict[str, Any]:
        """The only one that runs; all the cluster's cores are its own."""
        said = self.says()
        (running,) = said["activeapps"]
        assert running["state"] == "RUNNING"
        assert running["cores"] == said["coresused"] == said["cores"]
        return dict(running)

    def stop_nodes(self) -> None:
        """End them, and with them every executor."""
        _end(self.nodes)
        self.nodes.clear()

    def stop(self) -> None:
        self.stop_nodes()
        _end([self._master])


@contextmanager
def standalone(
    folder: Path, *, nodes: int = 1, cores: int = 1, host: str = "127.0.0.1"
) -> Iterator[Standalone]:
    """A running cluster."""
    made = Standalone(folder, host=host)
    try:
        for _ in range(nodes):
            made.add_node(cores=cores)
        made.ready()
        yield made
    finally:
        made.stop()


@contextmanager
def connect_server(cluster: Standalone, *, token: str, listen: str | None = None) -> Iterator[str]:
    """Fleet's server in the foreground, its work done by that cluster; where, as fleet.yaml says.

    Ready once the cluster has given it its executors.
    """
    listen = listen or f"{cluster.host}:{free_port(cluster.host)}"
    home = cluster.folder / "connect"
    environ = {
        **cluster.environ,
        "PYTHONPATH": str(ROOT),
        "FLEET_HOME": str(home),
        "FLEET_SPARK_MASTER": cluster.url,
        "FLEET_SPARK_MEMORY": "700m",
        TOKEN_ENV: token,
    }
    command = [sys.executable, "-m", "fleet.act.spark_server", "--listen", listen]
    with serving(cluster, command, environ, int(listen.rpartition(":")[2])) as url:
        yield f"{url}/;use_ssl=false"


@contextmanager
def serving(
    cluster: Standalone, command: list[str], environ: dict[str, str], port: int
) -> Iterator[str]:
    """A Connect server as a process of this test."""
    environ = {k: v for k, v in environ.items() if k != "SPARK_DAEMON_MEMORY"}  # it counts as one
    with (cluster.folder / "connect.log").open("wb") as log:
        server = subprocess.Popen(command, env=environ, stdout=log, stderr=log)

    def listens() -> bool:
        assert server.poll() is None, (cluster.folder / "connect.log").read_text()[-3000:]
        try:
            socket.create_connection((cluster.host, port), timeout=0.5).close()
        except OSError:
            return False
        return bool(cluster.says()["coresused"] == cluster.says()["cores"])

    try:
        until(listens, "the Connect server and its executors")
        yield f"sc://{cluster.host}:{port}"
    finally:
        _end([server])


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
