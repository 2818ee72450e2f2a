"""A function that gives tokens as aws-msk-iam-sasl-signer's does: (token, milliseconds)."""

import base64
import json
import time
from pathlib import Path
from urllib.request import Request, urlopen


def generate_auth_token(endpoint: str, client: str, secret_file: str) -> tuple[str, int]:
    """A token of the issuer of a test."""
    login = f"{client}:{Path(secret_file).read_text()}"
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    form = b"grant_type=client_credentials"
    with urlopen(Request(endpoint, data=form, headers=headers), timeout=5) as answer:
        token = json.load(answer)
    return token["access_token"], int((time.time() + token["expires_in"]) * 1000)


def expired() -> tuple[str, int]:
    """A token of a minute ago."""
    return "old", int((time.time() - 60) * 1000)


def broken(reason: str = "no credentials found") -> tuple[str, int]:
    """What a signer without credentials does."""
    raise RuntimeError(reason)


def unsigned() -> tuple[str, float]:
    """A token that nobody has signed."""
    parts = ({"alg": "none"}, {"sub": "eve", "aud": "kafka", "exp": int(time.time() + 60)})
    text = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode() for p in parts)
    return f"{text.replace('=', '')}.", time.time() + 60
