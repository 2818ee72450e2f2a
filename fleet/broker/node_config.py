"""What a node's configuration files say. Pure: values in, text out.

Everything that a group's behaviour depends on keeps Kafka's default (above all
`group.initial.rebalance.delay.ms`), so that what is seen here is seen on a real cluster.
Different are: replication by the number of nodes, room for short sessions in tests, no
creation of topics by accident, and compaction that waits a week, because compaction erases
the history of groups that Fleet reads.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.errors import ConfigError

HOST: Final = "127.0.0.1"
DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One combined broker and controller, and where its files are."""

    id: int
    port: int
    controller_port: int
    home: Path
    host: str = HOST
    """Where clients reach it; controllers only ever meet at 127.0.0.1."""
    certificate_port: int | None = None
    """Where clients log in by their certificate; None: nowhere."""

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{self.host}:{self.port}"

    @property
    def certificate_address(self) -> str:
        """host:port for clients that log in by certificate; "" where none do."""
        return f"{self.host}:{self.certificate_port}" if self.certificate_port else ""

    @property
    def data(self) -> Path:
        """Kafka's log.dirs."""
        return self.home / "data"

    @property
    def properties(self) -> Path:
        """The server.properties of this node; also what its process is known by."""
        return self.home / "server.properties"

    @property
    def server_log(self) -> Path:
        """Everything the broker logs."""
        return self.home / "server.log"

    @property
    def coordinator_log(self) -> Path:
        """What the group coordinator logs: every rebalance with its reason."""
        return self.home / "coordinator.log"

    @property
    def output(self) -> Path:
        """Standard output and error: the JVM's last words."""
        return self.home / "output.log"


# Decided by the layout on this machine; an override would break restart or attach elsewhere.
FIXED: Final = frozenset(
    {
        "process.roles",
        "node.id",
        "broker.id",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
    }
)
# Decided by `fleet dev broker start --secure`; half of a login would be an open door.
_SECURITY: Final = ("ssl.", "sasl.", "super.users", "authorizer.", "allow.everyone", "config.prov")


def server_properties(
    node: NodeConfig,
    nodes: Sequence[NodeConfig],
    overrides: Mapping[str, str] | None = None,
    security: Mapping[str, str] | None = None,
) -> str:
    """The server.properties of `node`, one of `nodes`; `security` is fleet.broker.secrets'.

    Raises ConfigError where an override names a setting that the layout fixes.
    """
    given = dict(overrides or {})
    check_overrides(given)
    copies = str(min(3, len(nodes)))
    in_sync = str(min(2, len(nodes)))
    clients = f"BROKER://{node.address}"
    if node.certificate_address:
        clients += f",CERTIFICATE://{node.certificate_address}"
    settings: dict[str, str] = {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "listeners": f"{clients},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(
            f"{each.id}@{HOST}:{each.controller_port}" for each in nodes
        ),
        "log.dirs": str(node.data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "50",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "10",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "10",
        "group.initial.rebalance.delay.ms": "3000",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "log.cleaner.min.compaction.lag.ms": str(7 * DAY_MS),
        "log.cleaner.delete.retention.ms": str(7 * DAY_MS),
        # A node killed with -9 may register again when its old session ends: 9 s by default.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "1000",
        # Twice a second by default: a third of what a node without clients does.
        "metadata.max.idle.interval.ms": "5000",
        # 128 MiB of heap by default, for a cleaner that has nothing to do for a week.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }
    settings.update(given)
    settings.update(security or {})
    return "".join(f"{key}={escaped(value)}\n" for key, value in settings.items())


def check_overrides(overrides: Mapping[str, str]) -> None:
    """ConfigError where an override names a setting that the layout fixes, or spans lines."""
    fixed = sorted(
        key for key in overrides if key in FIXED or key.startswith((*_SECURITY, "listener.name."))
    )
    if fixed:
        raise ConfigError(f"the embedded broker decides {', '.join(fixed)} itself: leave it out")
    for key, value in overrides.items():
        if not key or any(c in "\r\n=: " for c in key) or any(c in "\r\n" for c in value):
            raise ConfigError(f"broker setting {key!r}={value!r} is no single line of properties")


def check_host(host: str) -> None:
    """ConfigError where clients could not be told `host` as an address."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigError(
            f"the broker cannot listen on {host!r}: name an IPv4 address of this machine "
            "(`ip -4 -brief address` lists them)"
        ) from error
    if address.is_unspecified or address.is_multicast:
        raise ConfigError(
            f"the broker cannot listen on {host}: clients are sent to the address that it listens "
            "on, so name one of this machine's own"
        )


def escaped(value: str) -> str:
    """A value as java.util.Properties reads it: Latin-1, anything else by its UTF-16 units."""
    units = value.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    numbers = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(each) if each < 128 else f"\\u{each:04x}" for each in numbers)


def server_logging() -> str:
    """log4j2.xml of a broker; the folder comes from the system property `fleet.logs`.

    Sizes are bounded: 5 files of 20 MB each.
    """
    rolling = (
        '    <RollingFile name="{name}" fileName="${{sys:fleet.logs}}/{name}.log"\n'
        '        filePattern="${{sys:fleet.logs}}/{name}.%i.log">\n'
        '      <PatternLayout pattern="[%d] %p %m (%c)%n"/>\n'
        '      <SizeBasedTriggeringPolicy size="20 MB"/>\n'
        '      <DefaultRolloverStrategy max="4"/>\n'
        "    </RollingFile>\n"
    )
    return (
        '<Configuration status="WARN">\n'
        "  <Appenders>\n"
        + rolling.format(name="server")
        + rolling.format(name="coordinator")
        + "  </Appenders>\n"
        "  <Loggers>\n"
        '    <Logger name="org.apache.kafka.coordinator.group" level="INFO" additivity="false">\n'
        '      <AppenderRef ref="coordinator"/>\n'
        "    </Logger>\n"
        '    <Root level="INFO"><AppenderRef ref="server"/></Root>\n'
        "  </Loggers>\n"
        "</Configuration>\n"
    )
