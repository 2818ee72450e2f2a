"""How clients reach a cluster, as fleet.yaml says it; part of `fleet.config.spec`.

Secrets are never in the file: these settings name environment variables or files.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strict(BaseModel):
    """No unknown keys, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Sasl(Strict):
    """Where the SASL credentials are: environment variables or files; a name may be written."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: str | None = None
    """The name itself: it is no secret. `${NAME}` is read as username_env."""
    username_env: str | None = None
    username_file: str | None = None
    password_env: str | None = None
    password_file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "Sasl":
        for part, keys in (
            ("username", ("username", "username_env", "username_file")),
            ("password", ("password_env", "password_file")),
        ):
            if len([key for key in keys if getattr(self, key)]) != 1:
                allowed = f"{', '.join(keys[:-1])} and {keys[-1]}"
                raise ValueError(f"needs exactly one of {allowed} for the {part}")
        return self


class Tls(Strict):
    """Paths of PEM files."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @model_validator(mode="after")
    def _pair(self) -> "Tls":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs cert_file and key_file together, or neither")
        return self


class Security(Strict):
    """How clients reach the cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl: Sasl | None = None
    tls: Tls = Tls()

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


class ClusterSpec(Strict):
    """One Kafka cluster; its name is part of every key Fleet stores."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "main"
    bootstrap_servers: str = "embedded"
    """`embedded` or host:port,host:port."""
    security: Security = Security()
