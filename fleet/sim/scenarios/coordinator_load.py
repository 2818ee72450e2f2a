"""Requests that a healthy group sends, to the models of Kafka's coordinators: how many a second.

Problem: events differ; a join of many members costs a thousand heartbeats. Choice: what a group
lives on: a round of twenty members, then twenty heartbeats of each and a commit with every fourth;
under KIP-848 twenty that join, reconcile, beat forty times and leave. An event is a request that
is answered or a timer that goes off. Cost: other mixes have other figures; larger groups too.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from fleet.sim.coordinator.classic_coordinator import ClassicCoordinator, CoordinatorStep
from fleet.sim.coordinator.consumer_coordinator import ConsumerCoordinator
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    TopicPartitions,
)
from fleet.sim.coordinator.topic_ids import topic_id_bytes
from fleet.sim.coordinator.topic_image import TopicFacts

MEMBERS: Final = 20
_GROUP: Final = "loaded"
_CLIENT: Final = Client("c", "h")
_SUBSCRIPTION: Final = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
_RANGE: Final = (JoinGroupProtocol("range", _SUBSCRIPTION),)
_TOPIC_ID: Final = "bG9hZGVkLXRvcGljLWlkIQ"
_BEAT_MS: Final = 3_000
_EPOCH_BEAT_MS: Final = 5_000


class ClassicLoad:
    """A classic group in its life; `events` counts."""

    def __init__(self) -> None:
        self.coordinator = ClassicCoordinator(f"{n:032x}" for n in count())
        self.events = 0
        self._tickets = count()
        self.members = [self._new() for _ in range(MEMBERS)]

    def _asked(self, request: object) -> CoordinatorStep:
        self.events += 1
        return self.coordinator.request(next(self._tickets), request, _CLIENT)  # type: ignore[arg-type]

    def _later(self) -> CoordinatorStep:
        step = self.coordinator.advance(_BEAT_MS)
        self.events += len(step.fired)
        return step

    def _new(self) -> str:
        (answer,) = self._asked(JoinGroupRequest(_GROUP, protocols=_RANGE)).answers.values()
        return str(answer.member_id)

    def live(self) -> None:
        """A round, and a minute after it."""
        told: dict[int, Any] = {}
        for member in self.members:
            told |= self._asked(JoinGroupRequest(_GROUP, member, None, _RANGE)).answers
        while len(told) < MEMBERS:
            told |= self._later().answers
        answer = next(iter(told.values()))
        generation, leader = answer.generation_id, answer.leader
        self.members.sort(key=lambda member: member != leader)  # who rejoins first makes a round
        share = tuple(SyncGroupAssignment(member, b"12345678") for member in self.members)
        for member in self.members:
            given = share if member == leader else ()
            self._asked(SyncGroupRequest(_GROUP, generation, member, None, assignments=given))
        for beat in range(20):
            self._later()
            for member in self.members:
                self._asked(HeartbeatRequest(_GROUP, generation, member))
                if beat % 4 == 0:
                    offsets = (OffsetCommitTopic("t", (OffsetCommitPartition(0, beat),)),)
                    self._asked(OffsetCommitRequest(_GROUP, generation, member, None, offsets))


class EpochLoad:
    """A KIP-848 group in its life; `events` counts."""

    def __init__(self) -> None:
        self.coordinator = ConsumerCoordinator()
        topic = TopicFacts(topic_id_bytes(_TOPIC_ID), "t", 10 * MEMBERS)
        self.coordinator.set_topics((topic,))
        self.events = 0
        self._names: Iterator[str] = (f"m{n}" for n in count())
        self._epochs: dict[str, int] = {}

    def _beat(
        self, member: str, owned: tuple[TopicPartitions, ...] | None = None
    ) -> ConsumerGroupHeartbeatResponse:
        asked = ConsumerGroupHeartbeatRequest(
            _GROUP, member, self._epochs.get(member, 0), topic_partitions=owned
        )
        if member not in self._epochs:
            asked = asked._replace(
                rebalance_timeout_ms=60_000, subscribed_topic_names=("t",), topic_partitions=()
            )
        self.events += 1
        answer = self.coordinator.heartbeat(asked, _CLIENT)
        self._epochs[member] = answer.member_epoch
        return answer

    def live(self) -> None:
        """All join, settle, beat and leave: more than three minutes."""
        members = [next(self._names) for _ in range(MEMBERS)]
        for member in members:
            self._beat(member)
        for _ in range(40):
            self.events += sum(
                1 for _ in self.coordinator.advance(self.coordinator.now + _EPOCH_BEAT_MS)
            )
            for member in members:
                answer = self._beat(member)
                if answer.assignment is not None:
                    self._beat(member, answer.assignment.topic_partitions)
        for member in members:
            self._epochs[member] = -1
            self._beat(member)
