"""An Iceberg sink: rows, and the offsets that the table holds, are one commit of the catalog.

Problem: after a kill between writing and committing to Kafka the same offsets come again [4], and
Iceberg has no transaction ids. Choice: what is written of each partition stands in the table's
properties (`fleet.written.<group>/<topic id>/<partition>`: spans of offsets), set in the same
transaction that adds the snapshot; the snapshot's summary names the batch's ranges
(`fleet.ranges`). Not the summary alone: expiring snapshots would forget it. The transaction is
built on the snapshot that was read, and a catalog refuses it where another came first: then what
is written is read anew, and a former owner who wakes up finds that it is there.

From a `pyarrow.Table` pyiceberg writes the files (partitions, field ids); from a DataFrame Spark's
tasks do, and this worker adds them in one transaction. Cost: about 100 ms a commit, one at a time
over all writers of a table; some 60 bytes of metadata per partition, and per range of a snapshot;
data files of a commit that was refused stay until orphan files are removed, since a refusal does
not say that the table does not name them.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from fleet.errors import FleetError
from fleet.extras import need
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.batch_rows import Transform, arrow_schema, is_arrow, key, new_ranges, new_rows
from fleet.sinks.data_files import FileWriter, ObjectStore, WrittenFile, written_files
from fleet.sinks.moments import in_utc
from fleet.sinks.written import Spans, added, of_text, to_text

PROPERTY: Final = "fleet.written."
RANGES: Final = "fleet.ranges"
_RETRIES: Final = "commit.retry.num-retries"
_TRIES: Final = 20
_PAUSE: Final = 0.05
"""Seconds, times the number of the try: others are faster with small batches."""


def write_iceberg(
    rows: Any,
    table: str,
    context: BatchContext,
    *,
    catalog: Any,
    transform: Transform | None = None,
    store: Mapping[str, str] | None = None,
    name: str = "",
) -> int:
    """Append a batch's rows once, however often it is repeated; how many of its ranges were new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it. table: `namespace.table`, made at the
    first write where it is missing (the namespace is there). catalog: a pyiceberg catalog, or the
    name of one in its configuration. transform: makes rows of the records that are not written yet
    (aggregates need it). store: how Spark's tasks reach the files, option → name of an environment
    variable (see ObjectStore). name: tells apart two writes of one batch to one table. Raises
    FleetError where rows cannot be left out, or others commit again and again.
    """
    need("pyiceberg")
    loaded = _catalog(catalog)
    if context.warm or context.trial:
        return 0
    files: list[WrittenFile] = []
    of: Mapping[BatchRange, Spans] | None = None
    for number in range(_TRIES):
        time.sleep(_PAUSE * number)
        found = _table(loaded, table, rows, transform)
        written = {
            each: of_text(found.properties.get(PROPERTY + key(context, each, name)))
            for each in context.ranges
        }
        new = new_ranges(written)
        if not new:
            return 0
        if written != of:  # at first; and where others wrote some of it, the files hold too much
            left = new_rows(rows, written, transform, sink="write_iceberg")
            if not is_arrow(left):
                writer = FileWriter(f"{found.location()}/data", ObjectStore(store or {}))
                files = written_files(left, writer, offsets=sum(r.end - r.start for r in new))
            of = written
        if _committed(found, left if is_arrow(left) else files, context, written, name):
            return len(new)
    raise FleetError(
        f"write_iceberg: others changed {table} {_TRIES} times while this batch was committed: "
        "make batches larger, or look for another worker that writes the same partitions"
    )


def _catalog(catalog: Any) -> Any:
    if not isinstance(catalog, str):
        return catalog
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    return load_catalog(catalog)


def _table(catalog: Any, name: str, rows: Any, transform: Transform | None) -> Any:
    """As it is now; made of the columns of the rows where there is none."""
    from pyiceberg.exceptions import (  # noqa: PLC0415
        NoSuchTableError,
        TableAlreadyExistsError,
    )

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        made = rows if transform is None else transform(rows)
        with contextlib.suppress(TableAlreadyExistsError):
            catalog.create_table(name, schema=arrow_schema(made))
        return catalog.load_table(name)


def _committed(
    table: Any,
    rows: Any,
    context: BatchContext,
    written: Mapping[BatchRange, Spans],
    name: str,
) -> bool:
    """Rows and offsets in one; False where another commit came first."""
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415

    if len(rows) == 0:  # no row was left
        return True
    held = {
        PROPERTY + key(context, each, name): to_text(added(spans, each.start, each.end))
        for each, spans in written.items()
    }
    # In memory only: pyiceberg's own retry would commit over offsets that others wrote meanwhile.
    table.metadata.properties[_RETRIES] = "0"
    summary = {RANGES: ",".join(each.id for each in context.ranges)}
    try:
        with table.transaction() as transaction:
            transaction.set_properties(held)
            if is_arrow(rows):
                transaction.append(in_utc(rows), snapshot_properties=summary)
            else:
                scheme, mark, _ = table.location().partition("://")
                paths = [f"{scheme}{mark}{f.path}" if mark else f.path for f in rows]
                transaction.add_files(
                    paths, snapshot_properties=summary, check_duplicate_files=False
                )
    except CommitFailedException:
        return False
    return True
