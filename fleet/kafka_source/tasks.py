"""The work of one Spark task: it reads its ranges to their ends.

Problem: a range's last offset may be a transaction marker or compacted, a start may be deleted, and
a broker may stop answering. A loop that waits for "the last record" never ends. Choice: a range is
done when the log has been read to its end or beyond, whatever is there [7]. A start outside of the
log is an error, and no progress for `read_timeout` fails the task. The next batches are requested
before the last ones are decoded. The task joins no group. Cost: connections of its own for each
task (10 ms), and up to a megabyte of each partition that is read needlessly behind a range's end.

A deleted start is no failure for a compacted log that is read whole: the caller passes what to
yield for it (`gone`), and reading goes on where the log begins.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fleet.kafka_source.batch_fetcher import OUT_OF_RANGE, BatchFetcher, FetchedPart
from fleet.kafka_source.bounds import EARLIEST, LATEST, Where
from fleet.kafka_source.failures import (
    DENIED,
    RangeDamaged,
    RangeRefused,
    RangeTruncated,
    RangeUnread,
    code_named,
)
from fleet.kafka_source.pieces import OffsetRange, Piece
from fleet.kafka_source.record_batches import Cut, DamagedBatch, before, cut, select_committed
from fleet.kafka_source.record_fields import Fields, Ints, fields

_NEEDED = {"kafka": "kafka-python", "google_crc32c": "google-crc32c"}
READ_TIMEOUT = 20.0
"""Seconds without progress after which a range fails."""
_TOGETHER = 64 << 20
"""Bytes of pieces in one record batch: a column of Arrow ends at 2 GiB."""
_CORRUPT = 2
"""Kafka's code for damage that the broker itself found: CORRUPT_MESSAGE."""
_POLL = 0.25
_ASKING = 5.0
_AGAIN = 0.1


def reading(
    login: Mapping[str, str], *, isolation: str, check: Callable[[], None] = lambda: None
) -> BatchFetcher:
    """Returns a reader for `read_ranges`, which closes it; login: librdkafka's options for that.

    Raises RangeUnread if this machine lacks a package, because no record is at fault.
    """
    for module, package in _NEEDED.items():
        if find_spec(module) is None:
            raise RangeUnread(
                f"Python {sys.executable} of this Spark task lacks {package}: install it on every "
                f"machine of the Spark cluster (pip install {' '.join(_NEEDED.values())})"
            )
    committed = isolation == "read_committed"
    return BatchFetcher(login, client_id="fleet-ranges", committed=committed, check=check)


def read_tables(
    login: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    *,
    isolation: str,
    make: Callable[[Sequence[Piece]], Any],
    check: Callable[[], None],
) -> Iterator[Any]:
    """Yields the records of the ranges, as `make` makes them of pieces, read by the worker itself.

    login: librdkafka's options. Raises what `read_ranges` raises, and what `check` raises.
    """
    fetching = reading(login, isolation=isolation, check=check)
    return read_ranges(fetching, ranges, read_timeout=READ_TIMEOUT, make=make)


class _Part(NamedTuple):
    """What came of one partition, before it is decoded."""

    where: Where
    wanted: OffsetRange
    found: Cut
    plain: npt.NDArray[np.bool_] | None
    """Batches that are wanted: not of an aborted transaction, in one or not; None: all."""


def read_ranges(
    fetching: BatchFetcher,
    ranges: Sequence[OffsetRange],
    *,
    read_timeout: float,
    make: Callable[[Sequence[Piece]], Any],
    gone: Callable[[OffsetRange, int | None], Any] | None = None,
    since: Mapping[Where, int] | None = None,
    keep: bool = False,
) -> Iterator[Any]:
    """Yields the records of the ranges, at most one range per partition.

    keep: leave connections open for the next ranges; else `fetching` is closed at the end. make:
    columns of pieces of partitions (one call for what came at once, more if that is large). gone:
    what to yield for a part of a range before the log's first offset; without it that part is a
    failure. since: see `_holes`.
    """
    todo = {(each.topic, each.partition): each for each in ranges}
    moved, last_error = time.monotonic(), ""
    corrupt: Where | None = None
    with nullcontext() if keep else fetching:
        while todo:
            positions = {where: left.start for where, left in todo.items()}
            parts: list[_Part] = []
            for each in fetching.fetch(positions, min(_POLL, read_timeout)):
                if each.error == OUT_OF_RANGE:
                    lost = _lost(fetching, each.where, todo, told=gone is not None)
                    yield from (gone(each, None) for each in lost if gone)
                    moved = time.monotonic()
                elif each.error:
                    last_error = _raise_if_permanent(each)
                    corrupt = each.where if each.error == _CORRUPT else corrupt
                elif each.data:
                    parts.append(_part(each, todo))
            if todo:
                fetching.send({where: left.start for where, left in todo.items()})
            read = [(part, _fields(part)) for part in parts]
            if gone and since:
                for part, records in read:
                    for hole in _holes(part, records.offset, since):
                        yield gone(*hole)
            pieces = [piece for each in read if (piece := _piece(*each)) is not None]
            for some in _in_parts(pieces):
                yield make(some)
            if parts:
                moved = time.monotonic()  # after the yield: Spark may take long
            elif time.monotonic() - moved > read_timeout:
                if corrupt in todo:
                    raise RangeDamaged(*corrupt, todo[corrupt].start, None, code_named(_CORRUPT))
                raise RangeUnread(_stall_error(todo, read_timeout, last_error or fetching.problem))


def _in_parts(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """Yields all together, or several parts: of one piece, or of at most _TOGETHER bytes."""
    first = size = 0
    for at, each in enumerate(pieces):
        more = len(each.records.data)
        if at > first and size + more > _TOGETHER:
            yield pieces[first:at]
            first, size = at, 0
        size += more
    if pieces:
        yield pieces[first:]


def _part(each: FetchedPart, todo: dict[Where, OffsetRange]) -> _Part:
    """Returns what came, found in the bytes; moves or ends the range."""
    found = cut(each.data)
    left = todo[each.where]
    after = found.next
    if after is None:
        why = found.damaged or "the record batch is longer than the broker's copy of it"
        upto = None if found.damaged is None else found.damaged.after
        raise RangeDamaged(*each.where, left.start, upto, why)
    if after >= left.end:
        found = before(found, left.end)  # up to a megabyte came needlessly: it is not decoded
        del todo[each.where]
    else:
        todo[each.where] = left._replace(start=after)
    return _Part(each.where, left, found, _wanted(left, found, each.aborted))


def _fields(part: _Part) -> Fields:
    try:
        return fields(part.found.batches)
    except DamagedBatch as error:
        offset = max(part.wanted.start, error.offset)
        raise RangeDamaged(*part.where, offset, error.after, error) from error


def _wanted(
    left: OffsetRange, found: Cut, aborted: Sequence[tuple[int, int]]
) -> npt.NDArray[np.bool_] | None:
    plain = select_committed(found, aborted)
    if left.transactions is None:
        return plain
    mine: npt.NDArray[np.bool_] = (found.batches.producer >= 0) == left.transactions
    return mine if plain is None else mine & plain


def _holes(
    part: _Part, offsets: Ints, since: Mapping[Where, int]
) -> Iterator[tuple[OffsetRange, int]]:
    """Returns the range in which offsets are missing, and how many: the log was compacted there.

    Records of aborted transactions and ends of transactions are present, though no reader gets
    them.
    """
    wanted, found = part.wanted, part.found
    start = max(wanted.start, since.get(part.where, wanted.end))
    end = min(wanted.end, found.next or 0)
    there = np.sort(np.concatenate([offsets, [each.offset for each in found.markers]]))
    there = there[(there >= start) & (there < end)]
    if end - start > len(there):
        edges = np.concatenate([[start - 1], there, [end]]).astype(np.int64)
        holes = np.flatnonzero(np.diff(edges) > 1)
        first, after = int(edges[holes[0]]) + 1, int(edges[holes[-1] + 1])
        yield wanted._replace(start=first, end=after), end - start - len(there)


def _piece(part: _Part, records: Fields) -> Piece | None:
    """Returns the records of one partition that are in its range; None if there are none."""
    batches = part.found.batches
    first, after = np.searchsorted(records.offset, (part.wanted.start, part.wanted.end))
    if part.plain is not None:
        chosen = np.flatnonzero(part.plain[records.batch[first:after]]) + first
        records = records.rows(chosen)
    elif first or after < len(records.offset):
        records = records.rows(slice(int(first), int(after)))
    if not len(records.offset):
        return None
    topic, partition = part.where
    return Piece(topic, partition, records, batches.epoch[records.batch])


def _lost(
    fetching: BatchFetcher, where: Where, todo: dict[Where, OffsetRange], *, told: bool
) -> list[OffsetRange]:
    """Returns what the log no longer has of a range; reading goes on after that."""
    left = todo[where]
    first, after = _bounds(fetching, where)
    if left.start > after or (left.start < first and not told):
        raise RangeTruncated(*where, left.start, first, after)
    if left.start >= first:
        return []  # it exists now: the leader did not know the last records yet
    lost = left._replace(end=min(first, left.end))
    if lost.end >= left.end:
        del todo[where]
    else:
        todo[where] = left._replace(start=lost.end)
    return [lost]


def _bounds(fetching: BatchFetcher, where: Where) -> tuple[int, int]:
    """Returns the log's first offset, and the one after its last."""
    found = [
        fetching.list_offsets({where: each}, _ASKING).get(where) for each in (EARLIEST, LATEST)
    ]
    offsets = [each.offset for each in found if each is not None and not each.error]
    if len(offsets) < len(found):
        raise RangeUnread(
            f"{where[0]}-{where[1]}: no broker returned where its log begins and ends"
        )
    return offsets[0], offsets[1]


def _raise_if_permanent(each: FetchedPart) -> str:
    """Raises an error that waiting does not cure; else returns its text for a stall's sentence."""
    if each.error in DENIED:
        raise RangeRefused(f"the brokers refuse: {code_named(each.error)}")
    time.sleep(_AGAIN)
    return code_named(each.error)


def _stall_error(
    todo: Mapping[Where, OffsetRange], read_timeout: float, last_error: str | None
) -> str:
    left = next(iter(todo.values()))
    more = f" and {len(todo) - 1} more" if len(todo) > 1 else ""
    why = f" (last error: {last_error})" if last_error else ""
    return (
        f"no progress within {read_timeout:g} s at offset {left.start} of "
        f"{left.topic}-{left.partition}, wanted up to {left.end}{more}{why}"
    )
