"""A Confluent schema registry: schemas by id and the latest of a subject, each requested once.

Problem: every batch has values whose schemas only the registry has, and Spark's tasks may have
neither access to it nor its password. Choice: the worker asks, by confluent-kafka's own client, and
keeps the answers: the schema of an id never changes. Logins are names of environment variables,
which the worker resolves. Cost: the latest of a subject is the latest at this worker's first batch;
a roll uses a newer one.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fleet.errors import FleetError, Unreachable
from fleet.extras import need

AVRO: Final = "AVRO"
JSON: Final = "JSON"
_TIMEOUT: Final = 10
"""Seconds for one request; two more follow if there is no answer."""
_KEPT: Final = 1000
_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_SCHEMA: Final = 40403
"""The registry's own error codes, beside HTTP's 404."""


class UnreadSchema(FleetError):
    """The registry's answer is no schema here: values that name it cannot be read, others can."""


class UnknownSchema(UnreadSchema):
    """The registry answers and has no such schema."""


class KnownSchema(NamedTuple):
    """kind: AVRO, JSON or another name of the registry's; body: parsed (Avro: by fastavro)."""

    kind: str
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistry:
    """Where it is, and the environment variables of its login.

    url: without user and password. Basic login: user_env and password_env; bearer token: token_env,
    and for Confluent Cloud logical_cluster. ca: a file of certificates.
    """

    url: str
    user_env: str | None = None
    password_env: str | None = None
    token_env: str | None = None
    logical_cluster: str = ""
    ca: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a login that cannot work."""
        if "@" in self.url:
            raise ValueError("url: a user or password in it would be seen: name user_env instead")
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("user_env and password_env belong together")
        if self.user_env is not None and self.token_env is not None:
            raise ValueError("user_env or token_env: one login, not two")

    def schema(self, schema_id: int | str) -> KnownSchema:
        """Returns the schema of an id or a GUID; UnreadSchema, or Unreachable without an answer."""
        return _by_id(self, schema_id)

    def latest(self, subject: str) -> KnownSchema:
        """Returns the subject's latest schema as of the first request for it."""
        return _latest(self, subject)


def avro_of(body: Any, named: dict[str, Any]) -> Any:
    """Returns an Avro schema as fastavro parses it; UnreadSchema if it is invalid."""
    need("fastavro", extra="formats")
    from fastavro.schema import SchemaParseException, parse_schema  # noqa: PLC0415 - an extra

    try:
        return parse_schema(body, named)
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadSchema(f"no Avro schema: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=_KEPT)
def _by_id(registry: SchemaRegistry, schema_id: int | str) -> KnownSchema:
    client = _client(registry)
    by_guid = isinstance(schema_id, str)
    what = f"{'GUID' if by_guid else 'id'} {schema_id}"
    ask = client.get_schema_by_guid if by_guid else client.get_schema
    found = _ask(registry, what, lambda: ask(schema_id))
    return _known(registry, what, found)


@lru_cache(maxsize=_KEPT)
def _latest(registry: SchemaRegistry, subject: str) -> KnownSchema:
    client, what = _client(registry), f"subject {subject}"
    found = _ask(registry, what, lambda: client.get_latest_version(subject))
    return _known(registry, what, found.schema)


def _known(registry: SchemaRegistry, what: str, schema: Any) -> KnownSchema:
    kind = schema.schema_type or AVRO
    try:
        if kind == AVRO:
            named: dict[str, Any] = {}
            _refer(registry, schema, named)
            return KnownSchema(kind, avro_of(_body(schema), named))
        return KnownSchema(kind, _body(schema) if kind == JSON else None)
    except UnknownSchema:
        raise
    except UnreadSchema as error:
        raise UnreadSchema(f"{_place(registry)} gives for {what} {error}") from error


def _body(schema: Any) -> Any:
    try:
        return json.loads(schema.schema_str)
    except (ValueError, TypeError) as error:
        raise UnreadSchema(f"no JSON: {error}") from error


def _refer(registry: SchemaRegistry, schema: Any, named: dict[str, Any]) -> None:
    """Adds the named types that a schema takes from other subjects, theirs first."""
    client = _client(registry)
    for each in schema.references or ():
        found = _ask(
            registry,
            f"subject {each.subject}, version {each.version}",
            lambda each=each: client.get_version(each.subject, each.version),  # type: ignore[misc]
        )
        _refer(registry, found.schema, named)
        if each.name not in named:
            avro_of(_body(found.schema), named)


@lru_cache(maxsize=_KEPT)
def _client(registry: SchemaRegistry) -> Any:
    need("authlib", "cachetools", "attr", "httpx2", extra="formats")
    from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - an extra

    asked: dict[str, Any] = {"url": registry.url, "timeout": _TIMEOUT, "max.retries": 2}
    if registry.user_env is not None and registry.password_env is not None:
        login = f"{_value(registry.user_env)}:{_value(registry.password_env)}"
        asked["basic.auth.user.info"] = login
    if registry.token_env is not None:
        asked["bearer.auth.credentials.source"] = "STATIC_TOKEN"
        asked["bearer.auth.token"] = _value(registry.token_env)
        asked["bearer.auth.logical.cluster"] = registry.logical_cluster
    if registry.ca is not None:
        asked["ssl.ca.location"] = registry.ca
    return SchemaRegistryClient(asked)


def _value(variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        raise FleetError(f"the login to the schema registry is to be in {variable}, not set here")
    return found


def _place(registry: SchemaRegistry) -> str:
    return f"the schema registry at {registry.url}"


def _ask(registry: SchemaRegistry, what: str, ask: Callable[[], Any]) -> Any:
    from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415
    from httpx2 import HTTPError  # noqa: PLC0415 - an extra

    where = _place(registry)
    try:
        return ask()
    except SchemaRegistryError as error:
        if error.error_code in {_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA}:
            raise UnknownSchema(f"{where} has no schema of {what}") from error
        raise Unreachable(f"{where} refuses {what}: {error}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise Unreachable(f"{where} does not answer for {what}: {error}") from error
