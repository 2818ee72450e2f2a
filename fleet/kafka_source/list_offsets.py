"""ListOffsets: where logs begin and end, and where a time lies in them; all leaders at once.

Source: Kafka's protocol guide, "ListOffsets"; KIP-98 (with read_committed the end is where the
first open transaction begins).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.failures import NO_ANSWER

Where = tuple[str, int]
"""Topic and partition."""

EARLIEST: Final = -2
LATEST: Final = -1
_VERSION: Final = 9


class ListedOffset(NamedTuple):
    """An offset (-1: no record is that young); or Kafka's error code, NO_ANSWER where none came."""

    offset: int
    error: int = 0


def leaders_of(metadata: Any) -> dict[Where, int]:
    """Who leads each partition of a MetadataResponse; partitions without a leader are left out."""
    return {
        (topic.name, part.partition_index): part.leader_id
        for topic in metadata.topics
        for part in topic.partitions
        if part.leader_id >= 0
    }


def list_offsets(
    net: Connections,
    leaders: Mapping[Where, int],
    wanted: Mapping[Where, int],
    *,
    committed: bool,
    timeout: float,
) -> dict[Where, ListedOffset]:
    """For each partition the offset at a time (ms), or EARLIEST, or LATEST.

    Partitions without a leader are left out.
    """
    by_leader: dict[int, list[Where]] = {}
    for where in wanted:
        if where in leaders:
            by_leader.setdefault(leaders[where], []).append(where)
    requests = {
        leader: _request(places, wanted, committed=committed)
        for leader, places in by_leader.items()
    }
    found: dict[Where, ListedOffset] = {}
    for leader, answer in net.ask(requests, timeout).items():
        if isinstance(answer, NoAnswer):
            found |= dict.fromkeys(by_leader[leader], ListedOffset(-1, NO_ANSWER))
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                found[topic.name, part.partition_index] = ListedOffset(part.offset, part.error_code)
    return found


def _request(places: Iterable[Where], wanted: Mapping[Where, int], *, committed: bool) -> Any:
    from kafka.protocol.consumer import ListOffsetsRequest  # noqa: PLC0415 - loads kafka-python

    asked = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = {}
    for topic, partition in places:
        part = asked.ListOffsetsPartition(
            partition_index=partition,
            current_leader_epoch=-1,
            timestamp=wanted[topic, partition],
        )
        by_topic.setdefault(topic, []).append(part)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[asked(name=topic, partitions=parts) for topic, parts in by_topic.items()],
        max_version=_VERSION,
    )
