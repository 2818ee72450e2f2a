"""A coordinator of classic groups with members that a test moves one request at a time."""

from fleet.log.records import GroupMetadata, decode
from fleet.sim.coordinator.classic_coordinator import ClassicCoordinator
from fleet.sim.coordinator.classic_group import ClassicGroup, ClassicState, CoordinatorConfig
from fleet.sim.coordinator.requests import (
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from tests.conformance.kafka_group_manager import member_uuids

RANGE = (JoinGroupProtocol("range", b""),)
JOIN = JoinGroupRequest(
    "g", protocols=RANGE, session_timeout_ms=10_000, rebalance_timeout_ms=30_000
)


class Cluster:
    """A coordinator and what its members were told; requests are numbered as they come."""

    def __init__(self, **config: int) -> None:
        settings = CoordinatorConfig(initial_rebalance_delay=0)._replace(**config)
        self.coordinator = ClassicCoordinator(member_uuids(1), config=settings)
        self.answers: dict = {}
        self.records: list[GroupMetadata] = []
        self._tickets = iter(range(1_000))

    def ask(self, message, **options) -> int:
        """A request; its answer is in `answers`, now or later."""
        ticket = next(self._tickets)
        self._take(self.coordinator.request(ticket, message, **options))
        return ticket

    def said(self, message, **options):
        """The answer to a request that is answered at once."""
        return self.answers[self.ask(message, **options)]

    def beat(self, member: str, **changed) -> int:
        """The code that a member's heartbeat hears."""
        message = HeartbeatRequest("g", self.group.generation, member)
        return self.said(message._replace(**changed)).error_code

    def wait(self, milliseconds: int) -> None:
        """Time goes on."""
        self._take(self.coordinator.advance(milliseconds))

    def move(self, *, kept: bool = False) -> None:
        """Another broker loads the log; kept: with what was not durable yet."""
        self._take(self.coordinator.failover(kept=kept))

    def _take(self, step) -> None:
        self.answers |= step.answers
        for record in step.records:
            found = decode(record.key, record.value, offset=0, timestamp=0)
            if isinstance(found, GroupMetadata):
                self.records.append(found)

    @property
    def group(self) -> ClassicGroup:
        """The one that there is."""
        return self.coordinator.groups["g"]

    def stable(self, count: int, *, static: bool = True) -> list[str]:
        """So many members in one generation; their ids, the leader's first."""
        how = [JOIN._replace(group_instance_id=f"i{n}" if static else None) for n in range(count)]
        joins = [self.ask(each._replace(version=3)) for each in how]
        while self.group.state is ClassicState.PREPARING_REBALANCE:
            self.wait(1)
            ids = [member.member_id for member in self.group.members.values()]
            for name in ids:
                if self.group.members[name].awaits_join is None:
                    instance = self.group.members[name].group_instance_id
                    joins.append(
                        self.ask(JOIN._replace(member_id=name, group_instance_id=instance))
                    )
        return self.synced()

    def synced(self) -> list[str]:
        """All members of the new generation have their assignment, which is their own name."""
        leader = self.group.leader
        others = [name for name in self.group.members if name != leader]
        assert leader is not None
        for name in (leader, *others):
            given = tuple(SyncGroupAssignment(n, n.encode()) for n in (leader, *others))
            message = SyncGroupRequest("g", self.group.generation, name, assignments=given)
            ticket = self.ask(message)
            assert self.answers[ticket].assignment == name.encode()
        assert self.group.state is ClassicState.STABLE
        return [leader, *others]


def commit(generation: int, member: str) -> OffsetCommitRequest:
    """One offset of one partition."""
    offsets = (OffsetCommitTopic("t", (OffsetCommitPartition(0, 7),)),)
    return OffsetCommitRequest("g", generation, member, None, offsets)
