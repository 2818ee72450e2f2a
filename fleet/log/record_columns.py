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
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fleet.log.layout import Bools, Bytes, CommitKeys, CommitValues, Ints
from fleet.log.record_types import OffsetCommit, Record, Tombstone, Undecoded
from fleet.log.records import GROUP_MEMBER, KEYS, decode

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
_TOMBSTONE: Final = -1


def columns(
    partition: Any, offset: Any, timestamp: Any, keys: pa.Array, values: pa.Array
) -> pa.RecordBatch:
    """The records as COLUMNS, in their order; never raises for what stands in them.

    partition, offset and timestamp (ms) are numbers per record (numpy or lists); keys and values
    are binary arrays, null as in Kafka.
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
) -> list[pa.Array]:
    """COLUMNS after the place of the rows `at`, by the scalar decoder."""
    found = [
        _row(decode(key, value, offset=int(offset), timestamp=int(timestamp)), key, value)
        for key, value, offset, timestamp in zip(
            keys, values, place[1][at], place[2][at], strict=True
        )
    ]
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
