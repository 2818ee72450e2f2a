"""Rows of `lag` get fewer as they age: one of ten seconds, of a minute, of ten minutes.

Problem: where records wait, every look writes a row of every partition: 1,000 groups that wait
on 48 partitions are 400 million rows, 3 GB, a day. Choice: of a partition whose rows are older
than a day the last row of each minute stays, after a week the last of each ten minutes; where its
case changed within them, the last one of each case. Compaction does it, day by day. Cost: the
rows between are gone, and a day of `lag` is rewritten twice.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from fleet.history.rollup import codes, runs
from fleet.history.tables import day_of

_DAY: Final = 86_400.0
_HELD: Final = 1_000_000
"""Rows of one stretch that are held before they are thinned in between."""


def every_of(table: str, day: str, *, now: float) -> int:
    """Seconds of which one row is enough, of a table's UTC day; 0: all rows stay."""
    if table != "lag":
        return 0
    if day < day_of(now - 7 * _DAY):
        return 600
    return 60 if day < day_of(now - _DAY) else 0


def thinned(batches: Iterable[pa.RecordBatch], every: int) -> Iterator[pa.Table]:
    """Of rows of `lag` in order of time, those that stay; one stretch of `every` s is held."""
    held: list[pa.Table] = []
    stretch = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        number = np.asarray(batch.column("sampled_at")) // every
        begins = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)]
        for begin, end in pairwise(begins):
            if held and number[begin] != stretch:
                yield _last(held)
                held = []
            stretch = number[begin]
            held.append(pa.Table.from_batches([batch.slice(begin, end - begin)]))
            if len(held) > 1 and sum(each.num_rows for each in held) > _HELD:
                held = [_last(held)]
    if held:
        yield _last(held)


def _last(held: list[pa.Table]) -> pa.Table:
    """The last row of each partition of each group and of each case."""
    table = pa.concat_tables(held).combine_chunks()
    keys = [codes(table[name]) for name in ("group_id", "topic", "lag_case")]
    order, begins = runs([*keys, np.asarray(table["topic_partition"])])
    ends = np.append(begins[1:], len(order))
    return table.take(pa.array(np.sort(order[ends - 1])))
