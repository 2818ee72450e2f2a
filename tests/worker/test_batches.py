"""When a batch closes, where a replay cuts, what a partition that goes leaves behind, and how many
records the next batch may have.
"""

import random
from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest

from fleet.clock import ManualClock, SystemClock
from fleet.model import TopicPartition
from fleet.worker.batch import batches
from fleet.worker.batch.batches import (
    ONE_TASK,
    ONE_TASK_BYTES,
    QUICK,
    BatchBound,
    InlineBatch,
    InlineReading,
)
from tests.support.memory_kafka import Message

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def record(at: int, part: int = 0, value: bytes = b"0123456789") -> Message:
    """Only odd ones have headers."""
    headers = [("trace", b"x"), ("empty", None)] if at % 2 else None
    return Message(TopicPartition("orders", part), at, value=value, headers=headers)


def records(first: int, after: int, part: int = 0) -> list[Message]:
    return [record(at, part) for at in range(first, after)]


def buffer(*, limit: int = 100, max_wait: float = 0.2, max_bytes: int = 1 << 20) -> InlineReading:
    made = InlineReading(
        limit=limit, max_wait=max_wait, max_seconds=10.0, max_bytes=max_bytes, clock=ManualClock()
    )
    made.add_partition(P0, topic_id="T", start=0, replay_to=None)
    made.add_partition(P1, topic_id="T", start=0, replay_to=None)
    return made


def settled(**bounds: Any) -> InlineReading:
    """One that has closed its first batch after the assignment, at 10.0."""
    made = buffer(**bounds)
    made.add(P0, records(0, 1))
    made.end_at(P1, 0)
    batch = made.close(10.0)
    assert [each.id for each in batch.ranges] == ["T-0-0-1"]
    return made


def test_an_idle_spark_is_given_what_comes_at_once():
    """After a pause of max_wait a record waits for no other."""
    made = settled(max_wait=0.2)
    made.add(P0, records(1, 2))
    assert made.close(10.19) is None
    made.rest(10.1)
    assert made.close(10.29) is None
    made.add(P0, records(2, 3))
    second = made.close(10.31)
    assert [each.id for each in second.ranges] == ["T-0-1-3"]
    assert made.close(99.0) is None
    made.add(P0, records(3, 4))
    assert made.close(99.0) is not None, "nothing has begun for as long"


def test_a_stream_waits_for_nothing_but_spark():
    """As many records as 500 a second bring within max_wait are worth a batch before it is over."""
    made = settled(limit=1000, max_wait=0.2)
    made.add(P0, records(1, 100))
    assert made.close(10.05) is None
    made.add(P0, records(100, 101))
    assert made.close(10.06, busy=True) is None
    assert made.close(10.06) is not None


def test_first_batch_after_an_assignment_waits_for_no_more():
    """Once every partition was heard of (records, or its end), the pause shall end."""
    made = buffer(max_wait=0.2)
    made.add(P0, records(0, 2))
    assert made.close(10.01) is None, "P1 would wait for a whole batch more"
    assert made.close(10.2) is None
    made.end_at(P1, 0)
    first = made.close(10.2)
    assert [each.id for each in first.ranges] == ["T-0-0-2"]
    made.add(P0, records(2, 3))
    assert made.close(10.3) is None, "the next one is gathered as usual"
    assert made.close(10.41) is not None


def test_a_partition_that_does_not_answer_is_not_waited_for_longer_than_max_wait():
    """Its leader may be away; the others' records do not wait for that."""
    made = buffer(max_wait=0.2)
    made.add(P0, records(0, 2))
    assert made.close(10.0) is None
    assert made.close(10.19) is None
    assert made.close(10.21) is not None


@pytest.mark.parametrize(
    ("limit", "max_bytes"),
    [pytest.param(10, 1 << 20, id="records"), pytest.param(1000, 100, id="bytes")],
)
def test_full_batch_closes_at_once_and_pauses(limit: int, max_bytes: int):
    """A full batch waits for nothing, and what is assigned is paused until it is handed over."""
    made = buffer(limit=limit, max_bytes=max_bytes)
    made.add(P0, records(0, 9))
    assert not made.to_pause()
    made.add(P0, records(9, 10))
    assert made.to_pause() == {P0, P1}
    assert made.close(1.0) is not None
    assert not made.to_pause()


def test_while_spark_is_busy_only_a_full_batch_closes():
    """What comes until Spark is free goes along: a batch closed early would only wait."""
    made = buffer(limit=2, max_wait=0.2)
    made.add(P0, records(0, 1))
    assert made.close(99.0, busy=True) is None
    made.add(P0, records(1, 2))
    batch = made.close(99.0, busy=True)
    assert batch.records == 2


def test_what_came_at_once_and_is_too_much_is_several_batches(monkeypatch: pytest.MonkeyPatch):
    """A batch of the log unpacks to any size, and Spark's server takes so much in one call."""
    monkeypatch.setattr(batches, "MOST_BYTES", 150)
    made = buffer(limit=1000, max_bytes=100)
    made.add(P0, [*records(0, 3), record(5, value=b"v" * 500), *records(6, 19)])
    made.add(P1, records(0, 12, part=1))
    cut: list[Any] = []
    while (batch := made.close(10.0 + len(cut))) is not None:
        cut.append(([each.id for each in batch.ranges], batch.table()["offset"].to_pylist()))
    assert cut == [
        (["T-0-0-5", "T-1-0-7"], [*range(3), *range(7)]),
        (["T-0-5-6"], [5]),
        (["T-0-6-16"], [*range(6, 16)]),
        (["T-0-16-19", "T-1-7-12"], [16, 17, 18, *range(7, 12)]),
    ]


def test_replay_cuts_exactly_at_the_plan():
    """The first batch of a successor ends where its predecessor's did; the rest is carried on."""
    made = buffer(limit=4, max_wait=0.0)
    made.add_partition(P0, topic_id="T", start=10, replay_to=20)
    made.add(P0, records(10, 18))
    assert made.close(99.0) is None, "neither limit nor wait may cut a replay short"
    made.add(P0, records(18, 25))
    replay = made.close(2.0)
    carried = made.close(3.0)
    assert [each.id for each in replay.ranges] == ["T-0-10-20"]
    assert replay.records == 10
    assert [each.id for each in carried.ranges] == ["T-0-20-25"]


def test_replay_goes_alone():
    """While a replay is read the other partitions are paused, and not in its batch."""
    made = buffer(max_wait=0.0)
    made.add_partition(P0, topic_id="T", start=0, replay_to=3)
    assert made.to_pause() == {P1}
    made.add(P1, records(0, 2, part=1))
    made.add(P0, records(0, 3))
    assert made.to_pause() == {P0, P1}
    replay = made.close(1.0)
    assert [each.tp for each in replay.ranges] == [P0]
    other = made.close(2.0)
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
    made.add(P0, records(10, 12))
    made.end_at(P0, end)
    batch = made.close(1.0)
    assert [each.id for each in batch.ranges] == expected


def test_a_dropped_partition_leaves_nothing_and_makes_room():
    """In records and in bytes: else a batch would close for what it no longer holds."""
    made = buffer(limit=10)
    made.add(P0, records(0, 9))
    made.add(P1, records(0, 1, 1))
    assert made.full
    made.drop([P0])
    made.add(P0, records(9, 10))
    assert not made.full
    assert made.room == 9
    made.drop([P1])
    assert made.room == 10
    assert made.close(100.0) is None


def test_what_moved_over_no_record_is_a_gap():
    """It is committed without a batch."""
    planned = TopicPartition("orders", 2)
    made = buffer()
    made.add(P0, records(0, 2))
    made.end_at(P0, 5)
    made.end_at(P1, 3)
    made.add_partition(planned, topic_id="T", start=0, replay_to=4)
    made.end_at(planned, 6)
    assert made.gaps() == {P1: (0, 3)}
    assert made.gaps() == {}
    assert [(part.tp, part.start) for part in made.parts()] == [(P0, 0), (P1, 3), (planned, 0)]


def closed(made: InlineReading, count: int, *, value: bytes = b"v") -> InlineBatch:
    """One that has so many records more."""
    start = made.positions()[P0]
    made.add(P0, [record(at, value=value) for at in range(start, start + count)])
    made.end_at(P1, 0)
    batch = made.close(1e9 + start)
    assert batch is not None
    return batch


def test_few_records_are_one_task():
    """Grouped without an exchange; so are the parts of such a batch. Many are several tasks."""
    made = buffer(limit=10 * ONE_TASK)
    few = closed(made, ONE_TASK)
    assert few.one_task
    assert few.only([P0]).one_task
    assert few.part(P0, 3, 5).one_task
    assert not closed(made, ONE_TASK + 1).one_task


def test_few_large_records_are_several_tasks():
    """Spark warns of tasks beyond a size."""
    made = buffer(max_bytes=1 << 30)
    assert closed(made, 2, value=bytes(ONE_TASK_BYTES // 2)).one_task
    assert not closed(made, 2, value=bytes(ONE_TASK_BYTES // 2 + 1)).one_task


def test_a_busy_spark_rests_between_the_batches_of_a_trickle():
    """However long the last one took: what waits meanwhile goes into the next one."""
    clock = ManualClock()
    made = InlineReading(limit=100, max_wait=0.2, max_seconds=10.0, clock=clock)
    made.add_partition(P0, topic_id="T", start=0, replay_to=None)
    made.add(P0, records(0, 1))
    batch = made.close(clock.monotonic())
    assert batch is not None
    clock.sleep(0.5)
    made.record_duration(batch, 0.5)
    made.add(P0, records(1, 2))
    assert made.close(clock.monotonic()) is None
    clock.sleep(0.21)
    assert made.close(clock.monotonic()) is not None


def test_it_hurries_with_what_is_done_sooner_than_a_trickle_waits():
    """As many records as the last batch had take what that one took; more in proportion."""
    clock = ManualClock()
    made = InlineReading(limit=100, max_wait=0.2, max_seconds=10.0, clock=clock)
    made.add_partition(P0, topic_id="T", start=0, replay_to=None)
    made.add(P0, records(0, 10))
    assert not made.close_soon()
    batch = made.close(clock.monotonic())
    assert batch is not None
    made.record_duration(batch, 0.1)
    assert not made.close_soon()
    made.add(P0, records(10, 50))
    assert made.close(clock.monotonic()) is None
    assert made.close_soon()
    batch = made.close(clock.monotonic())
    assert batch is not None
    made.record_duration(batch, 0.39)
    made.add(P0, records(50, 51))
    assert made.close_soon()
    made.rest(clock.monotonic())
    made.add(P0, records(51, 92))
    assert not made.close_soon(), "42 records where 40 took 0.39 s"
    assert made.close(clock.monotonic()) is None


def test_slow_records_are_several_tasks_until_they_are_quick():
    """A function that takes long for each row keeps what several cores give it."""
    made = InlineReading(limit=50_000, max_wait=0.2, max_seconds=10.0, clock=SystemClock())
    made.add_partition(P0, topic_id="T", start=0, replay_to=None)
    made.add_partition(P1, topic_id="T", start=0, replay_to=None)
    assert made.one_task == ONE_TASK
    made.record_duration(closed(made, 100), 10 * QUICK)
    assert made.one_task == 10
    assert not closed(made, 100).one_task
    assert closed(made, 10).one_task
    for _ in range(20):
        made.record_duration(closed(made, 100), 0.2 * QUICK)
    assert closed(made, 100).one_task


# --- of a job, a machine and a stream that are played -----------------------------------------


TARGET = 5.0
MOST = 1000


def bound(first: int = MOST, growth: int = 2) -> BatchBound:
    return BatchBound(first, most=MOST, target=TARGET, growth=growth)


@pytest.mark.parametrize(
    ("first", "growth", "steps", "after"),
    [
        pytest.param(MOST, 2, [(100, 10.0)], 50, id="twice as long: half"),
        pytest.param(MOST, 2, [(1000, 4.0)], 1000, id="quick, already at the most"),
        pytest.param(MOST, 2, [(1, 99.0)], 1000, id="one record cannot be less"),
        pytest.param(MOST, 2, [(1000, 10.0), (499, 0.1)], 500, id="not full: says nothing"),
        pytest.param(MOST, 2, [(1000, 10.0), (500, 0.1)], 1000, id="grows back"),
        pytest.param(MOST, 2, [(1000, 10.0), (500, 0.1), (1000, 0.1)], 1000, id="no further"),
        pytest.param(80, 2, [(80, 4.0)], 100, id="full and less than it may: in proportion"),
        pytest.param(80, 8, [(80, 0.01)], 640, id="at most for so many times more"),
        pytest.param(MOST, 2, [(1000, 8.0)], 625, id="in proportion"),
        pytest.param(MOST, 2, [(1000, 8.0), (625, 8.0)], 1000, id="no quicker: given back"),
        pytest.param(MOST, 2, [(300, 60.0)], 25, id="a machine that was busy for a moment"),
        pytest.param(MOST, 2, [(300, 60.0)] + [(None, 0.5)] * 6, 1000, id="is made up for"),
    ],
)
def test_the_next_one_takes_no_longer_than_it_should(
    first: int, growth: int, steps: list[tuple[int | None, float]], after: int
):
    """From what the last ones took, (records, seconds) each; None: as many as it may have."""
    made = bound(first, growth)
    for records, seconds in steps:
        made.record_duration(records or made.records, seconds)
    assert made.records == after


def play(
    whatever: Callable[[float], float], each: float, arriving: float, seed: int
) -> list[tuple[int, float, float]]:
    """(records, seconds, waiting) of 120 batches whose times vary by a third.

    whatever: seconds that a batch takes whatever is in it, at a time. each: seconds a record.
    arriving: records a second.
    """
    varying, made = random.Random(seed), bound()
    now, waiting, done = 0.0, 0.0, []
    for _ in range(120):
        records = min(made.records, max(1, int(waiting)))
        seconds = (whatever(now) + each * records) * varying.uniform(0.7, 1.3)
        made.record_duration(records, seconds)
        waiting = max(0.0, waiting + arriving * seconds - records)
        now += seconds
        done.append((records, seconds, waiting))
    return done


@pytest.mark.parametrize("seed", range(8))
def test_a_machine_too_busy_for_any_batch_does_not_make_them_ever_smaller(seed: int):
    """Each takes 8 s, whatever is in it: with 80 records a second to do nothing piles up."""
    done = play(lambda _: 8.0, 0.001, 80.0, seed)
    assert mean(records for records, _, _ in done[20:]) > 600
    assert done[-1][2] < 2000
    assert max(seconds for _, seconds, _ in done) < 13


@pytest.mark.parametrize("seed", range(8))
def test_a_job_that_gets_slower_while_the_machine_is_busy_is_found_out(seed: int):
    """What is believed of a busy machine is tried again after some batches."""
    made, varying = bound(), random.Random(seed)
    for _ in range(10):
        made.record_duration(made.records, 9.0 * varying.uniform(0.8, 1.2))
    assert made.records > 500
    for _ in range(60):
        made.record_duration(made.records, made.records * 0.02 * varying.uniform(0.8, 1.2))
    assert made.records < 400
