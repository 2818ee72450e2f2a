"""A batch's rows as Arrow, with the values that the job made, for a table's library.

Problem: delta-rs, pyiceberg and pyarrow check a table's rules, and each of them changes some values
without an error. delta-rs cuts 1.5 to 1 for a column of whole numbers, and nanoseconds to
microseconds. All of them write text that is not UTF-8, which other engines cannot read. Choice:
rows of a DataFrame come as a stream of Arrow batches, and each batch is first cast to the table's
own types. A value that this cast would change is refused by column, value and record. Cost: one
pass over the columns of another type, and one over text.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from fleet.errors import FleetError

_PLACE: Final = ("topic", "partition", "offset")
_HELD_ALIKE: Final = ("text", "bytes")
"""Families whose types differ only in how values are stored."""
_MADE_BY_LIBRARY: Final = {b"delta.generationExpression", b"CURRENT_DEFAULT"}
"""Metadata of columns that delta-rs fills."""
_MOMENTS: Final = (datetime.min, datetime.max)  # noqa: DTZ901 - as clocks in UTC show them
_VALUE_CHARACTERS: Final = 80
"""Characters of a refused value that an error shows."""


def is_arrow(rows: Any) -> bool:
    """Whether it is a table on this worker, not a DataFrame of Spark."""
    return type(rows).__module__.partition(".")[0] == "pyarrow"


def as_arrow(rows: Any) -> Any:
    """Returns the rows as a table on this worker."""
    return rows if is_arrow(rows) else rows.toArrow()


def arrow_schema(rows: Any, *, nanoseconds: bool = False) -> Any:
    """Returns the columns of a DataFrame or a table, with the types that tables can have.

    nanoseconds: whether moments may have them, which no engine reads from Delta or Iceberg tables.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    if is_arrow(rows):
        schema = rows.schema
    else:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - loads PySpark

        schema = to_arrow_schema(rows.schema, timezone="UTC")
    return pa.schema([_plain_field(each, nanoseconds) for each in schema])


@contextmanager
def open_reader(
    rows: Any, schema: Any, *, sink: str, check: Callable[[Any], None] | None = None
) -> Iterator[Any]:
    """Yields the rows as a `pyarrow.RecordBatchReader` with the columns of `schema`.

    schema: of the table; columns that only the rows have follow, for the library to judge. check:
    raises for a batch that the library would write wrongly. Rows of a DataFrame over Spark Connect
    are read batch by batch. Raises FleetError inside the block for a value that the table's types
    cannot hold, and what Spark raises as Spark raised it.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    made = _made_schema(arrow_schema(rows), schema)
    if len(set(made.names)) < len(made.names):
        raise FleetError(f"{sink}: two columns have one name ({', '.join(made.names)})")
    batches = _batches(rows)
    first = next(batches, None)  # in this thread, which has the tags of Spark's request
    failures: list[Exception] = []

    def checked() -> Iterator[Any]:
        try:
            batch = first
            while batch is not None:
                fitted = _fit(batch, made, sink)
                if check is not None:
                    check(fitted)
                yield fitted
                batch = next(batches, None)
        except Exception as error:
            failures.append(error)  # a library in Rust would pass on only its text
            raise

    try:
        yield pa.RecordBatchReader.from_batches(made, checked())
    except Exception as error:
        if failures:
            raise failures[0] from error
        raise


def refuse_value(rows: Any, name: str, found: Any, why: str, *, sink: str) -> None:
    """Raises FleetError if a value of column `name` is one of `found`, a mask."""
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by the first write

    at = pc.index(found, True).as_py()
    if at >= 0:
        raise FleetError(
            f"{sink}: {record_at(rows, at)}column {name} is "
            f"{_show_value(rows.column(name), at)}: {why}"
        )


def refuse_years(rows: Any, name: str, *, sink: str) -> None:
    """Raises FleetError for a moment that no datetime of Python holds, which the library needs."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write
    import pyarrow.compute as pc  # noqa: PLC0415

    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        first, last = (pa.scalar(each, pa.timestamp("us")) for each in _MOMENTS)
        moment = column.cast(pa.timestamp("us"), safe=False)  # nanoseconds are ignored here
        odd = pc.or_(pc.less(moment, first), pc.greater(moment, last))
        refuse_value(rows, name, odd, "years are 1 to 9999", sink=sink)


def record_at(rows: Any, at: int) -> str:
    """Returns the record of a row for the beginning of a sentence; nothing if no column says it."""
    if any(name not in rows.schema.names for name in _PLACE):
        return ""
    topic, partition, offset = (rows.column(name)[at].as_py() for name in _PLACE)
    return f"record {topic}-{partition} at offset {offset}, "


def _batches(rows: Any) -> Iterator[Any]:
    if is_arrow(rows):
        yield from rows.to_batches()
    elif type(rows).__module__.startswith("pyspark.sql.connect"):
        client, plan = rows._session.client, rows._plan  # noqa: SLF001 - no public way streams
        for part in client.to_table_as_iterator(plan.to_proto(client), plan.observations):
            if is_arrow(part):
                yield from part.to_batches()
    else:
        yield from rows.toArrow().to_batches()


def _made_schema(of_rows: Any, of_table: Any) -> Any:
    """The table's columns that rows have or that become null, then the others of the rows."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    here = set(of_rows.names)
    kept = [each for each in of_table if each.name in here or _fills(each)]
    names = {each.name for each in kept}
    return pa.schema([*kept, *(each for each in of_rows if each.name not in names)])


def _fills(field: Any) -> bool:
    """Whether a column that rows lack is null; the library fills generated ones and defaults."""
    return field.nullable and not _MADE_BY_LIBRARY & set(field.metadata or ())


def _fit(batch: Any, schema: Any, sink: str) -> Any:
    """Returns the same values in the table's types."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(_cast(column, field))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _refusal(batch, column, field, sink, str(error)) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: Any, field: Any) -> Any:
    """Returns the column as the table stores it; ArrowInvalid if a value would change."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    column.validate(full=True)
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid("the table requires a value")
    if column.type == field.type:
        return column
    if pa.types.is_null(column.type):
        return column.cast(field.type)
    was, becomes = list(_leaves(column.type)), list(_leaves(field.type))
    if [(name, _family(kind)) for name, kind in was] != [
        (name, _family(kind)) for name, kind in becomes
    ]:
        raise pa.ArrowInvalid(f"rows have {column.type}")
    made = column.cast(field.type)
    made.validate(full=True)
    differ = any(
        a != b and _family(a[1]) not in _HELD_ALIKE for a, b in zip(was, becomes, strict=True)
    )
    if differ and not _is_same(made.cast(_plain(column.type)), column):
        raise pa.ArrowInvalid("the table would hold another value")
    return made


def _is_same(made: Any, column: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write
    import pyarrow.compute as pc  # noqa: PLC0415

    column = column.cast(made.type)
    if pa.types.is_floating(made.type):  # NaN equals NaN here
        made, column = (pc.if_else(pc.is_nan(each), None, each) for each in (made, column))
    return bool(made.equals(column))


def _refusal(batch: Any, column: Any, field: Any, sink: str, why: str) -> FleetError:
    """Describes the column, the first row that does not fit and its record."""
    at, size = 0, len(column)
    while size > 1:  # the first half fits: the error is in the other one
        half = size // 2
        fits = _is_stored(column.slice(at, half), field)
        at, size = (at + half, size - half) if fits else (at, half)
    return FleetError(
        f"{sink}: {record_at(batch, at)}column {field.name} cannot be stored as "
        f"{field.type}{'' if field.nullable else ' not null'}: {why} ({_show_value(column, at)})"
    )


def _is_stored(column: Any, field: Any) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    try:
        _cast(column, field)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _show_value(column: Any, at: int) -> str:
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    try:
        value = column[at].as_py()
    except UnicodeDecodeError:
        value = column.cast(pa.binary())[at].as_py()
    except (OverflowError, ValueError):
        value = column[at]
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}…"


def _plain_field(field: Any, nanoseconds: bool) -> Any:
    return field.with_type(_plain(field.type, nanoseconds))


def _plain(kind: Any, nanoseconds: bool = True) -> Any:
    """Returns the type without what only says how rows are stored: zones, dictionaries, small
    widths.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    types = pa.types
    if types.is_timestamp(kind):
        unit = "ns" if nanoseconds and kind.unit == "ns" else "us"
        return pa.timestamp(unit, None if kind.tz is None else "UTC")
    if types.is_date(kind):
        return pa.date32()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_dictionary(kind):
        return _plain(kind.value_type, nanoseconds)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([_plain_field(each, nanoseconds) for each in kind])
    if types.is_map(kind):
        return pa.map_(
            _plain_field(kind.key_field, nanoseconds), _plain_field(kind.item_field, nanoseconds)
        )
    if types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field, nanoseconds))
    if types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field, nanoseconds))
    return kind


def _leaves(kind: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Returns the types of nested fields, by the names in structs; names of list items do not
    count.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    types = pa.types
    if types.is_struct(kind):
        for each in kind:
            yield from _leaves(each.type, f"{name}.{each.name}")
    elif types.is_map(kind):
        yield from _leaves(kind.key_type, f"{name}.key")
        yield from _leaves(kind.item_type, f"{name}.value")
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _leaves(kind.value_type, f"{name}[]")
    else:
        yield name, _plain(kind)


def _family(kind: Any) -> str:
    """Returns the types between which a value may convert without a change."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    types = pa.types
    families = {
        "text": types.is_string(kind) or types.is_large_string(kind),
        "bytes": (
            types.is_binary(kind) or types.is_large_binary(kind)
            or types.is_fixed_size_binary(kind)
        ),
        "whole": types.is_integer(kind),
        "float": types.is_floating(kind),
        "decimal": types.is_decimal(kind),
        "date": types.is_date(kind),
        "moment": types.is_timestamp(kind) and kind.tz is not None,
        "clock": types.is_timestamp(kind) and kind.tz is None,
    }  # fmt: skip
    return next((name for name, belongs in families.items() if belongs), str(kind))
