"""What a coordinator knows of topics, and the hashes by which it notices changes (KIP-1101).

A topic id is 16 bytes. Hashes are signed 64-bit numbers, as they stand in records.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fleet.sim.hashing import xxh3_64


@dataclass(frozen=True)
class TopicFacts:
    """One topic of brokers without racks."""

    id: bytes
    name: str
    partitions: int

    @cached_property
    def hash(self) -> int:
        """It covers id, name and partition count."""
        count, numbers = self.partitions, range(self.partitions)
        known = b"\x00" + self.id[7::-1] + self.id[:7:-1] + _text(self.name)
        return _signed(xxh3_64(known + struct.pack(f"<{count + 1}i", count, *numbers)))


class TopicImage:
    """All topics at one version of the cluster's metadata (an offset of the metadata log)."""

    def __init__(self, version: int = -1, topics: Iterable[TopicFacts] = ()) -> None:
        self.version = version
        self.by_name: Mapping[str, TopicFacts] = {topic.name: topic for topic in topics}
        self.by_id = {topic.id: topic for topic in self.by_name.values()}
        self.partitions = {topic.id: topic.partitions for topic in self.by_name.values()}

    def ids_of(self, names: Iterable[str]) -> list[bytes]:
        """The ids of those topics that exist, in the order of the names."""
        return [self.by_name[name].id for name in names if name in self.by_name]

    def has_among(self, topic_id: bytes, names: Iterable[str]) -> bool:
        """Whether that topic exists under one of the names."""
        topic = self.by_id.get(topic_id)
        return topic is not None and topic.name in names


def group_hash(names: Iterable[str], image: TopicImage) -> int:
    """The hash of the topics of a group; 0 where none of them exists."""
    found = [image.by_name[name].hash for name in sorted(names) if name in image.by_name]
    return _signed(xxh3_64(struct.pack(f"<{len(found)}q", *found))) if found else 0


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le")
    return units + struct.pack("<i", len(units) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
