"""Kafka's primitive types, read from bytes with every bound checked.

Problem: records of `__consumer_offsets` come from many broker versions, and a truncated or
foreign one must become a named outcome, never a crash or a huge allocation. Choice: a cursor
that raises `Malformed` for anything that does not fit, so that one `except` at the top
suffices. Cost: a bounds check per field; the vectorised decoder is for volume, this one is
its oracle.

Integers are big-endian. Flexible versions (KIP-482) use unsigned varints for lengths (+ 1,
0 = null) and tagged fields at the end of every struct; tags that we do not know are skipped
by their size (KIP-915).
"""

import struct
import uuid
from collections.abc import Callable
from typing import TypeVar

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
