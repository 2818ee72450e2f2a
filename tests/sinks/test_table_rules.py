"""Tables that other programs made, with rules: the same answer for a frame and for Arrow rows.

What is refused leaves the table as it was, and no file beside it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from fleet.errors import FleetError
from fleet.sinks import write_delta, write_iceberg
from tests.sinks.cases import SINKS, batch, range_of
from tests.sinks.frames import Frame

SHAPES = [pytest.param(lambda rows: rows, id="arrow"), pytest.param(Frame, id="frame")]
Shape = Callable[[pa.Table], Any]


def rows_of(**columns: Any) -> tuple[pa.Table, Any]:
    """Records with these columns."""
    (count,) = {len(each) for each in columns.values()}
    rows, context = batch(range_of(0, count))
    for name, values in columns.items():
        rows = rows.append_column(name, values if isinstance(values, pa.Array) else [values])
    return rows, context


def place_of(rows: pa.Table) -> list[Field]:
    """The columns that all rows here have."""
    return list(Schema.from_arrow(rows.schema).fields[:4])


def delta_table(folder: Path, *fields: Field, configuration: Any = None) -> str:
    """Columns of records and these."""
    place = str(folder / "table")
    made = place_of(batch(range_of(0, 1))[0])
    DeltaTable.create(place, Schema([*made, *fields]), configuration=configuration)
    return place


def refused(place: str, write: Callable[[], object]) -> str:
    """By which words; the table is as it was."""
    before = {str(each) for each in Path(place).rglob("*")}
    with pytest.raises(FleetError) as raised:
        write()
    assert {str(each) for each in Path(place).rglob("*")} == before
    return str(raised.value)


def check(folder: Path) -> str:
    place = delta_table(folder, Field("amount", PrimitiveType("long")))
    DeltaTable(place).alter.add_constraint({"positive": "amount > 0"})
    return place


def not_null(folder: Path) -> str:
    return delta_table(folder, Field("amount", PrimitiveType("long"), nullable=False))


def invariant(folder: Path) -> str:
    rule = json.dumps({"expression": {"expression": "amount > 0"}})
    return delta_table(
        folder, Field("amount", PrimitiveType("long"), metadata={"delta.invariants": rule})
    )


def generated(folder: Path) -> str:
    rule = {"delta.generationExpression": "n + 1"}
    return delta_table(folder, Field("amount", PrimitiveType("long"), metadata=rule))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("made", "amounts"),
    [(check, [5, -1]), (not_null, [5, None]), (invariant, [5, -1]), (generated, [1, 7])],
)
def test_delta_rules_hold(made: Any, amounts: list[Any], shape: Shape, tmp_path: Path):
    """CHECK, NOT NULL, invariants, generated columns."""
    place = made(tmp_path)
    rows, context = rows_of(amount=pa.array(amounts, pa.int64()))
    told = refused(place, lambda: write_delta(shape(rows), place, context))
    assert "amount" in told
    assert write_delta(shape(rows.slice(0, 1)), place, context) == 1
    assert DeltaTable(place).to_pyarrow_table()["amount"].to_pylist() == amounts[:1]


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_that_rows_lack(shape: Shape, tmp_path: Path):
    """A generated one is made, a required one refused, another is null."""
    rows, context = batch(range_of(0, 2))
    place = generated(tmp_path / "generated")
    write_delta(shape(rows), place, context)
    assert sorted(DeltaTable(place).to_pyarrow_table()["amount"].to_pylist()) == [1, 2]
    place = not_null(tmp_path / "required")
    refused(place, lambda: write_delta(shape(rows), place, context))
    place = delta_table(tmp_path / "optional", Field("amount", PrimitiveType("long")))
    write_delta(shape(rows), place, context)
    assert DeltaTable(place).to_pyarrow_table()["amount"].to_pylist() == [None, None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(mode: str, shape: Shape, tmp_path: Path):
    """Files have the physical names; partition values of any length."""
    rows, context = rows_of(who=["字" * 29])
    place = str(tmp_path / "table")
    mapped = {"delta.columnMapping.mode": mode}
    write_deltalake(place, rows.slice(0, 0), partition_by=["who"], configuration=mapped)
    assert write_delta(shape(rows), place, context) == 1
    (file,) = DeltaTable(place).file_uris()
    assert all(name.startswith("col-") for name in pq.read_schema(file).names)
    read = QueryBuilder().register("t", DeltaTable(place)).execute("SELECT who, n FROM t")
    assert pa.table(read.read_all()).to_pylist() == [{"who": "字" * 29, "n": 0}]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("odd", ["", None])
def test_a_partition_that_requires_a_value(odd: Any, shape: Shape, tmp_path: Path):
    """An empty text would be null there, and nobody could open the table."""
    rows, context = rows_of(land=["at", odd])
    place = str(tmp_path / "table")
    schema = Schema([*place_of(rows), Field("land", PrimitiveType("string"), nullable=False)])
    DeltaTable.create(place, schema, partition_by=["land"])
    told = refused(place, lambda: write_delta(shape(rows), place, context))
    assert "record t-3 at offset 1, column land" in told
    assert write_delta(shape(rows.slice(0, 1)), place, context) == 1
    assert DeltaTable(place).to_pyarrow_table()["land"].to_pylist() == ["at"]


@pytest.mark.parametrize("shape", SHAPES)
def test_long_partition_values_obey_the_rules(shape: Shape, tmp_path: Path):
    """They are written apart, beside short ones, nulls and NaN, once."""
    odd = {"who": ["x" * 300, "w", None, "w"], "size": [1e-320, float("nan"), 0.0, 0.0]}
    rows, context = rows_of(**odd)
    place = str(tmp_path / "table")
    fields = [Field("who", PrimitiveType("string")), Field("size", PrimitiveType("double"))]
    DeltaTable.create(place, Schema([*place_of(rows), *fields]), partition_by=["who", "size"])
    DeltaTable(place).alter.add_constraint({"few": "n < 3"})
    told = refused(place, lambda: write_delta(shape(rows), place, context))
    assert "failed validation" in told
    kept = rows.slice(0, 3)
    assert [write_delta(shape(kept), place, context) for _ in range(2)] == [1, 0]
    found = DeltaTable(place).to_pyarrow_table().sort_by("offset")
    assert repr(found.select(["who", "size"]).to_pydict()) == repr(
        {name: values[:3] for name, values in odd.items()}
    )
    assert not list(Path(place).glob("apart-*/_delta_log"))


def test_compaction_of_a_table_with_long_partition_values(tmp_path: Path):
    """delta-rs merges those with short values, in whichever files, and refuses the whole table."""
    place, many = str(tmp_path / "table"), 3
    values = ["x" * 300, "w", None, "a/b%2F"]
    for number in range(many):
        at = number * 5
        rows, context = batch(range_of(at, at + 4))
        write_delta(rows.append_column("who", [values]), place, context, partition_by=["who"])
        rows, context = batch(range_of(at + 4, at + 5))
        write_delta(rows.append_column("who", [["w"]]), place, context)

    def found() -> list[tuple[int, Any]]:
        table = DeltaTable(place).to_pyarrow_table()
        return sorted((each["offset"], each["who"]) for each in table.to_pylist())

    before = found()
    assert [who for _, who in before] == [*values, "w"] * many
    with pytest.raises(DeltaError):
        DeltaTable(place).optimize.compact()
    assert found() == before
    merged = DeltaTable(place).optimize.compact(partition_filters=[("who", "=", "w")])
    assert (merged["numFilesRemoved"], merged["numFilesAdded"]) == (2 * many, 1)
    DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert found() == before


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["a/b", "a.b", "%2F", "..", "a=b c", "n" * 260])
def test_names_and_counts_of_partitions(name: str, shape: Shape, tmp_path: Path):
    """More than pyarrow's 1,024, by columns of any name."""
    values = [str(each) for each in range(1100 if name == "a/b" else 2)]
    rows, context = rows_of(**{name: values})
    place = str(tmp_path / "table")
    assert write_delta(shape(rows), place, context, partition_by=[name]) == 1
    assert sorted(DeltaTable(place).to_pyarrow_table()[name].to_pylist()) == sorted(values)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), pa.array([1.5])),
        (pa.int32(), pa.array([2**40])),
        (pa.float32(), pa.array([0.1])),
        (pa.decimal128(10, 2), pa.array(["1.239"]).cast(pa.decimal128(10, 3))),
        (pa.string(), pa.array([1])),
        (pa.bool_(), pa.array([1])),
        (pa.timestamp("us", "UTC"), pa.array([0], pa.timestamp("us"))),
        (pa.struct([("a", pa.int64())]), pa.array([{"b": 1}])),
        (pa.list_(pa.int32()), pa.array([[2**40]])),
    ],
)
def test_a_value_that_the_column_cannot_hold(
    kind: pa.DataType, values: pa.Array, shape: Shape, tmp_path: Path
):
    """delta-rs would write 1 for 1.5."""
    rows, context = rows_of(v=values)
    place = str(tmp_path / "table")
    DeltaTable.create(place, Schema.from_arrow(rows.schema.set(4, pa.field("v", kind))))
    told = refused(place, lambda: write_delta(shape(rows), place, context))
    assert "record t-3 at offset 0, column v cannot be stored as" in told


NO_YEAR = pa.array([None, 2**62], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("sink", "values", "more"),
    [
        *((sink, [b"a", b"\xff"], {}) for sink in ("delta", "iceberg", "parquet")),
        ("iceberg", NO_YEAR, {}),
        ("delta", NO_YEAR, {"partition_by": ["v"]}),
        ("delta", pa.array(["1.5", "-1.5"]).cast(pa.decimal128(5, 2)), {"partition_by": ["v"]}),
    ],
)
def test_what_no_reader_would_find(sink: str, values: Any, more: dict[str, Any], tmp_path: Path):
    """The good row beside it is written alone; the record of the other one is named."""
    if isinstance(values, list):
        values = pa.Array.from_buffers(pa.string(), 2, pa.array(values, pa.binary()).buffers())
    rows, context = rows_of(v=values)
    case = SINKS[sink]({"path": str(tmp_path / "table")})
    with pytest.raises(FleetError, match="record t-3 at offset 1, column v ") as raised:
        case.write(rows, context, **more)
    assert "Traceback" not in str(raised.value)  # as delta-rs passes on what Python raises
    assert case.rows() == []
    assert case.write(rows.slice(0, 1), context, **more) == 1
    assert [row["v"] for row in case.rows()] == [values[0].as_py()]


def iceberg_table(folder: Path, rows: pa.Table, *fields: tuple[str, Any]) -> Any:
    """In a catalog of its own, with partitions."""
    folder.mkdir(exist_ok=True)
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace("n")
    with catalog.create_table("n.t", rows.schema).update_spec() as spec:
        for number, (column, transform) in enumerate(fields):
            spec.add_field(column, transform, f"p{number}")
    return catalog


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "fields",
    [
        [("at", DayTransform())],
        [("n", BucketTransform(4))],
        [("who", IdentityTransform())],
        [("who", TruncateTransform(1)), ("at", DayTransform()), ("n", BucketTransform(4))],
    ],
)
def test_iceberg_partitions(fields: list[Any], shape: Shape, tmp_path: Path):
    """Each row is found by its own value, null beside others."""
    at = pa.array([0, 86_400_000_000, None, 1], pa.timestamp("us", "UTC"))
    rows, context = rows_of(who=["w", "x" * 300, None, "字" * 60], at=at)
    catalog = iceberg_table(tmp_path, rows, *fields)
    assert write_iceberg(shape(rows), "n.t", context, catalog=catalog) == 1
    table = catalog.load_table("n.t")
    assert table.scan().to_arrow().num_rows == 4
    for condition in ("who IS NULL", "who = 'w'", "n = 1", "at IS NULL"):
        assert table.scan(row_filter=condition).to_arrow().num_rows == 1, condition


@pytest.mark.parametrize("shape", SHAPES)
def test_iceberg_required_columns(shape: Shape, tmp_path: Path):
    """They take rows without a null from columns that might hold one."""
    rows, context = rows_of(who=["a", None])
    required = rows.slice(0, 0).cast(pa.schema([each.with_nullable(False) for each in rows.schema]))
    catalog = iceberg_table(tmp_path, required)
    with pytest.raises(FleetError, match=r"offset 1, column who .* requires a value"):
        write_iceberg(shape(rows), "n.t", context, catalog=catalog)
    assert catalog.load_table("n.t").current_snapshot() is None
    assert write_iceberg(shape(rows.slice(0, 1)), "n.t", context, catalog=catalog) == 1
    assert catalog.load_table("n.t").scan().to_arrow()["who"].to_pylist() == ["a"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("odd", [-0.0, float("nan")])
def test_iceberg_floats_that_pyiceberg_misplaces(odd: float, shape: Shape, tmp_path: Path):
    """It would write rows of 0.0 and -0.0 twice."""
    rows, context = rows_of(size=[0.0, odd])
    catalog = iceberg_table(tmp_path, rows, ("size", IdentityTransform()))
    with pytest.raises(FleetError, match=r"offset 1, column size is (-0.0|nan)"):
        write_iceberg(shape(rows), "n.t", context, catalog=catalog)
    assert catalog.load_table("n.t").current_snapshot() is None


def test_iceberg_files_are_written_once_while_others_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A large batch beside small ones of another worker meets their commits, not itself anew."""
    rows, context = batch(range_of(0, 3))
    catalog = iceberg_table(tmp_path, rows)
    real, others = SqlCatalog.commit_table, iter(range(3))

    def commit(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        for number in others:
            more, of = batch(range_of(number, number + 1, 4))
            write_iceberg(more, "n.t", of, catalog=catalog)
            monkeypatch.setattr(SqlCatalog, "commit_table", commit)
            break
        return real(self, *args)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    assert write_iceberg(rows, "n.t", context, catalog=catalog) == 1
    assert len(list((tmp_path / "n" / "t" / "data").rglob("*.parquet"))) == 4
    found = catalog.load_table("n.t").scan().to_arrow()
    assert sorted(found["partition"].to_pylist()) == [3, 3, 3, 4, 4, 4]
