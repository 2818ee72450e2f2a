"""A Spark standalone cluster without Fleet, and a Connect server in it, as people run them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from benchmarks.standalone import Standalone
from benchmarks.standalone import standalone as running
from fleet.act.spark_server import TOKEN_ENV
from fleet.clock import SystemClock
from fleet.system.ports import is_listening, on_free_ports
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


@contextmanager
def standalone(
    folder: Path, *, nodes: int = 1, cores: int = 1, host: str = "127.0.0.1"
) -> Iterator[Standalone]:
    """A running cluster on whose nodes `fleet` cannot be imported."""
    hidden = folder / "no-fleet"
    hidden.mkdir(parents=True)
    (hidden / "sitecustomize.py").write_text(NO_FLEET)
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("FLEET_")},
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(hidden),
    }
    with running(
        folder,
        spark=HOME,
        environ=environ,
        clock=SystemClock(),
        nodes=nodes,
        cores=cores,
        host=host,
    ) as made:
        yield made


def application_of(cluster: Standalone) -> dict[str, Any]:
    """The only one that runs; all the cluster's cores are its own."""
    output = cluster.says()
    (found,) = output["activeapps"]
    assert found["state"] == "RUNNING"
    assert found["cores"] == output["coresused"] == output["cores"]
    return dict(found)


@contextmanager
def connect_server(cluster: Standalone, *, token: str) -> Iterator[str]:
    """Fleet's server in the foreground, its work done by that cluster; where, as fleet.yaml says.

    Ready once the cluster has given it its executors.
    """

    def serve(port: int) -> AbstractContextManager[str]:
        return _connect_server(cluster, token, port)

    with on_free_ports("Spark's Connect server", serve, host=cluster.host) as url:
        yield f"{url}/;use_ssl=false"


def _connect_server(cluster: Standalone, token: str, port: int) -> AbstractContextManager[str]:
    listen = f"{cluster.host}:{port}"
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
    return serving(cluster, command, environ, port)


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
        if not is_listening(server.pid, port):
            return False
        return bool(cluster.says()["coresused"] == cluster.says()["cores"])

    try:
        until(listens, "the Connect server and its executors")
        yield f"sc://{cluster.host}:{port}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)
