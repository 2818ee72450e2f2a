"""Resolves the login of fleet.yaml to options of both Kafka clients.

Problem: both libraries report an unreachable token endpoint only as a broker without an answer.
Choice: the process that connects resolves references right before [11], and gets the first token
itself. Errors name the variable, file or address, never its content. Cost: one more token request.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet.config.spec import ClusterSpec
from fleet.errors import ConfigError, Unreachable
from fleet.kafka_source.connections import kafka_python
from fleet.kafka_source.login import NoToken, references, resolve
from fleet.process_exit import mark_native_callbacks

_WHO: Final = "(named in cluster.security); every process of the fleet needs it"


def client_config(
    cluster: ClusterSpec, bootstrap: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Returns librdkafka's options for the cluster (confluent-kafka).

    All are text except `oauth_cb`, for tokens. Raises ConfigError if a variable is not set or a
    file cannot be read, Unreachable if it gets no token.
    """
    try:
        options = resolve(references(cluster, bootstrap), environ, who=_WHO)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if "oauth_cb" in options:
        mark_native_callbacks()
        try:
            options["oauth_cb"].token()
        except NoToken as error:
            raise Unreachable(
                f"no login to cluster {cluster.name} at {bootstrap}: {error}"
            ) from error
    return options


def kafka_python_config(
    cluster: ClusterSpec, bootstrap: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the same for kafka-python, for requests that librdkafka lacks; raises the same."""
    return kafka_python(client_config(cluster, bootstrap, environ))
