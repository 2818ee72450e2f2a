"""Secrets in worker.env and in logins: references stay references until their process starts."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from kafka.admin import KafkaAdminClient

from fleet.config.load import load
from fleet.config.references import plain_environment, worker_environment
from fleet.config.spec import ClusterSpec, FleetSpec
from fleet.errors import ConfigError
from fleet.security import client_config, kafka_python_config
from tests.support.declared import settings_of

SECRET = "hunter2-of-the-test"
ENVIRON = {"DB_PASSWORD": SECRET, "KAFKA_PASSWORD": SECRET, "KAFKA_USER": "ann"}


def read(folder: Path, *, env: str = "", sasl: str = "", environ=ENVIRON) -> FleetSpec:
    """A fleet.yaml with that worker.env and that sasl."""
    text = (
        "cluster:\n  bootstrap_servers: k1:9092\n"
        + (f"  security: {{protocol: SASL_SSL, sasl: {{{sasl}}}}}\n" if sasl else "")
        + "fleets:\n  - group: g\n    topics: [t]\n"
        + f"    worker: {{entrypoint: 'job:process', env: {{{env}}}}}\n"
    )
    file = folder / "fleet.yaml"
    file.write_text(text)
    return load(file, environ)


def test_what_is_published_holds_the_reference(tmp_path):
    """The frozen settings of a revision name the variable; its value is in none of them."""
    spec = read(tmp_path, env="DB_PASSWORD: '${DB_PASSWORD}', URL: 'db://u:${DB_PASSWORD}@h'")
    group = spec.fleets[0]
    published = settings_of(group, cluster=spec.cluster).model_dump_json()
    assert SECRET not in published
    assert group.worker is not None
    assert plain_environment(group.worker.env) == {}
    found = worker_environment(group.worker.env, ENVIRON)
    assert found == {"DB_PASSWORD": SECRET, "URL": f"db://u:{SECRET}@h"}


def test_a_manager_needs_no_secret_of_a_worker(tmp_path):
    """Reading the file asks for none of the variables; the worker names those it misses."""
    spec = read(tmp_path, env="A: '${DB_PASSWORD}', B: '${OTHER:-x}', C: 'plain', D: '$${X}'")
    assert read(tmp_path, env="A: '${DB_PASSWORD}'", environ={}).fleets
    worker = spec.fleets[0].worker
    assert worker is not None
    assert plain_environment(worker.env) == {"C": "plain", "D": "${X}"}
    with pytest.raises(ConfigError, match=r"worker\.env\.A: .* DB_PASSWORD is not set"):
        worker_environment(worker.env, {})
    with pytest.raises(ConfigError, match=r"fleets\[0\]\.worker\.env\.A: .* without a name"):
        read(tmp_path, env="A: '${}'")


def test_a_login_may_be_written_as_references(tmp_path):
    """`password: ${NAME}` is `password_env: NAME`; a password itself is refused as ever."""
    login = "mechanism: SCRAM-SHA-512, username: '${KAFKA_USER}', password: '${KAFKA_PASSWORD}'"
    cluster = read(tmp_path, sasl=login).cluster
    sasl = cluster.security.sasl
    assert sasl is not None
    assert (sasl.username_env, sasl.password_env) == ("KAFKA_USER", "KAFKA_PASSWORD")
    assert SECRET not in cluster.model_dump_json()
    options = client_config(cluster, "k1:9092", ENVIRON)
    assert (options["sasl.username"], options["sasl.password"]) == ("ann", SECRET)
    for wrong in (SECRET, "x${KAFKA_PASSWORD}", "${KAFKA_PASSWORD:-x}"):
        with pytest.raises(ConfigError, match=r"fleet\.yaml must not hold") as caught:
            read(tmp_path, sasl=f"mechanism: PLAIN, username: ann, password: '{wrong}'")
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "held", "told"),
    [
        ("password_env", "p@ssw0rd!", "names an environment variable: write its name"),
        ("password_file", "p@ssw0rd!\\n", "names a file: write its path"),
        ("password_file", "-----BEGIN PRIVATE KEY----- p@ssw0rd!", "names a file: write its path"),
    ],
)
def test_what_a_source_holds_is_no_name_of_it(tmp_path, key, held, told):
    """It would be the name that errors tell, and settings and ConfigMaps keep."""
    with pytest.raises(
        ConfigError, match=rf"sasl\.{key}: {told}.*, not its (value|content)"
    ) as caught:
        read(tmp_path, sasl=f'mechanism: PLAIN, username: ann, {key}: "{held}"')
    assert "p@ssw0rd" not in str(caught.value)


def test_a_name_may_be_written_as_it_is(tmp_path):
    """A user's name is no secret, and stands beside no other source of it."""
    sasl = "mechanism: PLAIN, username: ann, password_env: KAFKA_PASSWORD"
    options = client_config(read(tmp_path, sasl=sasl).cluster, "k1:9092", ENVIRON)
    assert options["sasl.username"] == "ann"
    with pytest.raises(ConfigError, match="exactly one of username, username_env"):
        read(tmp_path, sasl=f"{sasl}, username_env: KAFKA_USER")


# --- logins: both clients get the same; a secret is read late and never told ------------------


BOOT = "k1:9092, k2:9092"


def cluster(**security: Any) -> ClusterSpec:
    """A cluster with this security."""
    return ClusterSpec.model_validate({"bootstrap_servers": BOOT, "security": security})


def sasl(**changes: Any) -> ClusterSpec:
    """One that logs in with SCRAM, credentials from the environment."""
    login = {"mechanism": "SCRAM-SHA-256", "username_env": "USER_NAME", "password_env": "PASS"}
    login = {k: v for k, v in {**login, **changes}.items() if v is not None}
    return cluster(protocol="SASL_PLAINTEXT", sasl=login)


def test_plain_clusters_need_nothing() -> None:
    """Without security only the address and the protocol are told."""
    assert client_config(cluster(), BOOT, {}) == {
        "bootstrap.servers": BOOT,
        "security.protocol": "PLAINTEXT",
    }
    assert kafka_python_config(cluster(), BOOT, {}) == {
        "bootstrap_servers": ["k1:9092", "k2:9092"],
        "security_protocol": "PLAINTEXT",
    }


def test_credentials_come_from_variables_and_files(tmp_path: Path) -> None:
    """Both clients get the same user and password; a file's last line end is not part of it."""
    secret = tmp_path / "pass"
    secret.write_text("pa ss\n")
    both = sasl(password_env=None, password_file=str(secret))
    one = client_config(both, BOOT, {"USER_NAME": "ann"})
    two = kafka_python_config(both, BOOT, {"USER_NAME": "ann"})
    assert (one["sasl.username"], one["sasl.password"]) == ("ann", "pa ss")
    assert (two["sasl_plain_username"], two["sasl_plain_password"]) == ("ann", "pa ss")
    assert one["sasl.mechanism"] == two["sasl_mechanism"] == "SCRAM-SHA-256"


def test_the_clients_know_these_options(tmp_path: Path) -> None:
    """The options are those that the installed clients understand."""
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    encrypted = cluster(protocol="SSL", tls={"ca_file": str(file)})
    options = client_config(sasl(), BOOT, {"USER_NAME": "u", "PASS": "p"})
    Consumer({**options, "group.id": "never-joined"}).close()
    assert client_config(encrypted, BOOT, {})["ssl.ca.location"] == str(file)
    known = set(KafkaAdminClient.DEFAULT_CONFIG)
    assert set(kafka_python_config(encrypted, BOOT, {})) <= known
    assert set(kafka_python_config(sasl(), BOOT, {"USER_NAME": "u", "PASS": "p"})) <= known


@pytest.mark.parametrize(
    ("changes", "environ", "said"),
    [
        pytest.param({}, {"USER_NAME": "hunter2"}, "variable PASS is not set", id="not-set"),
        pytest.param(
            {}, {"USER_NAME": "hunter2", "PASS": ""}, "variable PASS is empty", id="empty"
        ),
        pytest.param(
            {"password_env": None, "password_file": "/nowhere/pass"},
            {"USER_NAME": "hunter2"},
            "/nowhere/pass does not exist",
            id="no-file",
        ),
    ],
)
def test_what_is_missing_is_named(changes: dict, environ: dict, said: str) -> None:
    """The variable or file is named, the value of the other one is not."""
    with pytest.raises(ConfigError) as caught:
        client_config(sasl(**changes), BOOT, environ)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["p" * 300, "~nobody-of-this-name/pass"])
def test_a_file_that_cannot_be_looked_up_is_named(tmp_path: Path, name: str) -> None:
    """As in a folder that this user may not search: a sentence, no defect and no user's failure."""
    path = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(ConfigError, match=r"sasl\.password: the file .* cannot be looked up"):
        client_config(sasl(password_env=None, password_file=path), BOOT, {"USER_NAME": "ann"})


@pytest.mark.parametrize(
    ("security", "said"),
    [
        pytest.param({"protocol": "SASL_SSL"}, "needs sasl", id="no-sasl"),
        pytest.param({"tls": {"ca_file": "x"}}, "does not encrypt", id="tls-unused"),
        pytest.param(
            {"protocol": "SSL", "tls": {"cert_file": "x"}}, "together, or neither", id="half-a-pair"
        ),
        pytest.param(
            {"sasl": {"mechanism": "PLAIN", "username_env": "A", "password_env": "B"}},
            "does not log in",
            id="sasl-unused",
        ),
    ],
)
def test_settings_that_would_be_ignored_are_refused(security: dict, said: str) -> None:
    """A login that the protocol would not use is a mistake, not a comment."""
    with pytest.raises(ValueError, match=said):
        cluster(**security)
