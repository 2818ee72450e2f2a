"""How each Kafka client is told to log in; the only place where a secret is read.

Problem: fleet.yaml names where credentials are, two client libraries want them as options,
and Spark's executors must get references, not values [11]. Choice: the reference travels
(it is the Cluster value) and is resolved here, in the process that connects, right before.
Errors name the variable or file, never what it holds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet.config.spec import ClusterSpec, Sasl
from fleet.errors import ConfigError
from fleet.kafka_source.connections import kafka_python


def client_config(
    cluster: ClusterSpec, bootstrap: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Options of librdkafka for reaching the cluster (confluent-kafka; strings only).

    Raises ConfigError where a variable is not set or a file cannot be read.
    """
    security = cluster.security
    options = {"bootstrap.servers": bootstrap, "security.protocol": security.protocol}
    if security.sasl is not None:
        options["sasl.mechanism"] = security.sasl.mechanism
        options["sasl.username"], options["sasl.password"] = _login(security.sasl, environ)
    for option, file in (
        ("ssl.ca.location", security.tls.ca_file),
        ("ssl.certificate.location", security.tls.cert_file),
        ("ssl.key.location", security.tls.key_file),
    ):
        if file is not None:
            options[option] = _readable(file, option)
    return options


def kafka_python_config(
    cluster: ClusterSpec, bootstrap: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The same as arguments of kafka-python, for requests that librdkafka lacks.

    Raises ConfigError where a variable is not set or a file cannot be read.
    """
    return kafka_python(client_config(cluster, bootstrap, environ))


def _login(sasl: Sasl, environ: Mapping[str, str]) -> tuple[str, str]:
    return (
        sasl.username or _resolved("username", sasl.username_env, sasl.username_file, environ),
        _resolved("password", sasl.password_env, sasl.password_file, environ),
    )


def _resolved(part: str, env: str | None, file: str | None, environ: Mapping[str, str]) -> str:
    if env is not None:
        value = environ.get(env)
        if not value:
            raise ConfigError(
                f"cluster.security.sasl.{part}_env names the environment variable {env}, which "
                f"is {'empty' if value == '' else 'not set'}: set it in the environment of every "
                "process of the fleet"
            )
        return value
    name = _readable(str(file), f"cluster.security.sasl.{part}_file")
    try:
        value = Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cluster.security.sasl.{part}_file {name} cannot be read as text: mount it readable "
            "for this user"
        ) from error
    if not value:
        raise ConfigError(f"cluster.security.sasl.{part}_file {name} is empty: write the {part}")
    return value


def _readable(file: str, what: str) -> str:
    """The path, if there is a file; librdkafka would say so only in the middle of its work."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{what}: the file {path} does not exist; mount it or correct the path")
    return str(path)
