"""A Delta Lake sink: rows and their offsets are one commit.

Problem: after a kill between writing and committing to Kafka the same offsets come again [4].
Choice: Delta's own application transactions (`txn` actions). Each partition of a topic has an
application id `fleet/<group>/<topic id>/<partition>`, whose version is the end offset of its
written records. A batch first reads these versions, leaves out what is written, and commits the
files with the new versions. delta-rs refuses a commit after an unread transaction of the same
application, so a former owner that wakes up is refused too. Offsets with gaps (a search for poison)
need more numbers: their bounds are versions of `<id>/more/<n>`.

delta-rs writes the files and checks the table's rules (NOT NULL, CHECK, invariants, generated
columns). Rows come batch by batch; for a partitioned table they come from a whole table in memory.
Its folders have partition values as names, which a file system limits to 255 bytes. Such rows are
written "apart" (see partition_values). Cost: about 3 ms for each partition's version and 20 to 40
ms a commit. A table's log keeps the ids for good. Files of a refused commit stay until VACUUM,
because a refusal does not prove that the table does not name them.
"""

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fleet.errors import FleetError
from fleet.extras import need
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import arrow_schema, open_reader, refuse_value, refuse_years
from fleet.sinks.batch_rows import Spans, Transform, add_span, key, new_ranges, new_rows

# How delta-rs connects to an object store: options by the names of environment variables.
#
# A job's code and its revision have no credentials: the worker resolves the names at each write.


_VARIABLES: Final = {
    # Ours → delta-rs', which is also the variable that is read if none is named.
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


def delta_options(store: Mapping[str, str]) -> dict[str, str]:
    """Returns delta-rs' storage options.

    Raises ValueError for an unknown option, and if a named variable is not set here.
    """
    if unknown := set(store) - set(_VARIABLES):
        raise ValueError(
            f"store: unknown option {', '.join(sorted(unknown))}; known: {', '.join(_VARIABLES)}"
        )
    found = {}
    for option, name in _VARIABLES.items():
        variable = store.get(option, name)
        value = os.environ.get(variable)
        if value is None and option in store:
            raise ValueError(f"store: {option} has to be in {variable}, which is not set here")
        if value:
            found[name] = value
    if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


# Partition values. delta-rs names a folder after each, and a file system takes 255 bytes: 50 emoji,
# or 1e-320 with all its zeros, are too long, though the log holds any text. Such a batch is written
# into a table of its own, in a folder `apart-<uuid>` below the table, with a number for each
# partition; the real table's commit then names these files with their values (two more commits,
# some 30 ms). delta-rs' own compaction makes folders, and so fails for a table with such
# partitions.


_FOLDER_BYTES: Final = 255
"""Bytes of one folder's name, in the usual file systems."""
_PATH_BYTES: Final = 700
"""Bytes of all folders of a file; an object's key has 1,024 bytes."""
_OTHER_BYTES: Final = 60
"""Bytes of any date, moment, whole number or null, at most."""
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

    It has some of bytes, but delta-rs reads back other bytes than it wrote.
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


def make_readable(rows: Any, by: Sequence[str]) -> Any:
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


def can_name_folders(table: Any, rows: Any, by: Sequence[str]) -> bool:
    """Whether delta-rs can name folders after the partition values of the rows."""
    if "delta.columnMapping.mode" in table.metadata().configuration:
        return True  # then they differ
    sizes = [len(quote(name)) + 1 + _folder_bytes(rows[name]) for name in by]
    return max(sizes) <= _FOLDER_BYTES and sum(sizes) <= _PATH_BYTES


def _folder_bytes(column: Any) -> int:
    """Returns the bytes of the longest value in a folder's name; the limit for a float with too
    many digits.
    """
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
    """Appends rows whose partition values are no valid names of folders, in one commit of the
    table.

    Raises what delta-rs raises, and FleetError if the table has features whose rules its copy would
    lack.
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
    """Returns the values as Delta's log writes them; empty is null there."""
    import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

    if pa.types.is_decimal(column.type):
        return [None if each is None else f"{each:f}" for each in column.to_pylist()]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"))  # the zone is UTC
    return [each or None for each in column.cast(pa.string()).to_pylist()]


_TRIES: Final = 5


def write_delta(
    rows: Any,
    table: str,
    context: BatchContext,
    *,
    transform: Transform | None = None,
    partition_by: Sequence[str] = (),
    store: Mapping[str, str] | None = None,
    name: str = "",
) -> int:
    """Appends a batch's rows once, however often it is repeated; returns how many of its ranges
    were new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it. table: a folder or s3://…, created at
    the first write, partitioned by `partition_by`. transform: makes rows of the records that are
    not written yet (aggregates need it). store: option of the object store → name of an environment
    variable (see object_store). name: tells apart two writes of one batch to one table. Raises
    FleetError if rows cannot be left out, if the table cannot take them, or if other processes keep
    committing the same offsets.
    """
    delta = _load()
    if context.warm or context.trial:
        return 0
    place, options = _place(table, store)
    sink = _Sink(delta, place, options, tuple(partition_by), name)
    for _ in range(_TRIES):
        written = sink.written(context)
        new = new_ranges(written)
        if not new:
            return 0
        left = new_rows(rows, written, transform, sink="write_delta")
        if sink.commit(left, context, written, new):
            return len(new)
    raise FleetError(
        f"write_delta: {table} was changed by others {_TRIES} times while this batch was written: "
        "look for another worker that writes the same partitions"
    )


def read_delta_version(table: str, *, store: Mapping[str, str] | None = None) -> int | None:
    """Returns the last version of a table, or None if no table is there.

    Raises FleetError if it cannot be read. table, store: as for `write_delta`.
    """
    delta = _load()
    place, options = _place(table, store)
    quick = None if options is None else {"max_retries": "1", "timeout": "10s", **options}
    try:
        if not delta.DeltaTable.is_deltatable(place, quick):
            return None
        found = delta.DeltaTable(place, storage_options=quick)
    except (delta.exceptions.DeltaError, OSError, ValueError) as error:
        why = re.sub(r"\s*\x1b\[\d+m↳\x1b\[0m", ":", str(error))
        why = " ".join(re.sub(r" in [\d.]+m?s\b", "", why).split())  # one text for one problem
        raise FleetError(f"the Delta table {table} cannot be read: {why}") from error
    return int(found.version())


def _place(table: str, store: Mapping[str, str] | None) -> tuple[str, dict[str, str] | None]:
    place = table.rstrip("/")
    return place, delta_options(store or {}) if "://" in place else None


def _load() -> Any:
    need("deltalake")
    import deltalake  # noqa: PLC0415 - 80 MB of memory, only for who writes
    import deltalake.transaction  # noqa: PLC0415

    return deltalake


class _Sink:
    def __init__(
        self,
        delta: Any,
        place: str,
        options: dict[str, str] | None,
        partition_by: tuple[str, ...],
        name: str,
    ) -> None:
        self._delta = delta
        self._place = place
        self._options = options
        self._by = partition_by
        self._name = name
        self._table: Any = None

    def written(self, context: BatchContext) -> dict[BatchRange, Spans]:
        """Returns the written offsets of each range's partition, by the table's log as of now."""
        self._table = None
        if self._delta.DeltaTable.is_deltatable(self._place, self._options):
            self._table = self._delta.DeltaTable(self._place, storage_options=self._options)
        return {each: self._spans(self._id(context, each)) for each in context.ranges}

    def _id(self, context: BatchContext, each: BatchRange) -> str:
        return f"fleet/{key(context, each, self._name)}"

    def _spans(self, app: str) -> Spans:
        """See `_versions`."""
        end = None if self._table is None else self._table.transaction_version(app)
        if end is None:
            return ()
        more = self._table.transaction_version(f"{app}/more") or 0
        bounds = [self._table.transaction_version(f"{app}/more/{n}") for n in range(more)]
        bounds = [*(bounds or [0]), end]
        return tuple(zip(bounds[::2], bounds[1::2], strict=True))

    def commit(
        self,
        rows: Any,
        context: BatchContext,
        written: Mapping[BatchRange, Spans],
        new: Sequence[BatchRange],
    ) -> bool:
        """Commits files and offsets in one; False if others wrote these offsets meanwhile."""
        at_ms = time.time_ns() // 1_000_000
        versions: dict[str, int] = {}
        for each in new:
            app, before = self._id(context, each), written[each]
            after = _versions(app, add_span(before, each.start, each.end))
            was = _versions(app, before) if before else {}
            # The end always: it is what others' commits collide with.
            versions |= {a: v for a, v in after.items() if a == app or was.get(a) != v}
        properties = self._delta.CommitProperties(
            app_transactions=[
                self._delta.Transaction(app, version, at_ms) for app, version in versions.items()
            ],
            max_commit_retries=100,
        )
        if self._table is None:
            self._create(rows)
            return False  # read again: another process may have created it, and written
        try:
            self._append(rows, properties)
        except self._delta.exceptions.CommitFailedError as error:
            # The files stay: a store that stored the commit and answered 503 refuses the
            # repetition.
            if "transaction" in str(error).lower():
                return False
            raise self._refusal(error) from error
        except self._delta.exceptions.DeltaError as error:
            raise self._refusal(error) from error
        return True

    def _append(self, rows: Any, properties: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

        schema = pa.schema(self._table.schema().to_arrow())
        by = self._table.metadata().partition_columns
        refuse_types(schema, by, self._place)
        with open_reader(rows, schema, sink="write_delta") as reader:
            some = reader
            if by:
                some = make_readable(reader.read_all(), by)
                if not can_name_folders(self._table, some, by):
                    write_apart(
                        self._delta, self._table, some,
                        place=self._place, options=self._options, properties=properties,
                    )  # fmt: skip
                    return
            self._delta.write_deltalake(
                self._table, some, mode="append", commit_properties=properties
            )

    def _refusal(self, error: Exception) -> FleetError:
        return FleetError(f"write_delta: {self._place} does not take the rows: {error}")

    def _create(self, rows: Any) -> None:
        """Creates the table with the columns of the rows.

        An empty text is null in a partition column, so no such column requires a value.
        """
        import pyarrow as pa  # noqa: PLC0415 - loaded by the first write

        schema = arrow_schema(rows)
        refuse_types(schema, self._by, self._place)
        for at, field in enumerate(schema):
            if field.name in self._by and is_text(field.type):
                schema = schema.set(at, field.with_nullable(True))
            try:
                self._delta.Schema.from_arrow(pa.schema([field]))
            except Exception as error:
                raise FleetError(
                    f"write_delta: column {field.name} is {field.type}, which Delta does not have: "
                    f"{str(error).splitlines()[0]}"
                ) from error
        self._delta.DeltaTable.create(
            self._place,
            schema=self._delta.Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(self._by),
            storage_options=self._options,
        )


def _versions(app: str, spans: Spans) -> dict[str, int]:
    """Returns application id → version: the last end, and for more than [0, end), the bounds."""
    bounds = [bound for span in spans for bound in span]
    more = bounds[:-1] if bounds[:-1] != [0] else []
    return {
        app: bounds[-1],
        f"{app}/more": len(more),
        **{f"{app}/more/{n}": bound for n, bound in enumerate(more)},
    }
