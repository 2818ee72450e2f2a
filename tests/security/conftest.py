"""One secure broker for the folder; users with exactly the ACLs that a test names."""

import json
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fleet.broker import Broker, Logins
from fleet.config.acls import Grant
from fleet.config.spec import ClusterSpec, Oidc, Sasl, Security, TokenProvider
from fleet.security import client_config
from tests.support.authority import Authority
from tests.support.brokers import running_broker
from tests.support.commits import commit_groups
from tests.support.oidc_server import Issuer, oidc_server
from tests.support.waiting import until

_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "Create": AclOperation.CREATE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "AlterConfigs": AclOperation.ALTER_CONFIGS,
}
_RESOURCES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP}


class Guarded:
    """The secure broker, as its super user sees it."""

    def __init__(
        self, broker: Broker, folder: Path, *, issuer: Issuer, authority: Authority
    ) -> None:
        self.broker, self.issuer, self.authority = broker, issuer, authority
        self.bootstrap = broker.status().bootstrap_servers
        self.folder = folder
        self.secrets: list[str] = []
        self.config = client_config(ClusterSpec(security=broker.security()), self.bootstrap, {})
        self.admin = AdminClient({**self.config, "log_level": 0})
        self._producer = Producer({**self.config, "log_level": 0})

    def user(self, name: str, grants: Iterable[Grant] = ()) -> Security:
        """A new user with these ACLs; how it logs in. Its password is a file of this test's."""
        password = f"pw-{secrets.token_urlsafe(12)}"
        self.secrets.append(password)
        file = self.folder / f"{name}-password"
        file.write_text(password)
        file.chmod(0o600)
        made = self.admin.alter_user_scram_credentials(
            [
                UserScramCredentialUpsertion(
                    name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
                )
            ]
        )
        made[name].result(120)
        self.allow(name, grants)
        return self.login(name)

    def login_by_token(self, name: str, *, lifetime: float = 3600.0) -> Security:
        """As that name, by client credentials; what it may do is `allow`'s."""
        secret = f"cs-{secrets.token_urlsafe(12)}"
        self.secrets.append(secret)
        self.issuer.clients[name], self.issuer.lifetimes[name] = secret, lifetime
        file = self.folder / f"{name}-client-secret"
        file.write_text(secret)
        oidc = Oidc(endpoint=self.issuer.endpoint, client_id=name, client_secret_file=str(file))
        return Security(
            protocol="SASL_SSL",
            sasl=Sasl(mechanism="OAUTHBEARER", oidc=oidc),
            tls=self.broker.security().tls,
        )

    def login_by_short_tokens(self, name: str) -> Security:
        """The same; each token holds for six seconds."""
        return self.login_by_token(name, lifetime=6.0)

    def login_by_function(self, name: str) -> Security:
        """As that name, by a function that gives tokens as Amazon MSK's signer does."""
        self.login_by_token(name)
        named = {"client": name, "secret_file": str(self.folder / f"{name}-client-secret")}
        provider = TokenProvider(
            function="tests.support.token_signer:generate_auth_token",
            arguments={"endpoint": self.issuer.endpoint, **named},
        )
        return Security(
            protocol="SASL_SSL",
            sasl=Sasl(mechanism="OAUTHBEARER", provider=provider),
            tls=self.broker.security().tls,
        )

    def login_by_certificate(self, name: str) -> Security:
        """As that name, by a certificate whose key has a password; see `address`."""
        password = f"kp-{secrets.token_urlsafe(12)}"
        self.secrets.append(password)
        certificate, key = self.authority.sign(name, password=password)
        file = self.folder / f"{name}-key-password"
        file.write_text(password)
        tls = self.broker.security().tls.model_copy(
            update={
                "cert_file": str(certificate),
                "key_file": str(key),
                "key_password_file": str(file),
            }
        )
        return Security(protocol="SSL", tls=tls)

    def address(self, security: Security) -> str:
        """Where one logs in so."""
        if security.protocol == "SSL":
            return self.broker.status().certificate_servers
        return self.bootstrap

    def login(self, name: str) -> Security:
        """How a user that was made here logs in."""
        file = str(self.folder / f"{name}-password")
        return Security(
            protocol="SASL_SSL",
            sasl=Sasl(mechanism="SCRAM-SHA-512", username=name, password_file=file),
            tls=self.broker.security().tls,
        )

    def allow(self, user: str, grants: Iterable[Grant]) -> None:
        bindings = list({str(grant): _binding(user, grant) for grant in grants}.values())
        for future in self.admin.create_acls(bindings).values() if bindings else ():
            future.result(120)

    def deny(self, user: str, grant: Grant) -> None:
        """Take an ACL back."""
        held = _binding(user, grant)
        asked = AclBindingFilter(
            held.restype, held.name, held.resource_pattern_type, held.principal, held.host,
            held.operation, held.permission_type,
        )  # fmt: skip
        for future in self.admin.delete_acls([asked]).values():
            assert len(future.result(120)) == 1, grant

    def topic(self, name: str, partitions: int = 4) -> None:
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(120)
        until(lambda: len(self._partitions(name)) == partitions, f"topic {name}")

    def _partitions(self, topic: str) -> dict[int, Any]:
        told = self.admin.list_topics(topic, timeout=10).topics[topic]
        return told.partitions if told.error is None else {}

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        """Records to one partition."""
        for number in range(count):
            self._producer.produce(topic, str(number).encode(), partition=partition)
        assert self._producer.flush(120) == 0

    def commit(self, group: str, topic: str, offset: int) -> None:
        """An Empty group with one committed offset."""
        commit_groups(self.admin, [group], [TopicPartition(topic, 0, offset)])

    def dump(self) -> str:
        """Topics, groups with their offsets, every config and ACL, as comparable text."""
        topics = self.admin.list_topics(timeout=10)
        groups = sorted(g.group_id for g in self.admin.list_consumer_groups().result(120).valid)
        asked = [ConfigResource(ConfigResource.Type.TOPIC, t) for t in sorted(topics.topics)]
        asked.append(ConfigResource(ConfigResource.Type.BROKER, "1"))
        configs = {
            f"{key.restype} {key.name}": {n: e.value for n, e in future.result(120).items()}
            for key, future in self.admin.describe_configs(asked).items()
        }
        offsets = {}
        for group in groups:
            found = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            told = found[group].result(120).topic_partitions
            offsets[group] = sorted((t.topic, t.partition, t.offset, t.metadata) for t in told)
        described = self.admin.describe_consumer_groups(groups) if groups else {}
        everything = {
            "topics": {n: len(t.partitions) for n, t in topics.topics.items()},
            "groups": {g: str(f.result(120).state) for g, f in described.items()},
            "offsets": offsets,
            "configs": configs,
            "acls": sorted(str(acl) for acl in self._acls()),
        }
        return json.dumps(everything, indent=1, sort_keys=True)

    def _acls(self) -> list[AclBinding]:
        anything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        return list(self.admin.describe_acls(anything).result(120))


def _binding(user: str, grant: Grant) -> AclBinding:
    return AclBinding(
        _RESOURCES[grant.resource], grant.name, ResourcePatternType.LITERAL, f"User:{user}", "*",
        _OPERATIONS[grant.operation], AclPermissionType.ALLOW,
    )  # fmt: skip


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The secure broker of this folder's tests, whatever a process runs between them."""
    folder = tmp_path_factory.mktemp("users")
    authority = Authority(folder, "clients")
    with (
        oidc_server() as issuer,
        running_broker(
            tmp_path_factory.mktemp("secure"),
            secure=True,
            logins=Logins(jwks=issuer.jwks, client_ca=authority.ca),
        ) as made,
    ):
        yield Guarded(made.broker, folder, issuer=issuer, authority=authority)


@pytest.fixture
def home(guarded, monkeypatch) -> Path:
    """The secure broker's $FLEET_HOME."""
    folder = guarded.broker.secrets.folder.parents[1]
    monkeypatch.setenv("FLEET_HOME", str(folder))
    return folder


def secrets_of(home: Path) -> list[str]:
    """The passwords of a secure broker: keystore, `admin`, `broker`."""
    folder = home / "broker" / "secrets"
    lines = (folder / "server-secrets.properties").read_text().splitlines()
    kept = dict(line.split("=", 1) for line in lines)
    admin = (folder / "admin-password").read_text().strip()
    return [kept["keystore.password"], admin, kept["broker.password"]]


class Desk:
    """A folder with a fleet.yaml of one declared group, at which commands are run."""

    def __init__(self, folder: Path, guarded: Guarded, name: str) -> None:
        self.folder, self.guarded = folder, guarded
        self.group, self.topic = f"group-{name}", f"topic-{name}"
        (folder / "desk_job.py").write_text("def process(df, context):\n    df.count()\n")

    def declare(self, mode: str, security: Security, **keys: Any) -> None:
        (self.folder / "fleet.yaml").write_text(self.file(mode, security, **keys))

    def file(self, mode: str, security: Security, **keys: Any) -> str:
        """The text of that fleet.yaml."""
        worker = {"entrypoint": "desk_job:process", "python_path": [str(self.folder)]}
        group = {
            "group": self.group,
            "mode": mode,
            "topics": [self.topic],
            "worker": worker,
            "replicas": {"min": 1, "max": 4, "standby": 0},
            "scaling": {"policy": "fixed", "workers": 2},
            "runtime": {"kind": "local", "lease": "2s"},
            **keys,
        }
        spec = {
            "cluster": {
                "name": "desk",
                "bootstrap_servers": self.guarded.address(security),
                "security": security.model_dump(mode="json", exclude_none=True),
            },
            "fleets": [group],
        }
        return yaml.safe_dump(spec)


@pytest.fixture
def desk(guarded, unique, tmp_path, monkeypatch) -> Desk:
    """A group with 7 waiting records, seen from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FLEET_CONFIG", raising=False)
    made = Desk(tmp_path, guarded, unique)
    guarded.topic(made.topic)
    guarded.produce(made.topic, 10)
    guarded.commit(made.group, made.topic, 3)
    return made
