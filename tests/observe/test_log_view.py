"""Whatever stands in the offsets topic, the view goes on, and counts what it could not read."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import ManualClock
from fleet.kafka_source.record_batches import cut
from fleet.lag.lag_columns import NONE
from fleet.log.readers.log_view import KEEP, MOST, LogView, all_groups
from fleet.model import TopicPartition
from tests.support.played_group import GROUP, TOPIC, TOPIC_ID, played_groups
from tests.support.sampling import examples
from tests.support.written_log import NOW, batch


def view(**options) -> LogView:
    known = {"groups": all_groups, "keep": KEEP, "most": MOST}
    return LogView(cluster="test", clock=ManualClock(), **{**known, **options})


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit_of(group: str, partition: int, offset: int, version: int = 3) -> tuple[bytes, bytes]:
    key = b"\x00\x01" + text(group) + text("t") + struct.pack(">i", partition)
    return key, struct.pack(">hqi", version, offset, -1) + text("") + struct.pack(">q", 0)


def feed(seen: LogView, *records: tuple[bytes | None, bytes | None]) -> None:
    for offset, (key, value) in enumerate(records):
        seen._record(3, offset, 1000 + offset, key, value)


def test_what_cannot_be_read_is_counted_and_nothing_stops():
    """Unknown types and versions, and bytes cut short; commits after them are still taken."""
    seen = view()
    feed(
        seen,
        commit_of("g", 0, 5),
        (b"\x00\x63" + text("g"), b"\x00\x00"),
        commit_of("g", 0, 6, version=9),
        (commit_of("g", 0, 0)[0], b"\x00\x03\x00"),
        (b"\x00", b"\x00"),
        (None, None),
        (b"\x00\x02" + text("g"), b"\x00\x03\x00"),
        commit_of("g", 1, 8),
    )
    at = {tp.partition: offset for tp, (offset, _) in seen.committed("g").items()}
    assert at == {0: 5, 1: 8}
    assert seen.decode_errors() == {(99, 0): 1, (1, 9): 1, (1, 3): 1, (-1, -1): 2, (2, 3): 1}
    assert seen.records == 8


def test_a_member_that_cannot_be_read_is_counted_and_its_group_is_there():
    """A client's own bytes in its assignment; before, the whole group was nothing."""
    seen = view()
    value = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 1) + text("range")
    value += text("m") + struct.pack(">qi", 42, 1) + text("m") + text("i") + text("c") + text("/h")
    value += struct.pack(">iiii", 300_000, 45_000, 0, 6) + b"\0\0\x7f\x7f\x7f\x7f"
    feed(seen, (b"\x00\x02" + text("g"), value))
    assert seen.summaries() == {"g": ("classic", 1, 1)}
    assert seen.decode_errors() == {(2, 3): 1}


def test_kinds_of_what_cannot_be_read_are_bounded():
    """Noise does not become labels without end."""
    seen = view()
    for kind in range(100, 400):
        feed(seen, (struct.pack(">h", kind) + text("g"), b"\x00\x00"))
    errors = seen.decode_errors()
    assert len(errors) == 201
    assert sum(errors.values()) == 300


def test_an_old_commits_key_is_that_of_the_new_one():
    """Type 0 was written before Kafka 0.9; both name the same position."""
    seen, (key, value) = view(), commit_of("g", 0, 5)
    feed(seen, (b"\x00\x00" + key[2:], value), commit_of("g", 0, 6))
    assert seen.committed("g") == {TopicPartition("t", 0): (6, 1.001)}


def test_a_negative_offset_is_no_commit():
    """To Kafka's own clients; first, after an offset, and in a batch of many."""
    seen = view()
    many = [commit_of("g", number, number) for number in range(2, 40)]
    feed(seen, commit_of("g", 0, -2), commit_of("g", 1, 7), commit_of("g", 1, -3), *many)
    rows = seen._positions.rows([key for key, _ in many])
    seen._positions.commit_rows(rows, np.full(len(rows), -5), np.full(len(rows), 5_000))
    assert {offset for offset, _ in seen.committed("g").values()} == {NONE}


def test_groups_that_are_not_chosen_leave_nothing():
    """Neither positions nor members."""
    seen = view(groups=lambda group: group == "mine")
    feed(seen, commit_of("mine", 0, 1), commit_of("other", 0, 1))
    assert seen.groups() == {"mine"}


@given(st.lists(st.tuples(st.none() | st.binary(max_size=60), st.none() | st.binary(max_size=60))))
def test_random_bytes_never_raise(records):
    """No input stops the reader."""
    seen = view()
    feed(seen, *records)
    assert seen.records == len(records)
    seen.summaries()
    seen.commits()


@given(st.integers(0, 24), st.binary(max_size=80), st.integers(0, 4))
def test_random_values_of_known_types_never_raise(kind, value, version):
    """Right keys with wrong values, too."""
    seen = view()
    key = struct.pack(">h", kind) + text("g") + text("m") + struct.pack(">i", 0)
    feed(seen, (key, struct.pack(">h", version) + value), (key, None), commit_of("g", 0, 1))
    assert "g" in seen.groups()


@given(played_groups(converts=True))
def test_the_view_has_who_is_there(group):
    """Whatever happened, and under whatever protocol the group ended."""
    seen = view()
    records = [record for record in group.records if record.type > 1]
    for record in records:
        seen._membership(3, GROUP, record)
    if group.number is None:
        assert seen.summaries() == {}
        return
    kind = "consumer" if group.protocol == "consumer" else "classic"
    assert seen.summaries() == {GROUP: (kind, group.number, len(group.members))}
    owned = any(member.owns for member in group.members.values())
    assert seen.unnamed_topics() == ({TOPIC_ID} if owned and kind == "consumer" else set())
    seen.name_topics({TOPIC_ID: TOPIC})
    assert seen.unnamed_topics() == set()
    assert seen.changed() == {GROUP: records[-1].timestamp_ms / 1000}


writes = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from([False] * 5 + [True]), st.none() | st.integers(1, 9)
    ),
    min_size=8,
    max_size=30,
)


def test_a_position_that_is_dropped_and_back_in_one_answer():
    """Its row had been another group's meanwhile, which was given its commit."""
    seen, (key, value) = view(), commit_of("g", 0, 5)
    other, found = commit_of("h", 0, 7)
    seen._batches(3, cut(batch(0, [(key, value, ())])))
    again = (key, commit_of("g", 0, 8)[1], ())
    seen._batches(3, cut(batch(1, [(key, None, ()), (other, found, ()), again])))
    at = {g: [offset for offset, _ in seen.committed(g).values()] for g in ("g", "h")}
    assert at == {"g": [8], "h": [7]}


@examples(300)
@given(writes, st.lists(st.integers(1, 8), min_size=2, max_size=6))
def test_batches_come_to_what_their_records_do(made, sizes):
    """Commits of known positions are taken together: also beside their tombstones."""
    records = []
    for group, old, offset in made:
        key, value = commit_of(f"g{group}", 0, offset or 0)
        key = b"\x00\x00" + key[2:] if old else key
        records.append((key, value if offset is not None else None))
    one_by_one, together = view(), view()
    for offset, (key, value) in enumerate(records):
        one_by_one._record(3, offset, NOW + offset, key, value)
    at = 0
    while at < len(records):
        until = at + (sizes.pop() if sizes else len(records))
        rows = [(key, value, ()) for key, value in records[at:until]]
        together._batches(3, cut(batch(at, rows, timestamp=NOW + at)))
        at = until
    for group in ("g0", "g1", "g2"):
        assert together.committed(group) == one_by_one.committed(group)
    assert together.groups() == one_by_one.groups()
    assert together.records == one_by_one.records
