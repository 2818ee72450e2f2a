"""Records of `__consumer_offsets` as Arrow columns, many at a time.

Problem: nearly all of the topic is offset commits, by the million, and a Python object for each
costs twenty times what there is time for. Choice: the bytes of a batch stay in two Arrow
buffers; numpy finds where each field of each commit begins (`layout`) and reads all rows at once.
Strings are not copied one by one: the buffer is cut into pieces by an offsets array of our own,
and Arrow takes every fifth of them. Whatever is not a plain commit or its tombstone (group
events, unknown types, odd lengths and tags) goes to the scalar decoder row by row, which so is
also the one that says what is wrong with a record. Cost: 0.2 µs a commit, 15 µs anything else.

Pure: bytes in, columns out; no input raises.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fleet.log.records import GROUP_MEMBER, KEYS, OffsetCommit, Record, Tombstone, Undecoded, decode

# Where the fields of many offset commits stand in their bytes.
#
# Problem: a commit's strings have any length, so no field but the first has one place, and reading
# with Python costs microseconds a row. Choice: positions are vectors: each is the one before plus
# a vector of lengths, a field is one gather from a view of the buffer with a stride of one byte,
# and a mask says which rows have kept to the layout so far. A row that strays is in `fits` no more
# and is never read outside its own bytes. Cost: only the plain layout is known here (no unknown
# tags, metadata up to 16 KiB); the rest is the scalar decoder's.
#
# Layouts: OffsetCommitKey; OffsetCommitValue 0-4 (docs/design/protocol.md 3.2, 3.3).


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


COLUMNS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("type", pa.int16()),
        ("version", pa.int16()),
        ("group", pa.string()),
        ("member", pa.string()),
        ("topic", pa.string()),
        ("topic_partition", pa.int32()),
        ("committed", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("commit_timestamp", pa.int64()),
        ("expire_timestamp", pa.int64()),
        ("topic_id", pa.string()),
        ("problem", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""One row per record. Times are in ms. `version` is the value's; -1 is a tombstone, null one that
cannot be read. All from `topic` to `topic_id` belongs to offset commits. `problem` says why a
record was not decoded. `key` and `value` are kept for all but decoded commits and their
tombstones."""

LED: Final = -2
"""`type` of a row that is no record: from its offset on the log has this `leader_epoch`."""
_PLACE: Final = 3
"""Columns that do not come from the bytes: partition, offset, timestamp."""
_COMMITS: Final = (0, 1)
_COMMIT_KEYS: Final = (b"\0\0", b"\0\1")
_TOMBSTONE: Final = -1


def columns(
    partition: Any,
    offset: Any,
    timestamp: Any,
    keys: pa.Array,
    values: pa.Array,
    *,
    events: bool = True,
) -> pa.RecordBatch:
    """The records as COLUMNS, in their order; never raises for what stands in them.

    partition, offset and timestamp (ms) are numbers per record (numpy or lists); keys and values
    are binary arrays, null as in Kafka. Without `events` only the keys of those are looked at.
    """
    place = (
        np.asarray(partition, np.int32),
        np.asarray(offset, np.int64),
        np.asarray(timestamp, np.int64),
    )
    key, value = CommitKeys(Bytes(keys)), CommitValues(Bytes(values))
    plain = key.fits & np.isin(key.type, _COMMITS) & (value.fits | ~value.bytes.valid)
    found: Sequence[pa.Array] = ()
    if plain.any():
        try:
            found = _commits(key, value, plain)
        except pa.ArrowInvalid:  # a string that is not UTF-8
            plain &= key.is_text() & value.is_text()
            found = _commits(key, value, plain)
    others = np.flatnonzero(~plain)
    if len(others) or not len(plain):
        rest = _one_by_one(
            others,
            place,
            keys.take(pa.array(others)).to_pylist(),
            values.take(pa.array(others)).to_pylist(),
            events=events,
        )
        found = _merged(found, rest, others) if found else rest
    return pa.RecordBatch.from_arrays([*map(pa.array, place), *found], schema=COLUMNS)


def only_commits(keys: pa.Array, values: pa.Array) -> bool:
    """Whether records of these keys are plain commits and tombstones, with nothing odd about them.

    All keys of one version, so that the same bytes name the same partition. Each key is looked at
    once however many records have it: the arrays need not be of one length.
    """
    key, value = CommitKeys(Bytes(keys)), CommitValues(Bytes(values))
    if not (key.fits & np.isin(key.type, _COMMITS)).all() or (key.type != key.type[:1]).any():
        return False
    live = value.bytes.valid
    if not (value.fits | ~live).all():
        return False
    try:
        if value.has_metadata(live):
            value.metadata(live)
    except pa.ArrowInvalid:  # not UTF-8
        return False
    return True


def _commits(key: CommitKeys, value: CommitValues, plain: Bools) -> list[pa.Array]:
    """COLUMNS after the place; only rows in `plain` mean something."""
    rows = len(plain)
    live = plain & value.bytes.valid
    gone = None if live.all() else ~live
    group, topic = key.texts(plain)
    return [
        pa.array(key.type.astype(np.int16)),
        pa.array(np.where(live, value.version, _TOMBSTONE).astype(np.int16)),
        group,
        pa.nulls(rows, pa.string()),
        topic,
        pa.array(key.partition(plain)),
        pa.array(value.committed(live), mask=gone),
        pa.array(value.leader_epoch(live), mask=gone),
        _where(value.metadata(live), live),
        pa.array(value.commit_timestamp(live), mask=gone),
        _expiry(value, live),
        _topic_ids(value, live),
        pa.nulls(rows, pa.string()),
        pa.nulls(rows, pa.binary()),
        pa.nulls(rows, pa.binary()),
    ]


def _where(found: pa.Array, mask: Bools) -> pa.Array:
    return found if mask.all() else pc.if_else(pa.array(mask), found, pa.scalar(None, found.type))


def _expiry(value: CommitValues, live: Bools) -> pa.Array:
    has = live & (value.version == 1)
    if not has.any():
        return pa.nulls(len(live), pa.int64())
    expiry = value.expire_timestamp(has)
    return pa.array(expiry, mask=~has | (expiry == -1))


def _topic_ids(value: CommitValues, live: Bools) -> pa.Array:
    """As 32 hex digits; there are far fewer topics than rows."""
    has = live & value.has_topic_id
    if not has.any():
        return pa.nulls(len(live), pa.string())
    coded = value.topic_id(has).dictionary_encode()
    names = pa.array([each.hex() for each in coded.dictionary.to_pylist()], pa.string())
    return _where(names.take(coded.indices), has)


def _one_by_one(
    at: Ints,
    place: tuple[Any, ...],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    *,
    events: bool,
) -> list[pa.Array]:
    """COLUMNS after the place of the rows `at`, by the scalar decoder."""
    found = []
    for key, value, offset, timestamp in zip(keys, values, place[1][at], place[2][at], strict=True):
        read = value if events or (key or b"")[:2] in _COMMIT_KEYS else None
        record = decode(key, read, offset=int(offset), timestamp=int(timestamp))
        found.append(_row(record, key, value))
    fields = list(COLUMNS)[_PLACE:]
    return [
        pa.array([row[number] for row in found], field.type) for number, field in enumerate(fields)
    ]


def _row(record: Record, key: bytes | None, value: bytes | None) -> tuple[Any, ...]:
    """COLUMNS after the place, of one record."""
    version = _version(value)
    if isinstance(record, OffsetCommit):
        return (
            *(record.type, version, record.group, None, record.tp.topic, record.tp.partition),
            *(record.committed, record.leader_epoch, record.metadata),
            *(record.commit_timestamp_ms, record.expire_timestamp_ms, record.topic_id),
            *(None, None, None),
        )
    commit: tuple[Any, ...] = (None, None)
    member = None
    if isinstance(record, Tombstone):
        shape = KEYS[record.type][1]
        member = record.key[0] if shape == GROUP_MEMBER else None
        if record.type in _COMMITS:
            commit, key, value = record.key, None, None
    problem = record.reason if isinstance(record, Undecoded) else None
    return (
        *(record.type, version, getattr(record, "group", None)),
        *(getattr(record, "member_id", member), *commit),
        *(None, None, None, None, None, None),
        *(problem, key, value),
    )


def _version(value: bytes | None) -> int | None:
    if value is None:
        return _TOMBSTONE
    version = int.from_bytes(value[:2], "big", signed=True) if len(value) > 1 else -1
    return version if version >= 0 else None


def _merged(found: Sequence[pa.Array], rest: Sequence[pa.Array], others: Ints) -> list[pa.Array]:
    """`found` with the rows of `rest` at `others`."""
    rows = len(found[0])
    order = np.arange(rows)
    order[others] = rows + np.arange(len(others))
    index = pa.array(order)
    return [
        pa.concat_arrays([one, other]).take(index) for one, other in zip(found, rest, strict=True)
    ]
