"""Never, once or again: by the numbers in the rows, beside what the topic holds."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fleet.clock import ManualClock
from fleet.demo.coverage import (
    JournalEntry,
    TopicRecords,
    coverage,
    entries_of,
    number_in_value,
    numbers,
    runs,
)
from fleet.demo.producer import order
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.worker.batch.batches import InlineBatch, InlineReading
from tests.worker.test_batches import record

TP = TopicPartition("orders", 3)
OTHER = TopicPartition("orders", 4)
OTHERS = 1000
"""Where the numbers of the other partition begin."""
HELD = TopicRecords.of(
    {TP: [(n, n) for n in range(100)], OTHER: [(n, OTHERS + n) for n in range(100)]}
)


def entry(
    first: int, end: int, at: float, *, tp: TopicPartition = TP, group: str = "g", rows: Any = None
) -> JournalEntry:
    begin = OTHERS if tp == OTHER else 0
    got = runs(range(begin + first, begin + end) if rows is None else rows)
    return JournalEntry(
        group=group, tp=tp, first=first, last=end - 1, rows=got, worker="w", attempt=1,
        revision="r", at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "lost", "duplicates"),
    [
        pytest.param([(0, 5), (5, 10)], [], [], id="each once"),
        pytest.param([(0, 5), (7, 10)], [(5, 7)], [], id="a gap is lost"),
        pytest.param([(2, 10)], [(0, 2)], [], id="the beginning is lost"),
        pytest.param([(0, 8)], [(8, 10)], [], id="the end is lost"),
        pytest.param([], [(0, 10)], [], id="all is lost"),
        pytest.param([(0, 6), (4, 10)], [], [(4, 6)], id="an overlap is twice"),
        pytest.param([(0, 10), (0, 10), (0, 10)], [], [(0, 10), (0, 10)], id="three times is two"),
        pytest.param([(0, 4), (6, 10), (2, 8)], [], [(2, 4), (6, 8)], id="a bridge repeats both"),
        pytest.param([(0, 5), (5, 99)], [], [], id="beyond what was due is not judged"),
        pytest.param([(5, 10), (0, 5)], [], [], id="order does not matter"),
    ],
)
def test_lost_and_duplicates(ranges, lost, duplicates):
    """Every due record is in exactly one call's rows; the rest is named."""
    entries = [entry(a, b, at=float(n)) for n, (a, b) in enumerate(ranges)]
    found = coverage(entries, group="g", due={TP: (0, 10)}, topic_records=HELD)
    assert [(s.first, s.end) for s in found.lost] == lost
    assert [(s.first, s.end) for s in found.duplicates] == duplicates
    assert found.processed == 10 - sum(b - a for a, b in lost)


@pytest.mark.parametrize(
    ("rows", "lost", "duplicates"),
    [
        pytest.param([0, 1, 2, 4], [(3, 4, 1.0)], [], id="a row is missing"),
        pytest.param([0, 1, 2, 3], [(4, 5, 2.0)], [], id="the last row is missing"),
        pytest.param([0, 1, 2, 3, 3, 4], [], [(3, 4, 1.0)], id="a row is there twice"),
        pytest.param([0, 1, 2, 3, 3, 3, 4], [], [(3, 4, 1.0)] * 2, id="a row is there three times"),
        pytest.param([0, 1, 2, 4, 5], [(3, 4, 1.0)], [(5, 6, 2.0)], id="of the next call"),
        pytest.param([], [(0, 5, 2.0)], [], id="no row came"),
    ],
)
def test_what_the_call_was_told_proves_nothing(rows, lost, duplicates):
    """Each call is told its range in full; only the rows decide."""
    entries = [entry(0, 5, 1.0, rows=rows), entry(5, 10, 2.0)]
    found = coverage(entries, group="g", due={TP: (0, 10)}, topic_records=HELD)
    assert [(s.first, s.end, s.at) for s in found.lost] == lost
    assert [(s.first, s.end, s.at) for s in found.duplicates] == duplicates
    assert found.lost_and_duplicates == (sum(b - a for a, b, _ in lost), len(duplicates))


def test_a_number_that_no_record_has_is_an_error():
    """A row that was never written is no good news for anybody."""
    with pytest.raises(
        FleetError, match="1 rows of orders-3 that are not in the topic, number 555"
    ):
        coverage([entry(0, 1, 1.0, rows=[0, 555])], group="g", due={TP: (0, 1)}, topic_records=HELD)
    with pytest.raises(FleetError, match="are not in the topic"):
        coverage(
            [entry(0, 1, 1.0)], group="g", due={TP: (0, 1)}, topic_records=TopicRecords.of({TP: []})
        )


def test_a_number_that_two_records_have_is_an_error():
    """The producer wrote it twice: nothing can be told by it."""
    with pytest.raises(FleetError, match="1 numbers are in the topic more than once, 7 first"):
        TopicRecords.of({TP: [(0, 7)], OTHER: [(0, 7)]})


@pytest.mark.parametrize("seed", range(100))
def test_every_due_record_is_counted_wherever_its_row_was(seed):
    """One by one: three partitions with gaps, numbers in no order, calls of two groups."""
    draw = random.Random(seed)
    log = [
        (tp, offset)
        for tp in (TP, OTHER, TopicPartition("returns", 0))
        for offset in range(12)
        if draw.random() < 0.8
    ]
    places = dict(enumerate(draw.sample(log, len(log))))
    held = {tp: [(at, n) for n, (of, at) in sorted(places.items(), key=lambda each: each[1])
                 if of == tp] for tp, _ in log}  # fmt: skip
    due = {tp: (draw.randrange(3), draw.randrange(6, 14)) for tp in (TP, OTHER)}
    calls = [
        entry(0, 1, float(draw.randrange(9)), group=draw.choice("gggh"),
              rows=draw.choices(list(places), k=draw.randrange(20)))
        for _ in range(draw.randrange(6))
    ]  # fmt: skip

    times, last, again = Counter(), defaultdict(list), Counter()
    for call in sorted((each for each in calls if each.group == "g"), key=lambda each: each.at):
        for number in numbers(call.rows).tolist():
            tp, offset = places[number]
            if tp in due and due[tp][0] <= offset < due[tp][1]:
                last[tp].append((offset, call.at))
                again[tp, offset, call.at] += times[tp, offset] > 0
                times[tp, offset] += 1
    lost = {
        (tp, at, min((when for offset, when in last[tp] if offset > at), default=float("inf")))
        for tp, (first, end) in due.items()
        for of, at in log
        if of == tp and first <= at < end and not times[tp, at]
    }
    found = coverage(calls, group="g", due=due, topic_records=TopicRecords.of(held))

    def records(slips):
        return [(each.tp, at, each.at) for each in slips for at in range(each.first, each.end)]

    assert set(records(found.lost)) == lost
    assert Counter(records(found.duplicates)) == +again
    assert found.processed == len(times)
    assert found.lost_and_duplicates == (len(lost), again.total())


def test_a_loss_shows_when_a_later_record_is_processed():
    """A step answers for the losses that became visible in it."""
    entries = [entry(0, 5, at=10.0), entry(8, 9, at=20.0), entry(7, 8, at=30.0)]
    found = coverage(entries, group="g", due={TP: (0, 12)}, topic_records=HELD)
    assert found.lost_between(0, 20) == 0
    assert found.lost_between(20, 30) == 2
    assert found.lost_between(30, 40) == 0
    assert found.lost_between(30, float("inf")) == 3
    assert [(s.first, s.end, s.at) for s in found.lost] == [(5, 7, 20.0), (9, 12, float("inf"))]


def test_a_repetition_belongs_to_the_time_of_the_second_call():
    """The step that repeated is charged, not the one that was first."""
    calls = [entry(0, 10, at=1.0), entry(5, 10, at=9.0)]
    found = coverage(calls, group="g", due={TP: (0, 10)}, topic_records=HELD)
    assert (found.duplicates_between(0, 9), found.duplicates_between(9, 10)) == (0, 5)


# --- a fault planted in the reading itself ---------------------------------------------------


def sound(batch: InlineBatch) -> InlineBatch:
    return batch


def drops_one(batch: InlineBatch) -> InlineBatch:
    """Its slice begins one row late."""
    return replace(batch, tables={**batch.tables, TP: batch.tables[TP].slice(1)})


def doubles_one(batch: InlineBatch) -> InlineBatch:
    """Its slice takes the next batch's first row too, or here: its own first row again."""
    table = batch.tables[TP]
    return replace(batch, tables={**batch.tables, TP: pa.concat_tables([table, table.slice(0, 1)])})


@pytest.mark.parametrize(
    ("fault", "found"), [(sound, (0, 0)), (drops_one, (1, 0)), (doubles_one, (0, 1))]
)
def test_a_fault_in_the_reading_is_seen(fault, found):
    """The worker's own reading of the demo's orders; the ranges that are told stay the same."""
    topic = {
        tp: [record(n, tp.partition, order(n * 2 + place, 0.0)) for n in range(20)]
        for place, tp in enumerate((TP, OTHER))
    }
    buffer = InlineReading(limit=40, max_wait=0.0, max_seconds=10.0, clock=ManualClock())
    for tp, records in topic.items():
        buffer.add_partition(tp, topic_id="id", start=0, replay_to=None)
        buffer.add(tp, records)
    batch = buffer.close(2.0)
    assert batch is not None
    journal = call(fault(batch))
    assert [(e.first, e.last) for e in journal] == [(0, 19), (0, 19)]
    held = TopicRecords.of(
        {
            tp: [(m.offset(), number_in_value(m) or 0) for m in records]
            for tp, records in topic.items()
        }
    )
    due = {TP: (0, 20), OTHER: (0, 20)}
    assert coverage(journal, group="g", due=due, topic_records=held).lost_and_duplicates == found


def call(batch: InlineBatch) -> list[JournalEntry]:
    """What the example entrypoint writes of a batch; the numbers taken out without Spark."""
    table = batch.table()
    seq = [number_in_value(record(0, value=value)) for value in table["value"].to_pylist()]
    rows = table.select(["topic", "partition"]).append_column("seq", pa.array(seq, pa.int64()))
    context: Mapping[str, Any] = {
        "cluster": "c", "group": "g", "slot": 0, "worker": "w", "revision": "r", "attempt": 1,
        "warm": False, "ranges": batch.ranges,
    }  # fmt: skip
    return entries_of(BatchContext(**context), rows, 1.0)
