"""Which offsets of a partition a sink holds already: spans, and what of a range is missing.

Problem: a batch is called again after a kill, cut anew after a failure (narrowed to halves, then
to records, which are asked again after later ones went well), or begun in mid-range where its
head was set aside [4, 9]. One number per partition cannot say that offset 10 is missing while 11
is there. Choice: disjoint spans in order, nearly always one; every sink keeps them beside its
rows, in the same transaction. Cost: a gap stays until it is filled, so at most MOST_SPANS are
kept and the lowest gap is closed first: a search leaves at most ten behind, others (dead letters,
what retention took) never come again.
"""

from collections.abc import Iterable
from typing import Final

MOST_SPANS: Final = 64
Span = tuple[int, int]
"""First offset, next after the last."""
Spans = tuple[Span, ...]


def missing(start: int, end: int, written: Iterable[Span]) -> Spans:
    """What of [start, end) is in none of the spans (disjoint, in order)."""
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


def joined(spans: Iterable[Span]) -> Spans:
    """The same offsets in order; spans that touch become one."""
    merged: list[Span] = []
    for first, after in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], after))
        else:
            merged.append((first, after))
    return tuple(merged)


def added(written: Iterable[Span], start: int, end: int) -> Spans:
    """The spans with [start, end), as a sink keeps them: at most MOST_SPANS."""
    merged = list(joined([*written, (start, end)]))
    while len(merged) > MOST_SPANS:
        merged[:2] = [(merged[0][0], merged[1][1])]
    return tuple(merged)


def to_text(written: Iterable[Span]) -> str:
    """`0-100,105-200`: as sinks keep it that keep text."""
    return ",".join(f"{start}-{end}" for start, end in written)


def of_text(text: str | None) -> Spans:
    """What `to_text` made; nothing written where there is no text."""
    pairs = (each.split("-") for each in (text or "").split(",") if each)
    return tuple((int(start), int(end)) for start, end in pairs)
