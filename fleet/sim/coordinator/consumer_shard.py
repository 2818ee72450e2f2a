"""What a coordinator of KIP-848 groups has at hand: groups, topics, timers, settings, the time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from fleet.sim.coordinator.consumer_group import EpochGroup
from fleet.sim.coordinator.consumer_groups import ConsumerGroups
from fleet.sim.coordinator.consumer_member import ConsumerMember
from fleet.sim.coordinator.topic_image import TopicImage
from fleet.sim.timers import Timers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """What the broker, or one group of it, is configured with; Kafka 4.3's defaults, in ms."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    max_size: int = 2_147_483_647
    assignment_interval_ms: int = 1_000
    regex_refresh_ms: int = 600_000
    cleanup_ms: int = 600_000
    assignors: tuple[str, ...] = ("uniform", "range")


BROKER_DEFAULTS: Final = ConsumerGroupSettings()


class Expiry(NamedTuple):
    """A member's timer; `epoch` is None for its session, for a rebalance the epoch to leave."""

    group: str
    member: str
    epoch: int | None = None


@dataclass(slots=True)
class ConsumerShard:
    """`now` and all times in ms; `newest_topics` is the metadata version that last made one.

    `to_resolve` are the expressions that a group waits for. None of it but the groups is in the
    log: another broker begins it anew.
    """

    settings: ConsumerGroupSettings = BROKER_DEFAULTS
    overrides: Mapping[str, ConsumerGroupSettings] = field(default_factory=dict)
    now: int = 0
    groups: ConsumerGroups = field(default_factory=ConsumerGroups)
    image: TopicImage = field(default_factory=TopicImage)
    newest_topics: int = -1
    timers: Timers[Expiry | None] = field(default_factory=Timers)
    to_resolve: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def settings_of(self, group: str) -> ConsumerGroupSettings:
        """The group's settings, the broker's where it has none."""
        return self.overrides.get(group, self.settings)

    def expect_cleanup(self) -> None:
        """Empty groups are looked for after a while; of timers, the one without an expiry."""
        self.timers.schedule("expire-group-metadata", self.now + self.settings.cleanup_ms, None)

    def expect_heartbeat(self, group: str, member: str) -> None:
        """The member's session begins anew."""
        key, expiry = _session(group, member)
        self.timers.schedule(key, self.now + self.settings_of(group).session_ms, expiry)

    def expect_revocation(self, group: str, member: ConsumerMember) -> None:
        """The member has its rebalance timeout to give up partitions; else nothing is awaited."""
        key = _rebalance(group, member.id)
        deadline = self.now + member.rebalance_timeout_ms
        self.timers.schedule(key, deadline, Expiry(group, member.id, member.epoch))

    def expect_no_revocation(self, group: str, member: str) -> None:
        """The member has nothing to give up."""
        self.timers.cancel(_rebalance(group, member))

    def expect_nothing(self, group: EpochGroup, member: str) -> None:
        """The member is gone."""
        self.timers.cancel(_session(group.id, member)[0])
        self.timers.cancel(_rebalance(group.id, member))


@lru_cache(maxsize=4096)  # one for each heartbeat
def _session(group: str, member: str) -> tuple[str, Expiry]:
    return f"session-timeout-{group}-{member}", Expiry(group, member)


def _rebalance(group: str, member: str) -> str:
    return f"rebalance-timeout-{group}-{member}"
