"""Columns of the tables: the contract of docs/history.md, as Arrow types.

Times named `timestamp` are Kafka's milliseconds; times named `…_at` are seconds as everywhere
else in Fleet. No name is a reserved word of DuckDB, Spark or Trino, so that none needs quotes. The
UTC day of a row (DAY) is in its file's path, `<table>/…/day=2026-11-21/…`, not in the file.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

_TP: Final = pa.struct([("topic", pa.string()), ("partition", pa.int32())])

COMMITS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("topic_partition", pa.int32()),
        ("committed", pa.int64()),  # null: the offset was deleted (expired, group or topic gone)
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
        ("commit_timestamp", pa.int64()),
        ("expire_timestamp", pa.int64()),
        ("topic_id", pa.string()),
        ("timestamp", pa.int64()),
        ("first_timestamp", pa.int64()),
        ("previous_timestamp", pa.int64()),
        ("commits", pa.int64()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("first_offset", pa.int64()),
    ]
)
EVENTS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("type", pa.int16()),
        ("version", pa.int16()),
        ("group_id", pa.string()),
        ("member", pa.string()),
        ("leader_epoch", pa.int32()),  # of type -2: the log's leader epoch from this offset on
        ("problem", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
REBALANCES: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("group_id", pa.string()),
        ("protocol", pa.string()),
        ("number", pa.int64()),
        ("before", pa.int64()),
        ("incarnation", pa.int64()),
        ("started_at", pa.float64()),
        ("start_known", pa.string()),
        ("ended_at", pa.float64()),
        ("end_known", pa.string()),
        ("seconds", pa.float64()),
        ("cause", pa.string()),
        ("confidence", pa.string()),
        ("also", pa.list_(pa.string())),
        ("joined", pa.list_(pa.string())),
        ("departed", pa.list_(pa.string())),
        ("replaced", pa.list_(pa.string())),
        ("members", pa.int32()),
        ("moved", pa.list_(_TP)),
        ("aborted", pa.int32()),
        ("assignor", pa.string()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
    ]
)
MEMBERSHIPS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("group_id", pa.string()),
        ("changed_at", pa.float64()),
        ("number", pa.int64()),
        ("event", pa.string()),
        ("member", pa.string()),
        ("member_id", pa.string()),
        ("instance_id", pa.string()),
        ("client_id", pa.string()),
        ("host", pa.string()),
        ("owned", pa.list_(_TP)),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
    ]
)
LAG: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("sampled_at", pa.float64()),
        ("group_id", pa.string()),
        ("topic", pa.string()),
        ("topic_partition", pa.int32()),
        ("committed", pa.int64()),
        ("committed_at", pa.float64()),
        ("log_start", pa.int64()),
        ("log_end", pa.int64()),
        ("records", pa.int64()),
        ("seconds", pa.float64()),
        ("lag_case", pa.string()),
        ("known", pa.string()),
    ]
)
TABLES: Final[Mapping[str, pa.Schema]] = {
    "commits": COMMITS,
    "events": EVENTS,
    "rebalances": REBALANCES,
    "memberships": MEMBERSHIPS,
    "lag": LAG,
}
DAY: Final = pa.field("day", pa.date32())

_DECODED: Final = {"group_id": "group", "log_partition": "partition", "log_offset": "offset"}
"""Column of `commits` and `events` → as the decoder of the log calls it (fleet.log)."""
_BEFORE: Final[Mapping[str, Mapping[str, str]]] = {
    "commits": _DECODED,
    "events": _DECODED,
    "rebalances": {"group_id": "group", "departed": "left"},
    "memberships": {"group_id": "group", "changed_at": "at"},
    "lag": {"group_id": "group", "sampled_at": "at", "lag_case": "case"},
}


def decoded(name: str) -> str:
    """A column of `commits` and `events` as the decoder calls it."""
    return _DECODED.get(name, name)


def column_of(name: str) -> str:
    """The other way round."""
    return {old: new for new, old in _DECODED.items()}.get(name, name)


def before(table: str) -> pa.Schema:
    """A table's columns in files of the first layout, in the same order."""
    names = _BEFORE[table]
    return pa.schema([each.with_name(names.get(each.name, each.name)) for each in TABLES[table]])


# The job's own memory, kept with the tables: the latest row of a key counts.
GROUPS: Final = pa.schema(
    [
        ("group", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("state", pa.string()),
    ]
)
"""A group's replay after `offset`, whose record is of `timestamp`; state null = forgotten."""
STANDING: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("topic_partition", pa.int32()),
        ("committed", pa.int64()),
        ("timestamp", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("gap", pa.int64()),
        ("early", pa.bool_()),
        ("told_committed", pa.int64()),
        ("told_end", pa.int64()),
        ("told_at", pa.float64()),
    ]
)
"""The last commit of a partition, and what the last row of `lag` said of it."""
STATE: Final[Mapping[str, tuple[pa.Schema, tuple[str, ...]]]] = {
    "_groups": (GROUPS, ("group",)),
    "_standing": (STANDING, ("group", "topic", "topic_partition")),
}
"""Name → columns and key."""

DIGEST: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("day", pa.string()),
        *((decoded(f.name), f.type) for f in COMMITS if f.name != "cluster"),
        *((f.name, f.type) for f in EVENTS if f.name not in {"cluster", *COMMITS.names}),
    ]
)
"""What a task makes of the topic in one pass: rows of both tables, with the table and the day."""


def spark_ddl(schema: pa.Schema) -> str:
    """The same as Spark's own words."""
    names = {
        pa.string(): "string",
        pa.binary(): "binary",
        pa.int16(): "smallint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.float64(): "double",
    }
    return ", ".join(f"`{field.name}` {names[field.type]}" for field in schema)
