"""Rows that are of no record of the batch: refused by name, never left out unseen."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fleet.errors import FleetError
from fleet.model.batch_context import BatchRange
from fleet.sinks.batch_rows import new_rows
from fleet.sinks.kafka_topic import _parts
from tests.sinks.cases import as_values, range_of, records
from tests.sinks.frames import Frame

OURS = (range_of(0, 3), range_of(0, 3, partition=4))
"""Of topic t."""


def rows_of(*more: dict[str, Any]) -> pa.Table:
    """Those of the batch, and others."""
    rows = as_values(records(*OURS))
    return pa.concat_tables([rows, pa.Table.from_pylist(list(more), rows.schema)])


def parts(rows: Any, *, at_once: bool) -> dict[BatchRange, int]:
    """How many rows of each range are produced."""
    found = _parts(rows, dict.fromkeys(OURS, ()), OURS, None, at_once=at_once)
    return {each: table.num_rows for each, table in found}


SHAPES = [
    pytest.param(lambda rows: rows, True, id="arrow"),
    pytest.param(Frame, True, id="frame"),
    pytest.param(Frame, False, id="large frame"),
]


@pytest.mark.parametrize(("shape", "at_once"), SHAPES)
@pytest.mark.parametrize(
    ("topic", "partition", "told"),
    [
        ("t-out", 3, "topic t-out and partition 3"),
        ("t", 5, "topic t and partition 5"),
        (None, 3, "topic null and partition 3"),
        ("t", None, "topic t and partition null"),
    ],
)
def test_a_row_of_no_partition_of_the_batch(
    shape: Callable[[pa.Table], Any], at_once: bool, topic: str, partition: int, told: str
):
    """Spark's own sink takes column `topic` for where a row is to go."""
    odd = {"topic": topic, "partition": partition, "offset": 1, "value": "x"}
    with pytest.raises(FleetError, match=f"a row has {told}, but the batch has t-3, t-4") as raised:
        parts(shape(rows_of(odd)), at_once=at_once)
    assert "these columns name the record of a row" in str(raised.value)


@pytest.mark.parametrize(("shape", "at_once"), SHAPES)
def test_rows_of_the_batch_are_all_produced(shape: Callable[[pa.Table], Any], at_once: bool):
    """By their range."""
    assert parts(shape(rows_of()), at_once=at_once) == dict.fromkeys(OURS, 3)


@pytest.mark.parametrize("shape", [lambda rows: rows, Frame])
@pytest.mark.parametrize("lacking", ["topic", "partition", "offset"])
def test_a_row_without_place_where_a_part_is_there(shape: Callable[[pa.Table], Any], lacking: str):
    """Neither written once more nor left out: the sentence says what to give instead."""
    odd = {"topic": "t", "partition": 3, "offset": 2, "value": "x", lacking: None}
    written = {OURS[0]: ((0, 1),), OURS[1]: ()}
    with pytest.raises(FleetError, match=f"{lacking} null.*transform="):
        new_rows(shape(rows_of(odd)), written, None, sink="write_delta")
    assert new_rows(shape(rows_of()), written, None, sink="write_delta") is not None
