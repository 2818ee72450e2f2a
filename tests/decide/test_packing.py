"""Packings by hand, and their R-score; the orderings are in tests/benchmarks/test_packing.py."""

import pytest

from fleet.decide.assignments import NOBODY, Owners
from fleet.decide.packing import ALGORITHMS, members_of, pack, r_score, repack


def test_each_fit_chooses_another_member() -> None:
    """70, 60 and 50 have members of their own when 25 comes, which fits each of them."""
    sizes = (60.0, 70.0, 50.0, 25.0)
    assert pack(sizes, 100, fit="first") == (1, 0, 2, 0)
    assert pack((60.0, 80.0, 50.0, 20.0, 15.0), 100, fit="best") == (1, 0, 2, 0, 1)
    assert pack(sizes, 100, fit="worst") == (1, 0, 2, 2)


def test_a_new_member_has_the_number_of_the_owner_if_that_is_free() -> None:
    """So that a packing anew moves no more than it must."""
    assert pack((60.0, 70.0), 100, (4, 2)) == (4, 2)
    assert pack((60.0, 70.0), 100, (2, 2)) == (0, 2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_partition_above_the_capacity_is_alone(name: str) -> None:
    """Nothing else fits there; the others share a member."""
    owners = ALGORITHMS[name]((150.0, 10.0, 10.0), 100, (0, 0, NOBODY))
    assert members_of(owners) == 2
    assert owners[1] == owners[2] != owners[0]


def test_a_modified_fit_moves_small_partitions_and_what_has_no_room() -> None:
    """Member 0 keeps 70 and gets 20, the smallest of member 1, which gets 60 in return."""
    assert repack((70.0, 60.0, 30.0, 20.0), 100, (0, 0, 1, 1)) == (0, 1, 1, 0)
    assert repack((70.0, 20.0, 60.0, 30.0), 100, (0, 0, 1, 1)) == (0, 0, 1, 1)


def test_a_modified_fit_begins_with_the_most_or_the_largest() -> None:
    """Member 0 has 120; member 1 has the largest partition, 60."""
    sizes, owners = (40.0, 40.0, 40.0, 60.0, 5.0), (0, 0, 0, 1, 1)
    assert repack(sizes, 100, owners) == (0, 0, 1, 1, 0)
    assert repack(sizes, 100, owners, largest_first=True) == (0, 0, 2, 1, 1)


@pytest.mark.parametrize(
    ("before", "after", "score"),
    [((0, 0, 1), (0, 0, 1), 0.0), ((0, 0, 1), (0, 1, 1), 0.3), ((0, NOBODY, 1), (1, 0, 0), 0.7)],
)
def test_the_r_score_is_the_rate_that_moves(before: Owners, after: Owners, score: float) -> None:
    """In workers; a partition without an owner stopped for no move."""
    assert r_score((50.0, 30.0, 20.0), before, after, 100) == pytest.approx(score)
