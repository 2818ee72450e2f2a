"""Records of every type and version as hypothesis may make them, by the decoder's own table."""

import struct
from typing import Any

from hypothesis import strategies as st

from fleet.log.records import (
    ASSIGNMENT,
    NUMBERS,
    SUBSCRIPTION,
    TYPES,
    Kind,
    Struct,
    record_key,
    record_value,
    write,
)

texts = st.one_of(
    st.sampled_from(["", "g", "orders", "naïve-группа", "x" * 126, "x" * 127, "x" * 200]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


BLOBS: dict[str, st.SearchStrategy[Any]] = {}
"""Of fields in which a client wrote of itself, and of the one that says what that is."""


def commit(
    version: int, *, committed: int, metadata: str = "", tags: bytes = b"\0", **fields: Any
) -> bytes:
    """An OffsetCommitValue; tags: what stands at its end where the version has any."""
    fields = {"leader_epoch": 3, "commit_timestamp_ms": 1, "expire_timestamp_ms": -1, **fields}
    made = record_value(1, version, committed=committed, metadata=metadata, **fields)
    return made[:-1] + tags if version >= 4 else made


def _blob(kind: Kind) -> st.SearchStrategy[bytes]:
    versions, values = st.integers(0, 3), values_of(kind)
    return st.just(b"") | st.tuples(versions, values).map(
        lambda made: struct.pack(">h", made[0]) + write(kind, made[1], made[0], flexible=False)
    )


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    """Values of one field."""
    if isinstance(kind, list):
        return st.lists(values_of(kind[0]), max_size=2).map(tuple)
    if isinstance(kind, dict):
        ((key, of),) = kind.items()
        return st.dictionaries(values_of(key), values_of(of), max_size=2)
    if isinstance(kind, Struct):
        known = {n: st.just(e.default) | values_of(e.kind) for n, e in kind.fields.items()}
        known |= {n: values_of(e.kind) for n, e in kind.fields.items() if e.default is None}
        known |= {n: BLOBS[n] for n in BLOBS.keys() & known.keys()}
        return st.fixed_dictionaries(known)
    if kind in NUMBERS:
        bits = 8 * struct.calcsize(NUMBERS[str(kind)])
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if kind == "id":
        return st.binary(min_size=16, max_size=16).map(bytes.hex)
    if kind == "bytes":
        return st.binary(max_size=8)
    return st.none() | texts if kind == "text?" else texts


BLOBS |= {
    "subscription": _blob(SUBSCRIPTION),
    "assignment": _blob(ASSIGNMENT),
    "protocol_type": st.sampled_from(["consumer", "connect", ""]),
}
topic_ids = st.sampled_from(["12d77191ec2c40b2b4e97e94f8ba880d", "00" * 16, "ff" * 16])
tag_bytes = st.one_of(
    st.just(b"\0"),
    topic_ids.map(lambda each: b"\x01\x00\x10" + bytes.fromhex(each)),
    topic_ids.map(lambda each: b"\x02\x00\x10" + bytes.fromhex(each) + b"\x07\x01z"),  # KIP-915
)


@st.composite
def commits(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A commit of any version, or its tombstone."""
    kind = draw(st.sampled_from([0, 1]))
    made = record_key(kind, draw(texts), draw(texts), draw(st.integers(0, 10_000)))
    if draw(st.integers(0, 5)) == 0:
        return made, None
    fields = draw(values_of(TYPES[kind].value))
    fields |= {
        "leader_epoch": draw(st.integers(-1, 1000)),
        "expire_timestamp_ms": draw(st.just(-1) | values_of("i64")),
        "topic_id": None,
    }
    return made, commit(draw(st.integers(0, 4)), tags=draw(tag_bytes), **fields)


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """A record of any other type, in any version, or its tombstone."""
    kind = draw(st.sampled_from(sorted(set(TYPES) - {0, 1})))
    made = record_key(kind, *(draw(texts) for _ in TYPES[kind].key.fields))
    if draw(st.integers(0, 5)) == 0:
        return made, None
    version = draw(st.integers(0, TYPES[kind].newest))
    return made, record_value(kind, version, **draw(values_of(TYPES[kind].value)))


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
