"""Rows of `lag`: the last commit of every partition beside the log's end, at one moment.

Problem: a row for each partition at each look is thousands of millions a day, nearly all of them
saying what the one before said; and a consumer that hangs commits nothing, so lag cannot be told
from commits alone. Choice: at every look a row is written where the committed offset or the end
has moved since the last row, where records wait, and once an hour in any case: between two rows
of a partition nothing changed. Cases and seconds are those of `fleet.observe.lag`: one meaning
of lag in all of Fleet. Cost: only from the first look on; ends of the time before are not known.
"""

from collections.abc import Iterable
from typing import Any, Final

from fleet.history.standing import Key, Memory, Told
from fleet.model import PartitionState, Snapshot, TopicPartition
from fleet.observe.lag import Logs, partition_state
from fleet.rebalances import Known

ANYWAY: Final = 3600.0
"""Seconds after which a partition that stands still has its row again."""


def waited_for(memory: Memory) -> dict[TopicPartition, int]:
    """The least committed offset of each partition that any group has committed."""
    least: dict[tuple[str, int], int] = {}
    for (_, topic, partition), commit in memory.commits.items():
        known = least.get((topic, partition))
        if known is None or commit.committed < known:
            least[topic, partition] = commit.committed
    return {TopicPartition(*place): committed for place, committed in least.items()}


def lag_rows(memory: Memory, ends: Logs, *, cluster: str) -> Iterable[dict[str, Any]]:
    """The rows that are due, each noted in the memory."""
    logs: dict[tuple[str, int], tuple[TopicPartition, int | None]] = {}
    for key, commit in memory.commits.items():
        group, topic, partition = key
        log = logs.get((topic, partition))
        if log is None:  # many groups read one partition, and hashing it takes Python's own code
            tp = TopicPartition(topic, partition)
            log = logs[topic, partition] = tp, ends.ends.get(tp)
        tp, end = log
        if not _due(memory, key, commit.committed, end, ends.at):
            continue
        state = partition_state(
            tp=tp,
            committed=commit.committed,
            log_start=ends.starts.get(tp),
            log_end=end,
            deleted=topic in ends.deleted,
            unreadable=end is None and topic not in ends.deleted,
            owner=None,
            samples=ends.samples.get(tp, ()),
            now=ends.at,
        )
        yield _row(
            state,
            cluster=cluster,
            group=group,
            at=ends.at,
            committed_at=commit.timestamp / 1000,
            known=Known.COMMITS,
        )


def polled_rows(memory: Memory, snapshot: Snapshot) -> Iterable[dict[str, Any]]:
    """The same from a look through the AdminClient: when it was committed is not known."""
    cluster, at = snapshot.cluster, snapshot.at
    for group in snapshot.groups.values():
        for state in group.partitions:
            key = (group.group, state.tp.topic, state.tp.partition)
            committed = state.committed
            if committed is not None and _due(memory, key, committed, state.log_end, at):
                yield _row(
                    state,
                    cluster=cluster,
                    group=group.group,
                    at=at,
                    committed_at=None,
                    known=Known.POLLED,
                )


def _due(memory: Memory, key: Key, committed: int, end: int | None, at: float) -> bool:
    """Whether a row is; it is noted then."""
    told = memory.told.get(key)
    waits = end is not None and end > committed
    same = told is not None and (told.committed, told.end) == (committed, end)
    if told is not None and same and not waits and at - told.at < ANYWAY:
        return False
    memory.tell(key, Told(committed, end, at))
    return True


def _row(
    state: PartitionState,
    *,
    cluster: str,
    group: str,
    at: float,
    committed_at: float | None,
    known: Known,
) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "at": at,
        "group": group,
        "topic": state.tp.topic,
        "topic_partition": state.tp.partition,
        "committed": state.committed,
        "committed_at": committed_at,
        "log_start": state.log_start,
        "log_end": state.log_end,
        "records": state.lag,
        "seconds": state.lag_seconds,
        "case": state.case.value,
        "known": known.value,
    }
