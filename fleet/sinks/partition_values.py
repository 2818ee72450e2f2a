"""Partition values of a Delta table: which are refused, and how those are written that need care.

Problem: delta-rs names a folder after each partition value, and a file system takes 255 bytes: 50
emoji, or 1e-320 with all its zeros, are too long. The log itself holds any text. Choice: such a
batch is written by delta-rs into a table of its own, in a folder `apart-<uuid>` below the table:
the same columns and rules, and a number for each partition. The real table's commit then names
these files with their partition values, which come from the rows. Cost: two more commits (some 30
ms); delta-rs' own compaction makes folders, and so fails for a table with such partitions unless
its filter names others (seen: values stay as they were either way); in an object store the log of
the table apart stays.
"""

import json
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fleet.errors import FleetError
from fleet.sinks.arrow_rows import refuse_value, refuse_years

_FOLDER_BYTES: Final = 255
"""Of one folder's name, in the file systems in use."""
_PATH_BYTES: Final = 700
"""Of all folders of a file; an object's key has 1,024 bytes."""
_OTHER_BYTES: Final = 60
"""Of any date, moment, whole number or null, at most."""
_PLAIN_FLOATS: Final = (1e-50, 1e50)
"""Between these, a float's digits fit into a folder's name."""
_NUMBER: Final = "fleet_partition_number"
"""The column by which a table that is written apart is partitioned."""
_CONSTRAINT: Final = "delta.constraints."
_FEATURES: Final = {
    *("appendOnly", "checkConstraints", "generatedColumns", "invariants", "timestampNtz"),
}
"""Writer features of a table of which one that is written apart has the same rules."""
_MAPPING_WRITER: Final = 5
"""Version of the writer protocol from which on a table may have other features than these."""


def is_text(kind: Any) -> bool:
    """Whether an empty value is null in a partition column."""
    from pyarrow import types  # noqa: PLC0415 - loaded by the first write

    return bool(types.is_string(kind) or types.is_large_string(kind))


def refuse_types(schema: Any, by: Sequence[str], place: str) -> None:
    """Raises FleetError if Delta has no partition values of a column's type.

    It has some of bytes; but delta-rs reads back other bytes than it wrote.
    """
    from pyarrow import types  # noqa: PLC0415 - loaded by the first write

    kinds = (
        *(is_text, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal),
        *(types.is_date, types.is_timestamp),
    )
    for field in schema:
        if field.name in by and not any(fits(field.type) for fits in kinds):
            raise FleetError(
                f"write_delta: {place} is to be partitioned by column {field.name}, which is "
                f"{field.type}: readers would not find its values as they were; partition by a "
                f"text, a number or a time (of bytes, for example by base64({field.name}))"
            )


def readable(rows: Any, by: Sequence[str]) -> Any:
    """Returns the rows with partition values that every reader finds; an empty text is null there.

    Raises FleetError for values that delta-rs would commit, and then could not read.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write
    import pyarrow.compute as pc  # noqa: PLC0415

    for name in by:
        at, column = rows.schema.get_field_index(name), rows[name]
        field = rows.schema.field(at)
        refuse_years(rows, name, sink="write_delta")
        if pa.types.is_decimal(field.type):
            odd = pc.and_(pc.less(column, 0), pc.not_equal(pc.trunc(column), column))
            why = "delta-rs cannot read such a partition value with a fraction"
            refuse_value(rows, name, odd, why, sink="write_delta")
        elif is_text(field.type):
            empty = pc.equal(column, "")
            if not field.nullable:
                why = "Delta holds an empty partition value as null, and the table requires a value"
                refuse_value(rows, name, empty, why, sink="write_delta")
            elif pc.any(empty).as_py():
                rows = rows.set_column(at, field, pc.if_else(empty, None, column))
    return rows


def fit_folders(table: Any, rows: Any, by: Sequence[str]) -> bool:
    """Whether delta-rs can name folders after the partition values of the rows."""
    if "delta.columnMapping.mode" in table.metadata().configuration:
        return True  # then it does not
    sizes = [len(quote(name)) + 1 + _folder_bytes(rows[name]) for name in by]
    return max(sizes) <= _FOLDER_BYTES and sum(sizes) <= _PATH_BYTES


def _folder_bytes(column: Any) -> int:
    """Bytes of the longest value in a folder's name; the limit if a float has too many digits."""
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by the first write
    from pyarrow import types  # noqa: PLC0415

    if types.is_floating(column.type):
        size = pc.abs(column)
        least, most = _PLAIN_FLOATS
        odd = pc.and_(pc.is_finite(column), pc.or_(pc.less(size, least), pc.greater(size, most)))
        odd = pc.and_(odd, pc.not_equal(column, 0))
        return _FOLDER_BYTES if pc.any(odd).as_py() else _OTHER_BYTES
    if not is_text(column.type):
        return _OTHER_BYTES
    return max(
        (len(quote(each, safe="")) for each in pc.unique(column).to_pylist() if each), default=26
    )


def write_apart(
    delta: Any,
    table: Any,
    rows: Any,
    *,
    place: str,
    options: Mapping[str, str] | None,
    properties: Any,
) -> None:
    """Appends rows whose partition values are no names of folders, in one commit of the table.

    Raises what delta-rs raises, and FleetError where the table has features of which its copy
    would not have the rules.
    """
    by = table.metadata().partition_columns
    _refuse_features(table, by)
    texts = [_texts(rows[name]) for name in by]
    numbers: dict[tuple[str | None, ...], int] = {}
    of_rows = [numbers.setdefault(each, len(numbers)) for each in zip(*texts, strict=True)]
    folder = f"apart-{uuid.uuid4().hex}"
    try:
        files = _files_apart(
            delta, table, rows, of_rows, place=f"{place}/{folder}", options=options
        )
    except BaseException:
        shutil.rmtree(Path(place) / folder, ignore_errors=True)
        raise
    values = list(numbers)
    at_ms = time.time_ns() // 1_000_000
    table.create_write_transaction(
        [
            delta.transaction.AddAction(
                f"{folder}/{each['path']}",
                each["size_bytes"],
                dict(zip(by, values[each[f"partition.{_NUMBER}"]], strict=True)),
                at_ms,
                True,  # rows changed
                json.dumps({"numRecords": each["num_records"]}),
            )
            for each in files
        ],
        mode="append",
        schema=table.schema(),
        partition_by=by,
        commit_properties=properties,
    )
    shutil.rmtree(Path(place) / folder / "_delta_log", ignore_errors=True)


def _files_apart(
    delta: Any,
    table: Any,
    rows: Any,
    of_rows: Sequence[int],
    *,
    place: str,
    options: Mapping[str, str] | None,
) -> list[dict[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    number = delta.Field(_NUMBER, "long", nullable=False)
    apart = delta.DeltaTable.create(
        place,
        schema=delta.Schema([*table.schema().fields, number]),
        partition_by=[_NUMBER],
        storage_options=options,
    )
    for name, rule in table.metadata().configuration.items():
        if name.startswith(_CONSTRAINT):
            apart.alter.add_constraint({name.removeprefix(_CONSTRAINT): rule})
    field = pa.field(_NUMBER, pa.int64(), nullable=False)
    delta.write_deltalake(apart, rows.append_column(field, [of_rows]), mode="append")
    found: list[dict[str, Any]] = pa.table(apart.get_add_actions(flatten=True)).to_pylist()
    return found


def _refuse_features(table: Any, by: Sequence[str]) -> None:
    protocol = table.protocol()
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version >= _MAPPING_WRITER and not features:
        features = {f"writer version {protocol.min_writer_version}"}
    if odd := features - _FEATURES:
        raise FleetError(
            f"write_delta: a value of {', '.join(by)} does not fit into a folder's name (255 "
            f"bytes), and the table has {', '.join(sorted(odd))}: partition by a shorter value, or "
            "set delta.columnMapping.mode"
        )


def _texts(column: Any) -> list[str | None]:
    """The values as Delta's log spells them; empty is null there."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    if pa.types.is_decimal(column.type):
        return [None if each is None else f"{each:f}" for each in column.to_pylist()]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"))  # the zone is UTC
    return [each or None for each in column.cast(pa.string()).to_pylist()]
