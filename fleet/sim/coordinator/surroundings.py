"""What a group has around it: time, timers, settings, parked requests, ids for new members."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fleet.sim.coordinator.error_codes import ErrorCode
from fleet.sim.coordinator.requests import GroupRecord
from fleet.sim.timers import Timers


class CoordinatorConfig(NamedTuple):
    """A broker's settings, with Kafka's defaults; milliseconds."""

    initial_rebalance_delay: int = 3_000
    """group.initial.rebalance.delay.ms"""
    max_size: int = 2**31 - 1
    """group.max.size"""
    min_session_timeout: int = 6_000
    """group.min.session.timeout.ms"""
    max_session_timeout: int = 1_800_000
    """group.max.session.timeout.ms"""
    new_member_join_timeout: int = 300_000
    """Of a new member that is parked; a constant of Kafka's."""
    retention_check_interval: int = 600_000
    """offsets.retention.check.interval.ms"""
    offsets_retention: int = 7 * 24 * 3_600_000
    """offsets.retention.minutes"""
    metadata_max_bytes: int = 4_096
    """offset.metadata.max.bytes"""


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """Records to write; what was decided counts when they are durable."""

    records: tuple[GroupRecord, ...]
    done: Callable[[ErrorCode], None]
    """Called with NONE when they are durable, else with why the write failed."""
    learnt: bool = False
    """The coordinator learns its decision from these records, as one that loads them does."""


Decision = PendingWrite | None
"""None: nothing to write."""


def nothing_done(error: ErrorCode) -> None:
    """Of a write that nobody waits for."""


@dataclass(slots=True, eq=False)
class Surroundings:
    """Shared by all groups of a coordinator."""

    config: CoordinatorConfig
    uuids: Iterator[str]
    """Each new member's id ends with one."""
    now: int = 0
    timers: Timers[Callable[[], Decision]] = field(default_factory=Timers)
    answers: dict[int, Any] = field(default_factory=dict)
    """Given since they were taken last, by the number of the request."""
    parked: set[int] = field(default_factory=set)
    """Requests without an answer."""

    def answer(self, ticket: int | None, response: Any) -> None:
        """The first answer to a request goes out, later ones are lost."""
        if ticket is not None and ticket in self.parked:
            self.parked.discard(ticket)
            self.answers[ticket] = response

    def schedule(self, key: str, delay: int, action: Callable[[], Decision]) -> None:
        """Set a timer, from now on."""
        self.timers.schedule(key, self.now + delay, action)


_OF_WRITES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def told(error: ErrorCode) -> ErrorCode:
    """What a member is told of a write that failed so."""
    return _OF_WRITES.get(error, error)
