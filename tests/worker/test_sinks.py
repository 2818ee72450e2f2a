"""Sinks whose files Spark's tasks write: every record once, however its batch is cut."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError
from fleet.sinks import write_delta
from tests.sinks.cases import SINKS, Case, batch, range_of, sums

pytestmark = pytest.mark.spark


@pytest.fixture(params=["delta", "parquet"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """A sink at a place of its own."""
    return SINKS[request.param]({"path": str(tmp_path / "table")})


def counted(records: Any) -> Any:
    """As the Arrow function of that name."""
    return records.groupBy((records.n % 2).cast("long").alias("odd")).agg({"*": "count"}).toDF(
        "odd", "records"
    )  # fmt: skip


def test_written_by_tasks(case: Case, spark: Any):
    """What is there is left out, wherever a batch was cut."""
    for start, end, new in [(0, 100, 1), (50, 100, 0), (50, 150, 1)]:
        rows, context = batch(range_of(start, end))
        assert case.write(spark.createDataFrame(rows), context) == new
    assert case.offsets() == list(range(150))


def test_rows_of_several_records_made_by_tasks(case: Case, spark: Any):
    """Overlaps are left out before rows are made; rows that are made already are refused."""
    for start, end in [(0, 10), (0, 10), (5, 20)]:
        rows, context = batch(range_of(start, end))
        case.write(spark.createDataFrame(rows), context, transform=counted)
    assert sums(case.rows()) == {0: 10, 1: 10}
    with pytest.raises(FleetError, match="are written already"):
        case.write(counted(spark.createDataFrame(rows)), batch(range_of(5, 30))[1])


def test_a_delta_table_with_partitions(tmp_path: Path, spark: Any):
    """Made by the first write; values with signs and no value; columns that do not fit."""
    from deltalake import DeltaTable

    rows, context = batch(range_of(0, 4))
    names = ["a b", "50%/x=y", None, "ü"]
    frame = spark.createDataFrame(rows.append_column("who", [names]))
    assert write_delta(frame, str(tmp_path / "t"), context, partition_by=["who"]) == 1
    found = DeltaTable(str(tmp_path / "t"))
    assert found.metadata().partition_columns == ["who"]
    read = found.to_pyarrow_table().to_pydict()
    assert sorted(zip(read["offset"], read["who"], strict=True)) == list(enumerate(names))
    later = batch(range_of(4, 5))[1]
    with pytest.raises(FleetError, match="column who cannot be stored as string: rows have int64"):
        write_delta(frame.withColumn("who", frame.n), str(tmp_path / "t"), later)


@pytest.fixture
def new_york(spark: Any) -> Iterator[None]:
    """The session shows times as they are there."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.unset("spark.sql.session.timeZone")


@pytest.mark.parametrize("sink", ["delta", "iceberg", "parquet"])
def test_moments_stay_where_a_session_has_another_time_zone(
    sink: str, tmp_path: Path, spark: Any, new_york: None
):
    """In the hour that clocks there show twice, written by tasks and by the worker."""
    first = datetime(2024, 11, 3, 5, 59, 59, 123456, UTC)
    expected = [first + timedelta(hours=each) for each in range(4)]
    for by_worker in ((False, True), (True, False)):  # the first makes the table
        case = SINKS[sink]({"path": str(tmp_path / str(by_worker[0]))})
        for start, here in zip((0, 2), by_worker, strict=True):
            rows, context = batch(range_of(start, start + 2))
            micros = [int(expected[start + n].timestamp()) * 1_000_000 + 123456 for n in range(2)]
            frame = spark.createDataFrame(rows.append_column("micros", [micros])).selectExpr(
                "topic", "partition", "offset", "timestamp_micros(micros) AS at"
            )
            case.write(frame.toArrow() if here else frame, context)
        found = sorted(case.rows(), key=lambda row: row["offset"])
        assert [row["at"].astimezone(UTC) for row in found] == expected
