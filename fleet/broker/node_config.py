"""Writes a node's configuration files. Pure: values in, text out.

All settings that a group's behaviour depends on keep Kafka's defaults (above all
`group.initial.rebalance.delay.ms`), so that groups behave as on a real cluster. Different are
replication (by the number of nodes), shorter session timeouts for tests, and no automatic topics.
Compaction waits a week, since it deletes the history of groups that Fleet reads.
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
    """Describes one combined broker and controller, and its files."""

    id: int
    port: int
    controller_port: int
    home: Path
    host: str = HOST
    """Address for clients; controllers always use 127.0.0.1."""
    certificate_port: int | None = None
    """Port for logins by certificate; None: none."""

    @property
    def address(self) -> str:
        """Returns host:port for clients."""
        return f"{self.host}:{self.port}"

    @property
    def certificate_address(self) -> str:
        """Returns host:port for logins by certificate; "" if there are none."""
        return f"{self.host}:{self.certificate_port}" if self.certificate_port else ""

    @property
    def data(self) -> Path:
        """Returns Kafka's log.dirs."""
        return self.home / "data"

    @property
    def properties(self) -> Path:
        """Returns the server.properties of this node, which also identifies its process."""
        return self.home / "server.properties"

    @property
    def server_log(self) -> Path:
        """Returns the broker's log file."""
        return self.home / "server.log"

    @property
    def coordinator_log(self) -> Path:
        """Returns the group coordinator's log: every rebalance with its reason."""
        return self.home / "coordinator.log"

    @property
    def output(self) -> Path:
        """Returns the file of standard output and error."""
        return self.home / "output.log"


# Settings of the layout on this machine; an override would break a restart.
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
# Settings of `fleet dev broker start --secure`; a partial login would be insecure.
_SECURITY: Final = ("ssl.", "sasl.", "super.users", "authorizer.", "allow.everyone", "config.prov")


def server_properties(
    node: NodeConfig,
    nodes: Sequence[NodeConfig],
    overrides: Mapping[str, str] | None = None,
    security: Mapping[str, str] | None = None,
) -> str:
    """Returns the server.properties of `node`; `security` comes from fleet.broker.secrets.

    Raises ConfigError if an override names a setting that the layout fixes.
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
    """Raises ConfigError if an override names a fixed setting, or spans lines."""
    fixed = sorted(
        key for key in overrides if key in FIXED or key.startswith((*_SECURITY, "listener.name."))
    )
    if fixed:
        raise ConfigError(f"the embedded broker sets {', '.join(fixed)} itself; remove it")
    for key, value in overrides.items():
        if not key or any(c in "\r\n=: " for c in key) or any(c in "\r\n" for c in value):
            raise ConfigError(
                f"broker setting {key!r}={value!r} is not a single line of properties"
            )


def check_host(host: str) -> None:
    """Raises ConfigError if clients could not use `host` as an address."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError as error:
        raise ConfigError(
            f"the broker cannot listen on {host!r}: name an IPv4 address of this machine "
            "(`ip -4 -brief address` lists them)"
        ) from error
    if address.is_unspecified or address.is_multicast:
        raise ConfigError(
            f"the broker cannot listen on {host}, since clients get that address; name an address "
            "of this machine"
        )


def escaped(value: str) -> str:
    """Escapes a value for java.util.Properties: Latin-1, all else as UTF-16 units."""
    units = value.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    numbers = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(each) if each < 128 else f"\\u{each:04x}" for each in numbers)


def server_logging() -> str:
    """Returns a broker's log4j2.xml; the system property `fleet.logs` names the folder.

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
