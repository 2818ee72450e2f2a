"""The journal says what was processed: never, once, or again."""

import threading
from pathlib import Path

import pytest

from fleet.demo.journal import Entry, append, coverage, read, records_between
from fleet.errors import FleetError
from fleet.model import TopicPartition

TP = TopicPartition("orders", 3)


def entry(first: int, end: int, at: float, *, tp: TopicPartition = TP, group: str = "g") -> Entry:
    return Entry(
        group=group, tp=tp, first=first, last=end - 1, worker="w", attempt=1, revision="r", at=at
    )


@pytest.mark.parametrize(
    ("ranges", "lost", "twice"),
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
def test_lost_and_twice(ranges, lost, twice):
    """Every due offset belongs to exactly one call; the rest is named."""
    entries = [entry(a, b, at=float(n)) for n, (a, b) in enumerate(ranges)]
    found = coverage(entries, group="g", due={TP: (0, 10)})
    assert [(s.first, s.end) for s in found.lost] == lost
    assert [(s.first, s.end) for s in found.twice] == twice
    assert found.processed == 10 - sum(b - a for a, b in lost)


def test_a_loss_shows_when_a_later_offset_is_processed():
    """A step answers for the losses that became visible in it."""
    entries = [entry(0, 5, at=10.0), entry(8, 9, at=20.0), entry(7, 8, at=30.0)]
    found = coverage(entries, group="g", due={TP: (0, 12)})
    assert found.lost_between(0, 20) == 0
    assert found.lost_between(20, 30) == 2
    assert found.lost_between(30, 40) == 0
    assert found.lost_between(30, float("inf")) == 3
    assert [(s.first, s.end, s.at) for s in found.lost] == [(5, 7, 20.0), (9, 12, float("inf"))]


def test_a_repetition_belongs_to_the_time_of_the_second_call():
    """The step that repeated is charged, not the one that was first."""
    found = coverage([entry(0, 10, at=1.0), entry(5, 10, at=9.0)], group="g", due={TP: (0, 10)})
    assert (found.twice_between(0, 9), found.twice_between(9, 10)) == (0, 5)


def test_groups_and_partitions_are_apart():
    """Another group's calls, or another partition's, prove nothing."""
    other = TopicPartition("orders", 4)
    entries = [entry(0, 10, 1.0, group="h"), entry(0, 10, 2.0, tp=other)]
    found = coverage(entries, group="g", due={TP: (0, 10), other: (0, 10)})
    assert [s.tp for s in found.lost] == [TP]
    assert records_between(entries, group="g", start=0, end=5) == 10


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


def test_a_damaged_journal_proves_nothing(tmp_path: Path):
    """It is refused with file and line, not skipped."""
    append(tmp_path, "w", [entry(0, 1, 1.0)])
    with (tmp_path / "w.jsonl").open("a") as out:
        out.write('{"group": "g"}\n')
    with pytest.raises(FleetError, match=r"w\.jsonl, line 2 is no journal entry"):
        read(tmp_path)
