"""Topic ids: 16 bytes inside the model, 22 characters of base64 in messages, as Kafka has them."""

import base64
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from fleet.sim.coordinator.consumer_member import Owned
from fleet.sim.coordinator.reconciling import Reported
from fleet.sim.coordinator.requests import TopicPartitions

_KNOWN: Final = 1 << 16


@lru_cache(maxsize=_KNOWN)
def topic_id_bytes(text: str) -> bytes:
    """The id that Kafka prints so. Raises ValueError for anything else."""
    return base64.urlsafe_b64decode(text + "==")


@lru_cache(maxsize=_KNOWN)
def topic_id_text(topic: bytes) -> str:
    """The id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic).decode().rstrip("=")


def owned_by_id(owned: Iterable[TopicPartitions]) -> Reported:
    """What a member says it owns."""
    return [(topic_id_bytes(each.topic_id), each.partitions) for each in owned]


def topic_partitions(owned: Owned) -> tuple[TopicPartitions, ...]:
    """What a member is told to own."""
    return tuple(
        TopicPartitions(topic_id_text(topic), tuple(partitions))
        for topic, partitions in owned.items()
    )
