"""Records of every type and version, written field by field from Kafka's message definitions.

An encoder that shares nothing with the decoders but the tables of fields, and strategies that
make values for it.
"""

import struct
from typing import Any

from hypothesis import strategies as st

from fleet.log.records import GROUP, GROUP_TOPIC_PARTITION, KEYS, SCHEMAS, Items, Kind, Struct

FORMATS = {"i8": ">b", "i16": ">h", "u16": ">H", "i32": ">i", "i64": ">q"}
BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}

_TEXTS = Items("text")
_ASSIGNED = Items(
    Struct(
        (("topic_id", "id"), ("partitions", Items("i32"))),
        {0: ("assignment_epochs", Items("i32"), None)},
    )
)
CONSUMER: dict[int, Struct] = {
    3: Struct((("epoch", "i32"),), {0: ("metadata_hash", "i64", 0)}),
    5: Struct(
        (
            ("instance_id", "text?"),
            ("rack_id", "text?"),
            ("client_id", "text"),
            ("client_host", "text"),
            ("topics", _TEXTS),
            ("regex", "text?"),
            ("rebalance_timeout_ms", "i32"),
            ("server_assignor", "text?"),
        )
    ),
    6: Struct((("epoch", "i32"),), {0: ("assignment_timestamp", "i64", 0)}),
    7: Struct((("partitions", Items(Struct((("topic_id", "id"), ("partitions", Items("i32")))))),)),
    8: Struct(
        (
            ("epoch", "i32"),
            ("previous_epoch", "i32"),
            ("state", "i8"),
            ("assigned", _ASSIGNED),
            ("revoking", _ASSIGNED),
        )
    ),
}
"""KIP-848's own, which have readers of their own."""

texts = st.one_of(
    st.sampled_from(["", "g", "orders", "naïve-группа", "x" * 126, "x" * 127, "x" * 200]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


# --- encoding -----------------------------------------------------------------------------------


def uvarint(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: str | None, *, flexible: bool = False) -> bytes:
    """A nullable string."""
    data = None if value is None else value.encode()
    if flexible:
        return b"\0" if data is None else uvarint(len(data) + 1) + data
    return struct.pack(">h", -1) if data is None else struct.pack(">h", len(data)) + data


def blob(value: bytes, *, flexible: bool = False) -> bytes:
    """Bytes."""
    return (uvarint(len(value) + 1) if flexible else struct.pack(">i", len(value))) + value


def count(number: int, *, flexible: bool = False) -> bytes:
    """An array's length."""
    return uvarint(number + 1) if flexible else struct.pack(">i", number)


def field(kind: Kind, value: Any) -> bytes:
    """One field of a flexible value."""
    if isinstance(kind, Items):
        return count(len(value), flexible=True) + b"".join(field(kind.of, each) for each in value)
    if isinstance(kind, Struct):
        return _struct(kind, value)
    if kind == "id":
        return bytes.fromhex(value)
    if kind in ("text", "text?"):
        return text(value, flexible=True)
    return struct.pack(FORMATS[kind], value)


def _struct(kind: Struct, value: dict[str, Any] | None) -> bytes:
    if value is None:
        return b"\xff"
    out = b"\x01" if kind.nullable else b""
    out += b"".join(field(each, value[name]) for name, each in kind.fields)
    tags = [
        (tag, field(each, value[name]))
        for tag, (name, each, default) in kind.tags.items()
        if value[name] != default
    ]
    out += uvarint(len(tags))
    return out + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)


def key(kind: int, group: str, *rest: Any) -> bytes:
    """A record's key; rest is a member id, or topic and partition."""
    out = struct.pack(">h", kind) + text(group)
    for each in rest:
        out += text(each) if isinstance(each, str) else struct.pack(">i", each)
    return out


def commit(
    version: int,
    *,
    committed: int,
    epoch: int = 3,
    metadata: str = "",
    at: int = 1234,
    expires: int = -1,
    tags: bytes = b"\0",
) -> bytes:
    """An OffsetCommitValue."""
    flexible = version >= 4
    out = struct.pack(">hq", version, committed)
    out += struct.pack(">i", epoch) if version >= 3 else b""
    out += text(metadata, flexible=flexible) + struct.pack(">q", at)
    return out + (struct.pack(">q", expires) if version == 1 else b"") + (tags if flexible else b"")


def classic(version: int, group: dict[str, Any]) -> bytes:
    """A GroupMetadataValue."""
    flexible = version >= 4
    out = struct.pack(">h", version) + text(group["protocol_type"], flexible=flexible)
    out += struct.pack(">i", group["generation"])
    out += text(group["protocol"], flexible=flexible) + text(group["leader"], flexible=flexible)
    out += struct.pack(">q", group["state_ms"]) if version >= 2 else b""
    out += count(len(group["members"]), flexible=flexible)
    for member in group["members"]:
        out += text(member["member_id"], flexible=flexible)
        out += text(member["instance_id"], flexible=flexible) if version >= 3 else b""
        out += text(member["client_id"], flexible=flexible) + text("/host", flexible=flexible)
        out += struct.pack(">i", 300_000) if version >= 1 else b""
        out += struct.pack(">i", 45_000)
        out += blob(member["subscription"], flexible=flexible)
        out += blob(member["assignment"], flexible=flexible) + (b"\0" if flexible else b"")
    return out + (b"\0" if flexible else b"")


# --- strategies ---------------------------------------------------------------------------------


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Values of one field."""
    if isinstance(kind, Items):
        return st.lists(values_of(kind.of), max_size=2).map(tuple)
    if isinstance(kind, Struct):
        fields: dict[str, st.SearchStrategy[Any]] = {n: values_of(k) for n, k in kind.fields}
        for name, each, default in kind.tags.values():
            fields[name] = st.just(default) | values_of(each)
        made: st.SearchStrategy[Any] = st.fixed_dictionaries(fields)
        return st.none() | made if kind.nullable else made
    if kind == "id":
        return st.binary(min_size=16, max_size=16).map(bytes.hex)
    if kind == "text":
        return texts
    if kind == "text?":
        return st.none() | texts
    if kind == "u16":
        return st.integers(0, 65535)
    return st.integers(-(1 << BITS[kind] - 1), (1 << BITS[kind] - 1) - 1)


i64 = values_of("i64")
partitions = st.integers(0, 10_000)
topic_ids = st.sampled_from(["12d77191ec2c40b2b4e97e94f8ba880d", "00" * 16, "ff" * 16])
tag_bytes = st.one_of(
    st.just(b"\0"),
    topic_ids.map(lambda each: b"\x01\x00\x10" + bytes.fromhex(each)),
    topic_ids.map(lambda each: b"\x02\x00\x10" + bytes.fromhex(each) + b"\x07\x01z"),  # KIP-915
)


@st.composite
def commits(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A commit of any version, or its tombstone."""
    made = key(draw(st.sampled_from([0, 1])), draw(texts), draw(texts), draw(partitions))
    if draw(st.integers(0, 5)) == 0:
        return made, None
    value = commit(
        draw(st.integers(0, 4)),
        committed=draw(i64),
        epoch=draw(st.integers(-1, 1000)),
        metadata=draw(texts),
        at=draw(i64),
        expires=draw(st.just(-1) | i64),
        tags=draw(tag_bytes),
    )
    return made, value


_topics = st.lists(st.tuples(texts, st.lists(partitions, max_size=3)), max_size=2)


def _classic_partitions(topics: list[tuple[str, list[int]]]) -> bytes:
    return count(len(topics)) + b"".join(
        text(topic) + count(len(numbers)) + b"".join(struct.pack(">i", n) for n in numbers)
        for topic, numbers in topics
    )


_assignments = _topics.map(lambda t: struct.pack(">h", 0) + _classic_partitions(t) + b"\xff" * 4)
_subscriptions = st.tuples(st.integers(0, 3), st.lists(texts, max_size=2), _topics).map(
    lambda made: (
        struct.pack(">h", made[0])
        + count(len(made[1]))
        + b"".join(text(each) for each in made[1])
        + b"\xff" * 4
        + (_classic_partitions(made[2]) if made[0] >= 1 else b"")
    )
)
_members = st.fixed_dictionaries(
    {
        "member_id": texts,
        "instance_id": st.none() | texts,
        "client_id": texts,
        "subscription": _subscriptions | st.just(b""),
        "assignment": _assignments | st.just(b""),
    }
)
groups = st.fixed_dictionaries(
    {
        "protocol_type": st.sampled_from(["consumer", "connect", ""]),
        "generation": st.integers(0, 1 << 30),
        "protocol": st.none() | texts,
        "leader": st.none() | texts,
        "state_ms": st.just(-1) | i64,
        "members": st.lists(_members, max_size=2),
    }
)


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A record of any other type, in any version, or its tombstone."""
    kind = draw(st.sampled_from(sorted(set(KEYS) - {0, 1})))
    shape = KEYS[kind][1]
    assert shape != GROUP_TOPIC_PARTITION
    made = key(kind, draw(texts), *(() if shape == GROUP else (draw(texts),)))
    if draw(st.integers(0, 5)) == 0:
        return made, None
    if kind == 2:
        return made, classic(draw(st.integers(0, 4)), draw(groups))
    schema = CONSUMER.get(kind) or SCHEMAS[kind]
    return made, struct.pack(">h", 0) + field(schema, draw(values_of(schema)))


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    """A true record with bytes cut off, added, or changed, or with another version or type."""
    parts: list[bytes | None] = list(draw(commits() | events()))
    at = draw(st.integers(0, 1))
    part = parts[at]
    if part is None:
        return parts[0], parts[1]
    how = draw(st.sampled_from(["cut", "more", "change", "version", "gone", "random"]))
    where = draw(st.integers(0, max(0, len(part) - 1)))
    if how == "cut":
        parts[at] = part[:where]
    elif how == "more":
        parts[at] = part + draw(st.binary(min_size=1, max_size=20))
    elif how == "change":
        parts[at] = part[:where] + draw(st.binary(min_size=1, max_size=2)) + part[where + 1 :]
    elif how == "version":
        parts[at] = struct.pack(">h", draw(st.integers(-2, 30))) + part[2:]
    elif how == "gone":
        parts[at] = None
    else:
        parts[at] = draw(st.binary(max_size=60))
    return parts[0], parts[1]
