"""When a batch closes, where a replay cuts, and what a partition that goes leaves behind."""

from dataclasses import dataclass

import pytest

from fleet.kafka_source.columns import batch_of, to_stderr
from fleet.model import TopicPartition
from fleet.worker.batch.batches import Buffer

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass(frozen=True)
class Record:
    """What the buffer sees of a message."""

    at: int
    part: int = 0
    value_: bytes = b"0123456789"

    def __len__(self) -> int:
        return len(self.value_)

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return self.value_

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self.part

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_123)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Only odd ones have some."""
        return [("trace", b"x"), ("empty", None)] if self.at % 2 else None


def records(first: int, after: int, part: int = 0) -> list[Record]:
    return [Record(at, part) for at in range(first, after)]


def buffer(*, limit: int = 100, max_wait: float = 0.2, max_bytes: int = 1 << 20) -> Buffer:
    made = Buffer(limit=limit, max_wait=max_wait, max_bytes=max_bytes)
    made.add_partition(P0, topic_id="T", start=0, replay_to=None)
    made.add_partition(P1, topic_id="T", start=0, replay_to=None)
    return made


def test_nothing_read_is_no_batch():
    """Time alone closes nothing."""
    assert buffer().close(1e9) is None


def test_batch_closes_max_wait_after_its_first_record():
    """The wait counts from the first record, not from the last."""
    made = buffer(max_wait=0.2)
    made.add(P0, records(0, 1), now=10.0)
    made.add(P0, records(1, 2), now=10.15)
    assert made.close(10.19) is None
    batch = made.close(10.21)
    assert batch is not None
    assert [each.id for each in batch.ranges] == ["T-0-0-2"]
    assert made.close(99.0) is None


def test_first_batch_after_an_assignment_waits_for_no_more():
    """Once every partition was heard of (records, or its end), the pause shall end."""
    made = buffer(max_wait=0.2)
    made.add(P0, records(0, 2), now=10.0)
    assert made.close(10.01) is None, "P1 would wait for a whole batch more"
    made.end_at(P1, 0)
    first = made.close(10.01)
    assert first is not None
    assert [each.id for each in first.ranges] == ["T-0-0-2"]
    made.add(P0, records(2, 3), now=10.02)
    assert made.close(10.03) is None, "the next one is gathered as usual"
    assert made.close(10.23) is not None


@pytest.mark.parametrize(
    ("limit", "max_bytes"),
    [pytest.param(10, 1 << 20, id="records"), pytest.param(1000, 100, id="bytes")],
)
def test_full_batch_closes_at_once_and_pauses(limit: int, max_bytes: int):
    """A full batch waits for nothing, and what is assigned is paused until it is handed over."""
    made = buffer(limit=limit, max_bytes=max_bytes)
    made.add(P0, records(0, 9), now=1.0)
    assert not made.to_pause()
    made.add(P0, records(9, 10), now=1.0)
    assert made.to_pause() == {P0, P1}
    assert made.close(1.0) is not None
    assert not made.to_pause()


def test_while_spark_is_busy_only_a_full_batch_closes():
    """What comes until Spark is free goes along: a batch closed early would only wait."""
    made = buffer(limit=2, max_wait=0.2)
    made.add(P0, records(0, 1), now=10.0)
    assert made.close(99.0, busy=True) is None
    made.add(P0, records(1, 2), now=99.0)
    batch = made.close(99.0, busy=True)
    assert batch is not None
    assert batch.records == 2


def test_ranges_tile_the_offsets():
    """A range starts where the last one ended, over gaps of compaction and markers."""
    made = buffer(max_wait=0.0)
    made.add(P0, [Record(3), Record(7)], now=1.0)
    first = made.close(1.0)
    made.add(P0, [Record(12)], now=2.0)
    made.end_at(P0, 15)  # two markers behind the last record
    second = made.close(2.0)
    assert first is not None
    assert second is not None
    assert [(r.start, r.end) for r in (*first.ranges, *second.ranges)] == [(0, 8), (8, 15)]


def test_refetched_records_are_left_out():
    """After a pause the client may bring records again that a batch already has."""
    made = buffer(max_wait=0.0)
    made.add(P0, records(0, 5), now=1.0)
    made.add(P0, records(3, 8), now=1.0)
    batch = made.close(1.0)
    assert batch is not None
    assert batch.table()["offset"].to_pylist() == list(range(8))


def test_replay_cuts_exactly_at_the_plan():
    """The first batch of a successor ends where its predecessor's did; the rest is carried on."""
    made = buffer(limit=4, max_wait=0.0)
    made.add_partition(P0, topic_id="T", start=10, replay_to=20)
    made.add(P0, records(10, 18), now=1.0)
    assert made.close(99.0) is None, "neither limit nor wait may cut a replay short"
    made.add(P0, records(18, 25), now=2.0)
    replay = made.close(2.0)
    carried = made.close(3.0)
    assert replay is not None
    assert carried is not None
    assert [each.id for each in replay.ranges] == ["T-0-10-20"]
    assert replay.records == 10
    assert [each.id for each in carried.ranges] == ["T-0-20-25"]


def test_replay_goes_alone():
    """While a replay is read the other partitions are paused, and not in its batch."""
    made = buffer(max_wait=0.0)
    made.add_partition(P0, topic_id="T", start=0, replay_to=3)
    assert made.to_pause() == {P1}
    made.add(P1, records(0, 2, part=1), now=1.0)
    made.add(P0, records(0, 3), now=1.0)
    assert made.to_pause() == {P0, P1}
    replay = made.close(1.0)
    assert replay is not None
    assert [each.tp for each in replay.ranges] == [P0]
    other = made.close(2.0)
    assert other is not None
    assert [each.tp for each in other.ranges] == [P1]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(20, ["T-0-10-20"], id="plan ends in markers"),
        pytest.param(23, ["T-0-10-20"], id="records behind it compacted"),
        pytest.param(15, ["T-0-10-15"], id="log shorter than the plan"),
    ],
)
def test_replay_ends_by_position(end: int, expected: list[str]):
    """A replay is complete by position: its last records may be markers, or gone."""
    made = buffer()
    made.add_partition(P0, topic_id="T", start=10, replay_to=20)
    made.add(P0, records(10, 12), now=1.0)
    made.end_at(P0, end)
    batch = made.close(1.0)
    assert batch is not None
    assert [each.id for each in batch.ranges] == expected


def test_markers_alone_are_a_gap_not_a_batch():
    """A position that moved over no record is committed without calling the entrypoint."""
    made = buffer()
    made.end_at(P0, 4)
    made.end_at(P1, 0)
    assert made.close(99.0) is None
    assert made.gaps() == {P0: (0, 4)}
    assert made.gaps() == {}


def test_dropped_partition_leaves_nothing():
    """What goes takes its rows along; the others stay."""
    made = buffer(max_wait=0.0)
    made.add(P0, records(0, 3), now=1.0)
    made.add(P1, records(0, 2, part=1), now=1.0)
    made.drop([P0])
    made.add(P0, records(3, 5), now=1.0)
    batch = made.close(1.0)
    assert batch is not None
    assert {each.tp for each in batch.ranges} == {P1}
    assert batch.records == 2


def test_only_keeps_ranges_and_rows_together():
    """A batch reduced to some partitions has their ranges and rows and no others."""
    made = buffer(max_wait=0.0)
    made.add(P0, records(0, 3), now=1.0)
    made.add(P1, records(0, 2, part=1), now=1.0)
    batch = made.close(1.0)
    assert batch is not None
    alone = batch.only([P1])
    assert [each.id for each in alone.ranges] == ["T-1-0-2"]
    assert alone.table()["partition"].to_pylist() == [1, 1]


@pytest.mark.parametrize(
    ("taken", "seconds", "limit"),
    [
        pytest.param(100, 20.0, 50, id="too slow: halved"),
        pytest.param(100, 4.0, 100, id="fast but already at the most"),
        pytest.param(1, 99.0, 100, id="one record cannot be less"),
    ],
)
def test_bound_follows_the_target(taken: int, seconds: float, limit: int):
    """A batch's bound is adapted so that it takes at most the target."""
    made = buffer(limit=100)
    made.took(taken, seconds, target=10.0)
    assert made.limit == limit


def test_bound_grows_back():
    """Full batches that are done in half the target double the bound, up to the spec's."""
    made = buffer(limit=100)
    made.took(100, 20.0, target=10.0)
    made.took(50, 1.0, target=10.0)
    made.took(100, 1.0, target=10.0)
    assert made.limit == 100


def test_table_has_the_columns_of_sparks_kafka_source():
    """Names, types and numbering of timestampType are Spark's own."""
    table = batch_of("orders", 3, [Record(0), Record(1)], to_stderr())
    row = table.to_pylist()[1]
    assert table.column_names[:2] == ["key", "value"]
    assert (row["topic"], row["partition"], row["offset"]) == ("orders", 3, 1)
    assert row["timestampType"] == 0
    assert row["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert row["headers"] == [{"key": "trace", "value": b"x"}, {"key": "empty", "value": None}]
    assert table.to_pylist()[0]["headers"] is None


def test_a_dropped_partition_makes_room():
    """In records and in bytes: else a batch would close for what it no longer holds."""
    made = buffer(limit=10)
    made.add(P0, records(0, 9), 0.0)
    made.add(P1, records(0, 1, 1), 0.0)
    assert made.full
    made.drop([P0])
    assert not made.full
    assert made.room == 9
    made.drop([P1])
    assert made.room == 10
    assert made.close(100.0) is None


def test_read_to_the_end_with_records_waiting_is_no_gap():
    """Their offsets are committed with their batch, not before it."""
    made = buffer()
    made.add(P0, records(0, 2), 0.0)
    made.end_at(P0, 5)
    made.end_at(P1, 3)
    assert made.gaps() == {P1: (0, 3)}
    assert [(tp, start) for tp, _, start, _ in made.starts()] == [(P0, 0), (P1, 3)]


def test_a_planned_range_is_no_gap():
    """A predecessor's cut is repeated, though it may be markers alone."""
    made = Buffer(limit=10, max_wait=1.0)
    made.add_partition(P0, topic_id="T", start=0, replay_to=4)
    made.end_at(P0, 6)
    assert made.gaps() == {}
