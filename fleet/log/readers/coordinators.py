"""Moves of coordinators: who leads each partition of `__consumer_offsets`, and since when.

Problem: when a broker dies, all groups that it coordinated feel it, and no record of theirs says
so; forty alerts would have one cause that none of them names. Choice: each look asks for the
leader epochs of the topic's partitions (one ListOffsets per leader, some 10 ms). An epoch that
rose says that a coordinator moved or started again, also where the same broker leads as before.
A partition without a leader is compared once it has one. Asked by a Consumer that never
subscribes, since the admin client's calls may abort the process when a broker goes while they
wait (librdkafka #4605). Cost: needs Describe on the topic; where it is not allowed, or no
broker answers, nothing is said.
"""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from fleet.clock import Clock
from fleet.log.readers.group_log import TOPIC
from fleet.model.rebalances import CoordinatorMove
from fleet.system.closing import Closing


class Coordinators(Closing):
    """Looks again and again; not for several threads at once."""

    def __init__(self, config: Mapping[str, Any], *, clock: Clock, timeout: float = 5.0) -> None:
        self._config = {
            **config,
            "group.id": "fleet-reads-only",  # never joined, never committed with
            "enable.auto.commit": False,
            "log_level": 0,
        }
        self._consumer: Consumer | None = None
        self._clock = clock
        self._timeout = timeout
        self._known: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        """Let go of the connections; the next look makes new ones."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def look(self) -> CoordinatorMove | None:
        """What moved since the last look; None where nothing did, or nobody can tell."""
        try:
            seen = self._leaders()
        except KafkaException:
            return None
        moved = {
            partition: (self._known[partition][0], leader)
            for partition, (leader, epoch) in seen.items()
            if partition in self._known and epoch > self._known[partition][1]
        }
        self._known |= seen
        if not moved:
            return None
        return CoordinatorMove(
            at=self._clock.now(),
            partitions=len(moved),
            of=len(self._known),
            lost=tuple(sorted({before for before, _ in moved.values()})),
            gained=tuple(sorted({after for _, after in moved.values()})),
        )

    def _leaders(self) -> dict[int, tuple[int, int]]:
        """Partition → (leader, leader epoch), of partitions that have a leader now."""
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        topic = self._consumer.list_topics(TOPIC, timeout=self._timeout).topics.get(TOPIC)
        if topic is None or topic.error is not None:
            return {}
        leaders = {number: part.leader for number, part in topic.partitions.items()}
        # "At time -1" is the end, and the answer carries the leader's epoch now.
        wanted = [
            TopicPartition(TOPIC, n, OFFSET_END) for n, leader in leaders.items() if leader >= 0
        ]
        if not wanted:
            return {}
        return {
            found.partition: (leaders[found.partition], int(found.leader_epoch))
            for found in self._consumer.offsets_for_times(wanted, timeout=self._timeout)
            if found.error is None and found.leader_epoch is not None
        }
