"""Expands `${NAME}` and `${NAME:-default}` in fleet.yaml.

Problem: a worker's settings are stored in a file and a database, where a password must not stand.
Choice: most references are expanded when the file is read. Those in `worker.env` stay as written
until a worker starts, which expands them from its own environment. Cost: a changed value makes no
new revision, so that only a restart or a roll applies it.
"""

import re
from collections.abc import Mapping
from typing import Final

from fleet.errors import ConfigError

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}|\$\{")
_LATE: Final = re.compile(r"(?:defaults|fleets\[\d+\])\.worker\.env\.")
LOGIN: Final = frozenset(
    f"cluster.security.{part}"
    for part in (
        *("sasl.username", "sasl.password"),
        *("sasl.oidc.client_id", "sasl.oidc.client_secret", "tls.key_password"),
    )
)
"""Keys for which `${NAME}` means the same key with `_env`."""


def is_expanded_later(path: str, text: str) -> bool:
    """Tells whether references at this path of fleet.yaml stay as written."""
    if path in LOGIN:
        return only_reference(text) is not None
    return _LATE.match(path) is not None


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns the text with its references expanded once, and a message for each that fails."""
    missing: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if match[0] == "$${":
            return "${"
        if name is None:
            missing.append(
                f"{text!r} holds ${{ without a name; write ${{NAME}} or ${{NAME:-default}}, or "
                "$${ for the characters themselves"
            )
            return match[0]
        value = environ.get(name)
        if value is not None and (value or default is None):
            return value
        if default is not None:
            return default
        missing.append(
            f"environment variable {name} is not set; set it, or write a default: "
            f"${{{name}:-value}}"
        )
        return ""

    return _REFERENCE.sub(replace, text), missing


def malformed_references(text: str) -> list[str]:
    """Returns a message for each malformed reference of a text."""
    return [
        f"{text!r} holds ${{ without a name; write ${{NAME}}, ${{NAME:-default}}, or $${{ for the "
        "characters themselves"
        for match in _REFERENCE.finditer(text)
        if match[0] == "${"
    ]


def only_reference(text: str) -> str | None:
    """Returns NAME if the text is `${NAME}` and nothing else."""
    match = _REFERENCE.fullmatch(text)
    return match[1] if match is not None and match[2] is None else None


def has_reference(text: str) -> bool:
    """Tells whether a text holds a reference."""
    return any(match[1] is not None for match in _REFERENCE.finditer(text))


def worker_environment(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Expands the references of `worker.env` from the worker's own environment.

    Raises ConfigError, which names the keys and the variables, never a value.
    """
    found: dict[str, str] = {}
    wrong: list[str] = []
    for key, text in env.items():
        found[key], missing = expand(text, environ)
        wrong += [f"worker.env.{key}: {sentence}" for sentence in missing]
    if wrong:
        raise ConfigError("; ".join(wrong))
    return found


def plain_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries of `worker.env` without references, which may stand anywhere."""
    return {key: expand(text, {})[0] for key, text in env.items() if not has_reference(text)}
