"""Record types that are read by a table of their fields, not by a reader of their own.

Problem: share groups, streams groups, regular expressions and the topic metadata of old brokers
have thirteen record types of which we want little more than epochs and members, and a function
for each would say what Kafka's message definitions say already. Choice: those definitions as
data (`SCHEMAS`), under Kafka's field names in snake_case, and one function that walks them.
Cost: fields come as a dictionary, not as attributes.

All of these values are flexible (KIP-482): every struct ends with tagged fields; tags that a
schema does not name are skipped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from fleet.log.wire import Cursor, Malformed

Kind: TypeAlias = (
    "Literal['i8', 'i16', 'u16', 'i32', 'i64', 'text', 'text?', 'id'] | Items | Struct"
)


@dataclass(frozen=True, slots=True)
class Items:
    """An array; null reads as empty."""

    of: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields in order, then tagged ones by tag with their default."""

    fields: tuple[tuple[str, Kind], ...]
    tags: Mapping[int, tuple[str, Kind, Any]] = field(default_factory=dict)
    nullable: bool = False


_TEXTS: Final = Items("text")
_NUMBERS: Final = Items("i32")
_INDEXES: Final = Items("i16")
_PARTITIONS: Final = Items(Struct((("topic_id", "id"), ("partitions", _NUMBERS))))
_NAMED: Final = (("topic_id", "id"), ("topic_name", "text"))
_NAMED_PARTITIONS: Final = Items(Struct((*_NAMED, ("partitions", _NUMBERS))))
_PAIRS: Final = Items(Struct((("key", "text"), ("value", "text"))))
_TOPIC_INFOS: Final = Items(
    Struct(
        (
            ("name", "text"),
            ("partitions", "i32"),
            ("replication_factor", "i16"),
            ("topic_configs", _PAIRS),
        )
    )
)
_TASKS: Final = Items(
    Struct(
        (("subtopology_id", "text"), ("partitions", _NUMBERS)),
        {0: ("assignment_epochs", _NUMBERS, None)},
    )
)
_ACTIVE_STANDBY_WARMUP: Final = tuple(
    (f"{k}_tasks", _TASKS) for k in ("active", "standby", "warmup")
)
_EPOCHS: Final = (("member_epoch", "i32"), ("previous_member_epoch", "i32"), ("state", "i8"))
_ASSIGNED: Final = Struct((("assignment_epoch", "i32"),), {0: ("assignment_timestamp", "i64", 0)})
_GROUP: Final = (("epoch", "i32"), ("metadata_hash", "i64"))
_CLIENT: Final = (("client_id", "text"), ("client_host", "text"))

SCHEMAS: Final[Mapping[int, Struct]] = {
    4: Struct(
        (
            (
                "topics",
                Items(
                    Struct(
                        (
                            *_NAMED,
                            ("num_partitions", "i32"),
                            (
                                "partition_metadata",
                                Items(Struct((("partition", "i32"), ("racks", _TEXTS)))),
                            ),
                        )
                    )
                ),
            ),
        )
    ),
    10: Struct((("rack_id", "text?"), *_CLIENT, ("subscribed_topic_names", _TEXTS))),
    11: Struct(_GROUP),
    12: _ASSIGNED,
    13: Struct((("topic_partitions", _PARTITIONS),)),
    14: Struct((*_EPOCHS, ("assigned_partitions", _PARTITIONS))),
    15: Struct(
        (
            ("initializing_topics", _NAMED_PARTITIONS),
            ("initialized_topics", _NAMED_PARTITIONS),
            ("deleting_topics", Items(Struct(_NAMED))),
        )
    ),
    16: Struct((("topics", _TEXTS), ("version", "i64"), ("timestamp", "i64"))),
    17: Struct(
        _GROUP,
        {
            0: ("validated_topology_epoch", "i32", -1),
            1: ("last_assignment_configs", _PAIRS, None),
        },
    ),
    19: Struct(
        (
            ("instance_id", "text?"),
            ("rack_id", "text?"),
            *_CLIENT,
            ("rebalance_timeout_ms", "i32"),
            ("topology_epoch", "i32"),
            ("process_id", "text"),
            ("user_endpoint", Struct((("host", "text"), ("port", "u16")), nullable=True)),
            ("client_tags", _PAIRS),
        )
    ),
    20: _ASSIGNED,
    21: Struct(_ACTIVE_STANDBY_WARMUP),
    22: Struct(
        (
            *_EPOCHS,
            *_ACTIVE_STANDBY_WARMUP,
            *((f"{name}_pending_revocation", kind) for name, kind in _ACTIVE_STANDBY_WARMUP),
        )
    ),
    23: Struct(
        (
            ("epoch", "i32"),
            (
                "subtopologies",
                Items(
                    Struct(
                        (
                            ("subtopology_id", "text"),
                            ("source_topics", _TEXTS),
                            ("source_topic_regex", _TEXTS),
                            ("state_changelog_topics", _TOPIC_INFOS),
                            ("repartition_sink_topics", _TEXTS),
                            ("repartition_source_topics", _TOPIC_INFOS),
                            (
                                "copartition_groups",
                                Items(
                                    Struct(
                                        (
                                            ("source_topics", _INDEXES),
                                            ("source_topic_regex", _INDEXES),
                                            ("repartition_source_topics", _INDEXES),
                                        )
                                    )
                                ),
                            ),
                        )
                    )
                ),
            ),
        )
    ),
}
"""Record type → its value, version 0, as in Kafka 4.3's group-coordinator messages."""

_PRIMITIVES: Final[Mapping[str, Callable[[Cursor], Any]]] = {
    "i8": Cursor.i8,
    "i16": Cursor.i16,
    "u16": lambda data: data.i16() & 0xFFFF,
    "i32": Cursor.i32,
    "i64": Cursor.i64,
    "id": Cursor.topic_id,
    "text": lambda data: data.text(flexible=True),
    "text?": lambda data: data.text_or_none(flexible=True),
}


def read(kind: Kind, data: Cursor) -> Any:
    """One field: a number, a string, a tuple of an array's items, or a struct's dictionary.

    Raises Malformed for bytes that do not fit.
    """
    if isinstance(kind, Items):
        return data.items(lambda: read(kind.of, data), flexible=True)
    if isinstance(kind, Struct):
        return _struct(kind, data)
    return _PRIMITIVES[kind](data)


def _struct(kind: Struct, data: Cursor) -> dict[str, Any] | None:
    if kind.nullable and (present := data.i8()) != 1:
        if present == -1:
            return None
        raise Malformed(f"a nullable struct that begins with {present} before {data.at}")
    found = {name: read(each, data) for name, each in kind.fields}
    tags = data.tags()
    for tag, (name, each, default) in kind.tags.items():
        found[name] = read(each, Cursor(tags[tag])) if tag in tags else default
    return found
