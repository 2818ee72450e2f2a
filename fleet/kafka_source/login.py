"""How a client logs in: references travel, values are read where it connects [11].

Problem: fleet.yaml names where credentials are, two client libraries want them as options, and
whatever is an option of a DataFrame stands in plans, logs and Spark's UI. Choice: each client
option is told as where to find it (an environment variable, a file, or a plain value for what is
no secret) and resolved in the process that connects, right before. Tokens are no option: what they
are got with becomes one `oauth_cb` (fleet.kafka_source.tokens). Cost: variables and files have to
exist on every machine of a Spark cluster under the same names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fleet.config.spec import ClusterSpec, Sasl
from fleet.kafka_source.tokens import TokenSource

References = Mapping[str, Mapping[str, str]]
"""librdkafka option → {"env" | "file" | "path" | "value": …}; a path is that of a file there."""
TASK: Final = "for this Spark task: the Spark server and every executor need it"


def references(cluster: ClusterSpec, bootstrap: str) -> dict[str, dict[str, str]]:
    """Where a client finds what it needs to reach the cluster; holds no secret."""
    security = cluster.security
    found: dict[str, dict[str, str]] = {
        "bootstrap.servers": {"value": bootstrap},
        "security.protocol": {"value": security.protocol},
    }
    if security.sasl is not None:
        found["sasl.mechanism"] = {"value": security.sasl.mechanism}
        found |= _sasl(security.sasl)
    tls = security.tls
    for option, file in (
        ("ssl.ca.location", tls.ca_file),
        ("ssl.certificate.location", tls.cert_file),
        ("ssl.key.location", tls.key_file),
    ):
        if file is not None:
            found[option] = {"path": file}
    if tls.key_password_env or tls.key_password_file:
        found["ssl.key.password"] = _where(tls, "key_password")
    return found


def _sasl(sasl: Sasl) -> dict[str, dict[str, str]]:
    if sasl.provider is not None:
        named = {
            f"{TokenSource.ARGUMENT}{name}": {"value": value}
            for name, value in sasl.provider.arguments.items()
        }
        return {TokenSource.FUNCTION: {"value": sasl.provider.function}, **named}
    if sasl.oidc is None:
        return {part: _where(sasl, part[5:]) for part in ("sasl.username", "sasl.password")}
    oidc = sasl.oidc
    found = {
        TokenSource.ENDPOINT: {"value": oidc.endpoint},
        TokenSource.CLIENT: _where(oidc, "client_id"),
        TokenSource.SECRET: _where(oidc, "client_secret"),
    }
    if not oidc.header_urlencode:
        found[TokenSource.URLENCODE] = {"value": "false"}
    if oidc.scope is not None:
        found[TokenSource.SCOPE] = {"value": oidc.scope}
    if oidc.ca_file is not None:
        found[TokenSource.CA] = {"path": oidc.ca_file}
    if oidc.extensions:
        told = ",".join(f"{name}={value}" for name, value in oidc.extensions.items())
        found[TokenSource.EXTENSIONS] = {"value": told}
    return found


def _where(holder: Any, part: str) -> dict[str, str]:
    for kind in ("env", "file"):
        if name := getattr(holder, f"{part}_{kind}"):
            return {kind: str(name)}
    return {"value": str(getattr(holder, part))}  # a name may stand in the file, a secret may not


def resolved(
    references: References, environ: Mapping[str, str], *, who: str = TASK
) -> dict[str, Any]:
    """The options themselves, read on this machine; ValueError names what is missing, and for whom.

    All are text, but for `oauth_cb`, which gives tokens; kafka_python() understands that, too.
    """
    options: dict[str, Any] = {
        option: _found(option, where, environ, who) for option, where in references.items()
    }
    if options.get("sasl.mechanism") == "OAUTHBEARER":
        options["oauth_cb"] = TokenSource.out_of(options)
    return options


def _found(option: str, where: Mapping[str, str], environ: Mapping[str, str], who: str) -> str:
    ((kind, name),) = where.items()
    if kind == "value":
        return name
    if kind == "env":
        if not environ.get(name):
            state = "is empty" if name in environ else "is not set"
            raise ValueError(f"{option}: the environment variable {name} {state} {who}")
        return environ[name]
    try:
        path = Path(name).expanduser()
        there = path.is_file()
    except (OSError, RuntimeError) as error:  # a folder that may not be searched; no such home
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{option}: the file {name} cannot be looked up ({why}) {who}") from error
    if not there:
        raise ValueError(f"{option}: the file {path} does not exist {who}")
    if kind == "path":
        return str(path)
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option}: the file {path} cannot be read as text {who}") from error
    if not text:
        raise ValueError(f"{option}: the file {path} is empty {who}")
    return text
