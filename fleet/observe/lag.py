"""What one partition looks like to one group: lag in records, in seconds, and its case. Pure.

Problem: the difference of two offsets is wrong or meaningless in several ordinary situations,
and tools that print it anyway page people at night. Choice: every situation has a name
(`LagCase`), and a figure is given only where it is one.

- Never committed: where reading would start depends on the client's reset policy, so no lag.
- Committed below the log start: retention took records; lag is what can still be read.
- Committed beyond the log end: the topic was recreated, or offsets were set by hand; no lag.
- Transaction markers occupy offsets: a lag of 1 may have nothing left to read. It is shown
  as it is, since nothing but reading tells.

Seconds: the age of the record at the committed offset, by interpolation between samples of
the end offset [Burrow and others do it from commits, which stall with the consumer]. Older
than the first sample is unknown, never guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.model import LagCase, PartitionState, Rate, TopicPartition

Sample = tuple[float, int]
"""(wall time, end offset)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Partitions' logs at one moment, and samples of their ends before that tell ages."""

    at: float
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    deleted: frozenset[str] = frozenset()
    samples: Mapping[TopicPartition, Sequence[Sample]] = field(default_factory=dict)


def lag_seconds(samples: Sequence[Sample], committed: int, now: float) -> float | None:
    """Age in seconds of the position `committed`; `samples` in order of time. None = unknown.

    0 where nothing waits at the last sample. Samples before a fall of the end offset belong
    to another log (a recreated topic) and are left out.
    """
    kept = samples[_last_fall(samples) :]
    if not kept:
        return None
    if committed >= kept[-1][1]:
        return 0.0
    for (t0, end0), (t1, end1) in zip(reversed(kept[:-1]), reversed(kept[1:]), strict=True):
        if end0 <= committed < end1:
            written = t0 + (t1 - t0) * (committed - end0) / (end1 - end0)
            return max(0.0, now - written)
    return None


def _last_fall(samples: Sequence[Sample]) -> int:
    """Where the current log's samples begin."""
    for index in range(len(samples) - 1, 0, -1):
        if samples[index][1] < samples[index - 1][1]:
            return index
    return 0


def lag_of(
    *,
    committed: int | None,
    log_start: int | None,
    log_end: int | None,
    deleted: bool = False,
    unreadable: bool = False,
) -> tuple[LagCase, int | None]:
    """The case of a partition and its lag in records (never negative), None where it is none."""
    if deleted:
        return LagCase.TOPIC_DELETED, None
    if unreadable:
        return LagCase.UNKNOWN, None
    if committed is None:
        return LagCase.NEVER_COMMITTED, None
    if log_start is None or log_end is None:
        return LagCase.UNKNOWN, None
    if committed > log_end:
        return LagCase.BEYOND_END, None
    if committed < log_start:
        return LagCase.BELOW_START, log_end - log_start
    return LagCase.OK, log_end - committed


def partition_state(
    *,
    tp: TopicPartition,
    committed: int | None,
    log_start: int | None,
    log_end: int | None,
    deleted: bool,
    unreadable: bool,
    owner: str | None,
    samples: Sequence[Sample],
    now: float,
) -> PartitionState:
    """Everything known of one partition; `unreadable`: the group's offsets were not told."""
    case, lag = lag_of(
        committed=committed,
        log_start=log_start,
        log_end=log_end,
        deleted=deleted,
        unreadable=unreadable,
    )
    seconds = None
    if lag == 0:
        seconds = 0.0
    elif lag is not None and committed is not None and log_start is not None:
        seconds = lag_seconds(samples, max(committed, log_start), now)
    return PartitionState(
        tp=tp,
        committed=committed,
        log_start=None if deleted else log_start,
        log_end=None if deleted else log_end,
        lag=lag,
        lag_seconds=seconds,
        case=case,
        owner=owner,
    )


def rate(before: PartitionState, after: PartitionState, seconds: float) -> Rate:
    """Records per second between two looks at one partition; None where an offset went back."""
    return Rate(
        produced=_speed(before.log_end, after.log_end, seconds),
        consumed=_speed(before.committed, after.committed, seconds),
    )


def _speed(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds
