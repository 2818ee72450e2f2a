"""Messages of the model as Kafka's own JSON of them, by the names of their fields."""

import base64
from functools import cache
from typing import Any

_LEFT_OUT = frozenset({"version"})
"""Of a message's fields: what its header says."""
_MORE: dict[str, dict[str, Any]] = {
    "ConsumerGroupHeartbeatRequest": {"subscribedTopicRegex": None},
    "JoinGroupRequest": {"reason": None},
    "MemberIdentity": {"reason": None},
}
"""Fields that Kafka's JSON asks for and that the model leaves out."""


def as_json(value: Any) -> Any:
    """A message, or a part of one, as the JsonConverter classes of kafka-clients write it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if not isinstance(value, tuple):
        return value
    fields = getattr(value, "_fields", None)
    if fields is None:
        return [as_json(each) for each in value]
    found = {_camel(name): as_json(getattr(value, name)) for name in fields if _kept(name)}
    return found | _MORE.get(type(value).__name__, {})


def api_of(message: object) -> str:
    """The api's name: JoinGroup of a JoinGroupRequest."""
    return type(message).__name__.removesuffix("Request").removesuffix("Response")


def _kept(name: str) -> bool:
    return name not in _LEFT_OUT


@cache
def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
