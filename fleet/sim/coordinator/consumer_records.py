"""The records of a KIP-848 group, and their bytes as Kafka 4.3 writes them.

Problem: a simulated run must feed the same history as a real topic, so its records must be the
coordinator's own, byte for byte. Choice: one value per record type, each with its bytes; a
record without a value is a tombstone. Cost: this is the reverse of `fleet.log.records`, whose
decoder reads what is written here.

Schemas: EpochGroup*Key/Value.json of Kafka's group-coordinator, all versions 0. Times in ms.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from fleet.log import encoding
from fleet.log.records import record_key, uvarint
from fleet.sim.assignors import Target
from fleet.sim.coordinator.consumer_group import ConsumerMember, Owned

EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT = 3, 4, 5, 6, 7, 8
"""Record types: the first two bytes of a key."""

Listed: TypeAlias = Sequence[tuple[bytes, Sequence[int], Sequence[int]]]


@dataclass(frozen=True, slots=True)
class EpochValue:
    """The group's epoch, and the hash of its topics."""

    epoch: int
    metadata_hash: int

    def written(self) -> bytes:
        """Encodes the value of the record."""
        hashed = _tagged(struct.pack(">q", self.metadata_hash)) if self.metadata_hash else b"\0"
        return struct.pack(">hi", 0, self.epoch) + hashed


@dataclass(frozen=True, slots=True)
class MemberValue:
    """What a member told of itself; topics are sorted."""

    instance: str | None
    rack: str | None
    client: str
    host: str
    topics: tuple[str, ...]
    rebalance_timeout_ms: int
    assignor: str | None

    @classmethod
    def of(cls, member: ConsumerMember) -> "MemberValue":
        """As the coordinator writes it for a member."""
        topics = tuple(sorted(member.topics))
        names = (member.instance, member.rack, member.client, member.host)
        timeout = member.rebalance_timeout_ms
        return cls(*names, topics, timeout, member.assignor)

    def written(self) -> bytes:
        """The value's bytes: no regular expression, and a classic member that is null, in full."""
        names = (self.instance, self.rack, self.client, self.host)
        return b"".join(
            (
                b"\0\0",
                *map(_text, names),
                uvarint(len(self.topics) + 1),
                *map(_text, self.topics),
                _text(""),
                struct.pack(">i", self.rebalance_timeout_ms),
                _text(self.assignor),
                b"\x01\x00\x01\x00",
            )
        )


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    """For which epoch, and when, the target was computed last."""

    epoch: int
    computed_ms: int

    def written(self) -> bytes:
        """Encodes the value of the record."""
        computed = _tagged(struct.pack(">q", self.computed_ms)) if self.computed_ms else b"\0"
        return struct.pack(">hi", 0, self.epoch) + computed


@dataclass(frozen=True, slots=True)
class TargetValue:
    """What a member shall own."""

    partitions: tuple[tuple[bytes, tuple[int, ...]], ...]

    @classmethod
    def of(cls, target: Target) -> "TargetValue":
        """As the coordinator writes it for a target."""
        return cls(tuple((topic, tuple(each)) for topic, each in target.items()))

    def written(self) -> bytes:
        """Encodes the value of the record."""
        parts = [b"\0\0", uvarint(len(self.partitions) + 1)]
        for topic, partitions in self.partitions:
            parts += (topic, _ints(partitions), b"\0")
        return b"".join((*parts, b"\0"))


@dataclass(frozen=True, slots=True)
class CurrentValue:
    """What a member owns and gives up: (topic id, partitions, the epochs of these)."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Listed
    revoking: Listed

    @classmethod
    def of(cls, member: ConsumerMember) -> "CurrentValue":
        """As the coordinator writes it for a member."""
        owned = _listed(member.assigned), _listed(member.revoking)
        return cls(member.epoch, member.previous_epoch, member.state.value, *owned)

    def written(self) -> bytes:
        """Encodes the value of the record."""
        parts = [struct.pack(">hiib", 0, self.epoch, self.previous_epoch, self.state)]
        for owned in (self.assigned, self.revoking):
            parts.append(uvarint(len(owned) + 1))
            for topic, partitions, epochs in owned:
                parts += (topic, _ints(partitions), _tagged(_ints(epochs)) if epochs else b"\0")
        return b"".join((*parts, b"\0"))


Value: TypeAlias = EpochValue | MemberValue | TargetEpochValue | TargetValue | CurrentValue


class ConsumerRecord(NamedTuple):
    """One record: its type, its group, the rest of its key (a member id), its value."""

    type: int
    group: str
    about: str | None
    value: Value | None

    def key_bytes(self) -> bytes:
        """The key as it stands in `__consumer_offsets`."""
        return _key(self.type, self.group, self.about)

    def value_bytes(self) -> bytes | None:
        """The value as it stands there; None for a tombstone."""
        return None if self.value is None else self.value.written()


def _listed(owned: Owned) -> Listed:
    return tuple((topic, tuple(each.keys()), tuple(each.values())) for topic, each in owned.items())


@lru_cache(maxsize=4096)
def _text(text: str | None) -> bytes:
    return encoding.compact_text(text)


@lru_cache(maxsize=4096)
def _key(kind: int, group: str, about: str | None) -> bytes:
    return record_key(kind, group) if about is None else record_key(kind, group, about)


def _ints(values: Sequence[int]) -> bytes:
    return uvarint(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def _tagged(field: bytes) -> bytes:
    """The end of a struct whose only tagged field is number 0."""
    return encoding.tags(((0, field),))
