"""The Spark Connect server that all workers of a home share.

Problem: a JVM per worker costs some 600 MB and 7 s of CPU each; six do not fit a small
machine. Choice: one Connect server per home on a loopback port that is chosen once and kept,
so that workers find its successor at the same address; the supervisor keeps it alive. It runs
with the serial collector (half the memory of the parallel one, 570 MB after work, at the same
throughput on two cores), while the launcher before it compiles lightly (5-6 s from start to
listening). The quick compiler alone for the server itself would start a second sooner and
then run batches 2.5 times slower. Cost: workers share one JVM's fate and heap.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fleet.act.census import environment, marked
from fleet.act.logs import last_line, set_aside
from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.home import read_state, write_state
from fleet.processes import ProcessId, end, spawn
from fleet.processes import alive as process_alive

SCHEMA: Final = 1
PART: Final = "spark"
HOST: Final = "127.0.0.1"
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Below the ports that the kernel gives to outgoing connections, which could take a dead
# server's port before its successor does.
_FIRST_PORT: Final = 15002
_LAST_PORT: Final = 31999

_SETTINGS: Final = {
    "spark.connect.grpc.binding.address": HOST,
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "4",
    # A standby may wait for days; the default closes its session after an hour.
    "spark.connect.session.manager.defaultSessionTimeout": "7d",
    # What a killed worker left running is given up, also where nobody interrupts it [3].
    "spark.connect.execute.manager.detachedTimeout": "30s",
    # An interrupted task's Python function writes on for this long (2s by default) [3].
    "spark.python.task.killTimeout": "200ms",
    # The status store keeps finished jobs even without a UI, for as long as the server lives.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
}


def connect_url(home: Path) -> str | None:
    """`sc://127.0.0.1:<port>`; None where no server was ever started for this home."""
    port = _state(home).get("port")
    return None if port is None else f"sc://{HOST}:{port}"


def process(home: Path) -> ProcessId | None:
    """The living server's process; None where there is none."""
    kept = _state(home).get("process")
    known = None if kept is None else ProcessId.from_json(kept)
    return known if known is not None and process_alive(known) else None


def alive(home: Path) -> bool:
    """Whether the server's process runs (it may not be ready yet)."""
    return process(home) is not None


def ready(home: Path) -> bool:
    """Whether the server accepts connections."""
    port = _state(home).get("port")
    if port is None:
        return False
    try:
        socket.create_connection((HOST, int(port)), timeout=0.5).close()
    except OSError:
        return False
    return True


def start(home: Path, *, environ: Mapping[str, str] = os.environ) -> ProcessId:
    """Start the server where none runs, and return without waiting for it; the supervisor's job.

    FLEET_SPARK_MASTER (local[*]) and FLEET_SPARK_MEMORY (2g) override the defaults. Raises
    FleetError where PySpark or Java is missing.
    """
    running = process(home) or _unrecorded(home)
    state = _state(home)
    port = int(state.get("port") or 0)
    if running is None:
        folder = home / "spark"
        scratch = folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # a killed server cleans up nothing
        scratch.mkdir(parents=True)
        set_aside(log_file(home))
        port = _port(home, port)
        running = spawn(
            _arguments(folder, port=port, environ=environ),
            log=log_file(home),
            env=environment(home, part=PART, extra=_extra(scratch)),
            cwd=folder,
        )
    write_state(_state_file(home), {"port": port, "process": running.as_json()}, schema=SCHEMA)
    return running


def wait_ready(home: Path, *, timeout: float, clock: Clock) -> str:
    """Wait until the server accepts connections; its URL.

    Raises Unreachable after `timeout` seconds or once its process has ended, with the last line
    of its log.
    """
    deadline = clock.monotonic() + timeout
    while not ready(home):
        if not alive(home) or clock.monotonic() >= deadline:
            raise Unreachable(
                f"the Spark server of {home} {'is slow to start' if alive(home) else 'has ended'} "
                f"(waited up to {timeout:g} s); the last line of {log_file(home)}: "
                f"{last_line(log_file(home)) or 'none'}"
            )
        clock.sleep(0.1)
    url = connect_url(home)
    assert url is not None
    return url


def stop(home: Path, *, grace: float = 5.0) -> None:
    """End the server and whatever it left; nothing where none runs."""
    running = process(home) or _unrecorded(home)
    if running is not None:
        end(running, grace=grace)
    state = _state(home)
    if "port" in state:
        write_state(_state_file(home), {"port": state["port"], "process": None}, schema=SCHEMA)
    shutil.rmtree(home / "spark" / "scratch", ignore_errors=True)


def log_file(home: Path) -> Path:
    """Where the server writes."""
    return home / "spark" / "log"


def _state_file(home: Path) -> Path:
    return home / "spark" / "connect.json"


def _state(home: Path) -> dict[str, Any]:
    return read_state(_state_file(home), schema=SCHEMA) or {}


def _unrecorded(home: Path) -> ProcessId | None:
    """A server whose starter was killed before it wrote down who it is."""
    return next((m.process for m in marked(home) if m.part == PART and m.leads), None)


def _pyspark() -> Path:
    """PySpark's folder, found without importing it (0.3 s and 60 MB)."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise FleetError("PySpark is not installed here: pip install 'pyspark[connect]'")
    return Path(spec.origin).parent


def _arguments(folder: Path, *, port: int, environ: Mapping[str, str]) -> list[str]:
    java_home = environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else "java"
    if shutil.which(java, path=environ.get("PATH")) is None:
        raise FleetError(
            f"Spark needs Java 17 or 21 and there is no {java}: install it, or correct JAVA_HOME"
        )
    scratch = folder / "scratch"
    options = f"-XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={scratch}"
    settings = {
        **_SETTINGS,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": environ.get("FLEET_SPARK_MEMORY") or "2g",
        "spark.driver.extraJavaOptions": f"{options} -Dderby.system.home={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    # spark-submit replaces itself twice by exec, so the process started is the JVM in the end.
    return [
        str(_pyspark() / "bin" / "spark-submit"),
        *("--master", environ.get("FLEET_SPARK_MASTER") or "local[*]"),
        *("--name", "fleet"),
        *conf,
        *("--class", _CLASS, "spark-internal"),
    ]


def _extra(scratch: Path) -> dict[str, str]:
    return {
        "SPARK_HOME": str(_pyspark()),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:-UsePerfData",
        "PYSPARK_PYTHON": sys.executable,
    }


def _port(home: Path, kept: int) -> int:
    """The port kept from before if it is free, else the first free one from a place of our own."""
    count = _LAST_PORT - _FIRST_PORT + 1
    at_first = zlib.crc32(str(home).encode()) % count  # homes should not all try the same one
    candidates = [kept] if kept else []
    candidates += [_FIRST_PORT + (at_first + n) % count for n in range(100)]
    for port in candidates:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise FleetError(f"no free port for the Spark server near {candidates[-1]} on {HOST}")
