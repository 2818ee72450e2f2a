"""Which records of a failed batch are called poison, and when none is."""

import pyarrow as pa
import pytest

from fleet.model import TopicPartition
from fleet.worker.batches import SCHEMA, InlineBatch
from fleet.worker.context import BatchRange
from fleet.worker.culprits import Culprits, Failing


def batch(**offsets: list[int]) -> InlineBatch:
    """Partitions p0, p1, … with these offsets; a range ends behind its last one."""
    ranges, tables = [], {}
    for name, present in offsets.items():
        number = int(name[1:])
        each = BatchRange(
            topic="t", topic_id="T", partition=number, start=present[0], end=present[-1] + 1
        )
        rows = [{"partition": number, "offset": at} for at in present]
        ranges.append(each)
        tables[each.tp] = pa.Table.from_pylist(rows, schema=SCHEMA)
    return InlineBatch(ranges=tuple(ranges), tables=tables)


class Entry:
    """An entrypoint that fails for some records, or for all."""

    def __init__(self, *bad: tuple[int, int], broken: bool = False) -> None:
        self.bad = set(bad)
        self.broken = broken
        self.calls: list[tuple[int, int]] = []

    def __call__(self, part: InlineBatch) -> str | None:
        """One call."""
        rows = [(r["partition"], r["offset"]) for r in part.table().to_pylist()]
        self.calls.append((len(rows), len(part.ranges)))
        return "E" if self.broken or self.bad & set(rows) else None


class Room:
    """So many letters per partition."""

    def __init__(self, most: int) -> None:
        self.most = most

    def room(self, tp: TopicPartition, start: int) -> int:
        """The same for all."""
        return self.most

    def refusal(self, tp: TopicPartition) -> str:
        """A sentence."""
        return f"too many in {tp}"


def examined(
    made: InlineBatch, entry: Entry, *, most: int | None = 10, in_time: bool = True
) -> Culprits:
    return Failing(
        made,
        "first",
        attempt=entry,
        attempts=lambda: len(entry.calls),
        narrowing=None if most is None else Room(most),
        in_time=lambda: in_time,
        say=lambda _: None,
    ).culprits()


def found(culprits: Culprits) -> list[tuple[int, int]]:
    return [(each.tp.partition, each.offset) for each in culprits.letters]


def test_without_a_topic_the_partition_fails():
    """As before: only the partitions that fail alone."""
    result = examined(batch(p0=[0, 1], p1=[0, 1]), Entry((1, 1)), most=None)
    assert result == Culprits(failed={TopicPartition("t", 1): "E"})


@pytest.mark.parametrize("at", [0, 1, 499, 512, 998, 999])
def test_one_record_of_a_thousand_costs_few_calls(at: int):
    """Halving finds it in at most two calls per halving, and every other record was processed."""
    entry = Entry((0, at))
    result = examined(batch(p0=list(range(1000))), entry)
    assert found(result) == [(0, at)]
    assert not result.failed
    assert len(entry.calls) <= 20
    assert result.letters[0].part.table()["offset"].to_pylist() == [at]


def test_several_in_several_partitions():
    """All of them, in order, and only them."""
    bad = [(0, 3), (0, 4), (1, 70), (2, 0)]
    made = batch(p0=list(range(50)), p1=list(range(100)), p2=[0, 1], p3=[5, 6])
    result = examined(made, Entry(*bad))
    assert found(result) == bad
    assert not result.failed


def test_gaps_are_no_calls():
    """Compacted offsets between two records are not run."""
    entry = Entry((0, 1_000_000))
    result = examined(batch(p0=[0, 1_000_000]), entry)
    assert found(result) == [(0, 1_000_000)]
    assert all(rows for rows, _ in entry.calls)


def test_a_broken_sink_is_no_poison():
    """Where nothing of the batch goes well no record is put aside: one partition stops, …"""
    entry = Entry(broken=True)
    result = examined(batch(p0=list(range(1000))), entry)
    assert (dict(result.failed), result.letters) == ({TopicPartition("t", 0): "first"}, ())
    assert len(entry.calls) < 20
    # … several end the worker, as without the topic.
    result = examined(batch(p0=[0, 1], p1=[0, 1]), Entry(broken=True))
    assert "fails for every partition" in (result.fatal or "")
    assert not result.letters


def test_a_bad_record_in_every_partition():
    """Other records are the witness that it is poison, though every partition fails alone."""
    result = examined(batch(p0=[0, 1, 2], p1=[0, 1, 2]), Entry((0, 1), (1, 0)))
    assert found(result) == [(0, 1), (1, 0)]
    assert (dict(result.failed), result.fatal) == ({}, None)


def test_a_batch_of_one_record_is_taken_at_its_word():
    """A quiet topic's bad record comes alone: there is no witness to ask."""
    assert found(examined(batch(p0=[7]), Entry((0, 7)))) == [(0, 7)]


def test_a_flood_stops_the_partition():
    """More than there is room for: quarantined with the reason, nothing of it put aside."""
    entry = Entry(*[(0, at) for at in range(0, 100, 3)])
    result = examined(batch(p0=list(range(100)), p1=[0]), entry)
    assert dict(result.failed) == {TopicPartition("t", 0): "too many in t-0: E"}
    assert not result.letters


def test_narrowing_ends_in_time():
    """An entrypoint that fails slowly is not asked for ever."""
    entry = Entry((0, 3), (0, 900))
    result = examined(batch(p0=list(range(1000))), entry, in_time=False)
    assert "within one batch_timeout" in result.failed[TopicPartition("t", 0)]
