"""Decoded records as the data source gives them, made for tests."""

import pyarrow as pa

from fleet.log.record_columns import COLUMNS
from fleet.log.records import ASSIGNMENT, SUBSCRIPTION, record_key, record_value, write


def contract(rows):
    """Rows as a table of these columns."""
    return pa.Table.from_pylist(rows, schema=COLUMNS)


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


def group_metadata(group, generation, members, at):
    """Key and value of a classic group at a completed generation; members own one partition each.

    GroupMetadata version 3.
    """
    made = [
        {
            "member_id": member,
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "rebalance_timeout_ms": 300_000,
            "session_timeout_ms": 45_000,
            "subscription": _blob(SUBSCRIPTION, topics=["t"], user_data=b""),
            "assignment": _blob(ASSIGNMENT, assigned={"t": [number]}) + bytes(4),
        }
        for number, member in enumerate(members)
    ]
    value = record_value(
        2,
        3,
        protocol_type="consumer",
        generation=generation,
        protocol="range" if members else None,
        leader=members[0] if members else None,
        state_timestamp_ms=at,
        members=made,
    )
    return record_key(2, group), value


def _blob(kind, **fields):
    return bytes(2) + write(kind, fields, 0, flexible=False)


def offset_commit(group, partition, committed, at):
    """Key and value of an offset commit, version 3."""
    fields = {"committed": committed, "leader_epoch": 0, "metadata": "", "commit_timestamp_ms": at}
    return record_key(1, group, "t", partition), record_value(1, 3, **fields)
