"""The judge of the matrix can say no, and its table shows every cell."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.invariants import Evidence, all_assigned, one_owner
from tests.faults.matrix import Cell, judged
from tests.faults.matrix_faults import FAULTS
from tests.faults.matrix_table import markdown, read_cells, write_cells
from tests.faults.six_fleets import WAYS
from tests.support.kafka_tools import Record, count_rebalances

pytestmark = pytest.mark.unit

GOOD = Cell(
    fault="a worker is killed (-9)",
    way="range, dynamic",
    most=2,
    rebalances=2,
    lost=0,
    twice=10,
    unclean=1,
    seconds=3.0,
    broken=(),
)


@pytest.mark.parametrize(
    ("cell", "clean", "words"),
    [
        (GOOD, False, ()),
        (replace(GOOD, rebalances=3), False, ("3 rebalances, at most 2",)),
        (replace(GOOD, lost=1), False, ("1 records lost",)),
        (replace(GOOD, twice=11), False, ("11 records twice after 1",)),
        (replace(GOOD, twice=1, unclean=0), False, ("1 records twice after 0",)),
        (GOOD, True, ("1 unclean ends",)),
        (replace(GOOD, twice=0, unclean=0), True, ()),
    ],
)
def test_what_is_not_as_it_should_be(cell: Cell, clean: bool, words: tuple[str, ...]) -> None:
    """A batch in hand of ten records."""
    found = list(judged(cell, hand=10, clean=clean))
    assert len(found) == len(words)
    assert all(sentence.startswith(word) for sentence, word in zip(found, words, strict=True))


def test_expected_costs_are_of_the_way() -> None:
    """In the order of range, cooperative-sticky, KIP-848; a twin needs an instance id."""
    killed, twin = FAULTS["a worker is killed (-9)"], FAULTS["a stranger with its instance id"]
    assert [killed.most(way) for way in WAYS] == [0, 0, 2, 2, 4, 2]
    assert [twin.most(way) is None for way in WAYS] == [False] * 3 + [True] * 3


def test_a_table_has_every_cell(tmp_path: Path) -> None:
    """As they were kept."""
    path = tmp_path / "cells.csv"
    write_cells(path, [GOOD, replace(GOOD, way="consumer", rebalances=1)])
    assert read_cells(path) == [GOOD, replace(GOOD, way="consumer", rebalances=1)]
    row = markdown(read_cells(path)).splitlines()[-1]
    cells = ["-", "-", "1 of 2 / 10 / 3 s", "2 of 2 / 10 / 3 s", "-", "-"]
    assert row == f"| a worker is killed (-9) | {' | '.join(cells)} |"


def record(generation: int, *shares: tuple[str, list[int]]) -> Record:
    """A classic group's, of dynamic members."""
    members = [
        {
            "memberId": name,
            "groupInstanceId": None,
            "assignment": {"topic": "t", "partitions": partitions},
        }
        for name, partitions in shares
    ]
    value = {"generation": generation, "members": members}
    return Record(generation, 0, 2, {"group": "g"}, 3, value)


def test_dynamic_members_are_told_apart() -> None:
    """By their member ids, as they have no others."""
    plain = {"topic": "t", "events": [], "journal": [], "held": {}, "troubles": []}
    both = Evidence(records=[record(1, ("a", [0]), ("b", [1]))], ends={0: 1, 1: 1}, **plain)
    assert all_assigned(both) == one_owner(both) == []
    shared = Evidence(records=[record(1, ("a", [0]), ("b", [0]))], ends={0: 1, 1: 1}, **plain)
    assert len(one_owner(shared)) == len(all_assigned(shared)) == 1
    again = [record(1), record(1), record(2), record(0)]
    assert count_rebalances(again) == 2
