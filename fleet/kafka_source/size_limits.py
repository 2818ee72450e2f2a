"""Says how large a record a topic accepts, and which setting decides it.

Problem: librdkafka's own limit (1 MB) is smaller than that of many topics and counts a record
before compression. Its refusal reads like a broker's. Choice: a producer has no limit of its own;
the topic's limit decides, which counts what is sent. After a refusal Fleet asks which setting it
was, and names it with the size. Cost: one request to a broker per refusal.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

ANY_SIZE: Final[Mapping[str, Any]] = {"message.max.bytes": 1_000_000_000}
"""A producer's option: the largest value that librdkafka accepts."""
_OF_TOPIC: Final = "max.message.bytes"
_OF_BROKER: Final = "socket.request.max.bytes"
_SECONDS: Final = 5.0
Headers = Iterable[tuple[str, bytes | None]]


def size_of(key: bytes | str | None, value: bytes | str | None, headers: Headers) -> int:
    """Returns the bytes of a record before compression, without the batch's own (some 100)."""
    parts = (key, value, *(part for header in headers for part in header))
    return sum(len(each.encode() if isinstance(each, str) else each) for each in parts if each)


def topic_limit(options: Mapping[str, Any], topic: str) -> int | None:
    """Returns the bytes that a batch of this topic may have; None if no broker says."""
    return _setting_of(_admin(options), ResourceType.TOPIC, topic, _OF_TOPIC)


def refusal_of(
    options: Mapping[str, Any], topic: str, refused: Sequence[tuple[KafkaError, int]]
) -> str:
    """Says why records are refused, from each one's error and size; a size with its setting.

    A broker that gets more than socket.request.max.bytes closes the connection without an answer.
    """
    too_large = KafkaError.MSG_SIZE_TOO_LARGE
    error, size = max(refused, key=lambda each: (each[0].code() == too_large, each[1]))
    large = error.code() == too_large
    limits = _limits(options, topic) if large or size > (1 << 20) else {}
    lower = {name: limit for name, limit in limits.items() if limit <= size}
    if not large and not lower:
        return f"{error.str()} ({error.code()})"
    bounds = [f"{name} is {limit:,}" for name, limit in (lower or limits).items()]
    where = f"the topic's {_OF_TOPIC}" if set(lower) <= {_OF_TOPIC} else "the brokers' settings"
    return (
        f"a record of {size:,} bytes is too large ({'; '.join(bounds) or error.str()}): "
        f"raise {where} above the record's compressed size"
    )


def _limits(options: Mapping[str, Any], topic: str) -> dict[str, int]:
    """Returns the limits for a record of the topic that brokers report."""
    admin = _admin(options)
    found = {_OF_TOPIC: _setting_of(admin, ResourceType.TOPIC, topic, _OF_TOPIC)}
    try:
        broker = next(iter(admin.list_topics(topic, timeout=_SECONDS).brokers), 0)
    except KafkaException:
        broker = 0
    found[_OF_BROKER] = _setting_of(admin, ResourceType.BROKER, str(broker), _OF_BROKER)
    return {name: limit for name, limit in found.items() if limit is not None}


def _admin(options: Mapping[str, Any]) -> AdminClient:
    quiet: dict[str, Any] = {**options, "log_level": 2, "error_cb": lambda _: None}
    return AdminClient(quiet)


def _setting_of(admin: AdminClient, kind: ResourceType, name: str, setting: str) -> int | None:
    """Returns a setting's value; None if this login may not read it or the broker has none."""
    asked = [ConfigResource(kind, name)]
    try:
        # The future has no name here: its error would keep the frames of all callers alive.
        found = next(
            iter(admin.describe_configs(asked, request_timeout=_SECONDS).values())
        ).result()
        return int(found[setting].value)
    except (KafkaException, KeyError, TypeError, ValueError):
        return None
