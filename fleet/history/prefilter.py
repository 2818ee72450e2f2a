"""Commits thinned before they are decoded: of each partition's commits only the last is read.

Problem: a chunk of ten thousand commits becomes a few hundred rows of `commits`, and decoding
all of them to keep these costs more than finding out which they are. Choice: where a chunk is
nothing but well-formed commits and their tombstones, rows are told apart by the bytes of their
keys and by the interval of their time, and only the last of each is decoded; the rest is counted.
Anything else in a chunk (events, records that cannot be read) makes it an ordinary one, which is
decoded whole. Cost: each chunk is looked through once more where it holds such a record.

Runs inside Spark's tasks, sent by value.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from fleet.history.rollup import STANDS_FOR, runs
from fleet.log.record_columns import columns, only_commits


def decoded_last(
    partition: Any,
    offset: Any,
    timestamp: Any,
    keys: pa.Array,
    values: pa.Array,
    *,
    interval: int,
) -> pa.RecordBatch:
    """`columns` of the records, or of the last commit of each key and interval (ms).

    Then with what each stands for: STANDS_FOR.
    """
    if not len(keys) or keys.null_count:
        return columns(partition, offset, timestamp, keys, values)
    coded = keys.dictionary_encode()
    if not only_commits(coded.dictionary, values):
        return columns(partition, offset, timestamp, keys, values)
    number, place, times = (np.asarray(e, np.int64) for e in (partition, offset, timestamp))
    order, begins = runs([np.asarray(coded.indices), times // interval])
    ends = np.append(begins[1:], len(order))
    last, first = order[ends - 1], order[begins]
    at = np.argsort(last)
    last, first, count = last[at], first[at], (ends - begins)[at]
    before = order[np.maximum(ends - 2, 0)][at]
    kept = pa.array(last)
    made = columns(number[last], place[last], times[last], keys.take(kept), values.take(kept))
    if made.column("problem").null_count < len(made):  # a text that is none: not so well-formed
        return columns(number, place, times, keys, values)
    own = {
        "commits": pa.array(count),
        "first_timestamp": pa.array(times[first]),
        "previous_timestamp": pa.array(times[before], mask=count == 1),
        "first_offset": pa.array(place[first]),
    }
    arrays = [*made.columns, *(own[name] for name in STANDS_FOR)]
    return pa.RecordBatch.from_arrays(arrays, [*made.schema.names, *STANDS_FOR])
