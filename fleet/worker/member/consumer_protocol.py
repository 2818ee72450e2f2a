"""KIP-848: the broker assigns, members hear of it in heartbeats; session and assignor are its own.

Problem: what a classic member tells its coordinator (session, heartbeat, assignor) is refused as
an option here, and a newcomer is refused (111) while the coordinator believes that its instance
id has an owner: there is no surge handover. Choice: the same seam as the classic protocol, with
increments only; a slot whose holder did not release it is freed first
(`fleet.worker.slot.takeover`). A clean close sends epoch -2, after which the successor replaces it
without a new epoch [17].
"""

from collections.abc import Sequence
from typing import Any

from fleet.config.spec import ConsumerWorker


class ConsumerGroup:
    """A member by ConsumerGroupHeartbeat, static or dynamic."""

    exclusive = True
    heartbeats_on_subscribe = True
    rejoins_after = 0.0
    idle_after = 15.0
    """The longest assignment interval that we set, and two heartbeats to hear of it."""

    def __init__(self, worker: ConsumerWorker) -> None:
        self._worker = worker

    def options(self, instance_id: str | None) -> dict[str, Any]:
        """See MemberProtocol.options. max.poll.interval.ms is this member's rebalance timeout."""
        static = {} if instance_id is None else {"group.instance.id": instance_id}
        return {
            "group.protocol": "consumer",
            "max.poll.interval.ms": int(self._worker.max_poll_interval * 1000),
            **static,
        }

    def assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """See MemberProtocol.assign."""
        consumer.incremental_assign(list(partitions))

    def unassign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """See MemberProtocol.unassign."""
        consumer.incremental_unassign(list(partitions))

    def restart(self, consumer: Any, stopped: Sequence[Any], others: Sequence[Any]) -> bool:
        """See MemberProtocol.restart."""
        del others
        consumer.incremental_unassign(list(stopped))
        consumer.incremental_assign(list(stopped))
        return False
