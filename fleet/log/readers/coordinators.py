"""Moves of coordinators: who leads each partition of `__consumer_offsets`, and since when.

Problem: when a broker dies, all groups that it coordinated feel it, and no record of theirs says
so; forty alerts would have one cause that none of them names. Choice: each look asks for the
leader epochs of the topic's partitions (one Metadata request). An epoch that rose says that a
coordinator moved or started again, also where the same broker leads as before. A partition without
a leader is compared once it has one; what a broker that is behind says of the past is not heard.
Cost: needs Describe on the topic; where it is not allowed, or no broker answers, nothing is said.
"""

from collections.abc import Mapping
from typing import Any

from fleet.clock import Clock
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.log.readers.offsets_topic import TOPIC
from fleet.model.rebalances import CoordinatorMove
from fleet.system.closing import Closing


class Coordinators(Closing):
    """Looks again and again; not for several threads at once."""

    def __init__(self, config: Mapping[str, Any], *, clock: Clock, timeout: float = 5.0) -> None:
        self._net = Connections(config, client_id="fleet-coordinators")
        self._clock = clock
        self._timeout = timeout
        self._known: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        """Let go of the connections; the next look makes new ones."""
        self._net.close()

    def look(self) -> CoordinatorMove | None:
        """What moved since the last look; None where nothing did, or nobody can tell."""
        try:
            seen = self._leaders()
        except NoAnswer:
            return None
        moved = {
            partition: (self._known[partition][0], leader)
            for partition, (leader, epoch) in seen.items()
            if partition in self._known and epoch > self._known[partition][1]
        }
        self._known |= {n: now for n, now in seen.items() if n in moved or n not in self._known}
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
        (topic,) = self._net.metadata([TOPIC], self._timeout).topics
        return {
            part.partition_index: (part.leader_id, part.leader_epoch)
            for part in topic.partitions
            if part.leader_id >= 0 and part.leader_epoch >= 0
        }
