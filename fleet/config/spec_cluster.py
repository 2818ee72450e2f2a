"""How clients reach a cluster, as fleet.yaml says it; part of `fleet.config.spec`.

Secrets are never in the file: these settings name environment variables or files.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """No unknown keys, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _variable(value: str) -> str:
    """ValueError, which does not repeat it, for what is rather a secret than a variable's name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value):
        raise ValueError(
            "names an environment variable: write its name (letters, digits and _), not what it "
            "holds"
        )
    return value


def _place_of_file(value: str) -> str:
    """The same for what a file holds instead of its path."""
    if "\n" in value or "-----BEGIN" in value:
        raise ValueError("names a file: write its path, not what it holds")
    return value


Variable = Annotated[str, AfterValidator(_variable)]
PlaceOfFile = Annotated[str, AfterValidator(_place_of_file)]


def _one_of(model: BaseModel, part: str, *keys: str) -> None:
    """ValueError unless exactly one of these keys is written for a part of a login."""
    if len([key for key in keys if getattr(model, key)]) != 1:
        allowed = f"{', '.join(keys[:-1])} and {keys[-1]}"
        raise ValueError(f"needs exactly one of {allowed} for the {part}")


class Oidc(Strict):
    """Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

    endpoint: Annotated[str, Field(pattern=r"^https?://(\[[^]/@\s]+\]|[^/@:\s]+)(:\d+)?(/\S*)?$")]
    """The token endpoint. `http://` only where nobody listens in between."""
    client_id: str | None = None
    """The id itself: it is no secret. `${NAME}` is read as client_id_env."""
    client_id_env: Variable | None = None
    """Environment variable of the client id."""
    client_id_file: PlaceOfFile | None = None
    """File of the client id."""
    client_secret_env: Variable | None = None
    """Environment variable of the client secret."""
    client_secret_file: PlaceOfFile | None = None
    """File of the client secret."""
    header_urlencode: bool = True
    """URL-encode id and secret in the header (RFC 6749); false: the endpoint does not decode."""
    scope: str | None = None
    """Scope that is asked for."""
    extensions: Mapping[str, Annotated[str, Field(pattern=r"^[^\x00-\x1f,]*$")]] = {}
    """SASL extensions sent along (KIP-342), such as logicalCluster of Confluent Cloud."""
    ca_file: PlaceOfFile | None = None
    """PEM of the authority that signed the endpoint's certificate; None: this machine's own."""

    @model_validator(mode="after")
    def _one_source(self) -> "Oidc":
        _one_of(self, "client id", "client_id", "client_id_env", "client_id_file")
        _one_of(self, "client secret", "client_secret_env", "client_secret_file")
        for name in self.extensions:
            # RFC 7628: letters only; `auth` is the token's own.
            if not (name.isascii() and name.isalpha()) or name == "auth":
                raise ValueError(f"{name!r} is no name of an extension: write letters, not auth")
        return self


class TokenProvider(Strict):
    """Tokens by a function, such as the signer of Amazon MSK: (token, when it expires)."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
    """package.module:function, importable by every process that logs in, Spark's tasks too."""
    arguments: Mapping[str, str] = {}
    """By name; no secrets."""


class Sasl(Strict):
    """Where the SASL credentials are: environment variables or files; a name may be written."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    """sasl.mechanism."""
    username: str | None = None
    """The name itself: it is no secret. `${NAME}` is read as username_env."""
    username_env: Variable | None = None
    """Environment variable of the name."""
    username_file: PlaceOfFile | None = None
    """File of the name."""
    password_env: Variable | None = None
    """Environment variable of the password."""
    password_file: PlaceOfFile | None = None
    """File of the password."""
    oidc: Oidc | None = None
    """Client credentials of mechanism OAUTHBEARER."""
    provider: TokenProvider | None = None
    """What gives tokens for OAUTHBEARER instead."""

    @model_validator(mode="after")
    def _one_source(self) -> "Sasl":
        # Settings that a manager wrote for its workers name every key (fleet.act.revisions).
        written = {name for name in self.model_fields_set if getattr(self, name) is not None}
        written -= {"mechanism"}
        if self.mechanism == "OAUTHBEARER":
            _one_of(self, "tokens", "oidc", "provider")
            if named := sorted(written - {"oidc", "provider"}):
                raise ValueError(f"mechanism OAUTHBEARER logs in with tokens, not by {named[0]}")
            return self
        if named := sorted(written & {"oidc", "provider"}):
            raise ValueError(f"{named[0]} goes with mechanism OAUTHBEARER, not {self.mechanism}")
        _one_of(self, "username", "username", "username_env", "username_file")
        _one_of(self, "password", "password_env", "password_file")
        return self


class Tls(Strict):
    """Paths of PEM files."""

    ca_file: PlaceOfFile | None = None
    """PEM file of the authorities that sign brokers' certificates; absent: the system's."""
    cert_file: PlaceOfFile | None = None
    """A client's certificate, with those of authorities between; brokers that ask for it log in
    by it (mTLS)."""
    key_file: PlaceOfFile | None = None
    """PEM file of the private key."""
    key_password_env: Variable | None = None
    """Environment variable of the key's password."""
    key_password_file: PlaceOfFile | None = None
    """File of the key's password."""

    @model_validator(mode="after")
    def _pair(self) -> "Tls":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs cert_file and key_file together, or neither")
        if self.key_password_env or self.key_password_file:
            _one_of(self, "key's password", "key_password_env", "key_password_file")
            if self.key_file is None:
                raise ValueError("has a key's password, but no cert_file and key_file")
        return self


class Security(Strict):
    """How clients reach the cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """security.protocol."""
    sasl: Sasl | None = None
    """The login of SASL_PLAINTEXT and SASL_SSL."""
    tls: Tls = Tls()
    """Certificates of SSL and SASL_SSL."""

    @model_validator(mode="after")
    def _protocol_fits(self) -> "Security":
        if self.protocol.startswith("SASL_") and self.sasl is None:
            raise ValueError(f"protocol {self.protocol} needs sasl: {{mechanism, username_env, …}}")
        if not self.protocol.startswith("SASL_") and self.sasl is not None:
            raise ValueError(
                f"sasl is given, but protocol {self.protocol} does not log in: "
                "write protocol SASL_SSL or SASL_PLAINTEXT"
            )
        if not self.protocol.endswith("SSL") and self.tls != Tls():
            raise ValueError(
                f"tls is given, but protocol {self.protocol} does not encrypt: "
                "write protocol SSL or SASL_SSL"
            )
        return self


def _addresses(value: str) -> str:
    """`embedded`, or host:port,host:port."""
    for address in [] if value == "embedded" else value.split(","):
        host, _, port = address.strip().rpartition(":")
        if "/" in address:
            raise ValueError(
                "is no host:port: brokers are named without a scheme or a path: not "
                "kafka://broker-1:9092 but broker-1:9092"
            )
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(
                "is no host:port: write broker-1:9092 (a port is from 1 to 65535), several with "
                "commas between, or embedded"
            )
    return value


class ClusterSpec(Strict):
    """One Kafka cluster; its name is part of every key Fleet stores."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "main"
    """Part of every key that Fleet stores, and a label of metrics."""
    bootstrap_servers: Annotated[str, AfterValidator(_addresses)] = "embedded"
    """`embedded` or host:port,host:port."""
    security: Security = Security()
    """How clients reach the cluster."""
