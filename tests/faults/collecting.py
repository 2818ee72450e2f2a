"""What is known of a lane's group: asked while it runs, and dumped once it is at rest.

While a lane waits, Kafka's admin client is asked, which costs milliseconds; what is judged are
the records that Kafka's own tool reads from the log, which costs a JVM.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from fleet.broker import Broker
from tests.faults.invariants import Evidence, Trouble
from tests.support.kafka_tools import dump_group_records
from tests.worker.conftest import Group

KINDS = frozenset({"slot", "assigned", "revoked", "lost", "closed", "exit", "committed", "void"})


class Collector:
    """Of one group."""

    def __init__(self, group: Group, broker: Broker, *, protocol: str) -> None:
        self._group = group
        self._broker = broker
        self._protocol = protocol
        self._partitions = [TopicPartition(group.topic, p) for p in range(group.partitions)]

    def drained(self) -> bool:
        """Whether all that was written is committed."""
        asked = [ConsumerGroupTopicPartitions(self._group.name)]
        try:
            (answer,) = self._group.admin.list_consumer_group_offsets(asked).values()
            committed = {tp.partition: tp.offset for tp in answer.result(20).topic_partitions}
            return all(committed.get(p, 0) == end for p, end in self._ends().items())
        except (KafkaException, TimeoutError):  # the broker has just come back
            return False

    def settled(self) -> bool:
        """Whether the coordinator says Stable, and every partition has one owner."""
        try:
            (answer,) = self._group.admin.describe_consumer_groups([self._group.name]).values()
            described = answer.result(20)
        except (KafkaException, TimeoutError):
            return False
        owned = [
            (tp.topic, tp.partition)
            for member in described.members
            for tp in (member.assignment.topic_partitions if member.assignment else ())
        ]
        due = sorted((tp.topic, tp.partition) for tp in self._partitions)
        return described.state is ConsumerGroupState.STABLE and sorted(owned) == due

    def evidence(self, troubles: Sequence[Trouble]) -> Evidence:
        """All of it, over the whole life of the group."""
        events = [e for e in self._told() if e["event"] in KINDS]
        return Evidence(
            topic=self._group.topic,
            protocol=self._protocol,
            records=dump_group_records(self._broker, self._group.name),
            events=sorted(events, key=lambda e: e["at"]),
            journal=self._group.journal(),
            ends=self._ends_surely(),
            troubles=troubles,
        )

    def _told(self) -> list[dict[str, Any]]:
        path = self._group.folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def _ends(self) -> dict[int, int]:
        admin = self._group.admin
        asked = admin.list_offsets({tp: OffsetSpec.latest() for tp in self._partitions})
        try:
            return {tp.partition: future.result(20).offset for tp, future in asked.items()}
        except KafkaException:  # it goes by leaders and epochs that it never learns anew itself
            admin.list_topics(self._group.topic, timeout=10)
            raise

    def _ends_surely(self) -> dict[int, int]:
        for _ in range(30):  # a broker that has just come back leads nothing for a moment
            try:
                return self._ends()
            except KafkaException:
                time.sleep(0.5)
        raise TimeoutError("the broker does not come back")
