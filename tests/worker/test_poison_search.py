"""Which records of a failed batch are called poison, and when none is."""

import pyarrow as pa
import pytest

from fleet.kafka_source.columns import SCHEMA
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.worker.batch.batches import InlineBatch
from fleet.worker.batch.poison_search import PoisonFound, PoisonSearch

RESTS = (0.5, 1.0)


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
    """An entrypoint that fails for some records, or for all; `down`: for so many calls first."""

    def __init__(self, *bad: tuple[int, int], broken: bool = False, down: int = 0) -> None:
        self.bad = set(bad)
        self.broken = broken
        self.down = down
        self.calls: list[tuple[int, int]] = []
        self.written: list[tuple[int, int]] = []

    def __call__(self, part: InlineBatch) -> str | None:
        rows = [(r["partition"], r["offset"]) for r in part.table().to_pylist()]
        self.calls.append((len(rows), len(part.ranges)))
        if self.broken or len(self.calls) <= self.down or self.bad & set(rows):
            return "E"
        self.written += rows
        return None


class Room:
    """So many letters per partition."""

    def __init__(self, most: int) -> None:
        self.most = most

    def room(self, tp: TopicPartition, start: int) -> int:
        """The same for all."""
        return self.most

    def refusal(self, tp: TopicPartition) -> str:
        return f"too many in {tp}"


def examined(
    made: InlineBatch, entry: Entry, *, most: int | None = 10, in_time: bool = True
) -> PoisonFound:
    return PoisonSearch(
        made,
        "first",
        attempt=entry,
        attempts=lambda: len(entry.calls),
        holds=lambda part: part.holds_records(None),
        rests=lambda: RESTS,
        narrowing=None if most is None else Room(most),
        in_time=lambda: in_time,
        say=lambda _: None,
    ).search()


def found(culprits: PoisonFound) -> list[tuple[int, int]]:
    return [(each.tp.partition, each.offset) for each in culprits.letters]


def test_without_a_topic_the_partition_fails():
    """As before: only the partitions that fail alone."""
    result = examined(batch(p0=[0, 1], p1=[0, 1]), Entry((1, 1)), most=None)
    assert result == PoisonFound(failed={TopicPartition("t", 1): "E"})


@pytest.mark.parametrize("at", [0, 1, 499, 512, 998, 999])
def test_one_record_of_a_thousand_costs_few_calls(at: int):
    """Halving finds it in at most two calls per halving, and every other record was processed."""
    entry = Entry((0, at))
    result = examined(batch(p0=list(range(1000))), entry)
    assert found(result) == [(0, at)]
    assert not result.failed
    assert len(entry.calls) <= 20 + len(RESTS)
    assert result.letters[0].part.table()["offset"].to_pylist() == [at]


def test_several_in_several_partitions():
    """All of them, in order, and only them."""
    bad = [(0, 3), (0, 4), (1, 70), (2, 0)]
    made = batch(p0=list(range(50)), p1=list(range(100)), p2=[0, 1], p3=[5, 6])
    result = examined(made, Entry(*bad))
    assert found(result) == bad
    assert not result.failed


LARGE = "the rows have 3.0 GiB or more, and spark.driver.maxResultSize is 1024.0 MiB"


class Bounded(Entry):
    """Takes so many records at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __call__(self, part: InlineBatch) -> str | None:
        told = super().__call__(part)
        if self.calls[-1][0] <= self.most:
            return told
        del self.written[-self.calls[-1][0] :]
        return LARGE


@pytest.mark.parametrize("letters", [None, 10])
@pytest.mark.parametrize("parts", [{}, {"p1": [0, 1]}, {"p1": list(range(30))}])
def test_what_is_too_large_for_spark_is_run_in_parts(parts, letters: int | None):
    """Fault: the hot partition is stopped, for the small one beside it went well."""
    made, entry = batch(p0=list(range(40)), **parts), Bounded(7)
    assert examined(made, entry, most=letters) == PoisonFound()
    assert len(entry.written) == len(set(entry.written)) == made.records


@pytest.mark.parametrize("letters", [None, 10])
def test_a_record_that_is_too_large_for_spark_is_no_poison(letters: int | None):
    """Its code is right: nothing is stopped or put aside, and the worker says what to set."""

    class Single(Entry):
        def __call__(self, part: InlineBatch) -> str | None:
            return LARGE if super().__call__(part) else None

    result = examined(batch(p0=[0, 1, 2], p1=[0]), Single((0, 1)), most=letters)
    assert result == PoisonFound(ill=LARGE)


def test_gaps_are_no_calls():
    """Compacted offsets between two records are not run."""
    entry = Entry((0, 1_000_000))
    result = examined(batch(p0=[0, 1_000_000]), entry)
    assert found(result) == [(0, 1_000_000)]
    assert all(rows for rows, _ in entry.calls)


@pytest.mark.parametrize("most", [None, 10], ids=["no topic", "dead letters"])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(batch(p0=list(range(1000))), id="one partition"),
        pytest.param(batch(p0=[7]), id="one record"),
        pytest.param(batch(p0=[0, 1], p1=[0, 1]), id="several partitions"),
        pytest.param(batch(p0=[0], p1=[0], p2=[0], p3=[0], p4=[0]), id="a record each"),
    ],
)
def test_a_broken_sink_is_no_poison(made: InlineBatch, most: int | None):
    """Where nothing of the batch goes well nothing is condemned, whatever it holds [43]."""
    entry = Entry(broken=True)
    assert examined(made, entry, most=most) == PoisonFound(ill="first")
    assert len(entry.calls) < 25


@pytest.mark.parametrize("most", [None, 10], ids=["no topic", "dead letters"])
@pytest.mark.parametrize("down", range(1, 14))
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(batch(p0=list(range(100))), id="one partition"),
        pytest.param(batch(p0=[0, 1, 2], p1=[5, 6], p2=[9]), id="several"),
    ],
)
def test_a_sink_that_comes_back_condemns_nothing(made: InlineBatch, down: int, most: int | None):
    """Whenever it does: what failed before it is asked again, and every record is written."""
    entry = Entry(down=down)
    result = examined(made, entry, most=most)
    assert (dict(result.failed), result.letters) == ({}, ())
    if result.ill is None:
        everything = {(r["partition"], r["offset"]) for r in made.table().to_pylist()}
        assert set(entry.written) == everything


def test_the_offset_is_named_where_the_witness_is_another_record():
    """One partition, no topic: all before the bad record is written, once; the rest waits."""
    entry = Entry((0, 37))
    result = examined(batch(p0=list(range(100))), entry, most=None)
    tp = TopicPartition("t", 0)
    assert result == PoisonFound(failed={tp: "E"}, reached={tp: 37})
    assert entry.written == [(0, at) for at in range(37)]


def test_the_first_record_has_a_later_one_as_its_witness():
    """Nothing before it can go well."""
    entry = Entry((0, 0))
    result = examined(batch(p0=list(range(100))), entry, most=None)
    tp = TopicPartition("t", 0)
    assert result == PoisonFound(failed={tp: "E"}, reached={tp: 0})
    assert len(entry.written) <= 2, "as few as there are in the nearest part"


def test_a_part_without_records_is_no_witness():
    """Offsets that are markers: the entrypoint has nothing to fail for."""
    made = batch(p0=[0, 1], p1=[0])
    entry = Entry((0, 0), (0, 1))
    result = PoisonSearch(
        made,
        "first",
        attempt=entry,
        attempts=lambda: len(entry.calls),
        holds=lambda part: part.ranges[0].partition == 0,
        rests=lambda: RESTS,
        narrowing=None,
        in_time=lambda: True,
        say=lambda _: None,
    ).search()
    assert result.ill == "first"


def test_a_bad_record_in_every_partition():
    """Other records are the witness that it is poison, though every partition fails alone."""
    result = examined(batch(p0=[0, 1, 2], p1=[0, 1, 2]), Entry((0, 1), (1, 0)))
    assert found(result) == [(0, 1), (1, 0)]
    assert (dict(result.failed), result.ill) == ({}, None)


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


@pytest.mark.parametrize(("bad", "letters"), [(2, [0, 9]), (3, [])])
def test_the_room_is_exact(bad, letters):
    """One more than there is room for stops the partition."""
    entry = Entry(*[(0, at) for at in (0, 9, 18)[:bad]])
    result = examined(batch(p0=list(range(30)), p1=[0]), entry, most=2)
    assert found(result) == [(0, at) for at in letters]
    assert bool(result.failed) is not bool(letters)


class Pair(Entry):
    """Fails where two records come together."""

    def __call__(self, part: InlineBatch) -> str | None:
        rows = [r["offset"] for r in part.table().to_pylist() if r["partition"] == 0]
        self.calls.append((len(rows), len(part.ranges)))
        return "E" if len(rows) > 1 else None


def test_what_fails_together_alone_is_no_poison():
    """Each record went well by itself: nothing of it may be put aside."""
    result = examined(batch(p0=[0, 1], p1=[0]), Pair())
    assert (found(result), dict(result.failed), result.ill) == ([], {}, None)


class Passing(Entry):
    """One record fails twice alone, and then goes well."""

    alone = 0

    def __call__(self, part: InlineBatch) -> str | None:
        rows = [(r["partition"], r["offset"]) for r in part.table().to_pylist()]
        self.calls.append((len(rows), len(part.ranges)))
        if rows == [(0, 5)]:
            self.alone += 1
            return "E" if self.alone <= 2 else None
        return "E" if (0, 5) in rows else None


def test_a_suspect_is_asked_after_every_rest():
    """It is poison where it fails each time, not most times."""
    result = examined(batch(p0=list(range(10)), p1=[0]), Passing())
    assert (found(result), result.ill) == ([], None)
