"""How a process of Fleet itself logs in: what fleet.yaml refers to, as options of both clients.

References travel, and are resolved in the process that connects, right before [11]. Where tokens
log in, the first one is got here: both libraries would say of a token endpoint that is away only
that nobody answered, and librdkafka that after ten seconds. Errors name the variable, file or
address, never what it holds.
"""

from collections.abc import Mapping
from typing import Any, Final

from fleet.config.spec import ClusterSpec
from fleet.errors import ConfigError, Unreachable
from fleet.kafka_source.connections import kafka_python
from fleet.kafka_source.login import NoToken, references, resolve
from fleet.process_exit import mark_native_callbacks

_WHO: Final = "(cluster.security names it): every process of the fleet needs it"


def client_config(
    cluster: ClusterSpec, bootstrap: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Options of librdkafka for reaching the cluster (confluent-kafka).

    Text, but for `oauth_cb` where tokens log in. Raises ConfigError where a variable is not set or
    a file cannot be read, Unreachable where no token can be got.
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
                f"nobody can log in to cluster {cluster.name} at {bootstrap}: {error}"
            ) from error
    return options


def kafka_python_config(
    cluster: ClusterSpec, bootstrap: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The same as arguments of kafka-python, for requests that librdkafka lacks; may raise so."""
    return kafka_python(client_config(cluster, bootstrap, environ))
