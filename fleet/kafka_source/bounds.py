"""Finds the first and last offsets of a topic's partitions, for all of them at once.

Problem: a plan of ranges needs the first and the last offset of every partition. The end that a
reader of committed records can reach is not the end of the log [7]. While a leader moves, its
partitions have no answer. Choice: three ListOffsets for all partitions together; after a failure
the metadata is read again, until the time is up. Cost: one short-lived connection per call.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.kafka_source.failures import ABSENT, DENIED, NO_ANSWER, RangeUnread, code_named
from fleet.kafka_source.pieces import LogBounds

# Source: Kafka's protocol guide, "ListOffsets"; KIP-98 (with read_committed the end is where the
# first open transaction begins).


Where = tuple[str, int]
"""A topic and a partition."""

EARLIEST: Final = -2
LATEST: Final = -1
_VERSION: Final = 9


class ListedOffset(NamedTuple):
    """An offset (-1: no record is that young), or Kafka's error code; NO_ANSWER if none came."""

    offset: int
    error: int = 0


def leaders_of(metadata: Any) -> dict[Where, int]:
    """Returns the leader of each partition in a MetadataResponse; leaderless ones are left out."""
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
    """Returns each partition's offset at a time (ms), or EARLIEST, or LATEST.

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


_PAUSE: Final = 0.3


def log_bounds(
    options: Mapping[str, Any], topic: str, *, timeout: float = 20.0
) -> dict[int, LogBounds]:
    """Returns the bounds of every partition of the topic; {} if no such topic exists.

    options are librdkafka's, with bootstrap.servers and security. Raises RangeUnread if no broker
    answers within about `timeout` seconds, or if brokers refuse.
    """
    deadline = time.monotonic() + timeout
    with Connections(options, client_id="fleet-bounds") as net:
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                found, why = _asked(net, topic, left)
            except NoAnswer as error:
                found, why = None, str(error)
            if found is not None:
                return found
            if time.monotonic() + _PAUSE > deadline:
                raise RangeUnread(f"{topic}: brokers did not return its offsets: {why}")
            net.pause(_PAUSE)


def _asked(net: Connections, topic: str, timeout: float) -> tuple[dict[int, LogBounds] | None, str]:
    """Returns the bounds, or None and why none are available now."""
    metadata = net.metadata([topic], timeout)
    told = metadata.topics[0]
    if told.error_code == ABSENT:
        return {}, ""
    if told.error_code:
        return None, _refused(topic, told.error_code)
    places = [(topic, part.partition_index) for part in told.partitions]
    leaders = leaders_of(metadata)
    answers: list[dict[tuple[str, int], ListedOffset]] = []
    # In this order: a transaction that begins meanwhile begins after `stable`.
    for each, committed in ((LATEST, True), (EARLIEST, False), (LATEST, False)):
        wanted = dict.fromkeys(places, each)
        answers.append(list_offsets(net, leaders, wanted, committed=committed, timeout=timeout))
        for where in places:
            error = answers[-1][where].error if where in answers[-1] else 5  # no leader
            if error:
                return None, _refused(f"{topic}-{where[1]}", error)
    stable, first, end = answers
    return {
        at[1]: LogBounds(first[at].offset, stable[at].offset, end[at].offset)
        for at in sorted(places)
    }, ""


def _refused(what: str, code: int) -> str:
    """Describes a refusal; raises RangeUnread if waiting is useless."""
    if code in DENIED:
        raise RangeUnread(f"{what}: the brokers refuse: {code_named(code)}")
    return code_named(code)
