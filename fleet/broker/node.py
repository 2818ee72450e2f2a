"""One node's process: prepare its folder, start it, tell why it did not start.

The process lives in a session of its own and outlives the starter. It is known by pid, start
time and boot id, and by the path of its server.properties among its arguments, for a starter
that was killed between the start and writing it down.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fleet.broker.jars import Kafka, java_environment
from fleet.broker.node_config import HOST, NodeConfig, server_logging, server_properties
from fleet.broker.secrets import SCRAM_ONLY, Logins, Secrets
from fleet.errors import FleetError
from fleet.system import class_sharing, processes
from fleet.system.home import write_whole
from fleet.system.ports import is_free
from fleet.system.processes import ProcessId

_FORMAT_SECONDS: Final = 60.0
_QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def prepare(
    kafka: Kafka,
    node: NodeConfig,
    nodes: Sequence[NodeConfig],
    *,
    cluster_id: str,
    overrides: Mapping[str, str],
    secrets: Secrets | None = None,
    logins: Logins = SCRAM_ONLY,
) -> None:
    """Write the node's configuration; format its storage where that was never done.

    With `secrets` the node is a secure one, and formatting makes the first two users.
    """
    # What ACLs keep from a user of the broker, no user of the machine shall read in its files.
    node.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    security = secrets.settings(logins) if secrets else {}
    write_whole(node.properties, server_properties(node, nodes, overrides, security))
    write_whole(node.home / "log4j2.xml", server_logging())
    if (node.data / "meta.properties").exists():
        return
    with secrets.format_arguments() if secrets else contextlib.nullcontext(()) as arguments:
        _format(kafka, node, ["-t", cluster_id, "-c", str(node.properties), *arguments])


def _format(kafka: Kafka, node: NodeConfig, arguments: Sequence[str]) -> None:
    argv = [
        str(kafka.java), *_QUICK_JVM, *shared_classes(kafka), "-Xmx128m", "-cp", kafka.classpath,
        "kafka.tools.StorageTool", "format", "--ignore-formatted", *arguments,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_FORMAT_SECONDS,
            check=False,
            env=java_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise FleetError(
            f"formatting {node.data} took more than {_FORMAT_SECONDS:.0f} s: is the disk slow?"
        ) from error
    if done.returncode != 0:
        told = " ".join(_telling((done.stderr + done.stdout).splitlines())[:3])
        raise FleetError(f"cannot format {node.data} for Kafka: {told[:800]}")


def shared_classes(kafka: Kafka) -> list[str]:
    """Options for a JVM on the same jars: a broker's archive of classes, where there is one.

    A tool starts in two thirds of its time.
    """
    found = class_sharing.options("kafka", kafka.java, kafka.libs)
    return [] if class_sharing.writes(found) else found


def launch(kafka: Kafka, node: NodeConfig, logins: Logins = SCRAM_ONLY) -> ProcessId:
    """Start a prepared node; returns at once. `output.log` begins anew, the others go on."""
    node.output.unlink(missing_ok=True)
    # Kafka fetches keys only from where its command line allows.
    keys = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
    argv = [
        str(kafka.java), "-Xmx512m", "-Xms128m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
        *class_sharing.options("kafka", kafka.java, kafka.libs),
        "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true", "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={node.home / 'log4j2.xml'}", f"-Dfleet.logs={node.home}",
        *([f"{keys}{logins.jwks}"] if logins.jwks else []),
        "-cp", kafka.classpath, "kafka.Kafka", str(node.properties),
    ]  # fmt: skip
    return processes.spawn(argv, log=node.output, env=java_environment(), cwd=node.home)


def run_tool(
    kafka: Kafka, logging_file: Path, main_class: str, args: Sequence[str], *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line classes; FleetError where it does not end in `timeout` s."""
    if main_class.startswith("org.apache.kafka.tools.") and not kafka.has("kafka-tools"):
        raise FleetError(f"{kafka.libs} holds no kafka-tools-*.jar, which has {main_class}")
    argv = [
        str(kafka.java), *_QUICK_JVM, *shared_classes(kafka), "-Xmx256m", "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={logging_file}",
        "-cp", kafka.classpath, main_class, *args,
    ]  # fmt: skip
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=java_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise FleetError(f"{main_class} did not end within {timeout:.0f} s") from error


def find_running(node: NodeConfig) -> ProcessId | None:
    """A running process of this node that nobody wrote down."""
    return processes.find("kafka.Kafka", str(node.properties))


def ports_taken(node: NodeConfig) -> list[int]:
    """Which of the node's ports somebody listens on."""
    wanted = [(node.host, node.port), (HOST, node.controller_port)]
    if node.certificate_port is not None:
        wanted.append((node.host, node.certificate_port))
    return [port for host, port in wanted if not is_free(port, host)]


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log, [] where there is none. Reads at most 256 KiB."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 256 * 1024))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[-count:] if count > 0 else []


def last_words(node: NodeConfig) -> str:
    """What a node that did not come up wrote last, for an error message."""
    logged = _telling(last_lines(node.server_log, 200))
    errors = [line for line in logged if " ERROR " in line or " FATAL " in line or "Caused" in line]
    lines = _telling(last_lines(node.output, 50))[:3] + (errors[-6:] or logged[-6:])
    return "\n".join(f"  {line[:300]}" for line in lines) or "  (it wrote nothing)"


def _telling(lines: Sequence[str]) -> list[str]:
    """Without the frames of stack traces."""
    return [line for line in lines if line.strip() and not line.lstrip().startswith(("at ", "..."))]


def is_here(host: str) -> bool:
    """Whether that address is one of this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
