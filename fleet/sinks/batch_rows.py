"""Finds what of a batch is still to be written, as rows.

Problem: some of a batch's offsets may be written already. Rows that were made of several records
(counts, joins) belong to no offset, so that they cannot be left out afterwards. Choice: written
records are left out before rows are made: a sink takes the batch's records and a `transform` that
makes rows of them. Rows that were made before are written if none of the batch is written, left out
if all is, and refused if part of it is. A wrong count is worse than another try. Rows that are of
no record of the batch are refused too (an outer join's nulls, another topic's name), because it is
not known whether they are written. Rows are a Spark DataFrame or a `pyarrow.Table`. Cost: if part
of the batch is written, one more job of Spark looks for such rows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from fleet.errors import FleetError
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import is_arrow

# The offsets of a partition that a sink has written. One number cannot say that offset 10 is
# missing and 11 is written, as after a search for poison [9]. So disjoint spans in order, nearly
# always one, are stored in the rows' transaction. At most MOST_SPANS are, and the lowest gap is
# closed first: offsets lost to dead letters or retention never come again.


MOST_SPANS: Final = 64
Span = tuple[int, int]
"""First offset, next after the last."""
Spans = tuple[Span, ...]


def missing(start: int, end: int, written: Iterable[Span]) -> Spans:
    """Returns what of [start, end) is in none of the spans (disjoint, in order)."""
    found = []
    at = start
    for first, after in written:
        if after <= at or first >= end:
            continue
        if first > at:
            found.append((at, first))
        at = max(at, after)
    if at < end:
        found.append((at, end))
    return tuple(found)


def merge_spans(spans: Iterable[Span]) -> Spans:
    """Returns the same offsets in order; spans that touch become one."""
    merged: list[Span] = []
    for first, after in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], after))
        else:
            merged.append((first, after))
    return tuple(merged)


def add_span(written: Iterable[Span], start: int, end: int) -> Spans:
    """Returns the spans with [start, end) as a sink stores them: at most MOST_SPANS."""
    merged = list(merge_spans([*written, (start, end)]))
    while len(merged) > MOST_SPANS:
        merged[:2] = [(merged[0][0], merged[1][1])]
    return tuple(merged)


def format_spans(written: Iterable[Span]) -> str:
    """Returns `0-100,105-200`, for sinks that store text."""
    return ",".join(f"{start}-{end}" for start, end in written)


def parse_spans(text: str | None) -> Spans:
    """Returns the spans that `format_spans` wrote; nothing written without a text."""
    pairs = (each.split("-") for each in (text or "").split(",") if each)
    return tuple((int(start), int(end)) for start, end in pairs)


Transform = Callable[[Any], Any]
PLACE: Final = ("topic", "partition", "offset")
_TOLD: Final = 5
"""Number of partitions that a sentence names."""


def key(context: BatchContext, each: BatchRange, name: str) -> str:
    """Returns the key of a sink's offsets: this group, this incarnation of the topic, one
    partition.

    name tells apart several writes of a batch to one table.
    """
    writer = f"{context.group}/{name}" if name else context.group
    return f"{writer}/{each.topic_id}/{each.partition}"


def new_ranges(written: Mapping[BatchRange, Spans]) -> tuple[BatchRange, ...]:
    """Returns the ranges of which some offset is not written."""
    return tuple(r for r, spans in written.items() if missing(r.start, r.end, spans))


def new_rows(
    rows: Any, written: Mapping[BatchRange, Spans], transform: Transform | None, *, sink: str
) -> Any:
    """Returns the rows to write; some of their ranges are new.

    Raises FleetError if written rows cannot be told from others.
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
            f"{sink} has already written offsets {spans[0][0]} to {spans[0][1] - 1} of {each.tp}; "
            f"to skip them it needs the columns {', '.join(lacking)}, which the rows lack; keep "
            f"these columns, or give {sink} the batch's records and a transform= that makes rows"
        )
    if there:
        refuse_external(rows, written, sink=sink)
    left = _without(rows, there) if there else rows
    return left if transform is None else transform(left)


def refuse_external(
    rows: Any, ranges: Collection[BatchRange], *, sink: str, by: Sequence[str] = PLACE
) -> None:
    """Raises FleetError if a row is of no record of the batch, by the columns `by`."""
    odd = _external(rows, ranges, by)
    if not odd.num_rows:
        return
    (row,) = odd.slice(0, 1).to_pylist()
    told = [f"{name} {'null' if row[name] is None else row[name]}" for name in by]
    names = [str(each.tp) for each in ranges]
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    raise FleetError(
        f"{sink}: a row has {', '.join(told[:-1])} and {told[-1]}, but the batch has "
        f"{', '.join(names[:_TOLD])}{more}; these columns name the record of a row; keep them as "
        f"they were read, or give {sink} the batch's records and a transform= that makes rows"
    )


def columns(rows: Any) -> Sequence[str]:
    """Returns the names of the columns."""
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


def _external(rows: Any, ranges: Collection[BatchRange], by: Sequence[str]) -> Any:
    """Returns rows of no partition of the batch, or with nulls in the columns `by`."""
    by_topic: dict[
        str, list[int]
    ] = {}  # one condition per partition would cost the square of their number
    for each in ranges:
        by_topic.setdefault(each.topic, []).append(each.partition)
    if not is_arrow(rows):
        here = " OR ".join(
            f"(topic = '{topic}' AND partition IN ({', '.join(map(str, partitions))}))"
            for topic, partitions in by_topic.items()
        )
        known = " AND ".join(f"{name} IS NOT NULL" for name in by)
        return rows.where(f"NOT (({here}) AND {known})").limit(1).toArrow()
    import pyarrow.compute as pc  # noqa: PLC0415 - loads pyarrow

    ours = pc.scalar(False)
    for topic, partitions in by_topic.items():
        ours |= (pc.field("topic") == topic) & pc.field("partition").isin(partitions)
    for name in by:
        ours &= ~pc.field(name).is_null()
    return rows.filter(~ours)


def _arrow_condition(there: Iterable[tuple[BatchRange, Spans]]) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415 - loads pyarrow

    left = pc.scalar(True)
    for each, spans in there:
        here = (pc.field("topic") == each.topic) & (pc.field("partition") == each.partition)
        for start, end in spans:
            left &= ~(here & (pc.field("offset") >= start) & (pc.field("offset") < end))
    return left
