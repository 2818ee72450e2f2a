"""What classic members tell their leader and what it answers, in the bytes that consumers use.

The coordinator passes both on unread; they stand in its records, where `fleet.log.records` reads
them. Versions and fields are those that librdkafka writes (docs/design/protocol.md 3.3):
subscription 3 with an empty rack, assignment 0. One topic.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from fleet.log import encoding
from fleet.sim.assignors.client_side import HeardMember

TOPIC: Final = "topic"
_ONE_TOPIC: Final = encoding.i32(1) + encoding.text(TOPIC)
_NO_TOPIC: Final = encoding.i32(0)
_I32 = struct.Struct(">i")


def subscription(
    owned: Iterable[int] = (), generation: int = -1, last: tuple[int, ...] | None = None
) -> bytes:
    """ConsumerProtocolSubscription.

    `last`: the assignment of that generation, which a sticky member repeats as its user data.
    """
    told = b"\xff\xff\xff\xff"
    if last is not None:
        told = encoding.blob(_partitions(last) + encoding.i32(generation))
    return b"".join(
        (
            encoding.i16(3),
            _ONE_TOPIC,
            told,
            _partitions(owned),
            encoding.i32(generation),
            encoding.text(""),
        )
    )


@lru_cache(maxsize=1 << 14)
def claimed(member_id: str, instance_id: str | None, told: bytes) -> HeardMember:
    """A member as the leader reads it."""
    at = 2 + len(_ONE_TOPIC)
    (size,) = _I32.unpack_from(told, at)
    at += 4 + max(0, size)
    (topics,) = _I32.unpack_from(told, at)
    at += 4
    owned: tuple[int, ...] = ()
    if topics:
        at += 2 + len(TOPIC)
        (count,) = _I32.unpack_from(told, at)
        owned = struct.unpack_from(f">{count}i", told, at + 4)
        at += 4 + 4 * count
    return HeardMember(member_id, instance_id, owned, _I32.unpack_from(told, at)[0])


def assignment(partitions: Iterable[int]) -> bytes:
    """ConsumerProtocolAssignment."""
    return encoding.i16(0) + _partitions(partitions) + encoding.blob(b"")


def assigned(told: bytes) -> tuple[int, ...]:
    """What a member reads of it; nothing where the leader sent nothing."""
    if len(told) < 6 or not _I32.unpack_from(told, 2)[0]:
        return ()
    at = 8 + len(TOPIC)
    (count,) = _I32.unpack_from(told, at)
    return struct.unpack_from(f">{count}i", told, at + 4)


def _partitions(owned: Iterable[int]) -> bytes:
    listed = tuple(owned)
    if not listed:
        return _NO_TOPIC
    return _ONE_TOPIC + struct.pack(f">{len(listed) + 1}i", len(listed), *listed)
