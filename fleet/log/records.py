"""Records of `__consumer_offsets`: bytes in, values out, one record at a time.

Problem: the coordinator's own log is the only place that tells every rebalance of every
group, but its formats change with broker versions, and other record types live beside the
ones we need. Choice: one table (`TYPES`) of each type's fields and versions, as Kafka 4.3's message
definitions have them, for this decoder, for the columns of the history (`record_columns`) and for
a caller writes records (`record_value`). Of types of which we need little only the first fields are
read, of some none. All else is `Undecoded` with its reason, to be counted, never guessed.
Cost: about 10 µs a record in Python; the columns are for volume, and this is their oracle.

Formats: GroupMetadata*, OffsetCommit*, ConsumerGroup* (KIP-848), ShareGroup*, StreamsGroup*; the
blobs of a classic member are ConsumerProtocolSubscription/Assignment. Integers are big-endian.
Flexible versions (KIP-482) use unsigned varints for lengths (+ 1, 0 = null) and tagged fields at
the end of every struct; unknown tags are skipped by their size (KIP-915). Times are milliseconds.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fleet.errors import FleetError
from fleet.model import TopicPartition

TOPIC: Final = "__consumer_offsets"


class Unreadable(FleetError):
    """The coordinator's records may not be read here; receipts are unverified then."""


class MalformedRecord(ValueError):
    """The bytes do not hold what their version promises."""


# --- fields, and how they are read and written --------------------------------------------------

Kind: TypeAlias = "str | list[Kind] | dict[str, Kind] | Struct"
"""Type of a field: one of NUMBERS; `id` (UUID, as 32 hex digits), `text`, `text?` (may be null),
`bytes` (null reads as empty); [kind], an array; {kind: kind}, an array of such pairs, as a mapping;
or a Struct."""
LAST: Final = 1 << 15
"""Beyond all versions."""
NUMBERS: Final = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of versions `first` to `last`; elsewhere it has its default. `tag`: if tagged."""

    kind: Kind
    first: int = 0
    last: int = LAST
    tag: int | None = None
    default: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """Fields by name, in order. `open`: more may follow, and is left unread."""

    fields: Mapping[str, Field]
    open: bool = False

    def of(self, version: int) -> list[tuple[str, Field]]:
        """The fields of a version that have no tag."""
        return [
            (name, each)
            for name, each in self.fields.items()
            if each.tag is None and each.first <= version <= each.last
        ]


def _struct(**fields: "Kind | Field") -> Struct:
    return Struct({n: f if isinstance(f, Field) else Field(f) for n, f in fields.items()})


def _begins(**fields: "Kind | Field") -> Struct:
    return Struct(_struct(**fields).fields, open=True)


class Cursor:
    """Reads bytes from their start; raises Malformed for anything that does not fit."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self.data) - self.at

    def raw(self, size: int) -> bytes:
        """The next `size` bytes."""
        at, end = self.at, self.at + size
        if size < 0 or end > len(self.data):
            raise MalformedRecord(f"{size} bytes wanted at {at}, {self.left} left")
        self.at = end
        return self.data[at:end]

    def i16(self) -> int:
        """Reads the next int16."""
        return int.from_bytes(self.raw(2), "big", signed=True)

    def uvarint(self) -> int:
        """Unsigned LEB128 of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise MalformedRecord(f"a varint longer than five bytes before {self.at}")

    def size(self, *, flexible: bool, width: int) -> int:
        """A length, by a varint or by an integer of `width` bytes; -1: null."""
        if flexible:
            return self.uvarint() - 1
        return int.from_bytes(self.raw(width), "big", signed=True)

    def text(self, *, flexible: bool) -> str | None:
        """Reads a nullable string."""
        size = self.size(flexible=flexible, width=2)
        try:
            return None if size == -1 else self.raw(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"a string that is not UTF-8 before {self.at}") from error

    def count(self, *, flexible: bool) -> int:
        """Items of an array; null is empty. Each takes a byte or more, so that it is bounded."""
        count = self.size(flexible=flexible, width=4)
        if count < -1 or count > self.left:
            raise MalformedRecord(f"an array of {count} items with {self.left} bytes left")
        return max(count, 0)


Read: TypeAlias = Callable[[Cursor], Any]


def reader(kind: Kind, version: int, *, flexible: bool) -> Read:
    """What reads a field of that kind: a tuple of an array's items, a struct's dictionary."""
    if isinstance(kind, Struct):
        return _READERS[kind, version, flexible]
    if isinstance(kind, dict):
        ((key, value),) = kind.items()
        pairs = reader([_struct(key=key, value=value)], version, flexible=flexible)
        return lambda data: {each["key"]: each["value"] for each in pairs(data)}
    if isinstance(kind, list):
        return _array_reader(kind[0], version, flexible=flexible)
    if kind in NUMBERS:
        packed = struct.Struct(NUMBERS[kind])
        return lambda data: packed.unpack(data.raw(packed.size))[0]
    if kind == "id":
        return lambda data: data.raw(16).hex()
    if kind == "bytes":

        def blob(data: Cursor) -> bytes:
            size = data.size(flexible=flexible, width=4)
            return b"" if size == -1 else data.raw(size)

        return blob
    if kind == "text?":
        return lambda data: data.text(flexible=flexible)

    def text(data: Cursor) -> str:
        found = data.text(flexible=flexible)
        if found is None:
            raise MalformedRecord(f"null before {data.at} where a string must be")
        return found

    return text


def _array_reader(of: Kind, version: int, *, flexible: bool) -> Read:
    if isinstance(of, str) and of in NUMBERS:
        letter = NUMBERS[of][1]

        def numbers(data: Cursor) -> tuple[int, ...]:
            packed = struct.Struct(f">{data.count(flexible=flexible)}{letter}")
            return packed.unpack(data.raw(packed.size))

        return numbers
    item = reader(of, version, flexible=flexible)
    return lambda data: tuple([item(data) for _ in range(data.count(flexible=flexible))])


class _Readers(dict[tuple[Struct, int, bool], Read]):
    """What reads a struct of a version, flexible or not; made once. To a task it travels empty."""

    def __missing__(self, key: tuple[Struct, int, bool]) -> Read:
        made = self[key] = _struct_reader(*key)
        return made

    def __reduce__(self) -> tuple[type["_Readers"], tuple[()]]:
        return _Readers, ()


_READERS: Final = _Readers()


def _struct_reader(kind: Struct, version: int, flexible: bool) -> Read:
    def read_by(each: Field) -> Read:
        return reader(each.kind, version, flexible=flexible)

    there = [(name, read_by(each)) for name, each in kind.of(version)]
    other = {n: each.default for n, each in kind.fields.items() if n not in dict(there)}
    tagged = {e.tag: (name, read_by(e)) for name, e in kind.fields.items() if e.tag is not None}

    def read(data: Cursor) -> dict[str, Any]:
        found = {name: each(data) for name, each in there}
        if other:
            found |= other
        if flexible and not kind.open:
            for _ in range(data.uvarint()):
                tag = data.uvarint()
                value = Cursor(data.raw(data.uvarint()))
                if tag in tagged:
                    name, each = tagged[tag]
                    found[name] = each(value)
                    if value.left:
                        raise MalformedRecord(
                            f"tag {tag} is {value.left} bytes longer than its field"
                        )
        return found

    return read


def uvarint(value: int) -> bytes:
    """Encodes a number as unsigned LEB128."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _sized(data: bytes | None, width: str, *, flexible: bool, count: int | None = None) -> bytes:
    """Data behind its length, or the number of its items; None: null."""
    size = -1 if data is None else len(data) if count is None else count
    head = uvarint(size + 1) if flexible else struct.pack(NUMBERS[width], size)
    return head + (data or b"")


def write(kind: Kind, value: Any, version: int, *, flexible: bool) -> bytes:
    """The bytes of a field, as `reader` reads them; of a struct `value` has each field by name."""
    if isinstance(kind, Struct):
        parts = [
            write(each.kind, value.get(name, each.default), version, flexible=flexible)
            for name, each in kind.of(version)
        ]
        if flexible and not kind.open:
            tagged = [
                (each.tag, write(each.kind, value[name], version, flexible=flexible))
                for name, each in kind.fields.items()
                if each.tag is not None and value.get(name, each.default) != each.default
            ]
            parts.append(uvarint(len(tagged)))
            parts += [uvarint(tag) + uvarint(len(data)) + data for tag, data in tagged]
        return b"".join(parts)
    if isinstance(kind, dict):
        ((key, of),) = kind.items()
        value = [{"key": each, "value": item} for each, item in value.items()]
        kind = [_struct(key=key, value=of)]
    if isinstance(kind, list):
        data = b"".join(write(kind[0], each, version, flexible=flexible) for each in value)
        return _sized(data, "i32", flexible=flexible, count=len(value))
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], value)
    if kind == "id":
        return bytes.fromhex(value)
    if kind == "bytes":
        return _sized(value, "i32", flexible=flexible)
    return _sized(None if value is None else value.encode(), "i16", flexible=flexible)


# --- what a record says -------------------------------------------------------------------------

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
    """Type 3 (KIP-848), 11 (share), 17 (streams): the group epoch."""

    group: str
    epoch: int
    metadata_hash: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember(Record):
    """Type 5 (KIP-848), 10 (share), 19 (streams): one member's own data."""

    group: str
    member_id: str
    instance_id: str | None = None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentEpoch(Record):
    """Type 6, 12, 20: a target assignment was computed; each distinct epoch is a rebalance."""

    group: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment(Record):
    """Type 7 (KIP-848): what a member shall own, by topic id."""

    group: str
    member_id: str
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment(Record):
    """Type 8 (KIP-848), 14 (share), 22 (streams): where a member stands.

    epoch -2 = a static member that is away; state 0 stable, 1 unrevoked, 2 unreleased. What it
    owns and must give up, by topic id, is known of KIP-848's members alone.
    """

    group: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: int
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused(Record):
    """A type whose value is not read. What the key has beside the group is None in other types."""

    group: str
    member_id: str | None = None
    regex: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecoded(Record):
    """Bytes that cannot be read, with the reason; type -1 where not even the type is there."""

    reason: str
    key: bytes | None
    value: bytes | None


# --- the table ----------------------------------------------------------------------------------


def _commit(
    *, topic: str, partition: int, expire_timestamp_ms: int | None, **fields: Any
) -> OffsetCommit:
    return OffsetCommit(
        tp=TopicPartition(topic, partition),
        expire_timestamp_ms=None if expire_timestamp_ms == -1 else expire_timestamp_ms,
        **fields,
    )


def _group(*, members: tuple[dict[str, Any], ...], **fields: Any) -> GroupMetadata:
    if fields["state_timestamp_ms"] == -1:
        fields["state_timestamp_ms"] = None
    consumer = fields["protocol_type"] == "consumer"  # Connect's blobs are in formats of its own
    return GroupMetadata(members=tuple(_member(each, consumer) for each in members), **fields)


def _member(fields: dict[str, Any], consumer: bool) -> ClassicMember:
    if fields["rebalance_timeout_ms"] < 0:
        fields["rebalance_timeout_ms"] = fields["session_timeout_ms"]
    if consumer:
        for blob, read in (("subscription", _subscription), ("assignment", _assignment)):
            try:
                fields |= read(fields[blob])
            except MalformedRecord as error:
                fields.setdefault("problem", str(error))
    return ClassicMember(**fields)


def _streams_current(*, state: int, **fields: Any) -> CurrentAssignment:
    return CurrentAssignment(state=state - 1, **fields)  # KIP-1071 counts from 1


GROUP: Final = _struct(group="text")
GROUP_MEMBER: Final = _struct(group="text", member_id="text")
GROUP_REGEX: Final = _struct(group="text", regex="text")
GROUP_PARTITION: Final = _struct(group="text", topic="text", partition="i32")
_BY_ID: Final[Kind] = {"id": ["i32"]}
_CLIENT: Final = {"rack_id": "text?", "client_id": "text", "client_host": "text"}
_STATE: Final = {"epoch": "i32", "previous_epoch": "i32", "state": "i8"}
_NOTHING: Final = _begins()
_EPOCH: Final = _begins(epoch="i32")
_EPOCH_HASH: Final = _begins(epoch="i32", metadata_hash="i64")
MEMBER: Final = _struct(
    member_id="text",
    instance_id=Field("text?", first=3),
    client_id="text",
    client_host="text",
    rebalance_timeout_ms=Field("i32", first=1, default=-1),
    session_timeout_ms="i32",
    subscription="bytes",
    assignment="bytes",
)
SUBSCRIPTION: Final = _begins(
    topics=["text"], user_data="bytes", owned=Field({"text": ["i32"]}, first=1, default={})
)
ASSIGNMENT: Final = _begins(assigned={"text": ["i32"]})


@dataclass(frozen=True, slots=True)
class Type:
    """A record type: its key behind the int16, its value behind the version, and what it makes."""

    name: str
    key: Struct
    make: Callable[..., Record]
    value: Struct
    newest: int = 0
    """The highest version known."""
    flexible: int = 0
    """The first flexible version."""

    def reads(self, version: int) -> Read:
        """What reads a value of a version; Malformed where it is not known."""
        if not 0 <= version <= self.newest:
            raise MalformedRecord(f"{self.name} value version {version}, known up to {self.newest}")
        return _READERS[self.value, version, version >= self.flexible]


_COMMIT: Final = _struct(
    committed="i64",
    leader_epoch=Field("i32", first=3, default=-1),
    metadata="text",
    commit_timestamp_ms="i64",
    expire_timestamp_ms=Field("i64", first=1, last=1),
    topic_id=Field("id", tag=0),
)
TYPES: Final[Mapping[int, Type]] = {
    0: Type("LegacyOffsetCommit", GROUP_PARTITION, _commit, _COMMIT, 4, 4),
    1: Type("OffsetCommit", GROUP_PARTITION, _commit, _COMMIT, 4, 4),
    2: Type(
        "GroupMetadata",
        GROUP,
        _group,
        _struct(
            protocol_type="text",
            generation="i32",
            protocol="text?",
            leader="text?",
            state_timestamp_ms=Field("i64", first=2),
            members=[MEMBER],
        ),
        newest=4,
        flexible=4,
    ),
    3: Type(
        "ConsumerGroupMetadata",
        GROUP,
        ConsumerGroupEpoch,
        _struct(epoch="i32", metadata_hash=Field("i64", tag=0, default=0)),
    ),
    4: Type("ConsumerGroupPartitionMetadata", GROUP, Unused, _NOTHING),
    5: Type(
        "ConsumerGroupMemberMetadata",
        GROUP_MEMBER,
        ConsumerGroupMember,
        _begins(
            instance_id="text?",
            **_CLIENT,
            topics=["text"],
            regex="text?",
            rebalance_timeout_ms="i32",
            server_assignor="text?",
        ),
    ),
    6: Type("ConsumerGroupTargetAssignmentMetadata", GROUP, AssignmentEpoch, _EPOCH),
    7: Type(
        "ConsumerGroupTargetAssignmentMember",
        GROUP_MEMBER,
        TargetAssignment,
        _struct(partitions=_BY_ID),
    ),
    8: Type(
        "ConsumerGroupCurrentMemberAssignment",
        GROUP_MEMBER,
        CurrentAssignment,
        _struct(**_STATE, assigned=_BY_ID, revoking=_BY_ID),
    ),
    10: Type(
        "ShareGroupMemberMetadata",
        GROUP_MEMBER,
        ConsumerGroupMember,
        _struct(**_CLIENT, topics=["text"]),
    ),
    11: Type("ShareGroupMetadata", GROUP, ConsumerGroupEpoch, _EPOCH_HASH),
    12: Type("ShareGroupTargetAssignmentMetadata", GROUP, AssignmentEpoch, _EPOCH),
    13: Type("ShareGroupTargetAssignmentMember", GROUP_MEMBER, Unused, _NOTHING),
    14: Type(
        "ShareGroupCurrentMemberAssignment", GROUP_MEMBER, CurrentAssignment, _begins(**_STATE)
    ),
    15: Type("ShareGroupStatePartitionMetadata", GROUP, Unused, _NOTHING),
    16: Type("ConsumerGroupRegularExpression", GROUP_REGEX, Unused, _NOTHING),
    17: Type("StreamsGroupMetadata", GROUP, ConsumerGroupEpoch, _EPOCH_HASH),
    19: Type(
        "StreamsGroupMemberMetadata",
        GROUP_MEMBER,
        ConsumerGroupMember,
        _begins(instance_id="text?", **_CLIENT, rebalance_timeout_ms="i32"),
    ),
    20: Type("StreamsGroupTargetAssignmentMetadata", GROUP, AssignmentEpoch, _EPOCH),
    21: Type("StreamsGroupTargetAssignmentMember", GROUP_MEMBER, Unused, _NOTHING),
    22: Type(
        "StreamsGroupCurrentMemberAssignment", GROUP_MEMBER, _streams_current, _begins(**_STATE)
    ),
    23: Type("StreamsGroupTopology", GROUP, Unused, _NOTHING),
}
"""Record type → what is known of it (Kafka 4.3)."""


def subscription(blob: bytes) -> tuple[tuple[str, ...], Partitions]:
    """Topics and owned partitions of a ConsumerProtocolSubscription."""
    found = _subscription(blob)
    return found.get("topics", ()), found.get("owned", {})


def assignment(blob: bytes) -> Partitions:
    """Partitions of a ConsumerProtocolAssignment."""
    found: Partitions = _assignment(blob).get("assigned", {})
    return found


def _subscription(blob: bytes) -> dict[str, Any]:
    found = _of_blob(SUBSCRIPTION, blob)
    found.pop("user_data", None)
    return found


def _assignment(blob: bytes) -> dict[str, Any]:
    return _of_blob(ASSIGNMENT, blob)


def _of_blob(kind: Struct, blob: bytes) -> dict[str, Any]:
    """Of any version: later ones only add fields. {}: the client told nothing."""
    if not blob:
        return {}
    data = Cursor(blob)
    found: dict[str, Any] = _READERS[kind, min(data.i16(), 1), False](data)
    return found


def decode(key: bytes | None, value: bytes | None, *, offset: int, timestamp: int) -> Record:
    """One record as a value; never raises.

    `offset` is its place in the log, `timestamp` its time in ms. A null value is a `Tombstone`; an
    unknown type or version and bytes that do not fit are `Undecoded` with the reason.
    """
    kind = -1
    try:
        if key is None:
            raise MalformedRecord("no key")
        data = Cursor(key)
        kind = data.i16()
        known = TYPES.get(kind)
        if known is None:
            raise MalformedRecord(f"record type {kind} is not known")
        about = _READERS[known.key, 0, False](data)
        place = {"offset": offset, "timestamp_ms": timestamp, "type": kind}
        if value is None:
            group, *rest = about.values()
            return Tombstone(**place, group=group, key=tuple(rest))
        data = Cursor(value)
        fields = known.reads(data.i16())(data)
        return known.make(**place, **about, **fields)
    except MalformedRecord as error:
        return Undecoded(
            offset=offset,
            timestamp_ms=timestamp,
            type=kind,
            reason=str(error),
            key=key,
            value=value,
        )


def record_key(kind: int, *parts: str | int) -> bytes:
    """The key of a record: the group, and what its type has beside it."""
    named = TYPES[kind].key.fields.items()
    return struct.pack(">h", kind) + b"".join(
        write(each.kind, part, 0, flexible=False)
        for (_, each), part in zip(named, parts, strict=True)
    )


def record_value(kind: int, version: int, **fields: Any) -> bytes:
    """The value of a record; fields that are left out have their default."""
    flexible = version >= TYPES[kind].flexible
    return struct.pack(">h", version) + write(TYPES[kind].value, fields, version, flexible=flexible)


# --- which partition of the topic holds a group: the broker's own arithmetic --------------------


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
