"""`security:` of fleet.yaml out of a client.properties, of Kafka's Java clients or of librdkafka.

Problem: whoever reaches a cluster today has such a file for it, often with a secret in it. Choice:
known keys are translated; a secret's value is dropped at once, and a variable's name is asked for
in its place; what the clients here cannot read (Java's keystores and login handlers) is refused
with what to do. The file and its JAAS line are read by the grammars that Kafka's clients read them
by, so that no text of a secret can be taken for another option. Pure: text in, values out. Cost:
keys that fleet.yaml has no setting for are left out, and named.

Source: java.util.Properties.load; Kafka's JaasConfig.java, which sets up java.io.StreamTokenizer.
"""

import re
from collections.abc import Iterator, Mapping
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
    "sasl.oauthbearer.header.urlencode": "sasl.oidc.header_urlencode",
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
_EXTENSION: Final = "extension_"
_SECRETS: Final = frozenset({"sasl.password", "sasl.oidc.client_secret", "tls.key_password"})
_SILENT: Final = {
    "sasl.oauthbearer.method": r"(?i:oidc)",
    "sasl.login.callback.handler.class": r".*\.OAuthBearerLoginCallbackHandler",
    "ssl.truststore.type": r".*",
    "ssl.keystore.type": r".*",
    "ssl.endpoint.identification.algorithm": r"(?i:https)",
}
"""Keys that say what the clients here do anyway, where they have such a value."""
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
_BLANK: Final = " \t\f"
_PAIR: Final = re.compile(rf"((?:\\.|[^\\{_BLANK}=:])*)[{_BLANK}]*[=:]?[{_BLANK}]*(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TOKEN: Final = re.compile(
    r"""
    (?P<nothing> [\x00-\x20]+ | /\*.*?\*/ | /[^\r\n]* )
    | (?P<word> [A-Za-z_$\u00a0-\U0010ffff] [-.\w$\u00a0-\U0010ffff]* )
    | (?P<quote> ["'] ) (?P<quoted> (?: \\. | (?!(?P=quote)) [^\\\r\n] )* ) (?P=quote)
    | (?P<sign> . )
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTED: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_QUOTED_LETTERS: Final = {**_LETTERS, "a": "\a", "b": "\b", "v": "\v"}
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


class ClientProperties(NamedTuple):
    """What such a file says."""

    security: dict[str, Any]
    """As under `security:`, without any secret."""
    bootstrap: str | None
    left_out: tuple[str, ...]
    """Keys that fleet.yaml has no setting for."""


def client_properties(text: str, *, file: str, variables: Mapping[str, str]) -> ClientProperties:
    """`variables`: key of a secret under `security:` → environment variable that will hold it.

    Raises ConfigError where a secret has no variable, where something cannot be translated, and
    where no line has to do with a cluster or a login: the file is something else then.
    """
    given = {key: value.strip() for key, value in _pairs(text, file)}
    _refuse_inline(given, file)
    if not given.keys() & _KNOWN:
        raise ConfigError(
            f"{file} holds no key of a client.properties (security.protocol, sasl.…, ssl.…, "
            "bootstrap.servers): as YAML, with a `security:` block, a file is read whose name ends "
            "in .yaml or .yml"
        )
    bootstrap = given.pop("bootstrap.servers", given.pop("metadata.broker.list", None))
    login = _jaas(given["sasl.jaas.config"], file) if "sasl.jaas.config" in given else {}
    found = _stores(given, file) | _translated(given, login)
    _refuse_external(found, file)
    if any(path.startswith("sasl.oidc.") for path in found):
        found = {"sasl.oidc.header_urlencode": "false"} | found  # as these clients do by default
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
        owner = security
        for step in steps:
            owner = owner.setdefault(step, {})
        owner[last] = written
    return ClientProperties(security, bootstrap, tuple(sorted(set(_left_out(given, login)))))


def _left_out(given: Mapping[str, str], login: Mapping[str, str]) -> Iterator[str]:
    """What is not taken over; a line that is no key of a client's may be a part of a secret."""
    for key, value in given.items():
        usual = _SILENT.get(key)
        if key not in _KNOWN and not (value and re.fullmatch(r"[a-z]+|.+\..+", key)):
            yield "a line that is no KEY=VALUE of a client"
        elif key not in _KNOWN or (usual is not None and not re.fullmatch(usual, value)):
            yield key
    for name in login.keys() - _JAAS.keys():
        if not name.startswith(_EXTENSION):
            yield f"sasl.jaas.config: {name}"


def _translated(given: Mapping[str, str], login: Mapping[str, str]) -> dict[str, str]:
    """Paths under `security:` with their values, secrets among them."""
    found = {_KEYS[key]: value for key, value in given.items() if key in _KEYS}
    if "protocol" in found:
        found["protocol"] = found["protocol"].upper()
    for name, value in login.items():
        if name in _JAAS:
            found[_JAAS[name]] = value
        elif name.startswith(_EXTENSION):
            found[f"sasl.oidc.extensions.{name.removeprefix(_EXTENSION)}"] = value
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


def _refuse_external(found: Mapping[str, str], file: str) -> None:
    mechanism = found.get("sasl.mechanism", "")
    if mechanism == "AWS_MSK_IAM":
        raise ConfigError(
            f"{file}: sasl.mechanism AWS_MSK_IAM is Java's alone: other clients log in to MSK by "
            "OAUTHBEARER with Amazon's signer; write that as YAML, documentation: how-to/security"
        )
    if mechanism == "GSSAPI":
        raise ConfigError(f"{file}: sasl.mechanism GSSAPI (Kerberos) is not supported")


def _pairs(text: str, file: str) -> Iterator[tuple[str, str]]:
    """Keys and values as java.util.Properties.load reads them; of a key the last one counts."""
    lines = iter(re.split(r"\r\n?|\n", text))
    for line in lines:
        whole = line.lstrip(_BLANK)
        if whole.startswith(("#", "!")):
            continue
        while (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1] + next(lines, "").lstrip(_BLANK)
        if whole:
            pair = _PAIR.fullmatch(whole)
            assert pair is not None  # whatever a line holds
            key = _unescaped(pair[1], file)
            yield key, _unescaped(pair[2], file)


def _unescaped(text: str, file: str) -> str:
    def meant(escape: re.Match[str]) -> str:
        what = escape[1]
        if len(what) > 1:
            return chr(int(what[1:], 16))
        if what == "u":
            raise ConfigError(f"{file}: a \\u without four hexadecimal digits stands in a line")
        return _LETTERS.get(what, what)

    pairs = _ESCAPED.sub(meant, text).encode("utf-16", "surrogatepass")
    return pairs.decode("utf-16", "replace")


def _jaas(text: str, file: str) -> dict[str, str]:
    """Options of a JAAS line by name. Errors quote nothing of it: any part may be a secret's."""
    tokens = [each for each in _TOKEN.finditer(text) if each["nothing"] is None]
    signs = [each["sign"] for each in tokens]
    words = [
        each["word"] if each["quoted"] is None else _QUOTED.sub(_octal_or_letter, each["quoted"])
        for each in tokens
    ]
    if signs[:2] != [None, None] or words[1].lower() not in _FLAGS:
        raise _odd_jaas(file, "does not begin with a login module's class and `required`")
    found: dict[str, str] = {}
    for at in range(2, len(tokens), 3):
        if signs[at] == ";":
            if at + 1 < len(tokens):
                raise _odd_jaas(file, "goes on behind its `;`: one login module is read")
            return found
        if signs[at : at + 3] != [None, "=", None]:
            raise _odd_jaas(file, f"has no KEY=VALUE as its option {at // 3 + 1}")
        found[words[at]] = words[at + 2]
    raise _odd_jaas(file, "does not end with `;`")


def _odd_jaas(file: str, what: str) -> ConfigError:
    return ConfigError(
        f'{file}: sasl.jaas.config {what}; write MODULE required KEY="VALUE" …; with each value '
        "that is no plain word in quotes, as Kafka's own clients want it"
    )


def _octal_or_letter(escape: re.Match[str]) -> str:
    what = escape[1]
    return chr(int(what, 8)) if what.isdecimal() and what < "8" else _QUOTED_LETTERS.get(what, what)
