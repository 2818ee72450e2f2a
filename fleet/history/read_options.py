"""Reads the options of the data source `consumer_offsets`, and refuses wrong ones in sentences.

Problem: DataFrame options are strings from a notebook, and plans, logs and Spark's UI show them.
Choice: one reader with a sentence for each mistake. Names are those of Spark's own Kafka source if
it has them (`startingOffsets`, `maxOffsetsPerTrigger`, `kafka.…`). A secret must be a reference in
`login`, which a task resolves [11]. Cost: options that only Spark's source has are refused, not
ignored.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

TOPIC: Final = "__consumer_offsets"
EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_SECRET: Final = re.compile(r"password|secret|\.pem$|token|jaas", re.IGNORECASE)
_KAFKA: Final = "kafka."
_NAMES: Final = (
    *("bootstrap.servers", "login", "startingOffsets", "endingOffsets", "groups", "groupsPattern"),
    *("tasks", "maxOffsetsPerTrigger", "isolation.level", "group.id", "readTimeout", "topic"),
    *("leaderEpochs", "gapsFrom"),
)
_BY_LOWER: Final = {name.lower(): name for name in _NAMES}


class ReadOptions(NamedTuple):
    """What is to be read, and how."""

    login: Mapping[str, Mapping[str, str]]
    """librdkafka option → where its value is (fleet.kafka_source.login)."""
    starting: int | Mapping[int, int]
    """EARLIEST, LATEST, or an offset by partition, where both may stand again."""
    ending: int | Mapping[int, int]
    groups: frozenset[str] | None
    pattern: str | None
    tasks: int | None
    most: int | None
    """Offsets of one streaming batch."""
    isolation: str
    """The name that the principal may read with; nothing is joined or committed."""
    read_timeout: float
    topic: str
    epochs: Mapping[int, int] | None = None
    """Leader epoch by partition as known before: a row says where another one begins. None: no
    such rows."""
    gaps: Mapping[int, int] | None = None
    """By partition, the offset from which on a row says what compaction took."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options as values; ValueError names the option, its value and what is allowed."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(
        name for name in given if name not in _BY_LOWER and not name.startswith(_KAFKA)
    )
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0]}: use {', '.join(_NAMES)}, or kafka.<client option>"
        )
    named = {_BY_LOWER[name]: value for name, value in given.items() if name in _BY_LOWER}
    return ReadOptions(
        login=_login(given, named),
        starting=_offsets("startingOffsets", named.get("startingOffsets", "earliest")),
        ending=_offsets("endingOffsets", named.get("endingOffsets", "latest")),
        groups=_groups(named.get("groups")),
        pattern=_pattern(named.get("groupsPattern")),
        tasks=_count("tasks", named.get("tasks")),
        most=_count("maxOffsetsPerTrigger", named.get("maxOffsetsPerTrigger")),
        isolation=_isolation(named.get("isolation.level", "read_committed")),
        read_timeout=_seconds(named.get("readTimeout", "20")),
        topic=named.get("topic", TOPIC),
        epochs=_numbers("leaderEpochs", named.get("leaderEpochs"), of="epoch"),
        gaps=_numbers("gapsFrom", named.get("gapsFrom"), of="offset"),
    )


def _login(given: Mapping[str, str], named: Mapping[str, str]) -> dict[str, dict[str, str]]:
    plain = {
        name.removeprefix(_KAFKA): value for name, value in given.items() if name.startswith(_KAFKA)
    }
    if "bootstrap.servers" in named:
        plain["bootstrap.servers"] = named["bootstrap.servers"]
    for name in plain:
        if _SECRET.search(name):
            raise ValueError(
                f"option kafka.{name} is a secret, and plans and logs show options: name its "
                f'source, e.g. login={{"{name}": {{"env": "NAME"}}}}'
            )
    login = _json("login", named["login"], dict) if "login" in named else {}
    if any(not isinstance(where, dict) or len(where) != 1 for where in login.values()):
        kinds = '{"env" | "file" | "path" | "value": "…"}'
        raise ValueError(f"option login: write each client option as {kinds}")
    found = {**login, **{name: {"value": value} for name, value in plain.items()}}
    if "bootstrap.servers" not in found:
        raise ValueError("option bootstrap.servers is missing: set it to HOST:PORT of a broker")
    return found


def _json(name: str, text: str, kind: type) -> Any:
    what = "an object" if kind is dict else "a list"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, kind):
        return found
    raise ValueError(f"option {name}: {text!r} is not {what} in JSON")


def _offsets(name: str, text: str) -> int | dict[int, int]:
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    allowed = f'option {name}: {text!r} is not earliest, latest or JSON {{"partition": offset}}'
    try:
        found = _json(name, text, dict)
        if len(found) == 1 and isinstance(inner := next(iter(found.values())), dict):
            found = inner  # {"topic": {…}}, as Spark's own source writes it
        offsets = {int(number): int(offset) for number, offset in found.items()}
    except (ValueError, TypeError):
        raise ValueError(allowed) from None
    if any(number < 0 or offset < EARLIEST for number, offset in offsets.items()):
        raise ValueError(f"{allowed} (-2: earliest, -1: latest)")
    return offsets


def _numbers(name: str, text: str | None, *, of: str) -> dict[int, int] | None:
    if text is None:
        return None
    try:
        return {int(p): int(number) for p, number in _json(name, text, dict).items()}
    except (ValueError, TypeError):
        raise ValueError(
            f'option {name}: {text!r} is not JSON {{"partition": {of}}} ({{}} if none is known)'
        ) from None


def _groups(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    names = _json("groups", text, list)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"option groups: {text!r} is not a list of names in JSON")
    return frozenset(names)


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(
                f"option groupsPattern: {text!r} is not a regular expression: {error}"
            ) from None
    return text


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"option {name}: {text!r} is not a number of 1 or more")
    return int(text)


def _isolation(text: str) -> str:
    if text not in {"read_committed", "read_uncommitted"}:
        allowed = "read_committed or read_uncommitted"
        raise ValueError(f"option isolation.level: {text!r} is not {allowed}")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise ValueError(f"option readTimeout: {text!r} is not between 0 and 3600 seconds")
    return seconds
