"""Offset commits by the million, for what reads them: in memory, and on a real topic.

Problem: making two million commits by committing takes minutes. Choice: records as the coordinator
writes them (docs/contributing/protocol.md 3.3), straight into `__consumer_offsets` of the
benchmark's own broker by a producer that calls itself `__admin_client`, each group in the partition
where its coordinator would look for it. Cost: never on a cluster that anybody uses.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.log.records import TOPIC, partition_for, record_key, record_value

GROUPS: Final = 2_000
PARTITIONS: Final = 12
"""Of the one topic that every group reads."""
_ID: Final = bytes(range(16)).hex()
_START_SECONDS: Final = 30.0


def key(group: int, partition: int, *, kind: int = 1) -> bytes:
    """The key of a commit."""
    return record_key(kind, f"group-{group:05d}", "orders", partition)


def value(version: int, number: int, at_ms: int) -> bytes:
    """The value of a commit."""
    times = {"commit_timestamp_ms": at_ms, "expire_timestamp_ms": at_ms}
    fields = {"leader_epoch": 0, "metadata": "", "topic_id": _ID, **times}
    return record_value(1, version, committed=number, **fields)


def arrays(
    count: int, *, versions: Sequence[int | None], kind: int = 1
) -> tuple[pa.Array, pa.Array]:
    """Keys and values of so many commits; the versions in turn, None is a tombstone."""
    keys = [key(n % GROUPS, n // GROUPS % PARTITIONS, kind=kind) for n in range(count)]
    values = [
        None if version is None else value(version, n, n)
        for n, version in zip(range(count), _turns(versions), strict=False)
    ]
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


def _turns(versions: Sequence[int | None]) -> Iterator[int | None]:
    while True:
        yield from versions


def write(
    bootstrap: str, count: int, *, groups: int, clock: Clock, say: Callable[[str], None]
) -> int:
    """Write so many commits of so many groups; how many partitions the topic has."""
    partitions = _make_topic(bootstrap, clock)
    places = [partition_for(f"group-{group:05d}", partitions) for group in range(groups)]
    keys = [[key(group, number) for number in range(PARTITIONS)] for group in range(groups)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "__admin_client",
            "linger.ms": 50,
            "queue.buffering.max.messages": 500_000,
        }
    )
    now = int(clock.now() * 1000)
    for number in range(count):
        group = number % groups
        made = value(4, number, now + number // 100)
        while True:
            try:
                producer.produce(
                    TOPIC,
                    made,
                    keys[group][number // groups % PARTITIONS],
                    partition=places[group],
                    timestamp=now + number // 100,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
            say(f"{number:,} of {count:,} commits are written")
    if producer.flush(120):
        raise FleetError("the benchmark's commits were not acknowledged within 120 s")
    return partitions


def _make_topic(bootstrap: str, clock: Clock) -> int:
    """A first commit makes the coordinator create its topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "log_level": 0})
    deadline = clock.monotonic() + _START_SECONDS
    try:
        while True:
            with contextlib.suppress(KafkaException):  # no topic `orders`, and yet a coordinator
                consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
            found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=10)
            if found.topics[TOPIC].error is None and found.topics[TOPIC].partitions:
                return len(found.topics[TOPIC].partitions)
            if clock.monotonic() > deadline:
                raise FleetError(f"{TOPIC} was not made within {_START_SECONDS:g} s")
            clock.sleep(0.3)
    finally:
        consumer.close()
