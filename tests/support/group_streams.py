"""Records of one group as hypothesis may make them: plausible ones in any order, and rubbish."""

from typing import Any

from hypothesis import strategies as st

from fleet.log.records import (
    AssignmentEpoch,
    ClassicMember,
    ConsumerGroupEpoch,
    ConsumerGroupMember,
    CurrentAssignment,
    GroupMetadata,
    OffsetCommit,
    Record,
    TargetAssignment,
    Tombstone,
    Undecoded,
    decode,
)
from fleet.model import TopicPartition

GROUP = "g"
IDS = st.sampled_from(["m1", "m2", "m3", "m4"])
INSTANCES = st.sampled_from([None, None, "i1", "i2"])
TOPICS = ("orders", "returns")
TOPIC_IDS = {"a" * 32: "orders", "b" * 32: "returns"}
NUMBERS = st.lists(st.integers(0, 5), max_size=4, unique=True).map(tuple)


def _partitions(keys: Any) -> st.SearchStrategy[dict[str, tuple[int, ...]]]:
    return st.dictionaries(st.sampled_from(sorted(keys)), NUMBERS, max_size=2)


_MEMBER = st.builds(
    ClassicMember,
    member_id=IDS,
    instance_id=INSTANCES,
    client_id=st.just("c"),
    client_host=st.just("/127.0.0.1"),
    rebalance_timeout_ms=st.sampled_from([1000, 300_000]),
    session_timeout_ms=st.sampled_from([1000, 45_000]),
    subscription=st.just(b""),
    assignment=st.just(b""),
    topics=st.lists(st.sampled_from(TOPICS), max_size=2, unique=True).map(tuple),
    assigned=_partitions(TOPICS),
)
_PLACE = {"offset": st.just(0), "timestamp_ms": st.just(0), "group": st.just(GROUP)}


def _kind(*values: int) -> st.SearchStrategy[int]:
    return st.sampled_from(values)


_TYPED = [
    st.builds(
        OffsetCommit,
        **_PLACE,
        type=_kind(0, 1),
        tp=st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 5)),
        committed=st.integers(0, 100),
        leader_epoch=st.just(0),
        metadata=st.just(""),
        commit_timestamp_ms=st.just(0),
        topic_id=st.sampled_from([None, *TOPIC_IDS]),
    ),
    st.builds(
        GroupMetadata,
        **_PLACE,
        type=_kind(2),
        protocol_type=st.just("consumer"),
        generation=st.integers(0, 6),
        protocol=st.sampled_from(["range", "cooperative-sticky", None]),
        leader=st.none(),
        state_timestamp_ms=st.sampled_from([None, 0]),
        members=st.lists(_MEMBER, max_size=3).map(tuple),
    ),
    st.builds(
        ConsumerGroupEpoch,
        **_PLACE,
        type=_kind(3, 3, 11, 17),
        epoch=st.integers(1, 8),
        metadata_hash=st.integers(0, 2),
    ),
    st.builds(
        ConsumerGroupMember,
        **_PLACE,
        type=_kind(5, 5, 10, 19),
        member_id=IDS,
        instance_id=INSTANCES,
        rack_id=st.none(),
        client_id=st.just("c"),
        client_host=st.just("/127.0.0.1"),
        topics=st.lists(st.sampled_from(TOPICS), max_size=2, unique=True).map(tuple),
        regex=st.sampled_from(["", None, "^o.*"]),
        rebalance_timeout_ms=st.just(1000),
        server_assignor=st.sampled_from([None, "range"]),
    ),
    st.builds(
        AssignmentEpoch,
        **_PLACE,
        type=_kind(6, 6, 12, 20),
        epoch=st.integers(1, 8),
    ),
    st.builds(
        TargetAssignment, **_PLACE, type=_kind(7), member_id=IDS, partitions=_partitions(TOPIC_IDS)
    ),
    st.builds(
        CurrentAssignment,
        **_PLACE,
        type=_kind(8, 8, 14, 22),
        member_id=IDS,
        epoch=st.sampled_from([-2, 1, 2, 3, 4, 5, 6, 7, 8]),
        previous_epoch=st.just(0),
        state=st.integers(0, 2),
        assigned=_partitions(TOPIC_IDS),
        revoking=_partitions(TOPIC_IDS),
    ),
    st.builds(
        Tombstone,
        offset=st.just(0),
        timestamp_ms=st.just(0),
        group=st.just(GROUP),
        type=_kind(2, 3, 4, 6, 11, 12, 15, 17, 20, 23),
        key=st.just(()),
    ),
    st.builds(
        Tombstone,
        offset=st.just(0),
        timestamp_ms=st.just(0),
        group=st.just(GROUP),
        type=_kind(5, 7, 8, 10, 13, 14, 16, 19, 21, 22),
        key=IDS.map(lambda each: (each,)),
    ),
    st.builds(
        Tombstone,
        offset=st.just(0),
        timestamp_ms=st.just(0),
        group=st.just(GROUP),
        type=_kind(0, 1),
        key=st.tuples(st.sampled_from(TOPICS), st.integers(0, 5)),
    ),
    st.builds(
        Undecoded,
        offset=st.just(0),
        timestamp_ms=st.just(0),
        type=st.integers(-1, 40),
        reason=st.just("?"),
        key=st.none() | st.binary(max_size=8),
        value=st.none() | st.binary(max_size=8),
    ),
]


@st.composite
def _raw(draw: st.DrawFn) -> Record:
    """Any bytes under the key of a group's record, whole or cut."""
    kind = draw(st.integers(-1, 25))
    key = kind.to_bytes(2, "big", signed=True) + b"\x00\x01g" + draw(st.binary(max_size=12))
    return decode(key, draw(st.none() | st.binary(max_size=30)), offset=0, timestamp=0)


@st.composite
def streams(draw: st.DrawFn, most: int = 40) -> list[Record]:
    """Records in order of the log; some share a time, as those of one write do."""
    found = []
    at = 1_000_000
    for offset in range(draw(st.integers(1, most))):
        record = draw(st.one_of(*_TYPED, _raw()))
        at += draw(st.sampled_from([0, 0, 3, 400, 1500, 70_000]))
        values = {name: getattr(record, name) for name in record.__dataclass_fields__}
        values |= {"offset": offset, "timestamp_ms": at}
        if isinstance(record, GroupMetadata) and record.state_timestamp_ms is not None:
            values["state_timestamp_ms"] = at - draw(st.sampled_from([0, 5, 90_000]))
        found.append(type(record)(**values))
    return found
