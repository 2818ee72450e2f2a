"""Rows by key, against a dictionary; and what they take."""

import random
import sys

import pytest

from fleet.lag.lag_columns import NONE
from fleet.log.readers.positions import KeyRows, key_to
from fleet.model import TopicPartition

NUMBERS = (0, 1, 2, 47, 255, 256, 70_000, 2**31 - 1, -1, -(2**31))
"""Partitions; a record may claim any of 32 bits."""


def some_key(draw: random.Random) -> bytes:
    group, topic = f"g{draw.randrange(3)}", "t" * draw.randrange(1, 4)
    return key_to(group, TopicPartition(topic, draw.choice(NUMBERS)))


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_of_a_dictionary(seed: int) -> None:
    """Added, dropped and asked for in any order."""
    draw, rows, known = random.Random(seed), KeyRows(), dict[bytes, int]()
    for number in range(300):
        key = some_key(draw)
        assert rows.of(key) == known.get(key, NONE)
        if key not in known:
            rows.add(key, known.setdefault(key, draw.choice((number, 2**32 - 1 - number))))
        elif draw.random() < 0.6:
            rows.drop(key)
            del known[key]
        assert (dict(rows), len(rows)) == (known, len(known))
    assert [rows.of(key) for key in known] == list(known.values())


def test_what_is_no_key_has_no_row() -> None:
    """Records have any bytes as their key, or none; groups' own keys are as short as six bytes."""
    rows, key = KeyRows(), key_to("g", TopicPartition("t", 3))
    rows.add(key, 5)
    for other in (
        None,
        b"",
        b"\x00",
        key[:-1],
        key[:-4],
        key[-4:],
        key[-2:],
        key + b"\x00",
        b"\x00\x02\x00",
    ):
        assert rows.of(other) == NONE, other
    assert rows.of(key) == 5


def test_what_a_position_takes() -> None:
    """A dictionary of keys takes 150 bytes for each."""
    rows = KeyRows()
    for number in range(48):
        rows.add(key_to("group-00001", TopicPartition("topic-1", number)), number)
    (kept,) = rows._kept.values()
    assert sys.getsizeof(kept) <= 48 * 12
