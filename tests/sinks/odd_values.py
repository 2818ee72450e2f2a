"""Values that tables have been seen to alter, by Arrow type, and what readers find of them."""

import contextlib
import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

FIRST_YEAR = dt.datetime.fromisoformat("0001-01-01")
BEFORE_1583 = dt.datetime.fromisoformat("1582-10-04T23:59:59.999999")
LAST_YEAR = dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")
BEFORE_1970 = dt.datetime.fromisoformat("1969-12-31T23:59:59")
NANOSECONDS = 1_700_000_000_123_456_789
MICROS = -62_135_596_800_000_000 - 86_400_000_000
"""The last day before year 1, which Python has no datetime for."""
TEXTS = [
    "", "a", "p\0q", "\0", "__HIVE_DEFAULT_PARTITION__", "x" * 5000, "\U0001f600" * 50, "字" * 29,
    "a/b=c%2F", ".", "..", "%2F", "%", " a ", " " * 150, "null", "NaN", 'a"b\\c\nd', "\r\t",
    "\u00a0x\u2028", "a:b?c#d", "é", "e\u0301", "\x01\x7f", "+", "{a,b}", "-1", "\ufffd",
]  # fmt: skip
BYTES = [b"", b"a", b"\0x", b"\xffa", b"a" * 5000]
FLOATS = [0.0, -0.0, 0.1, -1.5, 1e22, math.nan, math.inf, -math.inf]


def _moments(*more: dt.datetime) -> list[dt.datetime]:
    return [FIRST_YEAR, BEFORE_1583, LAST_YEAR, BEFORE_1970, *more]


_NEW = dt.datetime.fromisoformat("2024-11-03T05:59:59.123456")
VALUES: dict[pa.DataType, list[Any]] = {
    pa.string(): TEXTS,
    pa.large_string(): TEXTS[:8],
    pa.string_view(): TEXTS[:8],
    pa.dictionary(pa.int32(), pa.string()): TEXTS[:8],
    pa.binary(): BYTES,
    pa.large_binary(): BYTES,
    pa.binary_view(): BYTES,
    pa.binary(3): [b"abc", b"\0\xff\n"],
    pa.bool_(): [True, False],
    **{kind: [0, 1] for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.int8(): [-128, 127],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.float16(): [1.5, math.nan],
    pa.float32(): [*FLOATS, 16777216.0, 1e-45, 3.4028234663852886e38],
    pa.float64(): [*FLOATS, 5e-324, 1e-320, 1.7976931348623157e308],
    pa.decimal32(5, 2): [Decimal("-0.05")],
    pa.decimal64(18, 2): [Decimal("1.50")],
    pa.decimal128(38, 18): [*map(Decimal, ("-1E-18", "-0.5", "-1.5", "-1")), Decimal(10**20 - 1)],
    pa.decimal128(5, 2): [Decimal("-0.05"), Decimal("999.99"), Decimal(0)],
    pa.decimal256(60, 2): [Decimal("1.50")],
    pa.date32(): [each.date() for each in _moments(_NEW)],
    pa.date64(): [dt.date(2000, 1, 1)],
    pa.timestamp("us"): [*_moments(_NEW), MICROS],
    pa.timestamp("us", "UTC"): [*_moments(_NEW), MICROS, 2**63 - 1, -(2**63)],
    pa.timestamp("us", "America/New_York"): [_NEW],
    pa.timestamp("ns"): [NANOSECONDS, 1_700_000_000_123_456_000],
    pa.timestamp("ns", "UTC"): [NANOSECONDS],
    pa.timestamp("ms"): _moments()[:1],
    pa.timestamp("s", "UTC"): _moments()[:1],
    pa.time32("ms"): [dt.time(23, 59, 59)],
    pa.time64("us"): [dt.time(1, 2, 3, 4)],
    pa.time64("ns"): [1000],
    pa.duration("us"): [dt.timedelta(1)],
    pa.month_day_nano_interval(): [(1, 2, 3)],
    pa.null(): [],
    pa.list_(pa.float64()): [[], [None], FLOATS],
    pa.large_list(pa.string()): [TEXTS[:8]],
    pa.struct([("a", pa.string()), ("b", pa.timestamp("us", "UTC"))]): [
        {"a": "", "b": LAST_YEAR}, {"a": None, "b": None},
    ],
    pa.map_(pa.string(), pa.binary()): [[("", b"\xff"), ("p\0q", b"")]],
}  # fmt: skip
NOT_UTF_8 = "not UTF-8"
"""Stands for a text of bytes that are none."""
CASES = [
    (kind, value)
    for kind, values in VALUES.items()
    for value in (*values, None, *([NOT_UTF_8] if kind in {pa.string(), pa.large_string()} else ()))
]


def column_of(kind: pa.DataType, value: Any) -> pa.Array:
    """One value."""
    if value is NOT_UTF_8:
        size = 8 if kind == pa.large_string() else 4
        ends = pa.py_buffer((0).to_bytes(size, "little") + (2).to_bytes(size, "little"))
        return pa.Array.from_buffers(kind, 1, [None, ends, pa.py_buffer(b"\xff\xfe")])
    if isinstance(kind, pa.DictionaryType):
        return pa.array([value], kind.value_type).dictionary_encode()
    return pa.array([value], kind)


def comparable(column: Any) -> list[Any]:
    """Values by which a column is the same as another, whatever its type holds them in."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    if isinstance(kind, pa.DictionaryType):
        return comparable(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        with contextlib.suppress(pa.ArrowInvalid):  # nanoseconds that are none
            column = column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        if pa.types.is_date(kind):
            column = column.cast(pa.date32())
        if pa.types.is_time(kind):
            column = column.cast(pa.time64("us"))
        width = pa.int32() if column.type.bit_width == 32 else pa.int64()
        return column.view(width).to_pylist()
    if pa.types.is_decimal(kind):
        return [None if each is None else each.normalize() for each in column.to_pylist()]
    return [_held(each) for each in column.to_pylist()]


UNKNOWN_TO_DUCKDB = ("duration", "decimal256")
"""It reads them as other types, which say nothing of what is there."""


def _held(value: Any) -> Any:
    """NaN is NaN, -0.0 is not 0.0, and 1 is not True."""
    if isinstance(value, (list, tuple)):
        return [_held(each) for each in value]
    if isinstance(value, dict):
        return {name: _held(each) for name, each in value.items()}
    if isinstance(value, float):
        return value.hex()
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def delta_readers(place: str, *, partitioned: bool) -> Iterator[tuple[str, pa.Table]]:
    """delta-rs by pyarrow and by DataFusion; DuckDB, over the files where they hold the column."""
    if not DeltaTable.is_deltatable(place):
        return
    table = DeltaTable(place)
    yield "delta-rs", table.to_pyarrow_table()
    yield (
        "DataFusion",
        pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()),
    )
    if partitioned:
        dataset = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
        yield "DuckDB", duckdb.sql("SELECT * FROM dataset").to_arrow_table()
    else:
        yield "DuckDB", by_duckdb(table.file_uris())


def iceberg_readers(table: Any) -> Iterator[tuple[str, pa.Table]]:
    """pyiceberg; DuckDB over the files."""
    yield "pyiceberg", table.scan().to_arrow()
    yield "DuckDB", by_duckdb([each.file.file_path for each in table.scan().plan_files()])


def parquet_readers(files: list[str]) -> Iterator[tuple[str, pa.Table]]:
    """pyarrow; DuckDB."""
    yield "pyarrow", pa.concat_tables([pq.ParquetFile(each).read() for each in files])
    yield "DuckDB", by_duckdb(files)


def by_duckdb(files: list[str]) -> pa.Table:
    """What is in files, without what their folders are called."""
    if not files:
        return pa.table({})
    paths = [str(Path(each.removeprefix("file://"))) for each in files]
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    return connection.read_parquet(
        paths, hive_partitioning=False, union_by_name=True
    ).to_arrow_table()
