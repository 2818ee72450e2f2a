"""Secrets in worker.env and in logins: references stay references until their process starts."""

from pathlib import Path

import pytest

from fleet.config.load import load
from fleet.config.references import plain_environment, worker_environment
from fleet.config.spec import FleetSpec
from fleet.errors import ConfigError
from fleet.security import client_config
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
        with pytest.raises(ConfigError, match="never written in the file") as caught:
            read(tmp_path, sasl=f"mechanism: PLAIN, username: ann, password: '{wrong}'")
        assert SECRET not in str(caught.value)


def test_a_name_may_be_written_as_it_is(tmp_path):
    """A user's name is no secret, and stands beside no other source of it."""
    sasl = "mechanism: PLAIN, username: ann, password_env: KAFKA_PASSWORD"
    options = client_config(read(tmp_path, sasl=sasl).cluster, "k1:9092", ENVIRON)
    assert options["sasl.username"] == "ann"
    with pytest.raises(ConfigError, match="exactly one of username, username_env"):
        read(tmp_path, sasl=f"{sasl}, username_env: KAFKA_USER")
