"""An Iceberg sink: rows and their offsets are one commit of the catalog.

Problem: after a kill between writing and committing to Kafka the same offsets come again [4], and
Iceberg has no transaction ids. Choice: the written offsets of each partition are in the table's
properties (`fleet.written.<group>/<topic id>/<partition>`: spans of offsets). They are set in the
same transaction that adds the snapshot. The snapshot's summary names the batch's ranges
(`fleet.ranges`); the summary alone would be lost when snapshots expire. The transaction is built on
the snapshot that was read, and a catalog refuses it after another commit. Then the written offsets
are read again, and a former owner that wakes up finds them.

pyiceberg writes the files from rows that come batch by batch. It cannot fill a partitioned table
from a stream; then the rows are a whole table in memory. Partition values are not part of a file's
path, so a value may be longer than a folder's name. Cost: about 100 ms a commit, one at a time over
all writers of a table; some 60 bytes of metadata per partition, and per range of a snapshot. Data
files of a refused commit stay until orphan files are removed, because a refusal does not prove that
the table does not name them.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from fleet.errors import FleetError
from fleet.extras import need
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import arrow_schema, open_reader, refuse_value, refuse_years
from fleet.sinks.batch_rows import (
    Spans,
    Transform,
    add_span,
    columns,
    format_spans,
    key,
    new_ranges,
    new_rows,
    parse_spans,
)

PROPERTY: Final = "fleet.written."
RANGES: Final = "fleet.ranges"
_RETRIES: Final = "commit.retry.num-retries"
_NO_VALUE_IN_PATHS: Final = {
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
}
_TRIES: Final = 20
_PAUSE: Final = 0.05
"""Seconds, times the number of the try: other writers with small batches are faster."""


def write_iceberg(
    rows: Any,
    table: str,
    context: BatchContext,
    *,
    catalog: Any,
    transform: Transform | None = None,
    name: str = "",
) -> int:
    """Appends a batch's rows once, however often it is repeated; returns how many of its ranges
    were new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it. table: `namespace.table`, created at
    the first write (the namespace must exist). catalog: a pyiceberg catalog, or the name of one in
    its configuration. transform: makes rows of the records that are not written yet (aggregates
    need it). name: tells apart two writes of one batch to one table. Raises FleetError if rows
    cannot be left out or stored, or if other processes keep committing.
    """
    need("pyiceberg", "pyiceberg_core")
    loaded = _catalog(catalog)
    if context.warm or context.trial:
        return 0
    files: list[Any] = []
    of: tuple[Any, ...] = ()
    for number in range(_TRIES):
        time.sleep(_PAUSE * number)
        found = _table(loaded, table, rows, transform)
        written = {
            each: parse_spans(found.properties.get(PROPERTY + key(context, each, name)))
            for each in context.ranges
        }
        new = new_ranges(written)
        if not new:
            return 0
        # If another worker committed other offsets meanwhile, these files are still valid.
        if of != (now := (written, found.schema().schema_id, found.spec().spec_id)):
            left = new_rows(rows, written, transform, sink="write_iceberg")
            files, of = _written_files(found, left), now
        if _committed(found, files, context, written, name):
            return len(new)
    raise FleetError(
        f"write_iceberg: others changed {table} {_TRIES} times while this batch was committed: "
        "make batches larger, or look for another worker that writes the same partitions"
    )


def read_iceberg_snapshot(table: str, *, catalog: Any) -> int | None:
    """Returns the id of a table's current snapshot, or None without a table or snapshot.

    Raises FleetError if the catalog cannot be read. table, catalog: as for `write_iceberg`.
    """
    need("pyiceberg")
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415

    try:
        found = _catalog(catalog).load_table(table).current_snapshot()
    except NoSuchTableError:
        return None
    except Exception as error:  # of the catalog's own client
        raise FleetError(f"the Iceberg table {table} cannot be read: {error}") from error
    return None if found is None else int(found.snapshot_id)


def _catalog(catalog: Any) -> Any:
    if not isinstance(catalog, str):
        return catalog
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    return load_catalog(catalog)


def _table(catalog: Any, name: str, rows: Any, transform: Transform | None) -> Any:
    """Returns the table as it is now; created with the columns of the rows if it is missing."""
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError  # noqa: PLC0415

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        made = rows if transform is None else transform(rows)
        with contextlib.suppress(TableAlreadyExistsError):
            catalog.create_table(name, schema=arrow_schema(made))
        return catalog.load_table(name)


def _written_files(table: Any, rows: Any) -> list[Any]:
    """Returns the data files that pyiceberg made of the rows; no snapshot names them yet.

    It is what `append` does before it commits.
    """
    from pyiceberg.io import pyarrow as writer  # noqa: PLC0415 - loads pyarrow

    table.metadata.properties.update(_NO_VALUE_IN_PATHS)  # in memory only
    schema, metadata = table.schema(), table.metadata
    here = set(columns(rows))
    made = writer.schema_to_pyarrow(schema, include_field_ids=False)
    target = made.empty_table().select([name for name in made.names if name in here]).schema
    with open_reader(rows, target, sink="write_iceberg", check=_checked(table)) as reader:
        writer._check_pyarrow_schema_compatible(  # noqa: SLF001 - `append` commits at once
            schema, reader.schema, format_version=metadata.format_version
        )
        some = reader
        if not table.spec().is_unpartitioned():
            some = reader.read_all()
        return list(writer._dataframe_to_data_files(metadata, some, table.io))  # noqa: SLF001


def _committed(
    table: Any,
    files: list[Any],
    context: BatchContext,
    written: Mapping[BatchRange, Spans],
    name: str,
) -> bool:
    """Commits rows and offsets in one; False if another commit came first."""
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

    held = {
        PROPERTY + key(context, each, name): format_spans(add_span(spans, each.start, each.end))
        for each, spans in written.items()
    }
    # In memory only: pyiceberg's own retry would commit over offsets that others wrote meanwhile.
    table.metadata.properties[_RETRIES] = "0"
    summary = {RANGES: ",".join(each.id for each in context.ranges)}
    try:
        with table.transaction() as transaction:
            transaction.set_properties(held)
            with transaction._append_snapshot_producer(summary) as snapshot:  # noqa: SLF001
                for file in files:
                    snapshot.append_data_file(file)
    except CommitFailedException:
        return False
    return True


def _checked(table: Any) -> Callable[[Any], None]:
    """Raises FleetError for what pyiceberg cannot write, or would write wrongly.

    It puts rows of 0.0 and -0.0 into the partitions of both, and finds no row for NaN.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded by the first write
    from pyiceberg.types import DoubleType, FloatType  # noqa: PLC0415

    schema = table.schema()
    floats = [
        schema.find_column_name(each.source_id)
        for each in table.spec().fields
        if isinstance(schema.find_field(each.source_id).field_type, (DoubleType, FloatType))
    ]

    def check(batch: Any) -> None:
        for name in batch.schema.names:
            refuse_years(batch, name, sink="write_iceberg")
        for name in floats:
            column = batch.column(name)
            negative = pc.and_(pc.equal(column, 0), pc.less(pc.divide(1.0, column), 0))
            odd = pc.or_(pc.is_nan(column), negative)
            why = "pyiceberg finds no partition for it"
            refuse_value(batch, name, odd, why, sink="write_iceberg")

    return check
