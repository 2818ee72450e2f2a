"""The coordinator of one simulated group, of either protocol, behind one face."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from fleet.log import encoding
from fleet.sim.assignors import ReportedMember
from fleet.sim.coordinator.classic_coordinator import ClassicCoordinator
from fleet.sim.coordinator.classic_group import ClassicState, CoordinatorConfig
from fleet.sim.coordinator.consumer_coordinator import ConsumerCoordinator, topic_id_bytes
from fleet.sim.coordinator.consumer_group import ConsumerGroupState, EpochGroup
from fleet.sim.coordinator.consumer_shard import ConsumerGroupSettings, TopicFacts
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ErrorCode,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fleet.sim.scenarios.group_scenario import GROUP, Scenario

# What classic members tell their leader and what it answers, in the bytes that consumers use.
#
# The coordinator passes both on unread; they stand in its records, where `fleet.log.records` reads
# them. Versions and fields are those that librdkafka writes (docs/contributing/protocol.md 3.3):
# subscription 3 with an empty rack, assignment 0. One topic.


TOPIC: Final = "topic"
_ONE_TOPIC: Final = encoding.i32(1) + encoding.text(TOPIC)
_NO_TOPIC: Final = encoding.i32(0)
_I32 = struct.Struct(">i")


def subscription(
    owned: Iterable[int] = (), generation: int = -1, last: tuple[int, ...] | None = None
) -> bytes:
    """Encodes a ConsumerProtocolSubscription.

    `last`: the assignment of that generation, which a sticky member repeats as its user data.
    """
    user_data = b"\xff\xff\xff\xff"
    if last is not None:
        user_data = encoding.blob(_partitions(last) + encoding.i32(generation))
    return b"".join(
        (
            encoding.i16(3),
            _ONE_TOPIC,
            user_data,
            _partitions(owned),
            encoding.i32(generation),
            encoding.text(""),
        )
    )


@lru_cache(maxsize=1 << 14)
def claimed(member_id: str, instance_id: str | None, blob: bytes) -> ReportedMember:
    """A member as the leader reads it."""
    at = 2 + len(_ONE_TOPIC)
    (size,) = _I32.unpack_from(blob, at)
    at += 4 + max(0, size)
    (topics,) = _I32.unpack_from(blob, at)
    at += 4
    owned: tuple[int, ...] = ()
    if topics:
        at += 2 + len(TOPIC)
        (count,) = _I32.unpack_from(blob, at)
        owned = struct.unpack_from(f">{count}i", blob, at + 4)
        at += 4 + 4 * count
    return ReportedMember(member_id, instance_id, owned, _I32.unpack_from(blob, at)[0])


def assignment(partitions: Iterable[int]) -> bytes:
    """Encodes a ConsumerProtocolAssignment."""
    return encoding.i16(0) + _partitions(partitions) + encoding.blob(b"")


def assigned(blob: bytes) -> tuple[int, ...]:
    """What a member reads of it; nothing where the leader sent nothing."""
    if len(blob) < 6 or not _I32.unpack_from(blob, 2)[0]:
        return ()
    at = 8 + len(TOPIC)
    (count,) = _I32.unpack_from(blob, at)
    return struct.unpack_from(f">{count}i", blob, at + 4)


def _partitions(owned: Iterable[int]) -> bytes:
    listed = tuple(owned)
    if not listed:
        return _NO_TOPIC
    return _ONE_TOPIC + struct.pack(f">{len(listed) + 1}i", len(listed), *listed)


TOPIC_ID: Final = "c2ltdWxhdGVkIHRvcGljIQ"

_REFUSALS: Final[Mapping[type, type]] = {
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    OffsetCommitRequest: OffsetCommitResponse,
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
}


def not_coordinator(request: Any) -> Any:
    """The answer of a broker that coordinates the group no more, or not yet."""
    return _REFUSALS[type(request)](error_code=int(ErrorCode.NOT_COORDINATOR))


class ClassicSide:
    """A classic group's; times in ms from the start."""

    def __init__(self, scenario: Scenario, uuids: Iterator[str]) -> None:
        config = CoordinatorConfig(initial_rebalance_delay=scenario.initial_delay)
        self.model = ClassicCoordinator(uuids, config=config)
        self._completed = self._generation = 0

    @property
    def rebalances(self) -> int:
        """Generations; a round that was cut off before its SyncGroup is none."""
        return self._completed

    def _count(self) -> None:
        group = self.model.groups.get(GROUP)
        if (
            group is not None
            and group.state in {ClassicState.STABLE, ClassicState.EMPTY}
            and group.generation != self._generation
        ):
            self._generation = group.generation
            self._completed += 1

    @property
    def next_deadline(self) -> int | None:
        """When its next timer goes off."""
        return self.model.around.timers.next_deadline

    def ask(self, ticket: int, request: Any, client: Client) -> dict[int, Any]:
        """A request by its number; what is answered now, by number."""
        answers = self.model.request(ticket, request, client).answers
        self._count()
        return answers

    def wait(self, until: int) -> None:
        """Time goes on, and no timer goes off."""
        self.model.around.now = until

    def advance(self, until: int) -> dict[int, Any]:
        """Time goes on; what is answered meanwhile."""
        answers = self.model.advance(until - self.model.now).answers
        self._count()
        return answers

    @property
    def written(self) -> int:
        """Records in its log."""
        return len(self.model.log)

    def records(self, start: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of those from `start` to before `end`."""
        return ((each.key, each.value) for each in self.model.log[start:end])

    def unload(self) -> dict[int, Any]:
        """Its broker is gone: what is parked is refused; no timer runs until `load`."""
        answers = self.model.failover().answers
        self.model.around.timers.clear()
        return answers

    def load(self) -> None:
        """Another broker has loaded the log: sessions begin anew."""
        self.model.failover()

    @property
    def is_at_rest(self) -> bool:
        """Whether the group has nothing to do."""
        group = self.model.groups.get(GROUP)
        return group is None or group.state in {ClassicState.STABLE, ClassicState.EMPTY}

    def consists_of(self, members: set[str]) -> bool:
        """Whether these are its members, and no others."""
        group = self.model.groups.get(GROUP)
        return members == (set() if group is None else set(group.members))


class EpochSide:
    """Runs the coordinator of a KIP-848 group."""

    def __init__(self, scenario: Scenario) -> None:
        self.model = ConsumerCoordinator(
            ConsumerGroupSettings(
                session_ms=scenario.session_timeout,
                heartbeat_ms=scenario.heartbeat_interval,
                assignment_interval_ms=scenario.assignment_interval,
            )
        )
        self.model.set_topics((TopicFacts(topic_id_bytes(TOPIC_ID), TOPIC, scenario.partitions),))
        self._targets = 0
        self._epoch = 1

    @property
    def rebalances(self) -> int:
        """Counts the target assignments."""
        return self._targets

    @property
    def next_deadline(self) -> int | None:
        """Returns the time of the next timer."""
        return self.model.shard.timers.next_deadline

    def ask(self, ticket: int, request: Any, client: Client) -> dict[int, Any]:
        """Hands a client's request to the coordinator."""
        if isinstance(request, ConsumerGroupHeartbeatRequest):
            answer: Any = self.model.heartbeat(request, client)
        else:
            answer = self.model.leave_group(request)
        group = self._group
        if group is not None and group.target_epoch != self._epoch:
            self._epoch = group.target_epoch
            self._targets += 1
        return {ticket: answer}

    def wait(self, until: int) -> None:
        """Moves the time on, without timers."""
        self.model.shard.now = until

    def advance(self, until: int) -> dict[int, Any]:
        """Moves the time on and runs the timers."""
        for _ in self.model.advance(until):
            pass
        return {}

    def unload(self) -> dict[int, Any]:
        """Stops the coordinator for a failover."""
        self.model.shard.timers.clear()
        return {}

    def load(self) -> None:
        """Loads the next coordinator from the log."""
        self.model.fail_over()

    @property
    def written(self) -> int:
        """Returns how many records the coordinator wrote."""
        return len(self.model.log)

    def records(self, start: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Returns a range of the written records."""
        return ((each.key_bytes(), each.value_bytes()) for each in self.model.log[start:end])

    @property
    def _group(self) -> EpochGroup | None:
        return self.model.shard.groups.by_id.get(GROUP)

    @property
    def is_at_rest(self) -> bool:
        """Returns whether the group is stable."""
        group = self._group
        at_rest = {ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY}
        return group is None or group.state in at_rest

    def consists_of(self, members: set[str]) -> bool:
        """Returns whether these are the group's members."""
        group = self._group
        return members == (set() if group is None else set(group.members))


GroupCoordinator: TypeAlias = ClassicSide | EpochSide
"""A coordinator as a scenario needs one."""
