"""A Delta Lake sink: rows and the offsets that they stand for are one commit.

Problem: after a kill between writing and committing to Kafka the same offsets come again [4].
Choice: Delta's own application transactions (`txn` actions): for each partition of a topic an
application id `fleet/<group>/<topic id>/<partition>`, whose version is the end offset of what the
table holds of it. A batch first asks for these versions, leaves out what is there, and commits
the files together with the new versions; delta-rs refuses a commit over a transaction of the same
application that it has not read, so that a former owner who wakes up is refused, too. Offsets with
gaps (a search for poison) need more numbers: their bounds are versions of `<id>/more/<n>`.

delta-rs writes the files and checks the table's rules (NOT NULL, CHECK, invariants, generated
columns), from rows that come batch by batch; into a partitioned table from a whole table in memory.
Its folders hold partition values, which a file system limits to 255 bytes; such rows are written
"apart" (see partition_values). Cost: about 3 ms for each partition's version and 20 to 40 ms a
commit; a table's log keeps the ids for good; files of a commit that was refused stay until VACUUM,
since a refusal does not say that the table does not name them.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.errors import FleetError
from fleet.extras import need
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import arrow_schema, open_reader
from fleet.sinks.batch_rows import Transform, key, new_ranges, new_rows
from fleet.sinks.object_store import delta_options
from fleet.sinks.partition_values import (
    fit_folders,
    is_text,
    readable,
    refuse_types,
    write_apart,
)
from fleet.sinks.written import Spans, added

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
    """Append a batch's rows once, however often it is repeated; how many of its ranges were new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it. table: a folder or s3://…, made at
    the first write, partitioned by `partition_by`. transform: makes rows of the records that are
    not written yet (aggregates need it). store: option of the object store → name of an
    environment variable (see object_store). name: tells apart two writes of one batch to one table.
    Raises FleetError where rows cannot be left out, the table cannot take them, or others commit
    the same offsets again and again.
    """
    delta = _load()
    if context.warm or context.trial:
        return 0
    place = table.rstrip("/")
    options = delta_options(store or {}) if "://" in place else None
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
        """What the table holds of each range's partition, by its log as of now."""
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
        """Files and offsets in one; False where others wrote these offsets meanwhile."""
        at_ms = time.time_ns() // 1_000_000
        versions: dict[str, int] = {}
        for each in new:
            app, before = self._id(context, each), written[each]
            after = _versions(app, added(before, each.start, each.end))
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
            return False  # read anew: somebody else may have made it, and written
        try:
            self._append(rows, properties)
        except self._delta.exceptions.CommitFailedError as error:
            # The files stay: a store that took the commit and said 503 refuses the repetition.
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
                some = readable(reader.read_all(), by)
                if not fit_folders(self._table, some, by):
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
        """Makes the table of the columns of the rows.

        An empty text is null in a partition column, so that no such column requires a value.
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
    """Application id → version: the last end, and where there is more than [0, end), the bounds."""
    bounds = [bound for span in spans for bound in span]
    more = bounds[:-1] if bounds[:-1] != [0] else []
    return {
        app: bounds[-1],
        f"{app}/more": len(more),
        **{f"{app}/more/{n}": bound for n, bound in enumerate(more)},
    }
