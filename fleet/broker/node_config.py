"""Writes a node's configuration files. Pure: values in, text out.

All settings that a group's behaviour depends on keep Kafka's defaults (above all
`group.initial.rebalance.delay.ms`), so that groups behave as on a real cluster. Different are
replication (by the number of nodes), shorter session timeouts for tests, and no automatic topics.
Compaction waits a week, since it deletes the history of groups that Fleet reads.
"""

import contextlib
import ipaddress
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.broker.jars import run_java
from fleet.config.spec import Sasl, Security, Tls
from fleet.errors import ConfigError, FleetError
from fleet.system.home import write_whole

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
    """Returns the server.properties of `node`; `security` comes from fleet.broker.node_config.

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


# What makes the embedded broker a secure one: its CA, its certificate, its two first users.
#
# Problem: logins, certificates and ACLs must be tried before a real cluster asks for them, and
# nothing of that may leak into a process list, a log or another folder. Choice: the JDK's own
# keytool makes a certificate authority that signs one certificate and is then thrown away, so
# that no second one can ever be signed; clients log in by SCRAM-SHA-512 over TLS; nodes know
# each other by that certificate (controllers) and by the user `broker` (brokers), whose password
# Kafka reads from a file. All of it lies in one folder, mode 0700, files 0600, made under another
# name and renamed, so that there is all of it or nothing. Cost: 2 s at the first start; a new
# certificate means a new broker (`fleet dev broker stop --purge`).


ADMIN: Final = "admin"
"""Super user for clients."""
BROKER: Final = "broker"
"""Super user for logins between brokers."""
NODE: Final = "fleet-node"
"""Common name in the nodes' certificate."""
MECHANISM: Final = "SCRAM-SHA-512"
AUDIENCE: Final = "kafka"
"""Required `aud` of tokens."""
_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_DAYS: Final = "3650"
_KEYTOOL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """Sets the logins of a secure broker besides SCRAM."""

    jwks: str | None = None
    """URL of the keys (RFC 7517) whose tokens for `kafka` log in by OAUTHBEARER, as their `sub`."""
    client_ca: Path | None = None
    """PEM of the authority whose certificates log in by mTLS, as their common name."""


SCRAM_ONLY: Final = Logins()


def _tokens(jwks: str | None) -> dict[str, str]:
    if jwks is None:
        return {}
    here = "listener.name.broker.oauthbearer"
    module = "org.apache.kafka.common.security.oauthbearer"
    return {
        "sasl.enabled.mechanisms": f"{MECHANISM},OAUTHBEARER",
        f"{here}.sasl.jaas.config": f"{module}.OAuthBearerLoginModule required;",
        f"{here}.sasl.server.callback.handler.class": (
            f"{module}.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": jwks,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        # A connection ends with its token, or is logged in anew (KIP-368).
        f"{here}.connections.max.reauth.ms": "3600000",
    }


def _certificates(client_ca: Path | None) -> dict[str, str]:
    if client_ca is None:
        return {}
    here = "listener.name.certificate.ssl"
    return {
        f"{here}.client.auth": "required",
        f"{here}.truststore.type": "PEM",
        f"{here}.truststore.location": str(client_ca),
        f"{here}.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
    }


@dataclass(frozen=True, slots=True)
class Secrets:
    """The folder with a secure broker's secrets."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate that clients trust, PEM."""
        return self.folder / "ca.pem"

    @property
    def admin_password(self) -> Path:
        """The password of `admin`, one line."""
        return self.folder / "admin-password"

    @property
    def admin_properties(self) -> Path:
        """What Kafka's own tools take as --command-config to be `admin`."""
        return self.folder / "admin.properties"

    @property
    def _keystore(self) -> Path:
        return self.folder / "node.p12"

    @property
    def _keystore_password(self) -> Path:
        return self.folder / "node-password"

    @property
    def _server(self) -> Path:
        """What server.properties refers to, so that it holds no secret itself."""
        return self.folder / "server-secrets.properties"

    def security(self) -> Security:
        """Returns the login of `admin` for clients: references, no values."""
        return Security(
            protocol="SASL_SSL",
            sasl=Sasl(
                mechanism="SCRAM-SHA-512", username=ADMIN, password_file=str(self.admin_password)
            ),
            tls=Tls(ca_file=str(self.ca)),
        )

    def settings(self, logins: Logins) -> dict[str, str]:
        """The part of server.properties that makes a node secure; refers to files for secrets."""

        def kept(key: str) -> str:
            return f"${{file:{self._server}:{key}}}"

        return {
            "listener.security.protocol.map": "BROKER:SASL_SSL,CONTROLLER:SSL,CERTIFICATE:SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            **_tokens(logins.jwks),
            **_certificates(logins.client_ca),
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.broker.scram-sha-512.sasl.jaas.config": kept("broker.login"),
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self._keystore),
            "ssl.keystore.password": kept("keystore.password"),
            "ssl.key.password": kept("keystore.password"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{ADMIN};User:{BROKER};User:CN={NODE}",
            "config.providers": "file",
            "config.providers.file.class": (
                "org.apache.kafka.common.config.provider.FileConfigProvider"
            ),
        }

    def ensure(self, java: Path, *, data: bool, host: str = "127.0.0.1") -> None:
        """Make the folder where there is none. Raises FleetError where keytool fails.

        data: the broker has been formatted, so that other secrets would open nothing. host: where
        clients reach it, named by its certificate.
        """
        if self.folder.exists():
            return
        if data:
            raise FleetError(
                f"{self.folder} is missing, and with it every login to this broker; restore it, or "
                "run `fleet dev broker stop --purge` and start again (deletes the broker's data)"
            )
        made = Secrets(self.folder.with_name(f".{self.folder.name}.new"))
        shutil.rmtree(made.folder, ignore_errors=True)
        made.folder.mkdir(mode=0o700, parents=True)
        admin, broker, keystore = (secrets.token_urlsafe(24) for _ in range(3))
        made._write(made._keystore_password, keystore)
        made._certificates(java, host)
        made._write(made.admin_password, admin)
        final = self.ca
        made._write(
            made.admin_properties,
            f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={_LOGIN} username="{ADMIN}" password="{admin}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={escaped(str(final))}",
        )
        made._write(
            made._server,
            f"keystore.password={keystore}\n"
            f'broker.login={_LOGIN} username="{BROKER}" password="{broker}";\n'
            f"broker.password={broker}",
        )
        made.folder.rename(self.folder)

    @contextlib.contextmanager
    def format_arguments(self) -> Iterator[Sequence[str]]:
        """Arguments of `kafka-storage format` that make both users; none shows a password.

        The tool reads `@file` (KIP-900's way to keep them out of the process list).
        """
        kept = dict(
            line.split("=", 1) for line in self._server.read_text(encoding="utf-8").splitlines()
        )
        admin = self.admin_password.read_text(encoding="utf-8").strip()
        file = self.folder / "format-arguments"
        users = ((ADMIN, admin), (BROKER, kept["broker.password"]))
        lines = [f"--add-scram\n{MECHANISM}=[name={n},password={p}]" for n, p in users]
        self._write(file, "\n".join(lines))
        try:
            yield [f"@{file}"]
        finally:
            file.unlink(missing_ok=True)

    def _certificates(self, java: Path, host: str) -> None:
        """A CA, one certificate signed by it for every node of this machine, and no CA key."""
        names = dict.fromkeys(["ip:127.0.0.1", f"ip:{host}", "dns:localhost"])
        key = ("-keyalg", "EC", "-groupname", "secp256r1", "-validity", _DAYS)
        self._keytool(
            java, "-genkeypair", "-alias", "ca", "-dname", "CN=fleet-ca", *key,
            "-ext", "bc:critical=ca:true,pathlen:0", "-ext", "ku:critical=keyCertSign",
        )  # fmt: skip
        self._keytool(java, "-exportcert", "-rfc", "-alias", "ca", "-file", str(self.ca))
        self.ca.chmod(0o600)
        self._keytool(
            java, "-genkeypair", "-alias", "node", "-dname", f"CN={NODE}", *key, "-signer", "ca",
            "-ext", f"san={','.join(names)}", "-ext", "eku=serverAuth,clientAuth",
        )  # fmt: skip
        self._keytool(java, "-delete", "-alias", "ca")
        self._keystore.chmod(0o600)

    def _keytool(self, java: Path, *arguments: str) -> None:
        argv = [
            _keytool_beside(java), "-J-XX:TieredStopAtLevel=1", *arguments,
            "-keystore", str(self._keystore), "-storetype", "PKCS12",
            "-storepass:file", str(self._keystore_password),
        ]  # fmt: skip
        slow = f"keytool {arguments[0]} took more than {_KEYTOOL_SECONDS:.0f} s: is the disk slow?"
        done = run_java(argv, timeout=_KEYTOOL_SECONDS, late=slow)
        if done.returncode != 0:
            output = " ".join((done.stdout + done.stderr).split())
            raise FleetError(f"keytool {arguments[0]} failed in {self.folder}: {output[:400]}")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        write_whole(path, text + "\n")  # mode 0600: it is born a temporary file
        path.chmod(0o600)


def _keytool_beside(java: Path) -> str:
    """The keytool of that Java, which comes with every JDK and JRE."""
    for folder in (java.parent, Path(os.path.realpath(java)).parent):
        if (folder / "keytool").exists():
            return str(folder / "keytool")
    raise FleetError(
        f"a secure broker needs keytool, which is not beside {java}; set JAVA_HOME to a full "
        "Java 17 or 21"
    )
