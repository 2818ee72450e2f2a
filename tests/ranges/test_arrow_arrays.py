"""What columns put together by hand refuse, and where they are made."""

import numpy as np
import pytest
from pyspark import cloudpickle

from fleet.kafka_source.arrow_arrays import repeated
from fleet.kafka_source.columns import batch_of_pieces, to_stderr
from fleet.kafka_source.pieces import Piece
from fleet.kafka_source.record_fields import Fields
from fleet.kafka_source.source import by_value
from tests.support.fresh_interpreter import ran_without_fleet


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
