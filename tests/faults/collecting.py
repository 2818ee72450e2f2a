"""What is known of a lane's group: asked while it runs, and dumped once it is at rest.

While a lane waits, Kafka's admin client is asked, which costs milliseconds; what is judged are
the records that Kafka's own tool reads from the log, which costs a JVM. A client that fails is
replaced: one that has seen its broker die may go by leaders and epochs that it never learns anew.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

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
        self.found = ""
        """What the last look found."""
        self._admin: AdminClient | None = None
        self._partitions = [TopicPartition(group.topic, p) for p in range(group.partitions)]

    def drained(self) -> bool:
        """Whether all that was written is committed."""
        return self._look(self._is_drained)

    def settled(self) -> bool:
        """Whether the coordinator says Stable, and every partition has one owner."""
        return self._look(self._is_settled)

    def _look(self, at: Callable[[AdminClient], bool]) -> bool:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self._group.bootstrap, "log_level": 0})
        try:
            return at(self._admin)
        except (KafkaException, TimeoutError) as error:
            self.found = repr(error)
            self._admin = None
            return False

    def _is_drained(self, admin: AdminClient) -> bool:
        asked = [ConsumerGroupTopicPartitions(self._group.name)]
        (answer,) = admin.list_consumer_group_offsets(asked).values()
        committed = {tp.partition: tp.offset for tp in answer.result(120).topic_partitions}
        ends = self._ends(admin)
        self.found = f"committed {committed}, ends {ends}"
        return all(committed.get(p, 0) == end for p, end in ends.items())

    def _is_settled(self, admin: AdminClient) -> bool:
        (answer,) = admin.describe_consumer_groups([self._group.name]).values()
        described = answer.result(120)
        owned = [
            (tp.topic, tp.partition)
            for member in described.members
            for tp in (member.assignment.topic_partitions if member.assignment else ())
        ]
        self.found = f"{described.state}, owned {sorted(owned)}"
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
            held={n: (tp.partition, at) for n, (tp, at) in self._group.held().items()},
            ends=self._ends_surely(),
            troubles=troubles,
        )

    def _told(self) -> list[dict[str, Any]]:
        path = self._group.folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def _ends(self, admin: AdminClient) -> dict[int, int]:
        asked = admin.list_offsets({tp: OffsetSpec.latest() for tp in self._partitions})
        return {tp.partition: future.result(120).offset for tp, future in asked.items()}

    def _ends_surely(self) -> dict[int, int]:
        found: dict[int, int] = {}

        def look(admin: AdminClient) -> bool:
            found.update(self._ends(admin))
            return True

        for _ in range(30):  # a broker that has just come back leads nothing for a moment
            if self._look(look):
                return found
            time.sleep(0.5)
        raise TimeoutError(f"the broker does not come back: {self.found}")
