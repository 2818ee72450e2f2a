"""The embedded broker: 1 or 3 Kafka nodes on this machine that outlive their starter.

Problem: a demo, a test or a first try needs a real coordinator, started in seconds, with its
data still there after kill -9. Choice: KRaft nodes, broker and controller in one process, on
ports that are picked once and kept in `$FLEET_HOME/broker/state.json`. Every act goes from
what that file says to what should be, so that repeating an interrupted act finishes it.
Cost: 310 MB of memory a node, 5 s to start.
"""

import base64
import contextlib
import functools
import os
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fleet.broker.jars import Kafka, find_kafka, java_environment, run_java
from fleet.broker.node_config import (
    HOST,
    SCRAM_ONLY,
    Logins,
    NodeConfig,
    Secrets,
    check_host,
    check_overrides,
    server_logging,
    server_properties,
)
from fleet.config.spec import ClusterSpec, Security
from fleet.errors import ConfigError, FleetError, Refused, Unreachable
from fleet.security import client_config
from fleet.system import class_sharing, processes
from fleet.system.home import locked, make_home, read_state, write_state, write_whole
from fleet.system.ports import PortTaken, free_ports, is_free
from fleet.system.processes import ProcessId
from fleet.system.retrying import retry
from fleet.text import plural

# What the embedded broker keeps between processes: nodes, ports, who runs them.


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """Holds the stored state of a broker."""

    cluster_id: str
    nodes: tuple[NodeConfig, ...]
    secure: bool = False
    logins: Logins = SCRAM_ONLY
    overrides: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[int, ProcessId] = field(default_factory=dict)

    def process(self, node: NodeConfig) -> ProcessId | None:
        """Returns the node's live process."""
        known = self.processes.get(node.id)
        return known if known is not None and processes.alive(known) else None

    def with_process(self, node: NodeConfig, process: ProcessId) -> "BrokerState":
        """With that process as the node's."""
        return replace(self, processes={**self.processes, node.id: process})

    def at(self, host: str) -> "BrokerState":
        """With nodes that clients reach at `host`."""
        return replace(self, nodes=tuple(replace(node, host=host) for node in self.nodes))

    @property
    def host(self) -> str:
        """Where clients reach the nodes."""
        return self.nodes[0].host

    @property
    def bootstrap_servers(self) -> str:
        """Of all nodes, running or not."""
        return ",".join(node.address for node in self.nodes)


def as_json(state: BrokerState) -> dict[str, Any]:
    """For state.json."""
    return {
        "host": state.host,
        "cluster_id": state.cluster_id,
        "secure": state.secure,
        "jwks": state.logins.jwks,
        "client_ca": None if state.logins.client_ca is None else str(state.logins.client_ca),
        "overrides": dict(state.overrides),
        "nodes": [
            {
                "id": node.id,
                "port": node.port,
                "controller_port": node.controller_port,
                "certificate_port": node.certificate_port,
                "process": process.as_json() if (process := state.processes.get(node.id)) else None,
            }
            for node in state.nodes
        ],
    }


def from_json(kept: Mapping[str, Any], folder: Path) -> BrokerState:
    """From state.json of `folder`; KeyError, TypeError or ValueError where it is none."""
    nodes = tuple(
        NodeConfig(
            id=int(each["id"]),
            port=int(each["port"]),
            controller_port=int(each["controller_port"]),
            home=folder / f"node-{int(each['id'])}",
            host=str(kept.get("host", HOST)),
            certificate_port=each.get("certificate_port"),
        )
        for each in kept["nodes"]
    )
    return BrokerState(
        cluster_id=str(kept["cluster_id"]),
        nodes=nodes,
        secure=bool(kept.get("secure", False)),
        logins=Logins(
            jwks=kept.get("jwks"),
            client_ca=Path(kept["client_ca"]) if kept.get("client_ca") else None,
        ),
        overrides={str(key): str(value) for key, value in kept["overrides"].items()},
        processes={
            int(each["id"]): ProcessId.from_json(each["process"])
            for each in kept["nodes"]
            if each["process"] is not None
        },
    )


# One node's process: it outlives its starter, and is known by pid, start time and boot id, or,
# where its starter was killed before it wrote that down, by the path of its server.properties.


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
    late = f"formatting {node.data} took more than {_FORMAT_SECONDS:.0f} s: is the disk slow?"
    done = run_java(argv, timeout=_FORMAT_SECONDS, late=late)
    if done.returncode != 0:
        output = " ".join(_without_frames((done.stderr + done.stdout).splitlines())[:3])
        raise FleetError(f"cannot format {node.data} for Kafka: {output[:800]}")


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


def find_running(node: NodeConfig) -> ProcessId | None:
    """Finds a running process of this node that is not in the state."""
    return processes.find("kafka.Kafka", str(node.properties))


def ports_taken(node: NodeConfig) -> list[int]:
    """Returns the node's ports on which a program listens."""
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
    """Returns the end of the log of a node that did not start."""
    logged = _without_frames(last_lines(node.server_log, 200))
    errors = [line for line in logged if " ERROR " in line or " FATAL " in line or "Caused" in line]
    lines = _without_frames(last_lines(node.output, 50))[:3] + (errors[-6:] or logged[-6:])
    return "\n".join(f"  {line[:300]}" for line in lines) or "  (it wrote nothing)"


def _without_frames(lines: Sequence[str]) -> list[str]:
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


SCHEMA: Final = 1
LEAST_FREE_BYTES: Final = 1024**3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Describes one node."""

    id: int
    pid: int | None
    """None where it does not run."""
    host_port: str
    server_log: Path
    coordinator_log: Path
    data: Path
    """Kafka's log.dirs of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """The embedded broker as it is now.

    running: at least one node's process lives. bootstrap_servers names all nodes, running or
    not, and is "" where none was ever started. secure: clients log in by SCRAM over TLS and an
    authorizer denies what no ACL allows. certificate_servers: the same nodes, where clients log in
    by certificate; "" where none do.
    """

    running: bool
    bootstrap_servers: str
    nodes: tuple[NodeStatus, ...]
    secure: bool = False
    certificate_servers: str = ""


class Broker:
    """The embedded broker under `home`/broker; any number of these may look at the same one.

    `brokers` (1 or 3), `secure` and `logins` (of a secure one) count where none exists yet: an
    existing one keeps its size, its logins, and whether it is secure (None: whatever it is; other
    data, so another answer is refused).
    `overrides` are settings of server.properties, kept with the broker and applied when a node
    starts. So is `host`, an IPv4 address of this machine at which clients reach it (pods, for
    example); only this machine does at the default, 127.0.0.1.
    """

    def __init__(
        self,
        home: Path,
        *,
        brokers: int = 1,
        overrides: Mapping[str, str] | None = None,
        secure: bool | None = None,
        logins: Logins = SCRAM_ONLY,
        host: str | None = None,
    ) -> None:
        if brokers not in {1, 3}:
            raise ConfigError(
                f"{brokers} brokers are not possible: the embedded broker has 1 or 3 nodes"
            )
        check_overrides(overrides or {})
        if host is not None:
            check_host(host)
        self._host = host
        self._folder = home.absolute() / "broker"
        self._file = self._folder / "state.json"
        self._brokers = brokers
        self._overrides = dict(overrides or {})
        self._secure, self._logins = secure, logins
        self.secrets = Secrets(self._folder / "secrets")
        self._kafka: Kafka | None = None

    def start(self, *, wait: float = 60.0, say: Say | None = None) -> BrokerStatus:
        """Start the nodes that do not run and wait until all answer; nothing to do is fine.

        wait: seconds for the nodes to answer; fetching the jars at first use comes before and
        has its own bound. say: called with what takes long. Raises FleetError (port taken, disk
        full, a node died: with its last words), Unreachable (jars; no answer in time).
        """
        if "," in str(self._folder):
            raise ConfigError(
                f"{self._folder} has a comma, which Kafka reads as two folders; set FLEET_HOME to "
                "a folder without one"
            )
        make_home(self._folder.parent)
        with self._alone():
            state = self._load()
            if state is None:
                start = functools.partial(self._start_new, wait, say)
                return retry("starting the broker", start, on=PortTaken)
            if len(state.nodes) < self._brokers:
                raise Refused(
                    f"the broker in {self._folder} has {plural(len(state.nodes), 'node')}, not "
                    f"{self._brokers}; run `fleet dev broker stop --purge` first (deletes its data)"
                )
            if self._secure not in {None, state.secure}:
                raise Refused(
                    f"the broker in {self._folder} is {_kind(state.secure)}, and so is its data. "
                    f"For a {_kind(not state.secure)} one, run `fleet dev broker stop --purge` "
                    "first (deletes its data), or set FLEET_HOME to another folder"
                )
            return self._start(self._moved(self._adopt(state)), wait, say)

    def _start_new(self, wait: float, say: Say | None) -> BrokerStatus:
        """Start a broker that has no data yet; PortTaken, with nothing left, if it lost a port."""
        state = self._new()
        try:
            return self._start(state, wait, say)
        except Unreachable:  # it goes on starting, or there are no jars
            raise
        except FleetError as error:
            state = self._load() or state
            ended = [node for node in state.nodes if state.process(node) is None]
            if not any(map(ports_taken, ended)):
                raise
            self._stop(0.0)
            self._clear()
            raise PortTaken(str(error)) from error

    def _start(self, state: BrokerState, wait: float, say: Say | None) -> BrokerStatus:
        dead = [node for node in state.nodes if state.process(node) is None]
        if dead:
            state = replace(state, overrides={**state.overrides, **self._overrides})
            kafka = self._check(dead, say)
            if state.secure:
                formatted = any((n.data / "meta.properties").exists() for n in state.nodes)
                self.secrets.ensure(kafka.java, data=formatted, host=state.host)
            self._save(state)  # a node that is formatted for a cluster is of no other one
            for each in dead:
                prepare(
                    kafka,
                    each,
                    state.nodes,
                    cluster_id=state.cluster_id,
                    overrides=state.overrides,
                    secrets=self.secrets if state.secure else None,
                    logins=state.logins,
                )
            self._save(state)
            for each in dead:
                state = state.with_process(each, launch(kafka, each, state.logins))
                self._save(state)
        if say and dead:
            say(f"waiting for {state.bootstrap_servers}")
        self._wait_ready(state, wait=wait)
        return _status(state)

    def stop(self, *, timeout: float = 20.0) -> None:
        """SIGTERM every node, SIGKILL what still runs after `timeout` seconds; data is kept."""
        with self._alone():
            self._stop(timeout)

    def kill(self, node: int | None = None) -> None:
        """SIGKILL one node or all: for tests of what survives it. Returns when they have ended."""
        with self._alone():
            state = self._load()
            chosen = [n for n in state.nodes if node in {None, n.id}] if state else []
            if node is not None and not chosen:
                raise ConfigError(f"the broker in {self._folder} has no node {node}")
            for each in chosen:
                process = state.process(each) if state else None
                if process is not None:
                    processes.signal_group(process, signal.SIGKILL)
                    processes.wait_ended(process, timeout=10.0)

    def purge(self) -> None:
        """Stops the broker and deletes data, logs and ports."""
        with self._alone():
            self._stop(5.0)
            self._clear()

    def _clear(self) -> None:
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()

    def status(self) -> BrokerStatus:
        """Returns its current state; starts nothing and does not wait."""
        state = self._load()
        if state is None:
            return BrokerStatus(running=False, bootstrap_servers="", nodes=())
        return _status(state)

    def security(self) -> Security:
        """How clients log in, as its super user where it is secure: references, no values."""
        return self._login(self.status().secure)

    def _login(self, secure: bool) -> Security:
        return self.secrets.security() if secure else Security()

    def _found(self, say: Say | None) -> Kafka:
        if self._kafka is None:
            self._kafka = find_kafka(say=say)
        return self._kafka

    def _check(self, dead: list[NodeConfig], say: Say | None) -> Kafka:
        """Checks all that can be checked before anything starts."""
        free = shutil.disk_usage(self._folder).free
        if free < LEAST_FREE_BYTES:
            raise FleetError(
                f"{self._folder} has {free // 2**20} MiB free, Kafka needs "
                f"{LEAST_FREE_BYTES // 2**20}; free some space, or set FLEET_HOME to another disk"
            )
        for each in dead:
            if not is_here(each.host):
                raise FleetError(
                    f"no interface of this machine has the broker's address {each.host}; restore "
                    "it, or name another with --listen"
                )
            taken = ports_taken(each)
            if taken:
                raise FleetError(
                    f"another program listens on port {taken[0]} of {each.host}, which node "
                    f"{each.id} "
                    f"needs (`ss -ltnp 'sport = :{taken[0]}'` names it). Stop that program, or run "
                    "`fleet dev broker stop --purge` for new ports (deletes the broker's data)"
                )
        kafka = self._found(say)
        if say and not (kafka.has("log4j-slf4j-impl") or kafka.has("log4j-slf4j2-impl")):
            say(f"{kafka.libs} has no slf4j binding, so that the coordinator's log will be missing")
        return kafka

    def _stop(self, timeout: float) -> None:
        state = self._load()
        if state is None:
            return
        state = self._adopt(state)
        living = [process for node in state.nodes if (process := state.process(node))]
        for process in living:
            processes.signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        for process in living:
            processes.end(process, grace=max(0.0, deadline - time.monotonic()))

    def _adopt(self, state: BrokerState) -> BrokerState:
        """Finds running nodes whose starter was killed before it stored them."""
        for each in state.nodes:
            if state.process(each) is None:
                found = find_running(each)
                if found is not None:
                    state = state.with_process(each, found)
                    self._save(state)
        return state

    def _moved(self, state: BrokerState) -> BrokerState:
        """At the address that was asked for; Refused where that takes more than a restart."""
        if self._host in {None, state.host}:
            return state
        assert self._host is not None
        if any(state.process(node) for node in state.nodes):
            raise Refused(
                f"the broker in {self._folder} runs at {state.host}; run `fleet dev broker stop`, "
                f"then start it at {self._host}"
            )
        if state.secure and self.secrets.folder.exists():
            raise Refused(
                f"the certificate of the broker in {self._folder} is for {state.host}; run `fleet "
                "dev broker stop --purge` first (deletes its data)"
            )
        return state.at(self._host)

    def _wait_ready(self, state: BrokerState, *, wait: float) -> None:
        """Every node answers for itself and knows all: the others remember a dead one for 6 s."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - loads librdkafka
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        deadline = time.monotonic() + wait
        login = self._login(state.secure)
        for each in state.nodes:
            client = AdminClient(
                {
                    **client_config(ClusterSpec(security=login), each.address, {}),
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 0,  # nodes refuse connections at first, as they should
                }
            )
            seen: int | None = None
            while seen != len(state.nodes):
                _check_alive(state)
                if time.monotonic() >= deadline:
                    raise Unreachable(_no_answer(state, each, seen, wait))
                with contextlib.suppress(KafkaException):
                    seen = len(client.list_topics(timeout=1.0).brokers)
                if seen != len(state.nodes):
                    time.sleep(0.1)

    def _new(self) -> BrokerState:
        ports = free_ports(3 * self._brokers, self._host or HOST)
        by_certificate = self._logins.client_ca is not None
        nodes = tuple(
            NodeConfig(
                id=number + 1,
                port=ports[3 * number],
                controller_port=ports[3 * number + 1],
                home=self._folder / f"node-{number + 1}",
                host=self._host or HOST,
                certificate_port=ports[3 * number + 2] if by_certificate else None,
            )
            for number in range(self._brokers)
        )
        return BrokerState(
            cluster_id=_cluster_id(), nodes=nodes, secure=bool(self._secure), logins=self._logins
        )

    def _load(self) -> BrokerState | None:
        kept = read_state(self._file, schema=SCHEMA)
        if kept is None:
            return None
        try:
            return from_json(kept, self._folder)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FleetError(
                f"{self._file} is not the state of a broker ({error!r}); stop its processes, move "
                f"{self._folder} away and start again"
            ) from error

    def _save(self, state: BrokerState) -> None:
        write_state(self._file, as_json(state), schema=SCHEMA)

    def _alone(self) -> AbstractContextManager[None]:
        """Allows one start, stop, kill or purge at a time."""
        return locked(self._folder / ".lock")


def embedded_bootstrap(home: Path) -> str | None:
    """bootstrap.servers of the embedded broker under `home` where it runs, else None."""
    status = Broker(home).status()
    return status.bootstrap_servers if status.running else None


def _check_alive(state: BrokerState) -> None:
    for node in state.nodes:
        if state.process(node) is None:
            raise FleetError(
                f"node {node.id} stopped during its start; end of {node.server_log}:\n"
                f"{last_words(node)}"
            )


def _no_answer(state: BrokerState, node: NodeConfig, seen: int | None, wait: float) -> str:
    answer = "does not answer" if seen is None else f"sees {seen} of {len(state.nodes)} nodes"
    return (
        f"node {node.id} at {node.address} {answer} after {wait:.0f} s; the last lines of "
        f"{node.server_log}:\n{last_words(node)}"
    )


def _status(state: BrokerState) -> BrokerStatus:
    nodes = tuple(
        NodeStatus(
            id=each.id,
            pid=process.pid if (process := state.process(each)) else None,
            host_port=each.address,
            server_log=each.server_log,
            coordinator_log=each.coordinator_log,
            data=each.data,
        )
        for each in state.nodes
    )
    return BrokerStatus(
        running=any(node.pid is not None for node in nodes),
        bootstrap_servers=state.bootstrap_servers,
        nodes=nodes,
        secure=state.secure,
        certificate_servers=",".join(filter(None, (n.certificate_address for n in state.nodes))),
    )


def _kind(secure: bool) -> str:
    return "secure" if secure else "plain"


def _cluster_id() -> str:
    """16 random bytes as Kafka writes them; never with a leading dash (it is an argument)."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
