"""What a record of `__consumer_offsets` says, as a value per record type.

`fleet.log.records` makes these and exports them. All times are milliseconds since the
epoch, as Kafka writes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.model import TopicPartition

Partitions = Mapping[str, tuple[int, ...]]
"""Partition numbers by topic name (classic) or topic id (KIP-848)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What every record has: its place in the log, its time (ms) and its type (the key's int16)."""

    offset: int
    timestamp_ms: int
    type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(Record):
    """The key was deleted. `key` is what followed the group: a topic and partition, a member id."""

    group: str
    key: tuple[str | int, ...]

    @property
    def tp(self) -> TopicPartition | None:
        """The partition whose commit went; None where the record is none of a commit."""
        if self.type > 1:
            return None
        topic, partition = self.key
        return TopicPartition(str(topic), int(partition))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit(Record):
    """Type 1 (and 0): the next offset to read of one partition, as committed."""

    group: str
    tp: TopicPartition
    committed: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """One member in a GroupMetadata record; the blobs are parsed for consumers only.

    Clients write the blobs, and the coordinator takes any bytes: `problem` says what did not fit.
    Then it is a member whose topics, or partitions, are not known.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    topics: tuple[str, ...] = ()
    owned: Partitions = field(default_factory=dict)
    assigned: Partitions = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata(Record):
    """Type 2: a classic group at a completed generation, or with a static member replaced."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int | None
    members: tuple[ClassicMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupEpoch(Record):
    """Type 3 (KIP-848): the group epoch."""

    group: str
    epoch: int
    metadata_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember(Record):
    """Type 5 (KIP-848): one member's own data."""

    group: str
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentEpoch(Record):
    """Type 6 (KIP-848): a target assignment was computed; each distinct epoch is a rebalance."""

    group: str
    epoch: int
    assignment_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment(Record):
    """Type 7 (KIP-848): what a member shall own, by topic id."""

    group: str
    member_id: str
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment(Record):
    """Type 8 (KIP-848): what a member owns and must give up, by topic id.

    epoch -2 = a static member that is away; state 0 stable, 1 unrevoked, 2 unreleased.
    """

    group: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: int
    assigned: Partitions
    revoking: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw(Record):
    """A type without a class of its own: share and streams groups, regexes, old metadata.

    `fields` are Kafka's own, by name in snake_case (`fleet.log.schemas`); topic ids are 32
    hex digits. `member_id` is the key's, None where the type is one per group.
    """

    group: str
    name: str
    member_id: str | None
    fields: Mapping[str, Any]
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded(Record):
    """Bytes that cannot be read, with the reason; type -1 where not even the type is there."""

    reason: str
    key: bytes | None
    value: bytes | None
