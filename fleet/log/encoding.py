"""Records of `__consumer_offsets` as a coordinator writes them: values in, bytes out.

Problem: a simulated coordinator has to write the very bytes that Kafka's own writes, so that the
same history comes of both. Choice: a function per record type of Kafka 4.3.1, each field by its
name, over Kafka's primitive types; the versions are those that 4.3.1 writes. `records.decode`
reads what comes out. Cost: a new record type is written down here and read there.

Integers are big-endian; times are milliseconds.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_NULL_TEXT: Final = b"\xff\xff"
_COMMIT_HEAD = struct.Struct(">hqi")
_GROUP_VERSION: Final = 3
_COMMIT_VERSION: Final = 4


def i16(value: int) -> bytes:
    """int16."""
    return _I16.pack(value)


def i32(value: int) -> bytes:
    """int32."""
    return _I32.pack(value)


def i64(value: int) -> bytes:
    """int64."""
    return _I64.pack(value)


def uvarint(value: int) -> bytes:
    """Unsigned LEB128."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def text(value: str | None) -> bytes:
    """A nullable string of a version that is not flexible."""
    if value is None:
        return _NULL_TEXT
    raw = value.encode()
    return _I16.pack(len(raw)) + raw


def blob(value: bytes) -> bytes:
    """Bytes of a version that is not flexible."""
    return _I32.pack(len(value)) + value


def compact_text(value: str | None) -> bytes:
    """A nullable string of a flexible version (KIP-482)."""
    if value is None:
        return b"\0"
    raw = value.encode()
    return uvarint(len(raw) + 1) + raw


def compact_blob(value: bytes) -> bytes:
    """Bytes of a flexible version."""
    return uvarint(len(value) + 1) + value


def compact_items(items: Iterable[bytes]) -> bytes:
    """An array of a flexible version, of items that are written already."""
    written = list(items)
    return uvarint(len(written) + 1) + b"".join(written)


def tags(fields: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """The tagged fields at the end of a flexible struct, in the order of their tags."""
    written = list(fields)
    return uvarint(len(written)) + b"".join(
        uvarint(tag) + uvarint(len(value)) + value for tag, value in written
    )


def key(record_type: int, *names: str) -> bytes:
    """A key of texts: the group, and for some types the member or the regular expression."""
    return _I16.pack(record_type) + b"".join(map(text, names))


class WrittenMember(NamedTuple):
    """A classic member in a group's record."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


@lru_cache(maxsize=8192)
def _member(m: WrittenMember) -> bytes:
    """Kept, since a group is written anew for one member that changed."""
    return (
        text(m.member_id)
        + text(m.group_instance_id)
        + text(m.client_id)
        + text(m.client_host)
        + _I32.pack(m.rebalance_timeout)
        + _I32.pack(m.session_timeout)
        + blob(m.subscription)
        + blob(m.assignment)
    )


def group_metadata(
    *,
    protocol_type: str,
    generation: int,
    protocol: str | None,
    leader: str | None,
    current_state_timestamp: int,
    members: Iterable[WrittenMember],
) -> bytes:
    """GroupMetadataValue, version 3: a classic group."""
    written = [_member(each) for each in members]
    head = _I16.pack(_GROUP_VERSION) + text(protocol_type) + _I32.pack(generation)
    names = text(protocol) + text(leader)
    return (head + names + _I64.pack(current_state_timestamp) + _I32.pack(len(written))) + b"".join(
        written
    )


def offset_commit_key(group: str, topic: str, partition: int) -> bytes:
    """OffsetCommitKey."""
    return key(OFFSET_COMMIT, group, topic) + _I32.pack(partition)


def offset_commit(
    offset: int,
    *,
    leader_epoch: int = -1,
    metadata: str = "",
    commit_timestamp: int,
    topic_id: bytes | None = None,
) -> bytes:
    """OffsetCommitValue, version 4; topic_id: 16 bytes where the commit named the topic so."""
    head = _COMMIT_HEAD.pack(_COMMIT_VERSION, offset, leader_epoch)
    tail = tags([(0, topic_id)] if topic_id is not None else ())
    return head + compact_text(metadata) + _I64.pack(commit_timestamp) + tail
