"""What the payload of a record batch is packed with, undone.

Problem: whoever only looks at a cluster shall not install Arrow (176 MB) for four codecs, executors
of a Spark cluster have Arrow and nothing of ours, and a few bytes may claim to unpack to more than
there is memory. Choice: cramjam (4 MB) where it is installed, else Arrow; either stops at MOST. A
frame that does not tell its size is unpacked into a buffer that is made four times larger until it
fits. Cost: a batch packed 1 to 8 or better is unpacked twice.

Source: Kafka's protocol guide, "Record Batch": attributes, bits 0-2.
"""

from collections.abc import Callable, Iterator
from typing import Final

_CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_XERIAL: Final = b"\x82SNAPPY\x00"
"""How Kafka's Java clients frame snappy: blocks, each with its length."""
_XERIAL_HEADER: Final = 16
_FIRST: Final = 8
"""How many times larger than what is packed the first buffer is."""
_LEAST: Final = 1 << 14
_FULL: Final = "failed to write whole buffer"
MOST: Final = 1 << 30
"""Bytes that one batch may unpack to."""


def unpacked(packed: bytes, codec: int) -> bytes | memoryview:
    """A batch's payload without its compression; ValueError or OSError where damaged."""
    name = _CODECS.get(codec)
    if name is None:
        raise ValueError(f"codec {codec} is none of Kafka's")
    try:
        import cramjam  # noqa: PLC0415 - only where something is packed
    except ImportError:
        return _by_arrow(packed, name)
    try:
        if name == "snappy":
            return b"".join(
                _snappy(packed, lambda block, _: bytes(cramjam.snappy.decompress_raw(block)))
            )
        return _into_buffer(getattr(cramjam, name).decompress_into, packed)
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


def _into_buffer(unpack: Callable[[bytes, bytearray], int], packed: bytes) -> memoryview:
    room = max(_LEAST, min(MOST, _FIRST * len(packed)))
    while True:
        buffer = bytearray(room)
        try:
            return memoryview(buffer)[: unpack(packed, buffer)]
        except Exception as error:  # cramjam has one class for all that can be wrong
            if _FULL not in str(error):
                raise
        if room >= MOST:
            raise ValueError(f"it unpacks to more than {MOST:,} bytes")
        room = min(MOST, 4 * room)


def _by_arrow(packed: bytes, name: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - executors have it, who only looks does not

    if name == "snappy":
        codec = pa.Codec("snappy")
        return b"".join(
            _snappy(packed, lambda block, size: codec.decompress(block, size, asbytes=True))
        )
    with pa.CompressedInputStream(pa.BufferReader(packed), name) as stream:
        found: bytes = stream.read(MOST + 1)
    if len(found) > MOST:
        raise ValueError(f"it unpacks to more than {MOST:,} bytes")
    return found


def _snappy(packed: bytes, unpack: Callable[[bytes, int], bytes]) -> Iterator[bytes]:
    if not packed.startswith(_XERIAL):
        yield unpack(packed, _snappy_size(packed))
        return
    at, total = _XERIAL_HEADER, 0
    while at + 4 <= len(packed):
        length = int.from_bytes(packed[at : at + 4], "big")
        block = packed[at + 4 : at + 4 + length]
        if len(block) < length or not length:
            raise ValueError("a block of snappy is cut short")
        size = _snappy_size(block)
        total += size
        if total > MOST:
            raise ValueError(f"it unpacks to more than {MOST:,} bytes")
        yield unpack(block, size)
        at += 4 + length


def _snappy_size(block: bytes) -> int:
    """What a block of snappy says that it unpacks to: a varint at its beginning."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if size > min(MOST, 64 * len(block) + 64):  # snappy's best is 1 to 64 / 3
                raise ValueError(f"a block of {len(block)} bytes cannot unpack to {size}")
            return size
    raise ValueError("a block of snappy without its size")
