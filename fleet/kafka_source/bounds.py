"""How far the partitions of a topic reach, asked once for all of them.

Problem: whoever plans ranges needs the first and the last offset of every partition, and the end
that a reader of committed records can reach is not the end of the log [7]; while a leader moves,
librdkafka's ListOffsets fails and does not look for the new one. Choice: two ListOffsets for all
partitions together, with the isolation level that reads later; after a failure the metadata is
asked again, until the time is up. Cost: one short-lived client per question.
"""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fleet.kafka_source.failures import RangeUnread

_DENIED: Final = frozenset({29, 30, 31})
_ABSENT: Final = 3
_PAUSE: Final = 0.3


class Bounds(NamedTuple):
    """Offsets that can be read: from `first` to before `end`."""

    first: int
    end: int


def bounds(
    options: Mapping[str, Any], topic: str, *, isolation: str, timeout: float = 20.0
) -> dict[int, Bounds]:
    """Of every partition of the topic; {} where there is no such topic.

    options are librdkafka's, with bootstrap.servers and security. Raises RangeUnread where no
    broker answers within about `timeout` seconds, or refuses.
    """
    from confluent_kafka import KafkaException  # noqa: PLC0415 - only where it is asked
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    config: dict[str, Any] = {**options, "client.id": "fleet-bounds", "log_level": 2}
    admin = AdminClient(config)
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _asked(admin, topic, isolation, max(0.1, deadline - time.monotonic()))
        except KafkaException as error:
            told = error.args[0]
            denied = told.code() in _DENIED
            if denied or time.monotonic() + _PAUSE > deadline:
                verb = "the brokers refuse" if denied else "its offsets cannot be asked"
                raise RangeUnread(f"{topic}: {verb}: {told.str()} ({told.code()})") from None
        time.sleep(_PAUSE)


def _asked(admin: Any, topic: str, isolation: str, timeout: float) -> dict[int, Bounds]:
    from confluent_kafka import (  # noqa: PLC0415 - only where it is asked
        IsolationLevel,
        KafkaException,
        TopicPartition,
    )
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # noqa: PLC0415

    found = admin.list_topics(topic, timeout=timeout).topics[topic]
    if found.error is not None:
        if found.error.code() == _ABSENT:
            return {}
        raise KafkaException(found.error)
    level = (
        IsolationLevel.READ_COMMITTED
        if isolation == "read_committed"
        else IsolationLevel.READ_UNCOMMITTED
    )
    spec: Any = OffsetSpec
    answers = [
        admin.list_offsets(
            {TopicPartition(topic, number): each for number in found.partitions},
            isolation_level=level,
            request_timeout=timeout,
        )
        for each in (spec.earliest(), spec.latest())
    ]
    first, end = (
        {tp.partition: future.result(timeout).offset for tp, future in answer.items()}
        for answer in answers
    )
    return {number: Bounds(first[number], end[number]) for number in sorted(first)}
