"""`security:` of fleet.yaml out of a client.properties, of Kafka's Java clients or of librdkafka.

Problem: whoever reaches a cluster today has such a file for it, often with a secret in it. Choice:
known keys are translated; a secret's value is dropped at once, and a variable's name is asked for
in its place; what the clients here cannot read (Java's keystores and login handlers) is refused
with what to do. Pure: text in, values out. Cost: keys that have nothing to do with the login are
left out, and said so.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fleet.errors import ConfigError

_KEYS: Final = {
    "security.protocol": "protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.username",
    "sasl.password": "sasl.password",
    "sasl.oauthbearer.token.endpoint.url": "sasl.oidc.endpoint",
    "sasl.oauthbearer.client.id": "sasl.oidc.client_id",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oidc.client_id",
    "sasl.oauthbearer.client.secret": "sasl.oidc.client_secret",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oidc.client_secret",
    "sasl.oauthbearer.scope": "sasl.oidc.scope",
    "https.ca.location": "sasl.oidc.ca_file",
    "ssl.ca.location": "tls.ca_file",
    "ssl.certificate.location": "tls.cert_file",
    "ssl.key.location": "tls.key_file",
    "ssl.key.password": "tls.key_password",
}
"""Both libraries' keys, and where they stand under `security:`."""
_JAAS: Final = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": "sasl.oidc.client_id",
    "clientSecret": "sasl.oidc.client_secret",
    "scope": "sasl.oidc.scope",
}
_SECRETS: Final = frozenset({"sasl.password", "sasl.oidc.client_secret", "tls.key_password"})
_SILENT: Final = frozenset(
    {
        *("sasl.oauthbearer.method", "sasl.login.callback.handler.class", "ssl.truststore.type"),
        *("ssl.keystore.type", "ssl.endpoint.identification.algorithm"),
    }
)
_STORES: Final = {"truststore": ("ca_file",), "keystore": ("cert_file", "key_file")}
_INLINE: Final = {
    "ssl.truststore.certificates": "ssl.ca.location",
    "ssl.ca.pem": "ssl.ca.location",
    "ssl.keystore.certificate.chain": "ssl.certificate.location",
    "ssl.certificate.pem": "ssl.certificate.location",
    "ssl.keystore.key": "ssl.key.location",
    "ssl.key.pem": "ssl.key.location",
}
"""Keys that hold PEM text itself, and what names a file of it."""
_KNOWN: Final = frozenset(
    {
        *(*_KEYS, *_SILENT, "sasl.jaas.config", "sasl.oauthbearer.extensions"),
        *("bootstrap.servers", "metadata.broker.list"),
        *(f"ssl.{store}.{what}" for store in _STORES for what in ("location", "password")),
    }
)
"""All keys that are looked at."""
_PAIR: Final = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')


class ClientProperties(NamedTuple):
    """What such a file says."""

    security: dict[str, Any]
    """As under `security:`, without any secret."""
    bootstrap: str | None
    left_out: tuple[str, ...]
    """Keys that were not looked at."""


def client_properties(text: str, *, file: str, variables: Mapping[str, str]) -> ClientProperties:
    """`variables`: key of a secret under `security:` → environment variable that will hold it.

    Raises ConfigError where a secret has no variable, where something cannot be translated, and
    where no line has to do with a cluster or a login: the file is something else then.
    """
    given = _pairs(text)
    _refuse_inline(given, file)
    if not given.keys() & _KNOWN:
        raise ConfigError(
            f"{file} holds no key of a client.properties (security.protocol, sasl.…, ssl.…, "
            "bootstrap.servers): as YAML, with a `security:` block, a file is read whose name ends "
            "in .yaml or .yml"
        )
    bootstrap = given.pop("bootstrap.servers", given.pop("metadata.broker.list", None))
    found = _stores(given, file) | _translated(given)
    _refuse_foreign(found, file)
    unknown = sorted(variables.keys() - found.keys())
    if unknown:
        held = ", ".join(sorted(found.keys() & _SECRETS)) or "none"
        raise ConfigError(f"--secret-env {unknown[0]}: {file} has no such secret (it has: {held})")
    security: dict[str, Any] = {}
    for key, value in found.items():
        path, written = key, value
        if key in _SECRETS:
            if key not in variables:
                raise ConfigError(_asked(key, file))
            path, written = f"{key}_env", variables[key]
        *steps, last = path.split(".")
        holder = security
        for step in steps:
            holder = holder.setdefault(step, {})
        holder[last] = written
    return ClientProperties(security, bootstrap, tuple(sorted(given.keys() - _KNOWN)))


def _translated(given: Mapping[str, str]) -> dict[str, str]:
    """Paths under `security:` with their values, secrets among them."""
    found = {_KEYS[key]: value for key, value in given.items() if key in _KEYS}
    if "protocol" in found:
        found["protocol"] = found["protocol"].upper()
    for name, quoted, bare in _PAIR.findall(given.get("sasl.jaas.config", "")):
        value = re.sub(r"\\(.)", r"\1", quoted) or bare
        if name in _JAAS:
            found[_JAAS[name]] = value
        elif name.startswith("extension_"):
            found[f"sasl.oidc.extensions.{name[10:]}"] = value
    for each in filter(None, given.get("sasl.oauthbearer.extensions", "").split(",")):
        name, _, value = each.partition("=")
        found[f"sasl.oidc.extensions.{name.strip()}"] = value.strip()
    return found


def _asked(key: str, file: str) -> str:
    name = f"KAFKA_{key.rpartition('.')[2].upper()}"
    return (
        f"{file} holds a secret ({key}), which is never written into fleet.yaml: put its value "
        f"into an environment variable, and name that: --secret-env {key}={name}"
    )


def _stores(given: dict[str, str], file: str) -> dict[str, str]:
    """Java's trust and key stores: PEM files are what the clients here read, others are not."""
    found: dict[str, str] = {}
    for kind, keys in _STORES.items():
        where = given.pop(f"ssl.{kind}.location", None)
        given.pop(f"ssl.{kind}.password", None)
        if where is None:
            continue
        if given.get(f"ssl.{kind}.type", "JKS").upper() != "PEM":
            raise ConfigError(
                f"{file}: ssl.{kind}.location is a Java {kind}, which only Java reads: export PEM "
                f"files out of it (`keytool -importkeystore -destkeystore {kind}.p12`, then "
                f"`openssl pkcs12 -in {kind}.p12 -out {kind}.pem`) and name "
                + (
                    "that as ssl.ca.location"
                    if kind == "truststore"
                    else "it as ssl.certificate.location and ssl.key.location"
                )
            )
        found |= {f"tls.{key}": where for key in keys}
    return found


def _refuse_inline(given: Mapping[str, str], file: str) -> None:
    for key in sorted(given.keys() & _INLINE.keys()):
        raise ConfigError(
            f"{file}: {key} holds the PEM text itself, and fleet.yaml only names files: write it "
            f"into a file of its own, and {_INLINE[key]}=FILE in place of {key}"
        )


def _refuse_foreign(found: Mapping[str, str], file: str) -> None:
    mechanism = found.get("sasl.mechanism", "")
    if mechanism == "AWS_MSK_IAM":
        raise ConfigError(
            f"{file}: sasl.mechanism AWS_MSK_IAM is Java's alone: other clients log in to MSK by "
            "OAUTHBEARER with Amazon's signer; write that as YAML, see `MSK` in docs/security.md"
        )
    if mechanism == "GSSAPI":
        raise ConfigError(f"{file}: sasl.mechanism GSSAPI (Kerberos) is not supported")


def _pairs(text: str) -> dict[str, str]:
    """key=value lines, as java.util.Properties reads them; the last of a key wins."""
    found: dict[str, str] = {}
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    for line in joined.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = re.match(r"([^\s=:]+)\s*[=:\s]\s*(.*)", stripped)
        if match:
            found[match[1]] = re.sub(r"\\([:=#!\\])", r"\1", match[2])
    return found
