"""An identity provider of a test: OAuth 2.0 client credentials, tokens signed by RS256, its keys.

Real tokens (RFC 7519) that Kafka's own validator checks against the keys (RFC 7517) served here.
"""

import base64
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.json_server import JsonHandler, serving


@dataclass
class Issuer:
    """What it issues: `lifetime` seconds from now; clients and their secrets."""

    url: str = ""
    clients: dict[str, str] = field(default_factory=dict)
    lifetime: float = 3600.0
    """Of tokens; those of a client in `lifetimes` have their own."""
    lifetimes: dict[str, float] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    """Forms that were posted, with the client's name."""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "k1"}))

    @property
    def endpoint(self) -> str:
        """The token endpoint."""
        return f"{self.url}/token"

    @property
    def jwks(self) -> str:
        """The keys."""
        return f"{self.url}/jwks"

    def count(self, client: str) -> int:
        """How many tokens that client asked for."""
        return sum(each["client"] == client for each in self.asked)

    def token(self, client: str, lifetime: float) -> str:
        """Signed, for that long from now."""
        now = int(time.time())
        claims = {
            "iss": self.url, "sub": client, "aud": "kafka", "iat": now - 60,
            "exp": int(now + lifetime), "jti": uuid.uuid4().hex, "scope": "kafka",
        }  # fmt: skip
        return jwt.encode({"alg": "RS256", "kid": "k1"}, claims, self.key)

    def answer(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """To a request for a token (RFC 6749, section 5)."""
        client = form["client"]
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if self.clients.get(client) != form.pop("secret"):
            return 401, {"error": "invalid_client", "error_description": "who is that?"}
        lifetime = self.lifetimes.get(client, self.lifetime)
        token = self.token(client, lifetime)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(lifetime)}


@contextmanager
def oidc_server(tls: tuple[Path, Path] | None = None) -> Iterator[Issuer]:
    """One that listens on this machine; `tls`: its certificate and key."""
    issuer = Issuer()

    class Handler(JsonHandler):
        def get(self) -> None:
            known = {"keys": [issuer.key.as_dict(private=False)]}
            self.say(*((200, known) if self.path == "/jwks" else (404, {"error": "no page"})))

        def post(self) -> None:
            body = self.body().decode()
            if self.path != "/token":
                self.say(404, {})
                return
            given = self.headers["Authorization"].removeprefix("Basic ")
            client, _, secret = base64.b64decode(given).decode().partition(":")
            form = {name: values[0] for name, values in parse_qs(body).items()}
            form |= {"client": unquote_plus(client), "secret": unquote_plus(secret)}
            issuer.asked.append(form)
            self.say(*issuer.answer(form))

    with serving(Handler, tls) as url:
        issuer.url = url
        yield issuer
