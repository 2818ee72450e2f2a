"""What makes the embedded broker a secure one: its CA, its certificate, its two first users.

Problem: logins, certificates and ACLs must be tried before a real cluster asks for them, and
nothing of that may leak into a process list, a log or another folder. Choice: the JDK's own
keytool makes a certificate authority that signs one certificate and is then thrown away, so
that no second one can ever be signed; clients log in by SCRAM-SHA-512 over TLS; nodes know
each other by that certificate (controllers) and by the user `broker` (brokers), whose password
Kafka reads from a file. All of it lies in one folder, mode 0700, files 0600, made under another
name and renamed, so that there is all of it or nothing. Cost: 2 s at the first start; a new
certificate means a new broker (`fleet dev broker stop --purge`).
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fleet.broker.jars import run_java
from fleet.broker.node_config import escaped
from fleet.config.spec import Sasl, Security, Tls
from fleet.errors import FleetError
from fleet.system.home import write_whole

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
                "run "
                "`fleet dev broker stop --purge` and start again (deletes the broker's data)"
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
