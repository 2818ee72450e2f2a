"""Each Arrow type and odd values: every reader finds the value, or the sink refuses it by name.

As a column and as a partition, from Arrow and from a DataFrame. A sample by seed; with FLEET_LONG
all of it.
"""

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from fleet.sinks import parquet_files, write_delta, write_iceberg, write_parquet
from fleet.sinks.arrow_rows import arrow_schema
from tests.sinks.cases import batch, range_of
from tests.sinks.odd_values import (
    CASES,
    NANOSECONDS,
    NOT_UTF_8,
    UNKNOWN_TO_DUCKDB,
    column_of,
    comparable,
    delta_readers,
    iceberg_readers,
    parquet_readers,
)
from tests.support.sampling import LONG

PLACES = (
    *(("delta", "column"), ("delta", "partition"), ("iceberg", "column")),
    *(("iceberg", "partition"), ("parquet", "column")),
)
ALL = [(*place, *case) for place in PLACES for case in CASES]
SAMPLE = ALL if LONG else random.Random(51).sample(ALL, 40)
FRAMES = ALL if LONG else random.Random(15).sample(ALL, 12)


class Table:
    """One sink's table, which a good row makes."""

    def __init__(self, sink: str, where: str, folder: Path) -> None:
        self.sink, self.partitioned = sink, where == "partition"
        self._place = str(folder / "table")
        if sink == "iceberg":
            self._catalog = SqlCatalog(
                "c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}"
            )
            self._catalog.create_namespace("n")

    def write(self, rows: Any, context: Any) -> None:
        """As jobs do."""
        if self.sink == "delta":
            by = ["v"] if self.partitioned else []
            write_delta(rows, self._place, context, partition_by=by)
        elif self.sink == "iceberg":
            if self.partitioned:  # Fleet makes none with partitions
                made = self._catalog.create_table("n.t", arrow_schema(rows))
                with made.update_spec() as spec:
                    spec.add_identity("v")
            write_iceberg(rows, "n.t", context, catalog=self._catalog)
        else:
            write_parquet(rows, self._place, context)

    def read(self) -> list[tuple[str, pa.Table]]:
        if self.sink == "delta":
            return list(delta_readers(self._place, partitioned=self.partitioned))
        if self.sink == "iceberg":
            try:
                return list(iceberg_readers(self._catalog.load_table("n.t")))
            except NoSuchTableError:
                return []
        files = parquet_files(self._place)
        return list(parquet_readers(files)) if files else []


def stored(table: Table, rows: Any, want: pa.Array) -> str:
    """Write a row and find it by all readers: nothing, or by what words it was refused."""
    _, context = batch(range_of(0, 1))
    try:
        table.write(rows, context)
    except Exception as error:  # noqa: BLE001 - what is not refused by name fails below
        told = str(error)
        assert any(name in told for name in ("column v", "Column 'v'", "Field: v", "from v")), told
        assert all(not read.num_rows for _, read in table.read()), told
        return told
    expected = comparable(want)
    if table.sink == "delta" and table.partitioned and expected == [""]:
        expected = [None]  # by Delta's protocol
    found = table.read()
    assert len(found) > 1
    for reader, read in found:
        if reader == "DuckDB" and str(want.type).startswith(UNKNOWN_TO_DUCKDB):
            continue
        assert comparable(read["v"]) == expected, (reader, read["v"].type)
    return ""


def rows_of(kind: pa.DataType, value: Any) -> pa.Table:
    """A record's row with the value in column v."""
    return batch(range_of(0, 1))[0].append_column("v", column_of(kind, value))


@pytest.mark.parametrize(
    ("sink", "where", "kind", "value"), SAMPLE, ids=lambda each: repr(each)[:30]
)
def test_a_value_is_found_or_refused(
    sink: str, where: str, kind: pa.DataType, value: Any, tmp_path: Path
):
    """From an Arrow table."""
    rows = rows_of(kind, value)
    told = stored(Table(sink, where, tmp_path), rows, rows["v"])
    assert bool(told) == is_refused(sink, where, kind, value), told or "stored"


@pytest.mark.spark
@pytest.mark.parametrize("case", FRAMES, ids=lambda each: repr(each)[:60])
def test_a_value_of_a_frame_is_found_or_refused(case: Any, tmp_path: Path, spark: Any):
    """By Spark, as far as it has the type."""
    sink, where, kind, value = case
    try:
        frame = spark.createDataFrame(rows_of(kind, None if value is NOT_UTF_8 else value))
        if value is NOT_UTF_8:
            frame = frame.selectExpr("topic", "partition", "offset", "CAST(X'FFFE' AS STRING) AS v")
        want = frame.toArrow()["v"]
    except Exception:  # noqa: BLE001 - Spark's own refusals are not ours
        pytest.skip(f"Spark takes no {kind}")
    stored(Table(sink, where, tmp_path), frame, want)


def is_refused(sink: str, where: str, kind: pa.DataType, value: Any) -> bool:
    """What a sink cannot store as it is, or what its library would write wrongly."""
    types, by = pa.types, where == "partition"
    if value is NOT_UTF_8 or kind == pa.month_day_nano_interval():
        return True
    if sink == "parquet":
        return False
    if types.is_decimal256(kind) or types.is_duration(kind):
        return True
    far = types.is_timestamp(kind) and isinstance(value, int) and kind.unit == "us"
    nested = by and types.is_nested(kind)
    if sink == "iceberg":
        odd = isinstance(value, float) and (math.isnan(value) or value.hex() == "-0x0.0p+0")
        others = kind in {pa.time32("ms"), pa.time64("ns"), pa.null()}
        return others or value == NANOSECONDS or far or nested or (by and odd)
    if types.is_time(kind) or value == NANOSECONDS:
        return True
    small = isinstance(value, Decimal) and value < 0 and value != int(value)
    of_bytes = any(
        fits(kind)
        for fits in (
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
            *(types.is_fixed_size_binary, types.is_null),
        )
    )
    return by and (far or nested or small or of_bytes)
