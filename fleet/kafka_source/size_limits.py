"""How large a record a topic takes, and which setting says so.

Problem: librdkafka's own bound (1 MB) is smaller than what many topics take, counts a record before
it is packed, and its refusal reads as if a broker had spoken. Choice: a producer has no bound of
its own; the topic's decides, which counts what is sent. Whoever is refused asks which setting it
was, and names it with the size. Cost: one question to a broker, and DescribeConfigs on the topic;
else the setting is named without its value.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

ANY_SIZE: Final[Mapping[str, Any]] = {"message.max.bytes": 1_000_000_000}
"""A producer's option: the most that librdkafka takes."""
_OF_TOPIC: Final = "max.message.bytes"
_OF_BROKER: Final = "socket.request.max.bytes"
_SECONDS: Final = 5.0
Headers = Iterable[tuple[str, bytes | None]]


def size_of(key: bytes | str | None, value: bytes | str | None, headers: Headers) -> int:
    """Bytes of a record before it is packed, without what a batch adds (some 100)."""
    parts = (key, value, *(part for header in headers for part in header))
    return sum(len(each.encode() if isinstance(each, str) else each) for each in parts if each)


def topic_limit(options: Mapping[str, Any], topic: str) -> int | None:
    """Bytes that a batch of this topic may have; None where no broker tells."""
    return _setting_of(_admin(options), ResourceType.TOPIC, topic, _OF_TOPIC)


def refusal_of(
    options: Mapping[str, Any], topic: str, refused: Sequence[tuple[KafkaError, int]]
) -> str:
    """Why records are not taken, from each one's error and size; a size is told with its setting.

    A broker that is sent more than socket.request.max.bytes closes the connection without a word.
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
        f"a record of {size:,} bytes is more than it takes ({'; '.join(bounds) or error.str()}): "
        f"raise {where}, above what the record is packed to"
    )


def _limits(options: Mapping[str, Any], topic: str) -> dict[str, int]:
    """What bounds a record of the topic, as far as brokers tell."""
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
    """A setting's value; None where nobody may tell, or other vendors' brokers have none."""
    asked = [ConfigResource(kind, name)]
    try:
        # The future has no name here: it holds its error, and that would hold all callers' frames.
        found = next(
            iter(admin.describe_configs(asked, request_timeout=_SECONDS).values())
        ).result()
        return int(found[setting].value)
    except (KafkaException, KeyError, TypeError, ValueError):
        return None
