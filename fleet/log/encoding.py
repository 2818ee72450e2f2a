"""Records of `__consumer_offsets` as a coordinator writes them: values in, bytes out.

Problem: a simulated coordinator has to write the very bytes that Kafka's own writes, so that the
same history comes of both. Choice: `records.TYPES`, by which they are read too, in the versions
that 4.3.1 writes; beside it Kafka's primitive types for what is no record, and for records that are
written by the hundred thousand. Integers are big-endian.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from fleet.log.records import MEMBER, record_value, uvarint, write

OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_GROUP_VERSION: Final = 3
_COMMIT_VERSION: Final = 4


def i16(value: int) -> bytes:
    """Encodes a number as int16."""
    return _I16.pack(value)


def i32(value: int) -> bytes:
    """Encodes a number as int32."""
    return _I32.pack(value)


def text(value: str | None) -> bytes:
    """A nullable string of a version that is not flexible."""
    return write("text?", value, 0, flexible=False)


def blob(value: bytes) -> bytes:
    """Bytes of a version that is not flexible."""
    return _I32.pack(len(value)) + value


def compact_text(value: str | None) -> bytes:
    """A nullable string of a flexible version (KIP-482)."""
    return write("text?", value, 0, flexible=True)


def tags(fields: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """The tagged fields at the end of a flexible struct, in the order of their tags."""
    written = list(fields)
    return uvarint(len(written)) + b"".join(
        uvarint(tag) + uvarint(len(value)) + value for tag, value in written
    )


class WrittenMember(NamedTuple):
    """A classic member in a group's record."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@lru_cache(maxsize=8192)
def _member(m: WrittenMember) -> bytes:
    """Kept, since a group is written anew for one member that changed."""
    return write(MEMBER, m._asdict(), _GROUP_VERSION, flexible=False)


def group_metadata(members: Iterable[WrittenMember] = (), **fields: str | int | None) -> bytes:
    """Encodes the record of a classic group."""
    written = [_member(each) for each in members]
    empty = record_value(GROUP_METADATA, _GROUP_VERSION, members=(), **fields)
    return empty[: -_I32.size] + i32(len(written)) + b"".join(written)


def offset_commit(
    offset: int,
    *,
    leader_epoch: int = -1,
    metadata: str = "",
    commit_timestamp: int,
    topic_id: str | None = None,
) -> bytes:
    """A commit; topic_id: 32 hex digits where the commit named the topic so."""
    return record_value(
        OFFSET_COMMIT,
        _COMMIT_VERSION,
        committed=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp,
        topic_id=topic_id,
    )
