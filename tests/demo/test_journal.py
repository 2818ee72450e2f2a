"""The journal: what stood in the rows of calls, kept whole whatever happens to who writes it."""

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from fleet.demo.coverage import JournalEntry, Run, append, entries_of, numbers, read, runs
from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from tests.support.batch_parts import context_of

TP = TopicPartition("orders", 3)


def entry(first: int, end: int, at: float) -> JournalEntry:
    rows = runs(range(first, end))
    return JournalEntry(
        group="g", tp=TP, first=first, last=end - 1, rows=rows, worker="w", attempt=1,
        revision="r", at=at,
    )  # fmt: skip


def test_runs_hold_every_number():
    """Whatever the numbers are, repeated ones too."""
    draw = random.Random(1)
    for size in range(40):
        given = [draw.randrange(60) for _ in range(size)]
        assert numbers(runs(given)).tolist() == sorted(given)


def test_a_million_rows_are_a_few_runs():
    """What a batch of a million rows over twelve partitions leaves in the journal."""
    count = 1_000_000
    rows = pa.table(
        {
            "topic": pa.repeat(pa.scalar("orders"), count),
            "partition": pa.array([n % 12 for n in range(count)], pa.int32()),
            "seq": pa.array(range(count), pa.int64()),
        }
    )
    made = entries_of(context_of([]), rows, 1.0)
    assert [(e.tp.partition, e.rows[0].first, len(e.rows)) for e in made] == [
        (p, p, 1) for p in range(12)
    ]
    assert sum(e.records for e in made) == count


def test_a_row_counts_where_it_is_not_where_it_was_told():
    """Rows beside the told ranges are entries of their own; no row shows nothing."""
    rows = pa.table({"topic": ["t", "t", "t"], "partition": [1, 1, 1], "seq": [4, None, 8]})
    told = [BatchRange(topic="t", topic_id="t", partition=0, start=5, end=9)]
    zero, one = entries_of(context_of(told), rows, 1.0)
    assert (zero.tp, zero.first, zero.last, zero.rows) == (TopicPartition("t", 0), 5, 8, ())
    assert (one.tp, one.first, one.last) == (TopicPartition("t", 1), 0, -1)
    assert one.rows == (Run(4, 2, 4),)


def test_what_is_appended_is_read_back(tmp_path: Path):
    """A journal line holds the whole entry."""
    entries = (entry(0, 5, 1.0), entry(5, 7, 1.0))
    append(tmp_path / "journal", "w-1", entries)
    append(tmp_path / "journal", "w-2", [entry(7, 9, 0.5)])
    append(tmp_path / "journal", "w-3", [])
    assert read(tmp_path / "journal") == (entry(7, 9, 0.5), *entries)
    assert sorted(p.name for p in (tmp_path / "journal").iterdir()) == ["w-1.jsonl", "w-2.jsonl"]


def test_one_worker_may_write_from_several_threads(tmp_path: Path):
    """A call's lines are one write, so lines never mix."""

    def write(number: int) -> None:
        for at in range(50):
            append(tmp_path, "w", [entry(number, number + 1, float(at))] * 20)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(tmp_path)) == 4 * 50 * 20


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path):
    """Its writer may be at it, or was killed in it: its call had done nothing yet."""
    append(tmp_path, "w", [entry(0, 5, 1.0)])
    with (tmp_path / "w.jsonl").open("a") as file:
        file.write('{"group":"g","top')
    assert read(tmp_path) == (entry(0, 5, 1.0),)


def test_a_damaged_journal_proves_nothing(tmp_path: Path):
    """It is refused with file and line, not skipped."""
    append(tmp_path, "w", [entry(0, 1, 1.0)])
    with (tmp_path / "w.jsonl").open("a") as out:
        out.write('{"group": "g"}\n')
    with pytest.raises(FleetError, match=r"w\.jsonl, line 2 is not a journal entry"):
        read(tmp_path)
