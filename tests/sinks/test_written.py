"""Spans of offsets: the arithmetic of what is written."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleet.sinks.batch_rows import (
    MOST_SPANS,
    add_span,
    format_spans,
    merge_spans,
    missing,
    parse_spans,
)

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=20)


@given(spans, st.integers(0, 60), st.integers(1, 20))
def test_spans_are_sets_of_offsets(parts, start, length):
    """Against Python's own sets."""
    written, held = (), set()
    for first, count in parts:
        written = add_span(written, first, first + count)
        held |= set(range(first, first + count))
    assert {at for a, b in written for at in range(a, b)} == held
    assert all(a[1] < b[0] for a, b in pairwise(written)), "disjoint, apart"
    lacking = missing(start, start + length, written)
    assert {at for a, b in lacking for at in range(a, b)} == set(
        range(start, start + length)
    ) - held
    assert parse_spans(format_spans(written)) == written
    assert merge_spans((first, first + count) for first, count in parts) == written


def test_the_lowest_gap_is_closed_where_there_are_too_many():
    """Dead letters of years: what never comes again is not kept for ever."""
    written = ()
    for at in range(0, 2 * MOST_SPANS + 2, 2):
        written = add_span(written, at, at + 1)
    assert len(written) == MOST_SPANS
    assert written[:2] == ((0, 3), (4, 5))
