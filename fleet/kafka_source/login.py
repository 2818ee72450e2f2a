"""Logs in: references are sent, values are read in the process that connects [11].

Problem: fleet.yaml names where credentials are, and two client libraries want them as options. Any
option of a DataFrame appears in plans, logs and Spark's UI. Choice: each client option is a
reference (an environment variable, a file, or a plain value that is no secret). It is resolved in
the process that connects, right before. Tokens are no option: a token source is, and it fetches
them when asked. Cost: every machine that runs tasks needs the variables and files.
"""

from __future__ import annotations  # cloudpickle does not see the names in a class's body

import base64
import json
import ssl
import sys
import threading
import time
import types
from collections.abc import Mapping
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from fleet.config.spec import ClusterSpec, Sasl

# Bearer tokens (OAUTHBEARER, RFC 7628) for both client libraries, from one source: client
# credentials (RFC 6749, 4.4) or a function by name. A process keeps a token until three quarters of
# its time are over; both libraries ask again later than that (KIP-368). Spark's tasks get this code
# by value, anew for each task, so a process keeps its tokens under a name among its modules.


_TIMEOUT: Final = 3.0
_MOST: Final = 1 << 20
_FRESH: Final = 0.75
_USUAL: Final = 300.0
"""Seconds for which a token is used if the endpoint does not say (RFC 6749 recommends to say)."""
_MILLISECONDS: Final = 1e11
"""A later time is in milliseconds, as Amazon's signer returns it: in seconds it is the year 5138.
"""
_KEPT: Final = "_fleet_tokens"


class NoToken(ConnectionError):
    """No token is available; the text says from where and why."""


class Token(NamedTuple):
    """A token to log in with. `expires` is wall time, the other two are of the monotonic clock."""

    value: str
    expires: float
    renew: float
    ends: float


class TokenSource:
    """Supplies tokens, also as librdkafka's `oauth_cb`. Equal sources share their tokens."""

    ENDPOINT: ClassVar = "sasl.oauthbearer.token.endpoint.url"
    CLIENT: ClassVar = "sasl.oauthbearer.client.id"
    SECRET: ClassVar = "sasl.oauthbearer.client.secret"  # noqa: S105 - a name
    URLENCODE: ClassVar = "sasl.oauthbearer.header.urlencode"
    SCOPE: ClassVar = "sasl.oauthbearer.scope"
    EXTENSIONS: ClassVar = "sasl.oauthbearer.extensions"
    CA: ClassVar = "https.ca.location"
    FUNCTION: ClassVar = "fleet.token.function"
    ARGUMENT: ClassVar = "fleet.token.argument."
    """librdkafka's names where it has any, else those of Kafka's Java clients."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def __repr__(self) -> str:
        """Shows no option, because one is a secret."""
        return "TokenSource()"

    @classmethod
    def out_of(cls, options: dict[str, Any]) -> TokenSource:
        """Returns the token source of a client's options and removes its options."""
        ours = (
            *(cls.ENDPOINT, cls.CLIENT, cls.SECRET, cls.URLENCODE, cls.SCOPE, cls.EXTENSIONS),
            *(cls.CA, cls.FUNCTION),
        )
        named = [name for name in options if name in ours or name.startswith(cls.ARGUMENT)]
        return cls({name: options.pop(name) for name in named})

    def extensions(self) -> dict[str, str]:
        """Returns what is sent with the token (KIP-342)."""
        told = self._options.get(self.EXTENSIONS, "")
        pairs = (each.partition("=") for each in told.split(",") if each)
        return {name: value for name, _, value in pairs}

    def __call__(self, _: object) -> tuple[str, float, str, dict[str, str]]:
        """Returns a token for librdkafka, which asks again after four fifths of the rest."""
        token = self.token()
        return token.value, token.expires, "fleet", self.extensions()

    def token(self) -> Token:
        """Returns a valid token, a new one if the last is no longer fresh. Raises NoToken."""
        kept, lock = _kept()
        key = tuple(sorted(self._options.items()))
        with lock:
            known, began = kept.get(key), time.monotonic()
            if known is not None and began < known.renew:
                return known
            try:
                value, expires = self._new(time.time())
            except NoToken:
                if known is not None and time.monotonic() < known.ends - 1:
                    return known
                raise
            left = expires - time.time()
            if left <= 0:
                raise NoToken(
                    f"{self._place()} returned a token that expired {-left:.0f} s ago: compare its "
                    "clock with this machine's"
                )
            kept[key] = Token(value, expires, began + _FRESH * left, began + left)
            return kept[key]

    def _place(self) -> str:
        if self.FUNCTION in self._options:
            return f"the token function {self._options[self.FUNCTION]}"
        return f"the token endpoint {self._options[self.ENDPOINT]}"

    def _new(self, now: float) -> tuple[str, float]:
        if self.FUNCTION in self._options:
            return self._called()
        answer = self._answer()
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise NoToken(f"{self._place()} answers without an access_token: check its path")
        try:
            return token, now + float(answer["expires_in"])
        except (KeyError, TypeError, ValueError):
            return token, _expiry(token) or now + _USUAL

    def _called(self) -> tuple[str, float]:
        name = self._options[self.FUNCTION]
        module, _, path = name.partition(":")
        try:
            found: Any = import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise NoToken(
                f"the token function {name} cannot be imported ({error}): install its package "
                "on every machine that runs Fleet or Spark's tasks"
            ) from error
        start = len(self.ARGUMENT)
        arguments = {k[start:]: v for k, v in self._options.items() if k.startswith(self.ARGUMENT)}
        try:
            token, expires = found(**arguments)
            moment = float(expires)
        except Exception as error:  # the user's code
            raise NoToken(
                f"the token function {name} fails ({type(error).__name__}: {error}); it has to "
                "return the token and its expiry, in seconds or milliseconds since 1970"
            ) from error
        return str(token), moment / 1000 if moment > _MILLISECONDS else moment

    def _answer(self) -> dict[str, Any]:
        """Returns the endpoint's answer to the credentials (RFC 6749, 2.3.1, 4.4 and 5)."""
        given = self._options
        part = str if given.get(self.URLENCODE) == "false" else quote_plus
        login = f"{part(given[self.CLIENT])}:{part(given[self.SECRET])}"
        body = {"grant_type": "client_credentials"}
        if self.SCOPE in given:
            body["scope"] = given[self.SCOPE]
        request = Request(  # noqa: S310 - http or https, see fleet.config.spec
            given[self.ENDPOINT],
            data=urlencode(body).encode(),
            headers={
                "Accept": "application/json",
                "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
            },
        )
        try:
            trust = ssl.create_default_context(cafile=given.get(self.CA))
            # No redirects: one would send the login to another server.
            ask = build_opener(HTTPSHandler(context=trust), _NoRedirect())
            with ask.open(request, timeout=_TIMEOUT) as answer:
                text = answer.read(_MOST)
        except HTTPError as error:
            with error:
                raise NoToken(self._refused(error)) from None
        except (OSError, ValueError, HTTPException) as error:
            raise NoToken(self._away(getattr(error, "reason", error))) from error
        return _json(text)

    def _refused(self, error: HTTPError) -> str:
        try:
            told = _json(error.read(_MOST))
        except (OSError, ValueError, HTTPException):  # the code is enough
            told = {}
        words = [str(told[key]) for key in ("error", "error_description") if told.get(key)]
        why = f"{error.code} {': '.join(words)[:300] or error.reason}".strip()
        if error.code in {400, 401, 403}:
            return (
                f"{self._place()} refuses the client {self._options[self.CLIENT]} ({why}); check "
                "cluster.security.sasl.oidc: client_id, scope, where the secret comes from, and "
                "header_urlencode"
            )
        return f"{self._place()} answers {why}; check cluster.security.sasl.oidc.endpoint"

    def _away(self, reason: Any) -> str:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return (
                f"{self._place()} cannot be trusted ({reason.verify_message}); "
                "cluster.security.sasl.oidc.ca_file must hold the authority that signed its "
                "certificate"
            )
        if isinstance(reason, TimeoutError):
            return f"{self._place()} does not answer within {_TIMEOUT:g} s"
        if isinstance(reason, HTTPException):
            return (
                f"{self._place()} does not answer as HTTP ({type(reason).__name__}); check "
                "cluster.security.sasl.oidc.endpoint"
            )
        why = getattr(reason, "strerror", None) or reason
        return f"{self._place()} cannot be reached ({why})"


class _NoRedirect(HTTPRedirectHandler):
    """Treats a redirect like any other answer."""

    def redirect_request(self, *_: Any) -> None:
        """Returns None, so that the redirect is raised as HTTPError."""


def _kept() -> tuple[dict[Any, Token], threading.Lock]:
    """Returns the tokens of this process and the lock for them."""
    module = sys.modules.setdefault(_KEPT, types.ModuleType(_KEPT))
    held = module.__dict__
    return held.setdefault("tokens", {}), held.setdefault("lock", threading.Lock())


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _expiry(token: str) -> float | None:
    """Returns `exp` of a JSON Web Token (RFC 7519); None for another format."""
    payload = token.split(".")[1:2]
    try:
        held = _json(base64.urlsafe_b64decode(payload[0] + "=="))
        return float(held["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def kafka_python_provider(source: TokenSource) -> Any:
    """Returns the same source in kafka-python's form."""
    import kafka  # noqa: F401, PLC0415 - all of it first, see fleet.kafka_source.connections
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        """Supplies one token per login."""

        def token(self) -> str:
            """Returns a token. Raises NoToken."""
            return source.token().value

        def extensions(self) -> dict[str, str]:
            """Returns the SASL extensions (KIP-342)."""
            return source.extensions()

    return Provider()


References = Mapping[str, Mapping[str, str]]
"""librdkafka option → {"env" | "file" | "path" | "value": …}; a path is that of a file there."""
TASK: Final = "for this Spark task: the Spark server and every executor need it"


def references(cluster: ClusterSpec, bootstrap: str) -> dict[str, dict[str, str]]:
    """Returns where a client finds what it needs to reach the cluster, without any secret."""
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


def _where(owner: Any, part: str) -> dict[str, str]:
    for kind in ("env", "file"):
        if name := getattr(owner, f"{part}_{kind}"):
            return {kind: str(name)}
    return {"value": str(getattr(owner, part))}  # the options may hold a name, but no secret


def resolve(
    references: References, environ: Mapping[str, str], *, who: str = TASK
) -> dict[str, Any]:
    """Returns the options, read on this machine; ValueError names what is missing, and for whom.

    All are text, except `oauth_cb`, which supplies tokens; kafka_python() understands it too.
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
    except (OSError, RuntimeError) as error:  # a folder without access, or no such home
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
