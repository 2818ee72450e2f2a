"""What of a batch is still to be written, as the rows that are to be written.

Problem: some of a batch's offsets may be written already, and rows that were made of several
records (counts, joins) belong to no offset, so that none of them can be left out afterwards.
Choice: what is written is left out before rows are made: a sink takes the batch's records and a
`transform` that makes rows of them. Rows that were made before are written where none of the
batch is there, left where all is, and refused where part of it is: counted wrong is worse than
tried again. Rows are a Spark DataFrame or a `pyarrow.Table`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from fleet.errors import FleetError
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.moments import utc_schema
from fleet.sinks.written import Spans, missing

Transform = Callable[[Any], Any]
PLACE: Final = ("topic", "partition", "offset")


def key(context: BatchContext, each: BatchRange, name: str) -> str:
    """Whose offsets a sink keeps: of this group, this incarnation of the topic, one partition.

    name tells apart several writes of a batch to one table.
    """
    writer = f"{context.group}/{name}" if name else context.group
    return f"{writer}/{each.topic_id}/{each.partition}"


def new_ranges(written: Mapping[BatchRange, Spans]) -> tuple[BatchRange, ...]:
    """Those of which some offset is not there."""
    return tuple(r for r, spans in written.items() if missing(r.start, r.end, spans))


def new_rows(
    rows: Any, written: Mapping[BatchRange, Spans], transform: Transform | None, *, sink: str
) -> Any:
    """The rows to write, some of whose ranges are new.

    Raises FleetError where rows that are there cannot be told from others.
    """
    there = {
        each: spans
        for each, all_spans in written.items()
        if (spans := tuple(s for s in all_spans if s[0] < each.end and each.start < s[1]))
    }
    names = columns(rows)
    lacking = [name for name in PLACE if name not in names]
    if transform is not None and lacking:
        raise FleetError(
            f"{sink} with a transform takes the batch's records; the rows lack "
            f"{', '.join(lacking)} (they have {', '.join(names)})"
        )
    if there and lacking:
        each, spans = next(iter(there.items()))
        raise FleetError(
            f"{sink}: offsets {spans[0][0]} to {spans[0][1] - 1} of {each.tp} are written already, "
            f"the rest of the batch is not, and the rows lack {', '.join(lacking)}, by which to "
            f"leave them out: keep these columns, or give {sink} the batch's records and the "
            "function that makes rows of them (transform=)"
        )
    left = _without(rows, there) if there else rows
    return left if transform is None else transform(left)


def is_arrow(rows: Any) -> bool:
    """A table on this worker, not a DataFrame of Spark."""
    return type(rows).__module__.partition(".")[0] == "pyarrow"


def as_arrow(rows: Any) -> Any:
    """The rows on this worker."""
    return rows if is_arrow(rows) else rows.toArrow()


def arrow_schema(rows: Any) -> Any:
    """Columns as Spark's tasks hand them over, or as they are here."""
    if is_arrow(rows):
        return utc_schema(rows.schema)
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - loads PySpark

    return to_arrow_schema(rows.schema, timezone="UTC")


def columns(rows: Any) -> Sequence[str]:
    """Their names."""
    return list(rows.column_names if is_arrow(rows) else rows.columns)


def _without(rows: Any, there: Mapping[BatchRange, Spans]) -> Any:
    if is_arrow(rows):
        return rows.filter(_arrow_condition(there.items()))
    for each, spans in there.items():
        inside = " OR ".join(f"(offset >= {a} AND offset < {b})" for a, b in spans)
        rows = rows.where(
            f"NOT (topic = '{each.topic}' AND partition = {each.partition} AND ({inside}))"
        )
    return rows


def _arrow_condition(there: Iterable[tuple[BatchRange, Spans]]) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415 - loads pyarrow

    left = pc.scalar(True)
    for each, spans in there:
        here = (pc.field("topic") == each.topic) & (pc.field("partition") == each.partition)
        for start, end in spans:
            left &= ~(here & (pc.field("offset") >= start) & (pc.field("offset") < end))
    return left
