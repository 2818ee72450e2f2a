"""Decoded records as the data source gives them, made for tests."""

import pyarrow as pa

CONTRACT = pa.schema(
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


def contract(rows):
    """Rows as a table of these columns."""
    return pa.Table.from_pylist(rows, schema=CONTRACT)


def commit(offset, timestamp, *, group, partition=0, log_partition=0, committed=None):
    """A decoded offset commit."""
    return {
        "partition": log_partition,
        "offset": offset,
        "timestamp": timestamp,
        "type": 1,
        "version": 4,
        "group": group,
        "topic": "t",
        "topic_partition": partition,
        "committed": offset if committed is None else committed,
        "leader_epoch": 0,
        "metadata": "",
        "commit_timestamp": timestamp,
        "topic_id": None,
        "problem": None,
    }


def event(offset, timestamp, *, group, key=b"k", value=b"v", log_partition=0):
    """A group event, not decoded."""
    return {
        "partition": log_partition,
        "offset": offset,
        "timestamp": timestamp,
        "type": 2,
        "version": 3,
        "group": group,
        "problem": None,
        "key": key,
        "value": value,
    }


def _text(value):
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


def _bytes(data):
    return len(data).to_bytes(4, "big") + data


def group_metadata(group, generation, members, at):
    """Key and value of a classic group at a completed generation; members own one partition each.

    GroupMetadata version 3 (docs/design/protocol.md 3.3).
    """
    key = b"\x00\x02" + _text(group)
    head = b"\x00\x03" + _text("consumer") + generation.to_bytes(4, "big")
    head += _text("range") + _text(members[0]) if members else b"\xff\xff\xff\xff"
    value = head + at.to_bytes(8, "big") + len(members).to_bytes(4, "big")
    for number, member in enumerate(members):
        topics = b"\x00\x00" + (1).to_bytes(4, "big") + _text("t") + _bytes(b"")
        owned = b"\x00\x00" + (1).to_bytes(4, "big") + _text("t")
        owned += (1).to_bytes(4, "big") + number.to_bytes(4, "big") + _bytes(b"")
        value += _text(member) + b"\xff\xff" + _text("client") + _text("/127.0.0.1")
        value += (300_000).to_bytes(4, "big") + (45_000).to_bytes(4, "big")
        value += _bytes(topics) + _bytes(owned)
    return key, value


def offset_commit(group, partition, committed, at):
    """Key and value of an offset commit, version 3."""
    key = b"\x00\x01" + _text(group) + _text("t") + partition.to_bytes(4, "big")
    value = b"\x00\x03" + committed.to_bytes(8, "big") + (0).to_bytes(4, "big") + _text("")
    return key, value + at.to_bytes(8, "big")
