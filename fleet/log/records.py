"""Records of `__consumer_offsets`: bytes in, values out, one record at a time.

Problem: the coordinator's own log is the only place that tells every rebalance of every
group, but its formats change with broker versions, and other record types live beside the
ones we need. Choice: one table (`KEYS`, `VALUES`) with a reader per record type and its known
versions; types of which we need little are read by a table of their fields (`schemas`) and come
back as `Raw`, bytes and fields; everything else is `Undecoded` with its reason, to be counted,
never guessed. Cost: about 10 µs a record in Python; the columns of the history are made by a
vectorised reader, and this one is its oracle.

Formats: Kafka 4.3's group-coordinator messages (OffsetCommit*, GroupMetadata*, KIP-848
ConsumerGroup*); the blobs of a classic member are ConsumerProtocolSubscription/Assignment.
All times are milliseconds since the epoch, as Kafka writes them.
"""

import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

from fleet.errors import FleetError
from fleet.model import TopicPartition

# Kafka's primitive types, read from bytes with every bound checked.
#
# Problem: records of `__consumer_offsets` come from many broker versions, and a truncated or
# foreign one must become a named outcome, never a crash or a huge allocation. Choice: a cursor
# that raises `Malformed` for anything that does not fit, so that one `except` at the top
# suffices. Cost: a bounds check per field; the vectorised decoder is for volume, this one is
# its oracle.
#
# Integers are big-endian. Flexible versions (KIP-482) use unsigned varints for lengths (+ 1,
# 0 = null) and tagged fields at the end of every struct; tags that we do not know are skipped
# by their size (KIP-915).


T = TypeVar("T")


class Malformed(ValueError):
    """The bytes do not hold what their version promises."""


class Cursor:
    """Reads one key, value or blob from its start."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self.data) - self.at

    def raw(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size < 0 or size > self.left:
            raise Malformed(f"{size} bytes wanted at {self.at}, {self.left} left")
        part = self.data[self.at : self.at + size]
        self.at += size
        return part

    def _int(self, size: int) -> int:
        return int.from_bytes(self.raw(size), "big", signed=True)

    def i8(self) -> int:
        """int8."""
        return self._int(1)

    def i16(self) -> int:
        """int16."""
        return self._int(2)

    def i32(self) -> int:
        """int32."""
        return self._int(4)

    def i64(self) -> int:
        """int64."""
        return self._int(8)

    def uvarint(self) -> int:
        """Unsigned LEB128 of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise Malformed(f"a varint longer than five bytes before {self.at}")

    def topic_id(self) -> str:
        """UUID, as 32 hex digits (Kafka prints the same 16 bytes in base64)."""
        return uuid.UUID(bytes=self.raw(16)).hex

    # Strings and bytes: `flexible` chooses the compact encoding.

    def _size(self, *, flexible: bool, wide: bool) -> int:
        if flexible:
            return self.uvarint() - 1
        return self.i32() if wide else self.i16()

    def text_or_none(self, *, flexible: bool = False) -> str | None:
        """A nullable string."""
        size = self._size(flexible=flexible, wide=False)
        if size == -1:
            return None
        try:
            return self.raw(size).decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a string that is not UTF-8 before {self.at}") from error

    def text(self, *, flexible: bool = False) -> str:
        """A string that may not be null."""
        value = self.text_or_none(flexible=flexible)
        if value is None:
            raise Malformed(f"null before {self.at} where a string must be")
        return value

    def blob(self, *, flexible: bool = False) -> bytes:
        """Bytes; null reads as empty."""
        size = self._size(flexible=flexible, wide=True)
        return b"" if size == -1 else self.raw(size)

    def items(self, read: Callable[[], T], *, flexible: bool = False) -> tuple[T, ...]:
        """An array; null reads as empty. An item takes a byte or more, so the count is bounded."""
        count = self._size(flexible=flexible, wide=True)
        if count == -1:
            return ()
        if count < 0 or count > self.left:
            raise Malformed(f"an array of {count} items with {self.left} bytes left")
        return tuple(read() for _ in range(count))

    def tags(self) -> dict[int, bytes]:
        """Tagged fields of one struct, by tag; unknown ones are kept unread."""
        found: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self.raw(self.uvarint())
        return found


def i64_of(data: bytes | None) -> int | None:
    """A tagged int64, None where the tag is absent."""
    if data is None:
        return None
    if len(data) != struct.calcsize(">q"):
        raise Malformed(f"a tagged int64 of {len(data)} bytes")
    return int.from_bytes(data, "big", signed=True)


# Record types that are read by a table of their fields, not by a reader of their own.
#
# Problem: share groups, streams groups, regular expressions and the topic metadata of old brokers
# have thirteen record types of which we want little more than epochs and members, and a function
# for each would say what Kafka's message definitions say already. Choice: those definitions as
# data (`SCHEMAS`), under Kafka's field names in snake_case, and one function that walks them.
# Cost: fields come as a dictionary, not as attributes.
#
# All of these values are flexible (KIP-482): every struct ends with tagged fields; tags that a
# schema does not name are skipped.


Kind: TypeAlias = (
    "Literal['i8', 'i16', 'u16', 'i32', 'i64', 'text', 'text?', 'id'] | Items | Struct"
)


@dataclass(frozen=True, slots=True)
class Items:
    """An array; null reads as empty."""

    of: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields in order, then tagged ones by tag with their default."""

    fields: tuple[tuple[str, Kind], ...]
    tags: Mapping[int, tuple[str, Kind, Any]] = field(default_factory=dict)
    nullable: bool = False


_TEXTS: Final = Items("text")
_NUMBERS: Final = Items("i32")
_INDEXES: Final = Items("i16")
_PARTITIONS: Final = Items(Struct((("topic_id", "id"), ("partitions", _NUMBERS))))
_NAMED: Final = (("topic_id", "id"), ("topic_name", "text"))
_NAMED_PARTITIONS: Final = Items(Struct((*_NAMED, ("partitions", _NUMBERS))))
_PAIRS: Final = Items(Struct((("key", "text"), ("value", "text"))))
_TOPIC_INFOS: Final = Items(
    Struct(
        (
            ("name", "text"),
            ("partitions", "i32"),
            ("replication_factor", "i16"),
            ("topic_configs", _PAIRS),
        )
    )
)
_TASKS: Final = Items(
    Struct(
        (("subtopology_id", "text"), ("partitions", _NUMBERS)),
        {0: ("assignment_epochs", _NUMBERS, None)},
    )
)
_ACTIVE_STANDBY_WARMUP: Final = tuple(
    (f"{k}_tasks", _TASKS) for k in ("active", "standby", "warmup")
)
_EPOCHS: Final = (("member_epoch", "i32"), ("previous_member_epoch", "i32"), ("state", "i8"))
_ASSIGNED: Final = Struct((("assignment_epoch", "i32"),), {0: ("assignment_timestamp", "i64", 0)})
_GROUP: Final = (("epoch", "i32"), ("metadata_hash", "i64"))
_CLIENT: Final = (("client_id", "text"), ("client_host", "text"))

SCHEMAS: Final[Mapping[int, Struct]] = {
    4: Struct(
        (
            (
                "topics",
                Items(
                    Struct(
                        (
                            *_NAMED,
                            ("num_partitions", "i32"),
                            (
                                "partition_metadata",
                                Items(Struct((("partition", "i32"), ("racks", _TEXTS)))),
                            ),
                        )
                    )
                ),
            ),
        )
    ),
    10: Struct((("rack_id", "text?"), *_CLIENT, ("subscribed_topic_names", _TEXTS))),
    11: Struct(_GROUP),
    12: _ASSIGNED,
    13: Struct((("topic_partitions", _PARTITIONS),)),
    14: Struct((*_EPOCHS, ("assigned_partitions", _PARTITIONS))),
    15: Struct(
        (
            ("initializing_topics", _NAMED_PARTITIONS),
            ("initialized_topics", _NAMED_PARTITIONS),
            ("deleting_topics", Items(Struct(_NAMED))),
        )
    ),
    16: Struct((("topics", _TEXTS), ("version", "i64"), ("timestamp", "i64"))),
    17: Struct(
        _GROUP,
        {
            0: ("validated_topology_epoch", "i32", -1),
            1: ("last_assignment_configs", _PAIRS, None),
        },
    ),
    19: Struct(
        (
            ("instance_id", "text?"),
            ("rack_id", "text?"),
            *_CLIENT,
            ("rebalance_timeout_ms", "i32"),
            ("topology_epoch", "i32"),
            ("process_id", "text"),
            ("user_endpoint", Struct((("host", "text"), ("port", "u16")), nullable=True)),
            ("client_tags", _PAIRS),
        )
    ),
    20: _ASSIGNED,
    21: Struct(_ACTIVE_STANDBY_WARMUP),
    22: Struct(
        (
            *_EPOCHS,
            *_ACTIVE_STANDBY_WARMUP,
            *((f"{name}_pending_revocation", kind) for name, kind in _ACTIVE_STANDBY_WARMUP),
        )
    ),
    23: Struct(
        (
            ("epoch", "i32"),
            (
                "subtopologies",
                Items(
                    Struct(
                        (
                            ("subtopology_id", "text"),
                            ("source_topics", _TEXTS),
                            ("source_topic_regex", _TEXTS),
                            ("state_changelog_topics", _TOPIC_INFOS),
                            ("repartition_sink_topics", _TEXTS),
                            ("repartition_source_topics", _TOPIC_INFOS),
                            (
                                "copartition_groups",
                                Items(
                                    Struct(
                                        (
                                            ("source_topics", _INDEXES),
                                            ("source_topic_regex", _INDEXES),
                                            ("repartition_source_topics", _INDEXES),
                                        )
                                    )
                                ),
                            ),
                        )
                    )
                ),
            ),
        )
    ),
}
"""Record type → its value, version 0, as in Kafka 4.3's group-coordinator messages."""

_PRIMITIVES: Final[Mapping[str, Callable[[Cursor], Any]]] = {
    "i8": Cursor.i8,
    "i16": Cursor.i16,
    "u16": lambda data: data.i16() & 0xFFFF,
    "i32": Cursor.i32,
    "i64": Cursor.i64,
    "id": Cursor.topic_id,
    "text": lambda data: data.text(flexible=True),
    "text?": lambda data: data.text_or_none(flexible=True),
}


def read(kind: Kind, data: Cursor) -> Any:
    """One field: a number, a string, a tuple of an array's items, or a struct's dictionary.

    Raises Malformed for bytes that do not fit.
    """
    if isinstance(kind, Items):
        return data.items(lambda: read(kind.of, data), flexible=True)
    if isinstance(kind, Struct):
        return _struct(kind, data)
    return _PRIMITIVES[kind](data)


def _struct(kind: Struct, data: Cursor) -> dict[str, Any] | None:
    if kind.nullable and (present := data.i8()) != 1:
        if present == -1:
            return None
        raise Malformed(f"a nullable struct that begins with {present} before {data.at}")
    found = {name: read(each, data) for name, each in kind.fields}
    tags = data.tags()
    for tag, (name, each, default) in kind.tags.items():
        found[name] = read(each, Cursor(tags[tag])) if tag in tags else default
    return found


# What a record of `__consumer_offsets` says, as a value per record type.
#
# `fleet.log.records` makes these and exports them. All times are milliseconds since the
# epoch, as Kafka writes them.


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

    `fields` are Kafka's own, by name in snake_case (`fleet.log.records`); topic ids are 32
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


# Which partition of `__consumer_offsets` holds a group: the broker's own arithmetic.


def java_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 units, in 32 bits."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that holds a group (the broker's `partitionFor`)."""
    hashed = java_hash(group)
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


# The coordinator's log by its name, and the error of who may not read it: no client is loaded.


TOPIC: Final = "__consumer_offsets"


class Unreadable(FleetError):
    """The coordinator's records may not be read here; receipts are unverified then."""


__all__ = [
    "KEYS",
    "VALUES",
    "AssignmentEpoch",
    "ClassicMember",
    "ConsumerGroupEpoch",
    "ConsumerGroupMember",
    "CurrentAssignment",
    "GroupMetadata",
    "OffsetCommit",
    "Partitions",
    "Raw",
    "Record",
    "TargetAssignment",
    "Tombstone",
    "Undecoded",
    "assignment",
    "decode",
    "subscription",
]

GROUP, GROUP_MEMBER, GROUP_TOPIC_PARTITION, GROUP_REGEX = ("g", "gm", "gtp", "gr")
KEYS: Mapping[int, tuple[str, str]] = {
    0: ("LegacyOffsetCommit", GROUP_TOPIC_PARTITION),
    1: ("OffsetCommit", GROUP_TOPIC_PARTITION),
    2: ("GroupMetadata", GROUP),
    3: ("ConsumerGroupMetadata", GROUP),
    4: ("ConsumerGroupPartitionMetadata", GROUP),
    5: ("ConsumerGroupMemberMetadata", GROUP_MEMBER),
    6: ("ConsumerGroupTargetAssignmentMetadata", GROUP),
    7: ("ConsumerGroupTargetAssignmentMember", GROUP_MEMBER),
    8: ("ConsumerGroupCurrentMemberAssignment", GROUP_MEMBER),
    10: ("ShareGroupMemberMetadata", GROUP_MEMBER),
    11: ("ShareGroupMetadata", GROUP),
    12: ("ShareGroupTargetAssignmentMetadata", GROUP),
    13: ("ShareGroupTargetAssignmentMember", GROUP_MEMBER),
    14: ("ShareGroupCurrentMemberAssignment", GROUP_MEMBER),
    15: ("ShareGroupStatePartitionMetadata", GROUP),
    16: ("ConsumerGroupRegularExpression", GROUP_REGEX),
    17: ("StreamsGroupMetadata", GROUP),
    19: ("StreamsGroupMemberMetadata", GROUP_MEMBER),
    20: ("StreamsGroupTargetAssignmentMetadata", GROUP),
    21: ("StreamsGroupTargetAssignmentMember", GROUP_MEMBER),
    22: ("StreamsGroupCurrentMemberAssignment", GROUP_MEMBER),
    23: ("StreamsGroupTopology", GROUP),
}
"""Record type → its name in Kafka and the fields of its key after the int16."""


@dataclass(frozen=True, slots=True)
class _Head:
    """What a value reader needs besides the value."""

    offset: int
    timestamp_ms: int
    type: int
    group: str
    key: tuple[str | int, ...]
    raw: tuple[bytes, bytes]


def _partitions(data: Cursor) -> Partitions:
    def topic() -> tuple[str, tuple[int, ...]]:
        return data.text(), data.items(data.i32)

    return dict(data.items(topic))


def _id_partitions(data: Cursor) -> Partitions:
    def topic() -> tuple[str, tuple[int, ...]]:
        found = data.topic_id(), data.items(data.i32, flexible=True)
        data.tags()
        return found

    return dict(data.items(topic, flexible=True))


def subscription(blob: bytes) -> tuple[tuple[str, ...], Partitions]:
    """Topics and owned partitions of a ConsumerProtocolSubscription; later fields stay unread."""
    if not blob:
        return (), {}
    data = Cursor(blob)
    version = data.i16()
    topics = data.items(data.text)
    data.blob()
    return topics, (_partitions(data) if version >= 1 else {})


def assignment(blob: bytes) -> Partitions:
    """Partitions of a ConsumerProtocolAssignment; later fields are left unread."""
    if not blob:
        return {}
    data = Cursor(blob)
    data.i16()
    return _partitions(data)


def _offset_commit(head: _Head, version: int, data: Cursor) -> Record:
    flexible = version >= 4
    committed = data.i64()
    leader_epoch = data.i32() if version >= 3 else -1
    metadata = data.text(flexible=flexible)
    commit_ms = data.i64()
    expire_ms = data.i64() if version == 1 else None
    topic_id = data.tags().get(0) if flexible else None
    topic, partition = head.key
    return OffsetCommit(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        tp=TopicPartition(str(topic), int(partition)),
        committed=committed,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_ms,
        expire_timestamp_ms=None if expire_ms == -1 else expire_ms,
        topic_id=None if topic_id is None else Cursor(topic_id).topic_id(),
    )


def _own(read: Callable[[bytes], T], blob: bytes, nothing: T) -> tuple[T, str | None]:
    """What a client wrote of itself: where it got that wrong, nothing, and why."""
    try:
        return read(blob), None
    except Malformed as error:
        return nothing, str(error)


def _classic_member(version: int, protocol_type: str, data: Cursor) -> ClassicMember:
    flexible = version >= 4
    member_id = data.text(flexible=flexible)
    instance_id = data.text_or_none(flexible=flexible) if version >= 3 else None
    client_id = data.text(flexible=flexible)
    client_host = data.text(flexible=flexible)
    rebalance_ms = data.i32() if version >= 1 else -1
    session_ms = data.i32()
    subscribed, assigned = data.blob(flexible=flexible), data.blob(flexible=flexible)
    if flexible:
        data.tags()
    # Other protocol types (Connect) put their own formats into the blobs.
    consumer = protocol_type == "consumer"
    nothing: tuple[tuple[str, ...], Partitions] = ((), {})
    (topics, owned), spoilt = _own(subscription, subscribed if consumer else b"", nothing)
    unknown: Partitions = {}
    given, broken = _own(assignment, assigned if consumer else b"", unknown)
    return ClassicMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
        session_timeout_ms=session_ms,
        subscription=subscribed,
        assignment=assigned,
        topics=topics,
        owned=owned,
        assigned=given,
        problem=spoilt or broken,
    )


def _group_metadata(head: _Head, version: int, data: Cursor) -> Record:
    flexible = version >= 4
    protocol_type = data.text(flexible=flexible)
    generation = data.i32()
    protocol = data.text_or_none(flexible=flexible)
    leader = data.text_or_none(flexible=flexible)
    state_ms = data.i64() if version >= 2 else -1
    members = data.items(lambda: _classic_member(version, protocol_type, data), flexible=flexible)
    if flexible:
        data.tags()
    return GroupMetadata(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_timestamp_ms=None if state_ms == -1 else state_ms,
        members=members,
    )


def _group_epoch(head: _Head, _: int, data: Cursor) -> Record:
    epoch, tags = data.i32(), data.tags()
    return ConsumerGroupEpoch(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        epoch=epoch,
        metadata_hash=i64_of(tags.get(0)) or 0,
    )


def _group_member(head: _Head, _: int, data: Cursor) -> Record:
    return ConsumerGroupMember(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        member_id=str(head.key[0]),
        instance_id=data.text_or_none(flexible=True),
        rack_id=data.text_or_none(flexible=True),
        client_id=data.text(flexible=True),
        client_host=data.text(flexible=True),
        topics=data.items(lambda: data.text(flexible=True), flexible=True),
        regex=data.text_or_none(flexible=True),
        rebalance_timeout_ms=data.i32(),
        server_assignor=data.text_or_none(flexible=True),
    )


def _assignment_epoch(head: _Head, _: int, data: Cursor) -> Record:
    epoch, tags = data.i32(), data.tags()
    return AssignmentEpoch(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        epoch=epoch,
        assignment_timestamp_ms=i64_of(tags.get(0)),
    )


def _target(head: _Head, _: int, data: Cursor) -> Record:
    return TargetAssignment(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        member_id=str(head.key[0]),
        partitions=_id_partitions(data),
    )


def _current(head: _Head, _: int, data: Cursor) -> Record:
    return CurrentAssignment(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        member_id=str(head.key[0]),
        epoch=data.i32(),
        previous_epoch=data.i32(),
        state=data.i8(),
        assigned=_id_partitions(data),
        revoking=_id_partitions(data),
    )


def _raw(head: _Head, _: int, data: Cursor) -> Record:
    name, shape = KEYS[head.type]
    return Raw(
        offset=head.offset,
        timestamp_ms=head.timestamp_ms,
        type=head.type,
        group=head.group,
        name=name,
        member_id=str(head.key[0]) if shape == GROUP_MEMBER else None,
        fields=read(SCHEMAS[head.type], data),
        key=head.raw[0],
        value=head.raw[1],
    )


VALUES: Mapping[int, tuple[int, Callable[[_Head, int, Cursor], Record]]] = {
    0: (4, _offset_commit),
    1: (4, _offset_commit),
    2: (4, _group_metadata),
    3: (0, _group_epoch),
    5: (0, _group_member),
    6: (0, _assignment_epoch),
    7: (0, _target),
    8: (0, _current),
    **dict.fromkeys(SCHEMAS, (0, _raw)),
}
"""Record type → highest value version known, and its reader."""


def _key_fields(shape: str, data: Cursor) -> tuple[str, tuple[str | int, ...]]:
    group = data.text()
    if shape == GROUP:
        return group, ()
    if shape == GROUP_TOPIC_PARTITION:
        return group, (data.text(), data.i32())
    return group, (data.text(),)


def _value(head: _Head) -> Record:
    highest, read = VALUES[head.type]
    data = Cursor(head.raw[1])
    version = data.i16()
    if not 0 <= version <= highest:
        name = KEYS[head.type][0]
        raise Malformed(f"{name} value version {version}, known up to {highest}")
    return read(head, version, data)


def decode(key: bytes | None, value: bytes | None, *, offset: int, timestamp: int) -> Record:
    """One record as a value; never raises.

    `offset` is its place in the log, `timestamp` its time in ms. A null value is a
    `Tombstone`; a type without a class of its own is `Raw`; an unknown type or version and
    bytes that do not fit are `Undecoded` with the reason.
    """
    kind = -1
    try:
        if key is None:
            raise Malformed("no key")
        data = Cursor(key)
        kind = data.i16()
        known = KEYS.get(kind)
        if known is None:
            raise Malformed(f"record type {kind} is not known")
        group, fields = _key_fields(known[1], data)
        if value is None:
            return Tombstone(
                offset=offset, timestamp_ms=timestamp, type=kind, group=group, key=fields
            )
        return _value(_Head(offset, timestamp, kind, group, fields, (key, value)))
    except Malformed as error:
        return Undecoded(
            offset=offset,
            timestamp_ms=timestamp,
            type=kind,
            reason=str(error),
            key=key,
            value=value,
        )
