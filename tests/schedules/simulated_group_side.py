"""The group's side of a member: joins, syncs, heartbeats, and hears that it is over.

As librdkafka does it for a classic consumer with the range assignor; what becomes of partitions and
batches is its heir's (`SimulatedMember`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fleet.sim.coordinator.requests import (
    HeartbeatRequest,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from fleet.worker.member.member_state import End, MembershipEnd, MemberState
from fleet.worker.member.protocols import FENCED
from tests.schedules.simulated_broker import (
    GROUP,
    SUBSCRIPTION,
    SimulatedBroker,
    assignment_of,
    partitions_of,
)
from tests.schedules.simulated_time import Process
from tests.schedules.simulated_topic import SimulatedTopic, tp_of

UNKNOWN, ID_REQUIRED = 25, 79


class Times(NamedTuple):
    """Seconds."""

    session: float
    heartbeat: float
    max_poll: float
    drain: float


def shares(members: tuple[JoinGroupMember, ...], partitions: int) -> dict[str, tuple[int, ...]]:
    """Ranges of one topic by member id; ordered by instance id, else member id."""
    ordered = sorted(members, key=lambda m: m.group_instance_id or m.member_id)
    each, more = divmod(partitions, len(ordered))
    starts = [n * each + min(n, more) for n in range(len(ordered) + 1)]
    return {m.member_id: tuple(range(starts[n], starts[n + 1])) for n, m in enumerate(ordered)}


class GroupSide:
    """Of one member."""

    def __init__(
        self,
        process: Process,
        broker: SimulatedBroker,
        topic: SimulatedTopic,
        *,
        instance: str | None,
        times: Times,
        changed: Callable[[], None],
    ) -> None:
        self.process, self.broker, self.topic = process, broker, topic
        self.instance = instance
        self.times = times
        self.state = MemberState()
        self.ended: MembershipEnd | None = None
        self.member_id = ""
        self.generation = -1
        self._changed = changed
        self._joined = False
        self._revoke_by: float | None = None
        """Until when what is revoked may be finished; None: nothing is."""
        self._turn = 0
        """Answers to what was asked before it changed are not heard."""
        self._beat = 0
        self._heard_at = 0.0

    # --- its heir's ---------------------------------------------------------------------------

    def _work(self) -> None:
        raise NotImplementedError

    def _lose(self, why: str) -> None:
        raise NotImplementedError

    def _close(self, how: End, sentence: str) -> None:
        raise NotImplementedError

    def _ask_positions(self, partitions: tuple[int, ...]) -> None:
        raise NotImplementedError

    # --- joining ------------------------------------------------------------------------------

    def _send(self, request: Any, answered: Callable[[Any], None]) -> None:
        turn = self._turn

        def hears(answer: Any) -> None:
            if self.ended is None and turn == self._turn:
                answered(answer)

        self.broker.send(self.process, request, hears)

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        turn = self._turn

        def acts() -> None:
            if self.ended is None and turn == self._turn:
                action()

        self.process.later(delay, acts)

    def _subscribe(self) -> None:
        if self.ended is None:
            self.state.joined_at = self.process.now()
            self._join()

    def _join(self) -> None:
        self._turn += 1
        self._joined, self._revoke_by = False, None
        times = self.times
        request = JoinGroupRequest(
            GROUP,
            self.member_id,
            self.instance,
            (JoinGroupProtocol("range", SUBSCRIPTION),),
            session_timeout_ms=int(times.session * 1000),
            rebalance_timeout_ms=int(times.max_poll * 1000),
            version=5,
        )
        self._send(request, self._on_join)

    def _on_join(self, answer: Any) -> None:
        if answer is None:
            self._later(0.2, self._join)
        elif answer.error_code == ID_REQUIRED:
            self.member_id = answer.member_id
            self._join()
        elif answer.error_code:
            self._refused(answer.error_code)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            given = shares(answer.members, self.topic.partitions) if answer.members else {}
            request = SyncGroupRequest(
                GROUP,
                self.generation,
                self.member_id,
                self.instance,
                protocol_name=answer.protocol_name,
                assignments=tuple(
                    SyncGroupAssignment(who, assignment_of(of)) for who, of in given.items()
                ),
            )
            self._send(request, self._on_sync)

    def _on_sync(self, answer: Any) -> None:
        if answer is None:
            self._later(0.2, self._join)
        elif answer.error_code:
            self._refused(answer.error_code)
        else:
            self._heard_at = self.process.monotonic()
            self._joined = True
            self._beat += 1
            self._heartbeat_later(self._beat)
            partitions = partitions_of(answer.assignment)
            self.state.member_id = self.member_id
            self.state.partitions = frozenset(map(tp_of, partitions))
            self._ask_positions(partitions)
            self._changed()

    def _refused(self, code: int) -> None:
        """JoinGroup, SyncGroup or Heartbeat was."""
        if code == FENCED:
            self._lose("fenced")
            self._close(End.FENCED, "fenced")
            return
        if code == UNKNOWN:
            self.member_id = ""
        self._lose("its membership is over")
        self._later(0.1 if code in {14, 15, 16} else 0.0, self._join)

    def _heartbeat_later(self, beat: int) -> None:
        self._later(self.times.heartbeat, lambda: self._heartbeat(beat))

    def _heartbeat(self, beat: int) -> None:
        if beat != self._beat or not self._joined:
            return
        if self.process.monotonic() - self._heard_at > self.times.session:
            self._lose("no heartbeat was answered for a session")
            self._join()
            return
        request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance)
        self._send(request, self._on_heartbeat)
        self._heartbeat_later(beat)

    def _on_heartbeat(self, answer: Any) -> None:
        if answer is None or answer.error_code in {14, 15, 16} or not self._joined:
            return
        self._heard_at = self.process.monotonic()
        if answer.error_code == 27:
            if self._revoke_by is None:
                self._revoke_by = self.process.monotonic() + self.times.drain
                self._work()
        elif answer.error_code:
            self._refused(answer.error_code)
