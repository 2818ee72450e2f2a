"""Where the fields of many offset commits stand in their bytes.

Problem: a commit's strings have any length, so no field but the first has one place, and reading
with Python costs microseconds a row. Choice: positions are vectors: each is the one before plus a
vector of lengths, a field is one gather from a view of the buffer with a stride of one byte, and a
mask says which rows have kept to the layout so far. A row that strays is in `fits` no more and is
never read outside its own bytes. Cost: only the plain layout is known here (no unknown tags,
metadata up to 16 KiB); the rest is the scalar decoder's.

Layouts: OffsetCommitKey; OffsetCommitValue 0-4 (docs/design/protocol.md 3.2, 3.3).
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_NEWEST: Final = 4
_LEAST: Final = 32
"""Bytes that a buffer has at least, so that every field can be read at 0 where a row strays."""
_ID_TAIL: Final = 19
"""One tag, number 0, of 16 bytes."""
_ID_TAGS: Final = 0x010010


class Bytes:
    """A binary array as numpy sees it: its data, and where each row begins and ends."""

    def __init__(self, array: pa.Array) -> None:
        if array.type != pa.binary():
            array = array.cast(pa.binary())
        rows = len(array)
        _, offsets, data = array.buffers()
        raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        if len(raw) < _LEAST:
            raw = np.concatenate([raw, np.zeros(_LEAST, np.uint8)])
        self.data = raw
        if rows:
            self.offsets = np.frombuffer(offsets, np.int32)[array.offset : array.offset + rows + 1]
        else:
            self.offsets = np.zeros(1, np.int32)
        self.start = self.offsets[:-1].astype(np.int64)
        self.end = self.offsets[1:].astype(np.int64)
        valid = array.is_valid() if array.null_count else None
        self.valid: Bools = (
            np.ones(rows, bool) if valid is None else valid.to_numpy(zero_copy_only=False)
        )

    def read(self, kind: str, at: Ints, where: Bools) -> Ints:
        """A number of each row in `where`, at a position of the data; 0 or so elsewhere."""
        return self._view(kind)[np.where(where, at, 0)].astype(np.int64)

    def read_bytes(self, size: int, at: Ints, where: Bools) -> pa.Array:
        """`size` bytes of each row in `where`, as a fixed-size binary array."""
        rows = self._view(f"V{size}")[np.where(where, at, 0)]
        return pa.Array.from_buffers(pa.binary(size), len(rows), [None, pa.py_buffer(rows)])

    def _view(self, kind: str) -> npt.NDArray[np.void]:
        """The data as if a value began at every byte."""
        width = np.dtype(kind).itemsize
        return np.ndarray((len(self.data) - width + 1,), kind, self.data, 0, (1,))

    def pieces(self, where: Bools, *cuts: Ints) -> pa.Array:
        """Each row cut at ascending positions; a row that is not in `where` is its first piece."""
        edges = np.empty((len(self.start), len(cuts) + 1), np.int32)
        edges[:, 0] = self.start
        for number, cut in enumerate(cuts, start=1):
            edges[:, number] = np.where(where, cut, self.end)
        offsets = np.append(edges.ravel(), self.offsets[-1])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), edges.size, buffers)


class CommitKeys:
    """Keys of types 0 and 1: int16 type, text group, text topic, int32 partition."""

    def __init__(self, data: Bytes) -> None:
        self.bytes = data
        fits = data.valid & (data.end - data.start >= 4)
        self.type = data.read(">i2", data.start, fits)
        self._group = data.start + 4
        size = data.read(">i2", data.start + 2, fits)
        after_group = self._group + size
        fits &= (size >= 0) & (after_group + 2 <= data.end)
        size = data.read(">i2", after_group, fits)
        self._topic = after_group + 2
        self._after_topic = self._topic + size
        self._after_group = after_group
        self.fits: Bools = fits & (size >= 0) & (self._after_topic + 4 == data.end)

    def partition(self, where: Bools) -> npt.NDArray[np.int32]:
        """Of the topic."""
        return self.bytes.read(">i4", self._after_topic, where).astype(np.int32)

    def texts(self, where: Bools) -> tuple[pa.Array, pa.Array]:
        """Group and topic; ArrowInvalid where one is not UTF-8."""
        group, topic = self._taken(where)
        return group.cast(pa.string()), topic.cast(pa.string())

    def is_text(self) -> Bools:
        """Which rows have texts that are UTF-8."""
        group, topic = self._taken(self.fits)
        return utf8(group) & utf8(topic)

    def _taken(self, where: Bools) -> tuple[pa.Array, pa.Array]:
        cuts = (self._group, self._after_group, self._topic, self._after_topic)
        pieces = self.bytes.pieces(where, *cuts)
        first = np.arange(len(where)) * (len(cuts) + 1)
        return pieces.take(pa.array(first + 1)), pieces.take(pa.array(first + 3))


class CommitValues:
    """Values of versions 0-4; which fields a version has, docs/design/protocol.md 3.3 says."""

    def __init__(self, data: Bytes) -> None:
        self.bytes = data
        size = data.end - data.start
        fits = data.valid & (size >= 20)  # the shortest: version 0 with empty metadata
        self.version = data.read(">i2", data.start, fits)
        fits &= (self.version >= 0) & (self.version <= _NEWEST)
        flexible = self.version == _NEWEST
        head = data.start + np.where(self.version >= 3, 14, 10)
        length, width = _lengths(data.read(">u2", head, fits), flexible)
        self._metadata = head + width
        self._after = self._metadata + length
        left = data.end - self._after - 8  # behind the commit's time
        fits &= length >= 0
        self.has_topic_id: Bools = fits & flexible & (left == _ID_TAIL)
        tags = data.read(">u4", self._after + 7, self.has_topic_id) & 0xFFFFFF
        self.has_topic_id &= tags == _ID_TAGS
        untagged = fits & flexible & (left == 1)
        untagged &= data.read("u1", self._after + 8, untagged) == 0
        self.fits: Bools = (fits & ~flexible & (left == np.where(self.version == 1, 8, 0))) | (
            self.has_topic_id | untagged
        )

    def committed(self, where: Bools) -> Ints:
        """The next offset to read."""
        return self.bytes.read(">i8", self.bytes.start + 2, where)

    def leader_epoch(self, where: Bools) -> npt.NDArray[np.int32]:
        """-1 where the version has none."""
        has = where & (self.version >= 3)
        epochs = self.bytes.read(">i4", self.bytes.start + 10, has)
        return np.where(has, epochs, -1).astype(np.int32)

    def commit_timestamp(self, where: Bools) -> Ints:
        """Milliseconds."""
        return self.bytes.read(">i8", self._after, where)

    def expire_timestamp(self, where: Bools) -> Ints:
        """Milliseconds; only version 1 has it."""
        return self.bytes.read(">i8", self._after + 8, where)

    def topic_id(self, where: Bools) -> pa.Array:
        """16 bytes each."""
        return self.bytes.read_bytes(16, self._after + 11, where)

    def has_metadata(self, where: Bools) -> bool:
        """Whether any of them has some."""
        return bool((where & (self._after > self._metadata)).any())

    def metadata(self, where: Bools) -> pa.Array:
        """What the committer wrote beside; ArrowInvalid where it is not UTF-8."""
        return self._taken(where).cast(pa.string())

    def is_text(self) -> Bools:
        """Which rows have metadata that is UTF-8."""
        return utf8(self._taken(self.fits))

    def _taken(self, where: Bools) -> pa.Array:
        pieces = self.bytes.pieces(where, self._metadata, self._after)
        return pieces.take(pa.array(np.arange(len(where)) * 3 + 1))


def _lengths(two: Ints, flexible: Bools) -> tuple[Ints, Ints]:
    """A string's length and the bytes that tell it, from the first two bytes.

    int16, or for flexible versions an unsigned varint of one byte or two, one more than the
    length. -1 for null and for longer varints.
    """
    first, second = two >> 8, two & 0xFF
    short = first < 0x80
    compact = np.where(short, first, (first & 0x7F) | (second << 7)) - 1
    compact[~short & (second >= 0x80)] = -1
    plain = np.where(two < 0x8000, two, -1)
    return np.where(flexible, compact, plain), np.where(flexible & short, 1, 2)


def utf8(array: pa.Array) -> Bools:
    """Which rows are UTF-8."""
    return np.fromiter((_is_utf8(each) for each in array.to_pylist()), bool, len(array))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
