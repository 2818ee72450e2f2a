"""The Parquet sink: every record once, however its batch is cut and repeated."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.act import spark_server
from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.worker.batch.spark_link import SparkLink
from fleet.worker.context import BatchRange
from fleet.worker.sinks import write_parquet
from tests.support.batch_parts import context_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

TOPIC_ID = "a-topic_id-00"
Write = Callable[[int, int], int]


@pytest.fixture(scope="module")
def spark(spark_home: Path) -> Iterator[Any]:
    """A session of the shared server."""
    link = SparkLink(
        where=lambda: spark_server.connect_url(spark_home),
        clock=SystemClock(),
        app="test",
        token=lambda: spark_server.token(spark_home),
    )
    yield link.connect(timeout=60.0, given_up=lambda: False)
    link.close()


def rows(folder: Path) -> list[int]:
    """Offsets in the table, as an outside reader finds them."""
    files = [f for f in folder.rglob("*.parquet") if "_fleet-" not in str(f)]
    return sorted(at for file in files for at in pq.ParquetFile(file).read()["n"].to_pylist())


@pytest.fixture(params=[True, False], ids=["with offsets", "without"])
def columns(request: pytest.FixtureRequest) -> list[str]:
    return ["topic", "partition", "n", *(["offset"] if request.param else [])]


@pytest.fixture
def write(spark: Any, tmp_path: Path, columns: list[str]) -> Write:
    """Write offsets [start, end) of partition 3 as one batch."""

    def call(start: int, end: int) -> int:
        each = BatchRange(topic="t", topic_id=TOPIC_ID, partition=3, start=start, end=end)
        offsets = list(range(start, end))
        table = pa.table(
            {
                "topic": ["t"] * len(offsets),
                "partition": pa.array([3] * len(offsets), pa.int32()),
                "offset": offsets,
                "n": offsets,
            }
        )
        return write_parquet(
            spark.createDataFrame(table.select(columns)), tmp_path, context_of([each])
        )

    return call


def test_halves_of_a_range_that_is_there(write: Write, tmp_path: Path):
    """Narrowed after it was written: no row twice."""
    assert write(0, 100) == 1
    assert [write(0, 50), write(50, 75), write(75, 100), write(0, 100)] == [0, 0, 0, 0]
    assert rows(tmp_path) == list(range(100))


def test_a_whole_after_its_halves(write: Write, tmp_path: Path):
    """Killed while it was narrowed: its successor runs the range as it was planned."""
    assert [write(0, 50), write(50, 75)] == [1, 1]
    assert write(0, 100) == 1
    assert rows(tmp_path) == list(range(100))
    assert write(50, 75) == 0
    assert write(100, 110) == 1, "another range"
    assert rows(tmp_path) == list(range(110))


def test_ranges_that_overlap(write: Write, tmp_path: Path, columns: list[str]):
    """Cut anew behind a part that was committed: rows are left out by their offsets, or none is
    written.
    """
    write(0, 100)
    if "offset" in columns:
        assert write(50, 150) == 1
        assert rows(tmp_path) == list(range(150))
    else:
        with pytest.raises(FleetError, match="offsets 50 to 149 of t-3 overlap 0 to 99"):
            write(50, 150)
        assert rows(tmp_path) == list(range(100))
