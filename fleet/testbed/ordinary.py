"""The ordinary way, for comparison: dynamic members, restarted one after another.

Every worker gets SIGTERM, finishes its batch, leaves the group (one rebalance), is started
again at once and joins (one more, with cooperative-sticky two [28]); the next one follows when
it owns partitions. This is what a plain rolling restart of any consumer does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fleet.clock import Clock
from fleet.errors import FleetError, Unreachable
from fleet.manager.cycle import Fleet
from fleet.model import TopicPartition

_RESTART_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.25


def usual_rebalances(workers: int, assignor: str) -> int:
    """What restarting this many dynamic members one by one usually costs."""
    return workers * (2 if assignor == "range" else 3)


def begin_at_the_end(bootstrap: str, group: str, topic: str) -> dict[TopicPartition, int]:
    """Let a group that does not exist yet begin where the topic ends now; the offsets.

    Committed and not `latest`, so that where it began is known exactly.
    """
    from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - loads librdkafka
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10.0).topics[topic].partitions
        places = [
            Place(topic, p, consumer.get_watermark_offsets(Place(topic, p), timeout=10.0)[1])
            for p in sorted(partitions)
        ]
        consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as error:
        raise Unreachable(
            f"the broker at {bootstrap} does not answer ({error}); see its log"
        ) from error
    finally:
        consumer.close()
    return {TopicPartition(p.topic, p.partition): int(p.offset) for p in places}


@dataclass(frozen=True, kw_only=True)
class OneByOne:
    """Restarts the workers of a group, the next when the last owns partitions."""

    fleet: Fleet
    group: str
    clock: Clock
    say: Callable[[str], None]

    def run(self) -> int:
        """Restart all; how many there were."""
        names = sorted(w.name for w in self.fleet.workers(self.group) if w.wanted)
        for name in names:
            began = self.clock.monotonic()
            asked = self.clock.now()
            self.say(f"worker {name}: SIGTERM, and started again at once")
            self.fleet.runtime.restart(name)
            self._await_back(name, asked)
            took = self.clock.monotonic() - began
            self.say(f"worker {name} owns partitions again after {took:.1f} s")
        return len(names)

    def _await_back(self, name: str, asked: float) -> None:
        deadline = self.clock.monotonic() + _RESTART_SECONDS
        while not (self._active_since(name, asked) and self._all_own(len(self._holders()))):
            if self.clock.monotonic() > deadline:
                raise FleetError(
                    f"worker {name} owns no partitions {_RESTART_SECONDS:g} s after its restart; "
                    f"see its log under {self.fleet.home}"
                )
            self.clock.sleep(_POLL_SECONDS)

    def _active_since(self, name: str, asked: float) -> bool:
        return any(
            r.worker == name
            and r.phase == "active"
            and r.joined_at is not None
            and r.joined_at >= asked
            for r in self.fleet.reports(self.group)
        )

    def _holders(self) -> list[str]:
        return [w.name for w in self.fleet.workers(self.group) if w.wanted]

    def _all_own(self, members: int) -> bool:
        """Every member owns partitions, by the coordinator's word."""
        seen = self.fleet.snapshot([self.group]).groups.get(self.group)
        return (
            seen is not None
            and len(seen.members) == members
            and all(member.partitions for member in seen.members)
        )
