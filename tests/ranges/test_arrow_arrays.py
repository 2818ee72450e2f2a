"""Arrays put together by hand are those that pyarrow makes of the same values."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from fleet.kafka_source.arrow_arrays import binaries, lists, numbers, repeated
from fleet.kafka_source.columns import SCHEMA, batch_of_pieces, to_stderr
from fleet.kafka_source.pieces import Piece
from fleet.kafka_source.record_fields import Fields
from fleet.kafka_source.source import by_value
from tests.support.fresh_interpreter import ran_without_fleet

SEEDS = range(40)
HEADERS = SCHEMA.field("headers").type


def same(made: pa.Array, wanted: pa.Array) -> None:
    """Valid by Arrow's own rules, and equal in values, nulls and type."""
    made.validate(full=True)
    assert made.type == wanted.type
    assert made.equals(wanted)
    assert made.null_count == wanted.null_count


def drawn_bytes(rng: random.Random) -> bytes | None:
    return rng.choice([None, b"", rng.randbytes(rng.randint(1, 40))])


@pytest.mark.parametrize("seed", SEEDS)
def test_binaries(seed: int):
    rng = random.Random(seed)
    values = [drawn_bytes(rng) for _ in range(rng.choice([0, 1, 7, 8, 9, 100]))]
    same(binaries(values), pa.array(values, pa.binary()))
    texts = [None if value is None else value.hex() for value in values]
    coded = [None if text is None else text.encode() for text in texts]
    same(binaries(coded, pa.string()), pa.array(texts, pa.string()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_numbers(seed: int, kind: pa.DataType):
    """Of lists, of other types of numpy, of every second one; null where they are not valid."""
    rng = random.Random(seed)
    values = [rng.randint(-(2**31), 2**31 - 1) for _ in range(rng.choice([0, 1, 8, 17, 64]))]
    valid = [rng.random() < 0.8 for _ in values]
    same(numbers(values, kind), pa.array(values, kind))
    chosen = [value if kept else None for value, kept in zip(values, valid, strict=True)]
    same(numbers(np.array(values, np.int64), kind, valid=valid), pa.array(chosen, kind))
    same(numbers(np.array(values, np.int64)[::2], kind), pa.array(values[::2], kind))
    same(numbers(np.array(valid, bool), kind), pa.array([int(each) for each in valid], kind))


@pytest.mark.parametrize("count", [0, 1, 9])
@pytest.mark.parametrize("text", ["", "orders", "örder"])
def test_repeated(text: str, count: int):
    same(repeated(text, count), pa.array([text] * count, pa.string()))


@pytest.mark.parametrize("seed", SEEDS)
def test_lists(seed: int):
    """Headers: none, an empty list, keys that repeat, values that are null."""
    rng = random.Random(seed)
    rows: list[Any] = []
    for _ in range(rng.choice([0, 1, 8, 30])):
        some = [(rng.choice(["a", "ö", ""]), drawn_bytes(rng)) for _ in range(rng.randint(0, 3))]
        rows.append(rng.choice([None, some, some]))
    every = [header for row in rows if row for header in row]
    columns = [
        binaries([key.encode() for key, _ in every], pa.string()),
        binaries([value for _, value in every]),
    ]
    wanted = [row and [{"key": key, "value": value} for key, value in row] for row in rows]
    same(lists(HEADERS, rows, columns), pa.array(wanted, HEADERS))


def test_more_than_a_column_holds():
    """An error that says so, not offsets that have run over."""
    with pytest.raises(OverflowError, match="it holds 2 GiB at most"):
        repeated("x" * (1 << 16), 1 << 15)


def test_executors_need_no_fleet():
    """Fault: a function that a task runs imports from Fleet, which no executor has."""
    at, size = np.arange(2), np.array([1, -1])
    headers = [[(b"trace", None)], ()]
    read = Fields(at, at, at == 0, at, b"xyz" + bytes(80), at, size, at, size, headers)
    with by_value():
        made = cloudpickle.dumps((batch_of_pieces, [Piece("t", 0, read, at)], to_stderr()))
    code = "make, pieces, tell = made; print(make(pieces, tell)['value'].to_pylist())"
    assert ran_without_fleet(made, code) == "[b'x', None]"
