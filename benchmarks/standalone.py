"""A Spark standalone cluster on this machine: a master and nodes, as people run them.

Problem: what executors cost that are processes of their own, and may have neither Fleet nor the
driver's files, shows in no local master. Choice: Spark's own master and workers on one address; of
its nodes and applications the master is asked, by its own JSON. Cost: a JVM each; it asks nobody
who submits work to it for a secret, so it listens on loopback unless it is told otherwise.
"""

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.system.ports import on_free_ports
from fleet.system.processes import ProcessId, alive, end, spawn

_TIMEOUT: Final = 120.0
_GRACE: Final = 20.0
_NODE: Final = "deploy.worker.Worker"
_MASTER: Final = "deploy.master.Master"


class Standalone:
    """A master, and nodes that are added to it.

    spark: the folder of a Spark (SPARK_HOME). environ: the whole environment of its processes, and
    so of executors. folder: where logs and applications' files are.
    """

    def __init__(
        self,
        folder: Path,
        *,
        spark: Path,
        environ: Mapping[str, str],
        clock: Clock,
        ports: Sequence[int],
        host: str = "127.0.0.1",
    ) -> None:
        self.folder = folder
        self.host = host
        port, page = ports
        self.url = f"spark://{host}:{port}"
        self._page = f"http://{host}:{page}"
        self._spark = spark
        self._clock = clock
        self.environ = {
            **{k: v for k, v in environ.items() if not k.startswith("SPARK_")},
            "SPARK_HOME": str(spark),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.port.maxRetries=0",  # its nodes get these ports
        }
        self._nodes: list[ProcessId] = []
        self._master = self._start(
            _MASTER,
            *("--host", host, "--port", str(port), "--webui-port", str(page)),
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the master and of all nodes; executors are children of theirs."""
        return tuple(each.pid for each in (self._master, *self._nodes))

    def _start(self, what: str, *arguments: str, before: tuple[str, ...] = ()) -> ProcessId:
        spark_class = str(self._spark / "bin" / "spark-class")
        return spawn(
            (*before, spark_class, f"org.apache.spark.{what}", *arguments),
            log=self.folder / f"{what.rpartition('.')[2].lower()}.log",
            env=self.environ,
        )

    def add_node(self, *, cores: int = 1, memory: str = "1g", own_disk: Path | None = None) -> None:
        """One machine more; its applications' folders are in `node-<n>`.

        own_disk: a folder under whose name this node has a disk of its own; needs root.
        """
        options = ("--cores", str(cores), "--memory", memory, "--webui-port", "0")
        folder = str(self.folder / f"node-{len(self._nodes)}")
        place = ("--work-dir", folder, "--host", self.host)
        mounted = f"mount -t tmpfs own '{own_disk}' && exec \"$@\""
        before = ("unshare", "--mount", "sh", "-c", mounted, "-") if own_disk else ()
        self._nodes.append(self._start(_NODE, *options, *place, self.url, before=before))

    def wait_ready(self) -> None:
        """Wait until the master knows all nodes; FleetError where it does not."""
        deadline = self._clock.monotonic() + _TIMEOUT
        while self._known() != len(self._nodes):
            if not alive(self._master):
                raise FleetError(f"Spark's master ended while it started; see {self.folder}")
            if self._clock.monotonic() > deadline:
                raise FleetError(
                    f"timed out after {_TIMEOUT:g} s waiting for Spark's master and "
                    f"{len(self._nodes)} nodes; see {self.folder}"
                )
            self._clock.sleep(0.1)

    def _known(self) -> int:
        try:
            return int(self.says()["aliveworkers"])
        except (OSError, json.JSONDecodeError):  # its page is there before what it says
            return -1

    def says(self) -> dict[str, Any]:
        """The master's own account: nodes, applications, cores."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=10) as answer:  # noqa: S310
            return dict(json.load(answer))

    def stop_nodes(self) -> None:
        """End them, and with them every executor."""
        for node in self._nodes:
            end(node, grace=_GRACE)
        self._nodes.clear()

    def stop(self) -> None:
        """End all of it."""
        self.stop_nodes()
        end(self._master, grace=_GRACE)


@contextmanager
def standalone(
    folder: Path,
    *,
    spark: Path,
    environ: Mapping[str, str],
    clock: Clock,
    nodes: int = 1,
    cores: int = 1,
    host: str = "127.0.0.1",
) -> Iterator[Standalone]:
    """A running cluster. Raises FleetError where it does not come up."""

    @contextmanager
    def serve(*ports: int) -> Iterator[Standalone]:
        made = Standalone(folder, spark=spark, environ=environ, clock=clock, ports=ports, host=host)
        try:
            for _ in range(nodes):
                made.add_node(cores=cores)
            made.wait_ready()
            yield made
        finally:
            made.stop()

    with on_free_ports("Spark's master", serve, count=2, host=host) as made:
        yield made
