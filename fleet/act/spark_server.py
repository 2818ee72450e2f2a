"""Runs the Spark Connect server that all workers of a state directory share.

Problem: a JVM per worker costs 600 MB and 7 s of CPU; six do not fit a small machine. Choice: one
Connect server per state directory, which the supervisor keeps alive. Its loopback port stays the
same, so that workers find a restarted server. The serial collector needs half the memory of the
parallel one (570 MB after work) at the same throughput on two cores. The launcher compiles lightly
(5-6 s from start to listening); the quick compiler alone for the server would start 1 s sooner and
run batches 2.5 times slower. Cost: workers share one JVM and its heap.

Each caller runs code as the server's user, so the server requires a token. A file that only its
owner can read holds it, and the environment passes it on, never a command line. Calls are not
encrypted: loopback is private, and the network between pods is trusted. Spark's driver opens two
more ports (RPC and blocks), which read serialized Java objects from any client. If driver and
executors are one process, Spark creates a secret for them.

`python -m fleet.act.spark_server --listen HOST:PORT` is the same server in the foreground, for a
container, with the token of its environment. With FLEET_SPARK_EXECUTORS its tasks run in pods that
Spark's Kubernetes scheduler creates by a template; `python -m fleet.act.spark_server executor` is
what such a pod runs. Driver and executors prove to each other that they know a secret, which both
read from a file, so that no pod's description shows it.
"""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.extras import need
from fleet.system import class_sharing, spark_python
from fleet.system.home import fleet_home, read_state, write_state
from fleet.system.log_files import last_line, set_aside
from fleet.system.ports import PortTaken, free_ports, is_free, is_listening
from fleet.system.processes import ProcessId, end, environment, home_processes, python_path, spawn
from fleet.system.processes import alive as process_alive
from fleet.system.retrying import retry

SCHEMA: Final = 1
PART: Final = "spark"
HOST: Final = "127.0.0.1"
_NAME: Final = "localhost"
"""Host name for clients: PySpark sends a token without TLS only to this name."""
TOKEN_ENV: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - Spark's name of it
MASTER_ENV: Final = "FLEET_SPARK_MASTER"
EXECUTORS_ENV: Final = "FLEET_SPARK_EXECUTORS"
"""Instances, cores and memory of executors that are pods, as JSON."""
EXECUTOR_POD_ENV: Final = "FLEET_SPARK_EXECUTOR_POD"
"""The template of such a pod, as JSON; its container runs the image and namespace named there."""
SECRET_FILE: Final = "/etc/fleet/token"  # noqa: S105 - a path
"""Path of what driver and executors prove to each other that they know; no fleet mounts there."""
DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
"""Port of each driver's and each executor's blocks."""
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
# Below the kernel's ephemeral ports, which could take a dead server's port before its restart.
_FIRST_PORT: Final = 15002
_LAST_PORT: Final = 31999

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "4",
    # A killed worker leaves its session. A live one pings every ten minutes.
    "spark.connect.session.manager.defaultSessionTimeout": "2h",
    # Abandons what a killed worker left running, even without an interrupt [3].
    "spark.connect.execute.manager.detachedTimeout": "30s",
    # An interrupted task's Python function writes on for this long (2s by default) [3].
    "spark.python.task.killTimeout": "200ms",
    # No progress bar: each of its messages is one more request for a small batch.
    "spark.connect.progress.reportInterval": "0",
    # The status store keeps finished jobs even without a UI, for as long as the server lives.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
}


def connect_url(home: Path) -> str | None:
    """Returns `sc://localhost:<port>`; None if no server was ever started here."""
    port = _state(home).get("port")
    return None if port is None else f"sc://{_NAME}:{port}"


def ui_url(home: Path) -> str | None:
    """Returns the address of the running server's web UI; None if it has none."""
    port = _state(home).get("ui_port")
    return None if port is None or not alive(home) else f"http://{HOST}:{port}"


def token(home: Path) -> str | None:
    """Returns the token of the server; None if it was never started.

    None too if a power cut left the file empty.
    """
    try:
        kept = _token_file(home).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return kept if kept and kept.isascii() and kept.isprintable() else None


def process(home: Path) -> ProcessId | None:
    """Returns the live server's process; None if there is none."""
    kept = _state(home).get("process")
    known = None if kept is None else ProcessId.from_json(kept)
    return known if known is not None and process_alive(known) else None


def alive(home: Path) -> bool:
    """Tells whether the server's process runs (it may not be ready yet)."""
    return process(home) is not None


def ready(home: Path) -> bool:
    """Tells whether the server accepts connections."""
    running, port = process(home), _state(home).get("port")
    return running is not None and port is not None and is_listening(running.pid, int(port))


def start(home: Path, *, ui: bool = False, environ: Mapping[str, str] = os.environ) -> ProcessId:
    """Starts the server if none runs, without waiting for it; the supervisor calls it.

    ui: with Spark's web UI on another loopback port. FLEET_SPARK_MASTER (local[*]) and
    FLEET_SPARK_MEMORY (2g) override the defaults; for a remote master, PYSPARK_PYTHON is the Python
    of its executors and of this machine. Raises FleetError if PySpark or Java is missing.
    """
    running = process(home) or _unrecorded(home)
    state = _state(home)
    port, ui_port = int(state.get("port") or 0), state.get("ui_port")
    writes = bool(state.get("writes_archive"))
    if running is None:
        folder = home / "spark"
        scratch = folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # a killed server cleans up nothing
        scratch.mkdir(parents=True)
        set_aside(log_file(home))
        port = _port(home, port)
        ui_port = _port(home, int(ui_port or 0), beside=port) if ui else None
        arguments = _arguments(folder, host=HOST, port=port, ui_port=ui_port, environ=environ)
        writes = class_sharing.writes(arguments)
        running = spawn(
            arguments,
            log=log_file(home),
            env=environment(
                home,
                part=PART,
                extra={**_extra(scratch, HOST, environ), TOKEN_ENV: _keep_token(home)},
            ),
            cwd=folder,
        )
    kept = {
        "port": port,
        "ui_port": ui_port,
        "process": running.as_json(),
        "writes_archive": writes,
    }
    write_state(_state_file(home), kept, schema=SCHEMA)
    return running


def wait_ready(home: Path, *, timeout: float, clock: Clock) -> str:
    """Waits until the server accepts connections; returns its URL.

    Raises Unreachable with the last line of its log after `timeout` seconds or when its process has
    ended. A server whose port was taken is started again on another one.
    """
    deadline = clock.monotonic() + timeout

    def attempt() -> None:
        while not ready(home):
            if not alive(home) or clock.monotonic() >= deadline:
                state = "is slow to start" if alive(home) else "has stopped"
                sentence = (
                    f"the Spark server of {home} {state} (waited up to {timeout:g} s); the last "
                    f"line of {log_file(home)}: {last_line(log_file(home)) or 'none'}"
                )
                if alive(home) or not _lost_port(home):
                    raise Unreachable(sentence)
                start(home, ui=_state(home).get("ui_port") is not None)
                raise PortTaken(sentence)
            clock.sleep(0.1)

    retry("starting the Spark server", attempt, on=PortTaken)
    url = connect_url(home)
    assert url is not None
    return url


def _lost_port(home: Path) -> bool:
    """Tells whether another program listens on a port of the stopped server."""
    state = _state(home)
    ports = [int(state[key]) for key in ("port", "ui_port") if state.get(key) is not None]
    return not all(is_free(port, HOST) for port in ports)


def stop(home: Path, *, grace: float = 5.0) -> None:
    """Stops the server and its children, if it runs.

    It gets more time while it writes its class archive (class_sharing); without that, each later
    start takes more than twice as long.
    """
    running = process(home) or _unrecorded(home)
    state = _state(home)
    if running is not None:
        more = class_sharing.WRITING_SECONDS if state.get("writes_archive") else 0.0
        end(running, grace=grace + more)
    if "port" in state:
        write_state(_state_file(home), {"port": state["port"], "process": None}, schema=SCHEMA)
    shutil.rmtree(home / "spark" / "scratch", ignore_errors=True)


def log_file(home: Path) -> Path:
    """Returns the server's log file."""
    return home / "spark" / "log"


def _token_file(home: Path) -> Path:
    return home / "spark" / "token"


def _keep_token(home: Path) -> str:
    """Returns the token, created once, so that it survives restarts of the server."""
    file = _token_file(home)
    kept = token(home)
    if kept is None:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".token.")  # only its owner's
        with os.fdopen(handle, "w", encoding="ascii") as out:
            out.write(secrets.token_urlsafe(32))
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(name, file)
        except FileExistsError:  # somebody else's start was quicker, or nothing can be read of it
            if token(home) is None:
                Path(name).replace(file)
        Path(name).unlink(missing_ok=True)
        kept = token(home)
    assert kept is not None
    file.chmod(0o600)
    return kept


def _state_file(home: Path) -> Path:
    return home / "spark" / "connect.json"


def _state(home: Path) -> dict[str, Any]:
    return read_state(_state_file(home), schema=SCHEMA) or {}


def _unrecorded(home: Path) -> ProcessId | None:
    """A server whose starter was killed before it wrote down who it is."""
    return next((m.process for m in home_processes(home) if m.part == PART and m.leads), None)


def pyspark_folder() -> Path:
    """PySpark's folder, found without importing it (0.3 s and 60 MB)."""
    need("pyspark")
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _arguments(
    folder: Path,
    *,
    host: str,
    port: int,
    environ: Mapping[str, str],
    ui_port: int | None = None,
    in_container: bool = False,
) -> list[str]:
    java = class_sharing.java_of_spark(environ)
    if shutil.which(java, path=environ.get("PATH")) is None:
        raise FleetError(
            f"Spark needs Java 17 or 21, but {java} does not exist; install Java, or correct "
            "JAVA_HOME"
        )
    scratch = folder / "scratch"
    master = environ.get(MASTER_ENV) or "local[*]"
    # What a container writes at its end goes with it, and its end waits for that.
    shared = class_sharing.options(
        class_sharing.SPARK, java, pyspark_folder() / "jars", may_write=not in_container
    )
    options = " ".join(
        ["-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={scratch}", *shared]
    )
    settings = {
        **_SETTINGS,
        "spark.connect.grpc.binding.address": host,
        "spark.driver.host": _driver_host(host, environ),
        "spark.driver.bindAddress": host,
        "spark.connect.grpc.binding.port": str(port),
        **({} if ui_port is None else {"spark.ui.enabled": "true", "spark.ui.port": str(ui_port)}),
        **({"spark.authenticate": "true"} if makes_own_secret(master) else {}),
        "spark.driver.memory": environ.get("FLEET_SPARK_MEMORY") or "2g",
        "spark.driver.extraJavaOptions": f"{options} -Dderby.system.home={folder}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **_executors(folder, environ),
    }
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    # spark-submit replaces itself twice by exec, so the process started is the JVM in the end.
    return [
        str(pyspark_folder() / "bin" / "spark-submit"),
        *("--master", master),
        *("--name", "fleet"),
        *conf,
        *("--class", _CLASS, "spark-internal"),
    ]


def _executors(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings for executors that are pods; none if FLEET_SPARK_EXECUTORS is not set.

    The driver's pod owns them, so that they are deleted with it.
    """
    if EXECUTORS_ENV not in environ:
        return {}
    wanted, pod = (json.loads(environ[name]) for name in (EXECUTORS_ENV, EXECUTOR_POD_ENV))
    template = folder / "executor.json"
    template.write_text(json.dumps(pod), encoding="utf-8")
    (container,) = pod["spec"]["containers"]
    return {
        "spark.executor.instances": str(wanted["instances"]),
        "spark.executor.cores": str(wanted["cores"]),
        "spark.kubernetes.executor.request.cores": wanted.get("cpu", str(wanted["cores"])),
        "spark.executor.memory": wanted["memory"],
        "spark.executor.memoryOverheadFactor": "0.4",
        "spark.kubernetes.namespace": pod["metadata"]["namespace"],
        "spark.kubernetes.driver.pod.name": environ["POD_NAME"],
        "spark.kubernetes.container.image": container["image"],
        "spark.kubernetes.container.image.pullPolicy": container["imagePullPolicy"],
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": container["name"],
        # Without it the driver needs the right to write ConfigMaps.
        "spark.kubernetes.executor.disableConfigMap": "true",
        # The address to bind is taken for the pod's otherwise.
        "spark.kubernetes.executor.useDriverPodIP": "false",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.blockManager.port": str(BLOCK_PORT),
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": SECRET_FILE,
    }


def makes_own_secret(master: str) -> bool:
    """Tells whether Spark creates the secret of `spark.authenticate`; in a cluster it does not."""
    return re.fullmatch(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?", master) is not None


def _driver_host(host: str, environ: Mapping[str, str]) -> str:
    """Returns the driver's address for executors: loopback, unless they are remote."""
    if host == HOST or _is_local(environ):
        return HOST
    scheme, _, rest = str(environ.get(MASTER_ENV)).partition("://")
    master, _, port = rest.partition(",")[0].rpartition(":")
    if scheme == "spark" and port.isdecimal():
        # A machine's own name may be a loopback address to itself: ask which way the master is.
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((master, int(port)))
            return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


def _is_local(environ: Mapping[str, str]) -> bool:
    return (environ.get(MASTER_ENV) or "local").startswith("local")


def _extra(scratch: Path, host: str, environ: Mapping[str, str]) -> dict[str, str]:
    if _is_local(environ):
        python = spark_python.variables()
    else:
        python = {spark_python.CHOSEN: environ.get(spark_python.CHOSEN) or sys.executable}
    return {
        "SPARK_HOME": str(pyspark_folder()),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:-UsePerfData",
        **python,
    }


def _port(home: Path, kept: int, *, beside: int | None = None) -> int:
    """Returns the earlier port if it is free, else the first free one of a range."""
    count = _LAST_PORT - _FIRST_PORT + 1
    at_first = (
        zlib.crc32(str(home).encode()) % count
    )  # state directories should not all try the same one
    candidates = [kept] if kept else []
    candidates += [_FIRST_PORT + (at_first + n) % count for n in range(100)]
    return free_ports(1, HOST, [port for port in candidates if port != beside])[0]


def foreground(listen: str, home: Path, *, environ: Mapping[str, str]) -> None:
    """Replaces this process by the server, so that it gets signals and its exit code is returned.

    Raises ConfigError if `listen` is not an address or the environment has no token.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--listen {listen}: write HOST:PORT, for example 0.0.0.0:15002")
    if not environ.get(TOKEN_ENV):
        raise ConfigError(
            f"{TOKEN_ENV} is not set: each caller of a Spark Connect server runs code as its user, "
            "so that it needs a token; set it from a Secret"
        )
    folder = home / "spark"
    scratch = folder / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    arguments = _arguments(folder, host=host, port=int(port), environ=environ, in_container=True)
    # Its Python processes start in another folder, and must find this package.
    path = {"PYTHONPATH": python_path(environ.get("PYTHONPATH"))}
    os.chdir(folder)
    os.execvpe(arguments[0], arguments, {**environ, **_extra(scratch, host, environ), **path})  # noqa: S606


def executor(environ: Mapping[str, str]) -> None:
    """Replaces this process by an executor, as the variables of Spark's scheduler describe it."""
    options = [value for name, value in environ.items() if name.startswith("SPARK_JAVA_OPT_")]
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    told = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    arguments = [
        class_sharing.java_of_spark(environ),
        *options,
        *("-XX:-UsePerfData", f"-Xms{memory}", f"-Xmx{memory}"),
        "-Dspark.master=k8s://fleet",  # with no such master, Spark reads no secret from a file
        *("-cp", f"{pyspark_folder() / 'jars'}/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *(word for key, name in told.items() for word in (f"--{key}", environ[name])),
    ]
    os.execvpe(  # noqa: S606
        arguments[0], arguments, {**environ, "SPARK_HOME": str(pyspark_folder())}
    )


def main(argv: list[str] | None = None) -> int:
    """Runs a server or an executor in the foreground; returns an exit code if it cannot start."""
    import argparse  # noqa: PLC0415 - in a server's own process alone

    parser = argparse.ArgumentParser(prog="python -m fleet.act.spark_server")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--listen", metavar="HOST:PORT")
    what.add_argument("executor", nargs="?", choices=["executor"])
    parsed = parser.parse_args(argv)
    try:
        if parsed.executor:
            executor(os.environ)
        foreground(parsed.listen, fleet_home(), environ=os.environ)
    except FleetError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
