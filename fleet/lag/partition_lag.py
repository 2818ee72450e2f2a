"""What waits in each partition of each group: in records, in seconds, and its case. Pure.

Problem: the difference of two offsets is wrong or meaningless in several ordinary situations,
and tools that print it anyway page people at night. Choice: every situation has a name
(`LagCase`), and a figure is given only where it is one; all rows at once.

- Never committed, or a negative offset, which Kafka's clients take for none: where reading would
  start depends on the client's reset policy, so no lag.
- Committed below the log start: retention took records; lag is what can still be read.
- Committed beyond the log end: the topic was recreated, or offsets were set by hand; no lag.
- Left: the group is settled and none of its members subscribes to the topic any more. Nobody of it
  will read there, so no lag, whatever was committed.
- A share group has no position: its coordinator counts what is not yet done with. A broker that
  does not tell that count leaves the lag unknown, unless its first open record is the log's end.
- Transaction markers occupy offsets: a lag of 1 may have nothing left to read. It is shown
  as it is, since nothing but reading tells.

Seconds: the age of the record at which reading goes on, by interpolation between samples of
the end offset [Burrow and others do it from commits, which stall with the consumer]. Older
than the first sample is unknown, never guessed; what it is at least stands beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.lag.end_history import EndHistory
from fleet.lag.lag_columns import NONE, Floats, Longs, Rows, portions
from fleet.model import LagCase, TopicPartition

CASES: Final = tuple(LagCase)
"""What the numbers in `Lag.case` mean."""
NO_SHARE: Final = -2
"""Of a row: its group is no share group."""
_CODE: Final = {case: code for code, case in enumerate(CASES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Partitions' logs at one moment, and their ends before, which tell ages."""

    at: float
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    deleted: frozenset[str] = frozenset()
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Topic name → number of partitions; one beyond it was deleted with an older topic."""
    before: EndHistory = field(default_factory=EndHistory)

    def is_deleted(self, tp: TopicPartition) -> bool:
        """The topic is gone, or was created anew with fewer partitions."""
        return tp.topic in self.deleted or tp.partition >= self.partitions.get(
            tp.topic, tp.partition + 1
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lag:
    """Columns of equal length. An unknown offset or lag is NONE, unknown seconds are NaN."""

    start: Longs
    end: Longs
    case: NDArray[np.int8]
    """A place in `CASES`."""
    records: Longs
    seconds: Floats
    """Age of the record at which reading goes on."""
    waited: Floats
    """The same, or what it is at least."""

    @classmethod
    def of_length(cls, size: int) -> "Lag":
        """Columns to be filled."""
        start, end, records = (np.empty(size, dtype=np.int64) for _ in range(3))
        seconds, waited = np.empty(size), np.empty(size)
        case = np.empty(size, dtype=np.int8)
        return cls(start=start, end=end, case=case, records=records, seconds=seconds, waited=waited)

    def where(self, rows: Rows | Longs | slice) -> "Lag":
        """These rows alone."""
        return Lag(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


def measured(
    committed: Longs,
    *,
    tps: Sequence[TopicPartition],
    which: Longs,
    logs: Logs,
    unreadable: Rows | None = None,
    counted: Longs | None = None,
    left: Rows | None = None,
) -> Lag:
    """Measure the lag of each committed offset in the partition `tps[which]`.

    `unreadable`: rows of groups whose offsets were not told. `counted`: of share groups, the lag
    that their coordinator counted, NONE where it told none; NO_SHARE in all other rows.
    `left`: rows of topics that the group subscribes to no more.
    """
    starts, ends = (
        np.array([offsets.get(tp, NONE) for tp in tps], dtype=np.int64)
        for offsets in (logs.starts, logs.ends)
    )
    deleted = np.array([logs.is_deleted(tp) for tp in tps], dtype=np.bool_)
    untold = np.zeros(len(committed), dtype=np.bool_) if unreadable is None else unreadable
    gone = np.zeros(len(committed), dtype=np.bool_) if left is None else left
    shared = np.broadcast_to(np.int64(NO_SHARE), len(committed)) if counted is None else counted
    found = Lag.of_length(len(committed))
    for rows in portions(len(committed)):
        place, lag = which[rows], found.where(rows)  # views: what is written there is found's
        lag.start[:], lag.end[:] = starts[place], ends[place]
        lag.records[:], lag.case[:] = records_waiting(
            committed[rows],
            start=lag.start,
            end=lag.end,
            deleted=deleted[place],
            unreadable=untold[rows],
            counted=shared[rows],
            left=gone[rows],
        )
        _date(lag, committed[rows], tps=tps, which=place, logs=logs)
    return found


def _date(
    lag: Lag, committed: Longs, *, tps: Sequence[TopicPartition], which: Longs, logs: Logs
) -> None:
    """Since when each row has waited."""
    lag.seconds[:] = lag.waited[:] = np.where(lag.records == 0, 0.0, np.nan)
    rows = np.flatnonzero(lag.records > 0)
    if len(rows):
        last = (lag.end - lag.records)[rows]
        lag.seconds[rows], lag.waited[rows] = logs.before.ages(tps, which[rows], last, logs.at)
        # Of a share group the oldest record that waits is that one, or one before it.
        lag.seconds[rows[np.maximum(committed, lag.start)[rows] < last]] = np.nan


def records_waiting(
    committed: Longs,
    *,
    start: Longs,
    end: Longs,
    deleted: Rows,
    unreadable: Rows,
    counted: Longs,
    left: Rows,
) -> tuple[Longs, NDArray[np.int8]]:
    """Records that wait in each row (never negative; NONE: it cannot be said), and its case."""
    unknown = (start == NONE) | (end == NONE)
    shared = counted != NO_SHARE
    case = np.select(
        [
            deleted,
            left,
            unreadable,
            committed < 0,
            unknown,
            committed > end,
            shared & (counted == NONE) & (committed < end),
            ~shared & (committed < start),
        ],
        [
            _CODE[LagCase.TOPIC_DELETED],
            _CODE[LagCase.LEFT],
            _CODE[LagCase.UNKNOWN],
            _CODE[LagCase.NEVER_COMMITTED],
            _CODE[LagCase.UNKNOWN],
            _CODE[LagCase.BEYOND_END],
            _CODE[LagCase.UNKNOWN],
            _CODE[LagCase.BELOW_START],
        ],
        _CODE[LagCase.OK],
    ).astype(np.int8)
    behind, below = case == _CODE[LagCase.OK], case == _CODE[LagCase.BELOW_START]
    waiting = np.where(shared & (counted != NONE), counted, end - committed)
    records = np.select([behind, below], [waiting, end - start], np.int64(NONE))
    return records.astype(np.int64), case
