"""`${NAME}` and `${NAME:-default}` in fleet.yaml: what they are, and when they are looked up.

Most are looked up when the file is read. Those in `worker.env` are not: a worker's settings are
frozen into a file and a database, which outlive the shell, and a password does not belong there.
They stay as written until a worker starts and takes them from its own environment. Cost: a
changed value is no new revision (it is in no hash), so that only a restart or a roll brings it.
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
"""Where `${NAME}` stays a reference: written so, it is the key with `_env`."""


def looked_up_late(path: str, text: str) -> bool:
    """Whether the references of a text at this path of fleet.yaml are kept as written."""
    if path in LOGIN:
        return only_reference(text) is not None
    return _LATE.match(path) is not None


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with its references looked up once, and a sentence for each that cannot be."""
    missing: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if match[0] == "$${":
            return "${"
        if name is None:
            missing.append(
                f"{text!r} holds ${{ without a name; write ${{NAME}}, ${{NAME:-default}}, "
                "or $${ for the characters themselves"
            )
            return match[0]
        held = environ.get(name)
        if held is not None and (held or default is None):
            return held
        if default is not None:
            return default
        missing.append(
            f"the environment variable {name} is not set; set it, or write a default: "
            f"${{{name}:-value}}"
        )
        return ""

    return _REFERENCE.sub(replace, text), missing


def malformed(text: str) -> list[str]:
    """What is wrong with the references of a text whatever the environment holds."""
    return [
        f"{text!r} holds ${{ without a name; write ${{NAME}}, ${{NAME:-default}}, or $${{ for the "
        "characters themselves"
        for match in _REFERENCE.finditer(text)
        if match[0] == "${"
    ]


def only_reference(text: str) -> str | None:
    """NAME where the text is `${NAME}` and nothing else."""
    match = _REFERENCE.fullmatch(text)
    return match[1] if match is not None and match[2] is None else None


def refers(text: str) -> bool:
    """Whether there is anything to look up."""
    return any(match[1] is not None for match in _REFERENCE.finditer(text))


def worker_environment(env: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """`worker.env` with its references looked up in the worker's own environment.

    Raises ConfigError naming the keys and the variables, never a value.
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
    """Of `worker.env` what refers to nothing, which may be written down anywhere."""
    return {key: expand(text, {})[0] for key, text in env.items() if not refers(text)}
