"""A range's records, all of them and no others, whatever arrives in which pieces [7].

`read_ranges` over a cluster in memory; faults: read over the end, ended early, reset to an end.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleet.kafka_source.failures import RangeTruncated, RangeUnread
from fleet.kafka_source.pieces import OffsetRange
from fleet.kafka_source.tasks import options_of, read_ranges, reading
from fleet.model import TopicPartition
from tests.support.memory_kafka import MemoryConsumer, MemoryKafka

P = [TopicPartition("t", number) for number in range(3)]
OPTIONS = options_of({"bootstrap.servers": "memory:1"}, group="g", isolation="read_committed")


class Pieces(MemoryConsumer):
    """Hands over what it has in pieces of its own choice, and behind a pause what it had fetched.

    So librdkafka does: more than was asked for never, less often, records of a paused partition
    where they were under way, and some of them again after a fetch was begun again.
    """

    def __init__(
        self, kafka: MemoryKafka, sizes: list[int], *, late: bool, again: bool = False
    ) -> None:
        super().__init__(kafka, OPTIONS)
        self.sizes = sizes
        self.late = late
        self.again = again
        self.calls = 0

    def pause(self, partitions: Any) -> None:
        """Too late for what is under way."""
        if not self.late:
            super().pause(partitions)

    def consume(self, count: int, timeout: float) -> Any:
        """A piece."""
        self.calls += 1
        if self.again and self.calls % 4 == 0:
            self.at = {tp: max(0, at - 2) for tp, at in self.at.items()}
        size = self.sizes.pop(0) if self.sizes else count
        return super().consume(max(1, min(size, count)), 0)


def cluster(log: str) -> MemoryKafka:
    """Each partition has this log: r a record, a an aborted one, . an offset without any."""
    made = MemoryKafka()
    made.make("t", len(P))
    for tp in P:
        for kind in log:
            if kind == ".":
                made.mark(tp)
            else:
                made.produce(tp, b"x", aborted=kind == "a")
    return made


def offsets(consumer: MemoryConsumer, *ranges: OffsetRange, **more: Any) -> list[tuple[int, int]]:
    """(partition, offset) of every row, in the order read."""
    batches = read_ranges(consumer, ranges, read_timeout=0.05, **more)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["partition"], row["offset"]) for row in rows]


LOG = st.text(alphabet="rrra.", min_size=1, max_size=40)


@given(
    log=LOG,
    cuts=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 9), max_size=30),
    late=st.booleans(),
    again=st.booleans(),
)
@example(log="r" * 20, cuts=[(0, 20)], sizes=[2] * 30, late=False, again=True)
@example(log="r" * 20, cuts=[(5, 9), (0, 20)], sizes=[3] * 30, late=True, again=True)
def test_all_of_a_range_and_nothing_else(log, cuts, sizes, late, again):
    """Any log, any ranges in it, any pieces."""
    ranges = [
        OffsetRange("t", number, start, min(end, len(log)))
        for number, (start, end) in enumerate(cuts)
        if start < min(end, len(log))
    ]
    found = offsets(Pieces(cluster(log), sizes, late=late, again=again), *ranges)
    wanted = [
        (each.partition, at)
        for each in ranges
        for at in range(each.start, each.end)
        if log[at] == "r"
    ]
    assert sorted(found) == wanted
    for number in range(len(P)):
        mine = [at for partition, at in found if partition == number]
        assert mine == sorted(mine)


@pytest.mark.parametrize(
    ("log", "end", "last"),
    [
        pytest.param("rrrrr", 3, 2, id="records behind it"),
        pytest.param("rrrrr", 5, 4, id="at the log's end"),
        pytest.param("rrr..", 5, 2, id="markers at its end"),
        pytest.param("rr..rr", 3, 1, id="ends among markers"),
        pytest.param("rraarr", 4, 1, id="aborted at its end"),
        pytest.param("rrr.r", 5, 4, id="a marker before its last"),
    ],
)
def test_where_a_range_is_done(log: str, end: int, last: int):
    """At a record or an end of partition at or behind its end, and not before."""
    found = offsets(Pieces(cluster(log), [1] * 20, late=False), OffsetRange("t", 0, 0, end))
    assert found[-1] == (0, last)
    assert len(found) == log[:end].count("r")


def test_an_end_that_does_not_come_is_a_failure():
    """An open transaction before the range's end: it is neither done nor short."""
    kafka = cluster("rrrr")
    kafka.parts[P[0]].stable = 2
    with pytest.raises(
        RangeUnread, match=r"no progress within 0\.05 s at offset 2 of t-0, wanted up to 4"
    ):
        offsets(Pieces(kafka, [], late=False), OffsetRange("t", 0, 0, 4))


@pytest.mark.parametrize(("start", "first"), [(1, 3), (9, 0)], ids=["gone", "behind the end"])
def test_a_start_outside_of_the_log_is_a_failure(start: int, first: int):
    """Never a jump to the log's start or its end."""
    kafka = cluster("rrrrr")
    kafka.truncate(P[0], first)
    with pytest.raises(RangeTruncated, match=f"offset {start} was wanted"):
        offsets(Pieces(kafka, [], late=False), OffsetRange("t", 0, start, 12))


def test_a_start_that_is_gone_is_named_where_there_is_a_word_for_it():
    """Reading goes on where the log begins, and what is missing is told exactly."""
    kafka = cluster("rrrrr")
    kafka.truncate(P[0], 3)
    consumer = Pieces(kafka, [], late=False)
    ranges = [OffsetRange("t", 0, 1, 5), OffsetRange("t", 1, 1, 4)]
    batches = list(read_ranges(consumer, ranges, read_timeout=1.0, gone=lambda lost: lost))
    lost = [each for each in batches if isinstance(each, OffsetRange)]
    rows = [row for each in batches if each not in lost for row in each.to_pylist()]
    assert lost == [OffsetRange("t", 0, 1, 3)]
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        *((0, at) for at in (3, 4)),
        *((1, at) for at in (1, 2, 3)),
    ]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_what_a_task_tells_its_client(monkeypatch, isolation: str):
    """The isolation that was asked for; an error instead of a jump; nothing committed."""
    monkeypatch.setattr("confluent_kafka.Consumer", lambda options: options)
    told = reading(options_of({}, group="g", isolation=isolation))
    assert told["isolation.level"] == isolation
    assert told["auto.offset.reset"] == "error"
    assert told["enable.partition.eof"]
    assert not told["enable.auto.commit"]
