"""How counts, lengths of time and slots are written (fleet/text.py)."""

import pytest

from fleet.text import duration, few, numbers_of, plural, slots_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0 s"), (5, "5 s"), (0.5, "0.50 s"), (0.254, "0.25 s"),
     (3.44, "3.4 s"), (59, "59 s"), (119, "119 s"),
     (180, "3 min"), (5400, "90 min"), (18_000, "5 h"), (90_000, "25 h"), (200_000, "2 d")],
)  # fmt: skip
def test_lengths_of_time(seconds, text):
    """Two or three figures, and a unit that fits."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), "-"), ((3,), "3"), ((0, 1, 2, 5), "0-2, 5"), ((7, 5, 6, 1, 1), "1, 5-7")],
    ids=["none", "one", "range and one", "unordered"],
)
def test_numbers_are_written_as_ranges(numbers, text):
    """People read 0-2, 5, not four numbers."""
    assert numbers_of(numbers) == text


def test_slots_are_counted():
    """One slot, several slots."""
    assert slots_of([3]) == "slot 3"
    assert slots_of([3, 0, 1]) == "slots 0-1, 3"


def test_counts_and_names():
    """Thousands are told apart; of many names the first stand."""
    assert plural(1, "slot") == "1 slot"
    assert plural(1200, "slot") == "1,200 slots"
    assert few(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert few(["n" * 249, "a" * 400 + "z" * 400]) == f"{'n' * 249}, {'a' * 60}…{'z' * 60}"
