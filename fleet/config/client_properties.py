"""Translates a client.properties of Kafka's Java clients or of librdkafka to `security:`.

Problem: users of a cluster often have such a file, with a secret in it. Choice: known keys are
translated. A secret's value is dropped at once, and the user names a variable for it. Java's
keystores and login handlers are refused, with the next step. The file and its JAAS line are parsed
by the grammars of Kafka's clients, so that a secret cannot look like another option. Pure: text in,
values out. Cost: keys without a setting in fleet.yaml are left out and listed.

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
"""Keys of both libraries, and their places under `security:`."""
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
"""Keys whose matching values are the clients' own behaviour."""
_STORES: Final = {"truststore": ("ca_file",), "keystore": ("cert_file", "key_file")}
_INLINE: Final = {
    "ssl.truststore.certificates": "ssl.ca.location",
    "ssl.ca.pem": "ssl.ca.location",
    "ssl.keystore.certificate.chain": "ssl.certificate.location",
    "ssl.certificate.pem": "ssl.certificate.location",
    "ssl.keystore.key": "ssl.key.location",
    "ssl.key.pem": "ssl.key.location",
}
"""Keys that hold PEM text, and the keys that name a PEM file."""
_KNOWN: Final = frozenset(
    {
        *(*_KEYS, *_SILENT, "sasl.jaas.config", "sasl.oauthbearer.extensions"),
        *("bootstrap.servers", "metadata.broker.list"),
        *(f"ssl.{store}.{what}" for store in _STORES for what in ("location", "password")),
    }
)
"""Keys that are read."""
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
    """Holds the content of such a file."""

    security: dict[str, Any]
    """The block `security:`, without any secret."""
    bootstrap: str | None
    left_out: tuple[str, ...]
    """Keys without a setting in fleet.yaml."""


def client_properties(text: str, *, file: str, variables: Mapping[str, str]) -> ClientProperties:
    """Translates a file; `variables` maps keys of secrets to environment variables.

    Raises ConfigError if a secret has no variable, if a key cannot be translated, or if no line
    concerns a cluster or a login.
    """
    given = {key: value.strip() for key, value in _pairs(text, file)}
    _refuse_inline(given, file)
    if not given.keys() & _KNOWN:
        raise ConfigError(
            f"{file} has no key of a client.properties (security.protocol, sasl.…, ssl.…, "
            "bootstrap.servers); for a YAML file with a `security:` block, use a name that ends in "
            ".yaml or .yml"
        )
    bootstrap = given.pop("bootstrap.servers", given.pop("metadata.broker.list", None))
    login = _jaas(given["sasl.jaas.config"], file) if "sasl.jaas.config" in given else {}
    found = _stores(given, file) | _translated(given, login)
    _refuse_external(found, file)
    if any(path.startswith("sasl.oidc.") for path in found):
        found = {"sasl.oidc.header_urlencode": "false"} | found  # as these clients do by default
    unknown = sorted(variables.keys() - found.keys())
    if unknown:
        known = ", ".join(sorted(found.keys() & _SECRETS)) or "none"
        raise ConfigError(f"--secret-env {unknown[0]}: {file} has no such secret; it has {known}")
    security: dict[str, Any] = {}
    for key, value in found.items():
        path, written = key, value
        if key in _SECRETS:
            if key not in variables:
                raise ConfigError(_need_variable(key, file))
            path, written = f"{key}_env", variables[key]
        *steps, last = path.split(".")
        owner = security
        for step in steps:
            owner = owner.setdefault(step, {})
        owner[last] = written
    return ClientProperties(security, bootstrap, tuple(sorted(set(_left_out(given, login)))))


def _left_out(given: Mapping[str, str], login: Mapping[str, str]) -> Iterator[str]:
    """Yields the ignored keys; an unknown line may be a part of a secret and is not quoted."""
    for key, value in given.items():
        usual = _SILENT.get(key)
        if key not in _KNOWN and not (value and re.fullmatch(r"[a-z]+|.+\..+", key)):
            yield "a line that is not KEY=VALUE of a client"
        elif key not in _KNOWN or (usual is not None and not re.fullmatch(usual, value)):
            yield key
    for name in login.keys() - _JAAS.keys():
        if not name.startswith(_EXTENSION):
            yield f"sasl.jaas.config: {name}"


def _translated(given: Mapping[str, str], login: Mapping[str, str]) -> dict[str, str]:
    """Returns paths under `security:` with their values, secrets included."""
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


def _need_variable(key: str, file: str) -> str:
    name = f"KAFKA_{key.rpartition('.')[2].upper()}"
    return (
        f"{file} holds a secret ({key}), which fleet.yaml must not hold: put its value into an "
        f"environment variable, and add --secret-env {key}={name}"
    )


def _stores(given: dict[str, str], file: str) -> dict[str, str]:
    """Translates Java's trust and key stores; only PEM files are readable here."""
    found: dict[str, str] = {}
    for kind, keys in _STORES.items():
        where = given.pop(f"ssl.{kind}.location", None)
        given.pop(f"ssl.{kind}.password", None)
        if where is None:
            continue
        if given.get(f"ssl.{kind}.type", "JKS").upper() != "PEM":
            raise ConfigError(
                f"{file}: ssl.{kind}.location is a Java {kind}, which only Java reads: export PEM "
                f"files from it (`keytool -importkeystore -destkeystore {kind}.p12`, then "
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
            f"{file}: {key} holds PEM text, and fleet.yaml only names files: move it to a file and "
            f"write {_INLINE[key]}=FILE instead of {key}"
        )


def _refuse_external(found: Mapping[str, str], file: str) -> None:
    mechanism = found.get("sasl.mechanism", "")
    if mechanism == "AWS_MSK_IAM":
        raise ConfigError(
            f"{file}: only Java knows sasl.mechanism AWS_MSK_IAM; use OAUTHBEARER with Amazon's "
            "signer in a YAML file, see `MSK` in the page how-to/security"
        )
    if mechanism == "GSSAPI":
        raise ConfigError(f"{file}: sasl.mechanism GSSAPI (Kerberos) is not supported")


def _pairs(text: str, file: str) -> Iterator[tuple[str, str]]:
    """Yields keys and values as java.util.Properties.load reads them; the last of a key wins."""
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
            raise ConfigError(f"{file}: a \\u needs four hexadecimal digits after it")
        return _LETTERS.get(what, what)

    pairs = _ESCAPED.sub(meant, text).encode("utf-16", "surrogatepass")
    return pairs.decode("utf-16", "replace")


def _jaas(text: str, file: str) -> dict[str, str]:
    """Returns the options of a JAAS line. Errors do not quote it: any part may be secret."""
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
                raise _odd_jaas(file, "continues after its `;`: only one login module is allowed")
            return found
        if signs[at : at + 3] != [None, "=", None]:
            raise _odd_jaas(file, f"has no KEY=VALUE as option {at // 3 + 1}")
        found[words[at]] = words[at + 2]
    raise _odd_jaas(file, "does not end with `;`")


def _odd_jaas(file: str, what: str) -> ConfigError:
    return ConfigError(
        f'{file}: sasl.jaas.config {what}; write MODULE required KEY="VALUE" …; with quotes '
        "around each value that is not a plain word"
    )


def _octal_or_letter(escape: re.Match[str]) -> str:
    what = escape[1]
    return chr(int(what, 8)) if what.isdecimal() and what < "8" else _QUOTED_LETTERS.get(what, what)
