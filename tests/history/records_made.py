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
