"""Columns made many at a time say what the scalar decoder says, and no bytes stop either."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fleet.log.record_columns import COLUMNS, columns
from fleet.log.records import (
    GROUP_MEMBER,
    TYPES,
    OffsetCommit,
    Tombstone,
    Undecoded,
    decode,
    record_key,
)
from tests.history import making
from tests.observe.test_records import ASSIGNED, COMMIT, CREATED, CURRENT, EPOCH, JOINED, TARGET
from tests.support.sampling import examples

Pair = tuple[bytes | None, bytes | None]
NOTHING: dict[str, Any] = dict.fromkeys(COLUMNS.names)


def by_columns(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Rows of the vectorised decoder."""
    batch = columns(
        [3] * len(pairs),
        range(100, 100 + len(pairs)),
        range(1000, 1000 + len(pairs)),
        pa.array([key for key, _ in pairs], pa.binary()),
        pa.array([value for _, value in pairs], pa.binary()),
    )
    assert batch.schema == COLUMNS
    batch.validate(full=True)
    return batch.to_pylist()


def by_scalar(number: int, key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The same row, from the scalar decoder."""
    record = decode(key, value, offset=100 + number, timestamp=1000 + number)
    version = int.from_bytes(value[:2], "big", signed=True) if value and len(value) > 1 else -1
    row = {
        **NOTHING,
        "partition": 3,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "type": record.type,
        "version": -1 if value is None else None if version < 0 else version,
        "group": getattr(record, "group", None),
        "member": getattr(record, "member_id", None),
    }
    if isinstance(record, OffsetCommit):
        return {
            **row,
            "topic": record.tp.topic,
            "topic_partition": record.tp.partition,
            "committed": record.committed,
            "leader_epoch": record.leader_epoch,
            "metadata": record.metadata,
            "commit_timestamp": record.commit_timestamp_ms,
            "expire_timestamp": record.expire_timestamp_ms,
            "topic_id": record.topic_id,
        }
    if isinstance(record, Tombstone) and record.type in (0, 1):
        return {**row, "topic": record.key[0], "topic_partition": record.key[1]}
    row |= {"key": key, "value": value}
    if isinstance(record, Tombstone) and TYPES[record.type].key is GROUP_MEMBER:
        row["member"] = record.key[0]
    if isinstance(record, Undecoded):
        row["problem"] = record.reason
    return row


def agree(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Both decoders give the same rows; those rows."""
    found = by_columns(pairs)
    assert found == [by_scalar(number, *pair) for number, pair in enumerate(pairs)]
    return found


@examples(150)
@given(st.lists(making.commits(), max_size=12))
def test_commits_of_every_version(pairs: list[Pair]):
    """Types 0 and 1, versions 0-4, any text, topic ids and unknown tags, tombstones between."""
    assert not [row for row in agree(pairs) if row["problem"]]


@examples(200)
@given(st.lists(making.events(), max_size=4))
def test_group_events_of_every_type_and_version(pairs: list[Pair]):
    """What is written by Kafka's definitions is read without a problem by both."""
    assert not [row for row in agree(pairs) if row["problem"]]


@examples(300)
@given(st.lists(making.commits() | making.events() | making.spoiled(), max_size=8))
def test_spoiled_records_among_true_ones(pairs: list[Pair]):
    """Cut, longer and changed bytes, other versions and types: the same rows, the same reasons."""
    agree(pairs)


def test_golden_vectors():
    """Records of a 4.3.1 broker."""
    vectors = (COMMIT, CREATED, EPOCH, ASSIGNED, JOINED, TARGET, CURRENT)
    rows = agree([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in vectors])
    assert [(row["type"], row["version"]) for row in rows] == [
        *((1, 4), (2, 3), (3, 0), (6, 0), (5, 0), (7, 0), (8, 0))
    ]
    first = rows[0]
    assert (first["group"], first["topic"], first["topic_partition"]) == ("g-classic", "t", 0)
    assert (first["committed"], first["leader_epoch"], first["metadata"]) == (76, 0, "")
    assert first["topic_id"] == "12d77191ec2c40b2b4e97e94f8ba880d"
    assert (first["key"], first["value"]) == (None, None)
    assert rows[4]["member"] == "K1RuHQNxRHC5y9k94YtLvg"
    assert rows[4]["value"] == bytes.fromhex(JOINED[1])


def test_a_text_that_is_not_utf8_spoils_its_own_row_only():
    """Among thousands of commits one bad name is one problem."""
    good: Pair = (record_key(1, "g", "t", 0), making.commit(4, committed=5, metadata="ä" * 70))
    for bad in (
        (record_key(1, "g", "tt", 0).replace(b"tt", b"t\xff"), good[1]),
        (record_key(1, "gg", "t", 0).replace(b"gg", b"g\xff"), good[1]),
        (good[0], making.commit(4, committed=5, metadata="zz").replace(b"zz", b"\xed\xa0")),
    ):
        rows = agree([good, good, bad, good])
        assert [row["problem"] is None for row in rows] == [True, True, False, True]
        assert "UTF-8" in rows[2]["problem"]


def test_slices_and_wide_arrays():
    """Arrow arrays that are a part of another, and ones of another width."""
    pairs = [(record_key(1, "g", "t", n), making.commit(4, committed=n)) for n in range(10)]
    keys = pa.array([key for key, _ in pairs], pa.binary()).slice(4, 3)
    values = pa.array([value for _, value in pairs], pa.large_binary()).slice(4, 3)
    found = columns([0] * 3, [0] * 3, [0] * 3, keys, values)
    assert found.column("topic_partition").to_pylist() == [4, 5, 6]
    assert found.column("committed").to_pylist() == [4, 5, 6]
    assert columns([], [], [], keys.slice(0, 0), values.slice(0, 0)).num_rows == 0
