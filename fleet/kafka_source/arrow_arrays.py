"""Builds Arrow arrays of record fields from their buffers.

Problem: pa.array, pa.scalar and pa.table import pandas to check whether their input is pandas'.
That costs 0.2 s of CPU and 33 MB, just when a new member has read its first records. Choice: the
few kinds of columns that records have are built from numpy's memory and from bytes. Cost: about as
much code as each kind has buffers, and columns of at most 2 GiB.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from fleet.kafka_source.record_fields import Ints


def numbers(values: Any, kind: pa.DataType, *, valid: Any = None) -> pa.Array:
    """Returns an array of any kind as an Arrow array; null where `valid`, as many bools, is False.

    The memory is shared if the type is the same.
    """
    memory = np.ascontiguousarray(values, kind.to_pandas_dtype())
    buffers = [_bits(valid), pa.py_buffer(memory)]
    return pa.Array.from_buffers(kind, len(memory), buffers)


def binaries(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Returns an array of at most 2 GiB of bytes.

    kind: binary, or string if all of them are UTF-8.
    """
    nulls, valid = values.count(None), None
    if nulls == len(values):
        return pa.nulls(nulls, kind or pa.binary())
    if nulls:
        valid = [value is not None for value in values]
        values = [value or b"" for value in values]
    given = cast("Sequence[bytes]", values)
    sizes = np.fromiter(map(len, given), np.int64, len(given))
    buffers = [_bits(valid), _offsets(sizes), pa.py_buffer(b"".join(given))]
    return pa.Array.from_buffers(kind or pa.binary(), len(given), buffers)


def sliced(data: bytes, at: Ints, size: Ints) -> pa.Array:
    """Returns the bytes at ascending places as binary, at most 2 GiB; null if the size is -1.

    They are not copied one by one: an offsets array cuts the data into pieces, and Arrow takes
    these.
    """
    count = len(at)
    if not count or size.max() < 0:
        return pa.nulls(count, pa.binary())
    edges = np.zeros(2 * count + 2, np.int64)
    edges[1:-1:2] = at
    edges[2::2] = at + np.maximum(size, 0)
    edges[-1] = edges[-2]
    buffers = [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count + 1, buffers)
    return pieces.take(numbers(np.arange(1, 2 * count + 1, 2), pa.int64(), valid=size >= 0))


def repeated(text: str, count: int) -> pa.Array:
    """Returns one text so many times, at most 2 GiB."""
    value = text.encode()
    buffers = [None, _offsets(np.full(count, len(value))), pa.py_buffer(value * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def lists(
    kind: pa.ListType, rows: Sequence[Sequence[Any] | None], columns: Sequence[pa.Array]
) -> pa.Array:
    """Returns lists of structs; `rows` has their lengths, `columns` the fields of all structs."""
    struct = kind.value_type
    sizes = [0 if row is None else len(row) for row in rows]
    within = pa.Array.from_buffers(struct, sum(sizes), [None], children=list(columns))
    buffers = [_bits([row is not None for row in rows]), _offsets(sizes)]
    return pa.Array.from_buffers(kind, len(rows), buffers, children=[within])


def _offsets(sizes: Any) -> pa.Buffer:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] >= 1 << 31:
        raise OverflowError(f"{ends[-1]} bytes in one column of a batch; it holds 2 GiB at most")
    return cast("pa.Buffer", pa.py_buffer(ends.astype(np.int32)))


def _bits(valid: Any) -> pa.Buffer | None:
    kept = np.asarray(() if valid is None else valid, bool)
    if kept.all():
        return None
    return cast("pa.Buffer", pa.py_buffer(np.packbits(kept, bitorder="little")))
