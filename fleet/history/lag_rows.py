"""Makes the rows of `lag`: each partition's last commit and its log's end at one moment.

Problem: a row per partition and refresh is thousands of millions a day, nearly all equal to the one
before. A hanging consumer commits nothing, so commits alone cannot show lag. Choice: a refresh
writes a row only if the committed offset or the end moved, if records wait, or if the last row is
an hour old. Between two rows of a partition nothing changed. Cases and seconds are those of
`fleet.lag.snapshot`, so that lag has one meaning in Fleet. Cost: the table starts with the first
refresh; earlier ends are unknown.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from fleet.history.memory import JobMemory, Key, ReportedLag
from fleet.lag.lag_columns import NONE, Longs
from fleet.lag.snapshot import CASES, Lag, Logs, Snapshot, measure_lag
from fleet.model import LagCase, TopicPartition
from fleet.model.rebalances import TimeSource

ANYWAY: Final = 3600.0
"""Seconds after which a partition that stands still has its row again."""


def lag_rows(memory: JobMemory, logs: Logs, *, cluster: str) -> Iterable[dict[str, Any]]:
    """The rows that are due, each noted in the memory."""
    known: dict[tuple[str, int], tuple[int, int | None]] = {}
    tps: list[TopicPartition] = []
    due: list[tuple[Key, float]] = []
    which: list[int] = []
    for key, commit in memory.commits.items():
        log = known.get(key[1:])
        if log is None:  # many groups read one partition, and hashing it takes Python's own code
            tp = TopicPartition(*key[1:])
            log = known[key[1:]] = len(tps), logs.ends.get(tp)
            tps.append(tp)
        place, end = log
        if _due(memory, key, commit.committed, end, logs.at):
            due.append((key, commit.timestamp / 1000))
            which.append(place)
    committed = np.array([memory.commits[key].committed for key, _ in due], dtype=np.int64)
    lag = measure_lag(committed, tps=tps, which=np.array(which, dtype=np.int64), logs=logs)
    yield from _rows(due, committed, lag, cluster=cluster, at=logs.at, known=TimeSource.COMMITS)


def polled_rows(memory: JobMemory, seen: Snapshot) -> Iterable[dict[str, Any]]:
    """The same from a look through the AdminClient: when it was committed is not known."""
    commits, due, rows = seen.commits, [], []
    columns = (commits.group, commits.topic, commits.partition, commits.committed, seen.lag.end)
    for row, (group, topic, number, committed, end) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        key = (commits.groups[group], commits.topics[topic], number)
        told = None if end == NONE else end
        if committed != NONE and _due(memory, key, committed, told, seen.at):
            due.append((key, None))
            rows.append(row)
    yield from _rows(
        due,
        commits.committed[np.array(rows, dtype=np.int64)],
        seen.lag.where(np.array(rows, dtype=np.int64)),
        cluster=seen.cluster,
        at=seen.at,
        known=TimeSource.POLLED,
    )


def _due(memory: JobMemory, key: Key, committed: int, end: int | None, at: float) -> bool:
    """Whether a row is; it is noted then."""
    told = memory.told.get(key)
    waits = end is not None and end > committed
    same = told is not None and (told.committed, told.end) == (committed, end)
    if told is not None and same and not waits and 0 <= at - told.at < ANYWAY:
        return False  # before told.at: the clock was set back
    memory.report_lag(key, ReportedLag(committed, end, at))
    return True


def _rows(
    due: Sequence[tuple[Key, float | None]],
    committed: Longs,
    lag: Lag,
    *,
    cluster: str,
    at: float,
    known: TimeSource,
) -> Iterable[dict[str, Any]]:
    """Rows of (group, topic, partition) and the time of the commit."""
    columns = (committed, lag.start, lag.end, lag.records, lag.seconds, lag.case)
    for ((group, topic, number), committed_at), (offset, start, end, records, seconds, code) in zip(
        due, zip(*(column.tolist() for column in columns), strict=True), strict=True
    ):
        gone = CASES[code] is LagCase.TOPIC_DELETED
        yield {
            "cluster": cluster,
            "sampled_at": at,
            "group_id": group,
            "topic": topic,
            "topic_partition": number,
            "committed": offset,
            "committed_at": committed_at,
            "log_start": None if gone or start == NONE else start,
            "log_end": None if gone or end == NONE else end,
            "records": None if records == NONE else records,
            "seconds": None if math.isnan(seconds) else seconds,
            "lag_case": CASES[code].value,
            "known": known.value,
        }
