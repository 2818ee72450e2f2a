"""A range's records, all of them and no others, whatever arrives in which pieces [7].

`read_ranges` over a log in memory; faults: read over the end, ended early, reset to an end.
"""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kafka_source import record_batches, tasks
from fleet.kafka_source.columns import batch_of_pieces, to_stderr
from fleet.kafka_source.failures import (
    RangeDamaged,
    RangeTruncated,
    RangeUnread,
    damage_in,
    failure_in,
)
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import read_ranges
from tests.support.written_log import WrittenLog, WrittenPart, batch, marker, signed

PRODUCER = 7
PARTS = 3
BATCH = partial(batch_of_pieces, tell=to_stderr())


def written(log: str) -> WrittenPart:
    """One batch a letter: r a record, a one of an aborted transaction, x its end, . none at all."""
    part, begun = WrittenPart(), False
    for at, kind in enumerate(log):
        if kind == "r":
            part.add(batch(at, [(b"k", b"v", ())]), at + 1)
        elif kind == "a":
            if not begun:
                part.aborted.append((PRODUCER, at))
            begun = True
            part.add(batch(at, [(b"k", b"v", ())], producer=PRODUCER), at + 1)
        elif kind == "x":
            begun = False
            part.add(marker(at, PRODUCER, committed=False), at + 1)
        else:  # compacted away: the batch is there, and holds nothing
            part.add(batch(at, {}, after=at + 1), at + 1)
    return part


def log_of(log: str, *sizes: int) -> WrittenLog:
    """Each partition holds the same."""
    return WrittenLog({("t", number): written(log) for number in range(PARTS)}, sizes)


def offsets(log: WrittenLog, *ranges: OffsetRange, **more: Any) -> list[tuple[int, int]]:
    """(partition, offset) of every row, in the order read."""
    batches = read_ranges(log, ranges, read_timeout=0.05, make=BATCH, **more)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert log.closed is not more.get("keep", False)
    return [(row["partition"], row["offset"]) for row in rows]


@given(
    log=st.text(alphabet="rrrax.", min_size=1, max_size=40),
    cuts=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), min_size=1, max_size=PARTS),
    sizes=st.lists(st.integers(1, 9), max_size=30),
)
def test_all_of_a_range_and_nothing_else(log: str, cuts, sizes):
    """Any log, any ranges in it, any pieces."""
    ranges = [
        OffsetRange("t", number, start, min(end, len(log)))
        for number, (start, end) in enumerate(cuts)
        if start < min(end, len(log))
    ]
    found = offsets(log_of(log, *sizes), *ranges)
    for each in ranges:
        wanted = [at for at in range(each.start, each.end) if log[at] == "r"]
        assert [at for number, at in found if number == each.partition] == wanted
    assert {number for number, _ in found} <= {each.partition for each in ranges}


def test_one_batch_that_a_range_begins_and_ends_in():
    """Of its ten records only those that were asked for."""
    part = WrittenPart()
    part.add(batch(0, [(b"%d" % n, None, ()) for n in range(10)]), 10)
    log = WrittenLog({("t", 0): part})
    assert offsets(log, OffsetRange("t", 0, 3, 6)) == [(0, 3), (0, 4), (0, 5)]


def test_an_end_that_does_not_come_is_a_failure():
    """An open transaction before the range's end: it is neither done nor short."""
    log = log_of("rrrr")
    log.parts["t", 0].stable = 2
    told = r"no progress within 0\.05 s at offset 2 of t-0, wanted up to 4"
    with pytest.raises(RangeUnread, match=told):
        offsets(log, OffsetRange("t", 0, 0, 4))


@pytest.mark.parametrize(
    ("code", "told"), [(29, "refuse: TOPIC_AUTH"), (-1, r"last error: UNKNOWN \(-1\)")]
)
def test_an_error_is_named(code: int, told: str):
    """What waiting does not mend at once, anything else when nothing came of it."""
    log = log_of("rr")
    log.errors = [code] * 20
    with pytest.raises(RangeUnread, match=told):
        offsets(log, OffsetRange("t", 0, 0, 2))


@pytest.mark.parametrize(("start", "first"), [(1, 3), (9, 0)], ids=["gone", "behind the end"])
def test_a_start_outside_of_the_log_is_a_failure(start: int, first: int):
    """Never a jump to the log's start or its end."""
    log = log_of("rrrrr")
    log.parts["t", 0].first = first
    with pytest.raises(RangeTruncated, match=f"offset {start} was wanted"):
        offsets(log, OffsetRange("t", 0, start, 12))


def test_a_start_that_is_gone_is_named_where_there_is_a_word_for_it():
    """Reading goes on where the log begins, and what is missing is told exactly."""
    log = log_of("rrrrr")
    log.parts["t", 0].first = 3
    ranges = [OffsetRange("t", 0, 1, 5), OffsetRange("t", 1, 1, 4)]
    found = list(read_ranges(log, ranges, read_timeout=1.0, make=BATCH, gone=lambda lost, _: lost))
    lost = [each for each in found if isinstance(each, OffsetRange)]
    rows = [row for each in found if each not in lost for row in each.to_pylist()]
    assert lost == [OffsetRange("t", 0, 1, 3)]
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        *((0, at) for at in (3, 4)),
        *((1, at) for at in (1, 2, 3)),
    ]


def test_a_damaged_batch_is_a_failure_with_its_offset():
    """Never records that nobody wrote."""
    log = log_of("rrr")
    after, data = log.parts["t", 0].batches[1]
    log.parts["t", 0].batches[1] = (after, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RangeDamaged, match="batch at offset 1 is damaged: its checksum") as told:
        offsets(log, OffsetRange("t", 0, 0, 3))
    assert damage_in(failure_in(told.value)[1])[:4] == ("t", 0, 1, 2)


@pytest.mark.parametrize("start", [0, 2], ids=["begins", "inside"])
def test_a_batch_that_unpacks_to_too_much_is_named_with_its_end(
    monkeypatch: pytest.MonkeyPatch, start: int
):
    """By its header, which its checksum covers: also where it is the last of the log."""
    monkeypatch.setattr(record_batches, "MOST", 1 << 16)
    part = WrittenPart()
    part.add(batch(0, [(None, bytes(1 << 15), ())] * 3, codec=4), 3)
    with pytest.raises(RangeDamaged, match="unpacks to more than 65,536 bytes") as told:
        offsets(WrittenLog({("t", 0): part}), OffsetRange("t", 0, start, 3))
    assert damage_in(failure_in(told.value)[1])[:4] == ("t", 0, start, 3)


def test_records_that_do_not_fit_their_batch_are_named_with_its_end():
    """Written so, with the right checksum, by a client that is wrong."""
    part = WrittenPart()
    whole = bytearray(batch(0, [(None, b"v", ())] * 3))
    whole[57:61] = (2).to_bytes(4, "big")  # how many records it holds
    part.add(signed(bytes(whole)), 3)
    with pytest.raises(RangeDamaged, match="its records do not fill it") as told:
        offsets(WrittenLog({("t", 0): part}), OffsetRange("t", 0, 1, 3))
    assert damage_in(failure_in(told.value)[1])[:4] == ("t", 0, 1, 3)


def test_damage_that_the_broker_or_nobody_can_measure():
    """CORRUPT_MESSAGE for as long as read_timeout; a batch longer than what is there of it."""
    log = log_of("rrr")
    log.errors = [2] * 100
    with pytest.raises(RangeDamaged, match=r"CORRUPT_MESSAGE|CorruptRecord") as told:
        offsets(log, OffsetRange("t", 0, 1, 3))
    assert damage_in(failure_in(told.value)[1])[:4] == ("t", 0, 1, None)
    log = log_of("rrr")
    after, data = log.parts["t", 0].batches[2]
    log.parts["t", 0].batches[2] = (after, data[:8] + (1 << 20).to_bytes(4, "big") + data[12:])
    with pytest.raises(RangeDamaged, match="longer than the broker's copy of it") as told:
        offsets(log, OffsetRange("t", 0, 0, 3))
    assert damage_in(failure_in(told.value)[1])[:4] == ("t", 0, 2, None)


@given(log=st.text(alphabet="rrrax.", min_size=1, max_size=20), enough=st.integers(1, 200))
def test_what_unpacks_to_much_comes_in_parts(log: str, enough: int):
    """A megabyte that was packed well is gigabytes: more than one column of Arrow can hold."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_batches, "_ENOUGH", enough)
        patched.setattr(tasks, "_TOGETHER", enough)
        ranges = [OffsetRange("t", number, 0, len(log)) for number in range(PARTS)]
        found = offsets(log_of(log, 9), *ranges)
        wanted = [at for at, kind in enumerate(log) if kind == "r"]
        for each in range(PARTS):
            assert [at for number, at in found if number == each] == wanted


def test_a_part_is_one_batch_or_a_bounded_one(monkeypatch: pytest.MonkeyPatch):
    """Ten batches that came in one answer, of 4 MiB each: no two of them in one column."""
    monkeypatch.setattr(record_batches, "_ENOUGH", 3 << 20)
    monkeypatch.setattr(tasks, "_TOGETHER", 5 << 20)
    part = WrittenPart()
    for at in range(10):
        part.add(batch(at, [(None, bytes(4 << 20), ())], codec=4), at + 1)
    log = WrittenLog({("t", number): part for number in range(PARTS)}, (10,))
    ranges = [OffsetRange("t", number, 0, 10) for number in range(PARTS)]
    sizes = [each.num_rows for each in read_ranges(log, ranges, read_timeout=1.0, make=BATCH)]
    assert sizes == [1] * (10 * PARTS)


def test_connections_are_kept_for_the_next_ranges():
    """A receipt reads on many times a second: each time without a login."""
    log = log_of("rrrr")
    for start in (0, 2):
        read = offsets(log, OffsetRange("t", 0, start, start + 2), keep=True)
        assert read == [(0, start), (0, start + 1)]
    log.close()
