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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fleet.log.record_types import (
    AssignmentEpoch,
    ClassicMember,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    OffsetCommit,
    Partitions,
    Raw,
    Record,
    TargetAssignment,
    Tombstone,
    Undecoded,
)
from fleet.log.schemas import SCHEMAS
from fleet.log.schemas import read as read_fields
from fleet.log.wire import Cursor, Malformed, i64_of
from fleet.model import TopicPartition

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

T = TypeVar("T")
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
        fields=read_fields(SCHEMAS[head.type], data),
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
