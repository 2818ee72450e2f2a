"""A classic consumer as librdkafka is one: what it sends, and what it makes of the answers.

Problem: what a rebalance costs is decided as much by when members heartbeat, revoke and poll as
by the coordinator. Choice: one object per process with librdkafka's steps (heartbeats at their
interval, a rebalance noticed by one, everything revoked before JoinGroup, range by the leader,
LeaveGroup at close unless it is static). Cost: looking up the coordinator, reconnecting,
cooperative assignment, commits and fetches are not modelled; a poll takes no time but for `slow`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from fleet.sim.coordinator.error_codes import ErrorCode
from fleet.sim.coordinator.requests import (
    UNKNOWN_MEMBER,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fleet.sim.scenarios.group_story import Scenario

GROUP = "simulated"
_TOPIC = b"\0\x05topic"
_SUBSCRIPTION = b"\0\0" + struct.pack(">i", 1) + _TOPIC + struct.pack(">i", -1)


class ClientState(StrEnum):
    """What a member's process is at.

    DOWN: no process. JOINING: JoinGroup or SyncGroup is out. STEADY: it has its assignment and
    heartbeats. REVOKING: a rebalance is known, the application has yet to poll. OUT: it has left
    after max.poll.interval.ms and joins at the next poll.
    """

    DOWN = "down"
    JOINING = "joining"
    STEADY = "steady"
    REVOKING = "revoking"
    OUT = "out"


class Place(Protocol):
    """What a member has around it."""

    now: int

    def after(self, delay: int, action: Callable[[], None]) -> None:
        """Later on."""

    def send(self, client: "SimulatedClient", request: Any) -> None:
        """To the coordinator; its answer comes to `receive`."""

    def tell(self, who: int, what: str) -> None:
        """One line of the trace."""

    def own(self, who: int, partitions: tuple[int, ...]) -> None:
        """A member processes these from now on."""

    def disown(self, who: int) -> None:
        """It processes none any more."""


def range_of(members: tuple[JoinGroupMember, ...], partitions: int) -> dict[str, tuple[int, ...]]:
    """Ranges of one topic: by instance id, else member id; the first get what does not divide."""
    ordered = sorted(
        members, key=lambda m: (m.group_instance_id is None, m.group_instance_id or m.member_id)
    )
    each, more = divmod(partitions, len(ordered))
    starts = [n * each + min(n, more) for n in range(len(ordered) + 1)]
    return {m.member_id: tuple(range(starts[n], starts[n + 1])) for n, m in enumerate(ordered)}


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """See the module; `number` stays over restarts, `life` counts them."""

    number: int
    scenario: Scenario
    place: Place
    state: ClientState = ClientState.DOWN
    life: int = 0
    member_id: str = UNKNOWN_MEMBER
    generation: int = -1
    busy_until: int = 0
    """The application polls again then; before that it polls all the time."""
    _beat: int = 0
    """Counts assignments: heartbeats of an old one stop."""

    @property
    def instance(self) -> str | None:
        """Its group.instance.id; sorts by number."""
        return f"member-{self.number:05d}" if self.scenario.static else None

    # What is done to it.

    def start(self) -> None:
        """A new process; nothing where one runs."""
        if self.state is ClientState.DOWN:
            self.life += 1
            self.member_id, self.generation, self.busy_until = UNKNOWN_MEMBER, -1, 0
            self.place.tell(self.number, "starts")
            self._join()

    def close(self) -> None:
        """A proper end: a dynamic member leaves, a static one is expected back."""
        if self.state is not ClientState.DOWN:
            self._leave()
            self._end("closes")

    def crash(self) -> None:
        """The process is gone without a word."""
        if self.state is not ClientState.DOWN:
            self._end("crashes")

    def slow(self, lasts: int) -> None:
        """The application does not poll for so long."""
        if self.state is ClientState.DOWN:
            return
        self.place.tell(self.number, f"does not poll for {lasts} ms")
        self.busy_until = self.place.now + lasts
        self._later(lasts, self._poll)
        if lasts > self.scenario.max_poll_interval:
            self._later(self.scenario.max_poll_interval, self._poll_interval_over)

    def _end(self, how: str) -> None:
        self.place.tell(self.number, how)
        self.state = ClientState.DOWN
        self.place.disown(self.number)

    def _later(self, delay: int, action: Callable[[], None]) -> None:
        life = self.life

        def acted() -> None:
            if self.life == life and self.state is not ClientState.DOWN:
                action()

        self.place.after(delay, acted)

    # The application.

    def _poll(self) -> None:
        if self.state in {ClientState.REVOKING, ClientState.OUT}:
            self._join()

    def _poll_interval_over(self) -> None:
        self.place.tell(self.number, "exceeds max.poll.interval.ms")
        self._leave()
        self.member_id, self.generation = UNKNOWN_MEMBER, -1
        self.state = ClientState.OUT
        self.place.disown(self.number)

    def _leave(self) -> None:
        if self.instance is None and self.member_id:
            who = MemberIdentity(self.member_id, None)
            self.place.send(self, LeaveGroupRequest(GROUP, (who,)))

    # The group.

    def _rejoin(self) -> None:
        """Revoked is in the application's next poll; heartbeats go on until then."""
        if self.place.now < self.busy_until:
            self.state = ClientState.REVOKING
        else:
            self._join()

    def _join(self) -> None:
        self.place.disown(self.number)
        self.state = ClientState.JOINING
        self.place.send(
            self,
            JoinGroupRequest(
                GROUP,
                self.member_id,
                self.instance,
                (JoinGroupProtocol("range", _SUBSCRIPTION),),
                session_timeout_ms=self.scenario.session_timeout,
                rebalance_timeout_ms=self.scenario.max_poll_interval,
                version=5,  # the newest that librdkafka speaks
            ),
        )

    def receive(self, answer: Any) -> None:
        """An answer of the coordinator."""
        match answer:
            case JoinGroupResponse() if self.state is ClientState.JOINING:
                self._joined(answer)
            case SyncGroupResponse() if self.state is ClientState.JOINING:
                self._synced(answer)
            case HeartbeatResponse() if self.state is ClientState.STEADY:
                if answer.error_code:
                    self._refused(answer.error_code)

    def _refused(self, code: int) -> None:
        if code == ErrorCode.FENCED_INSTANCE_ID:
            self._end("is fenced by another process with its instance id")
            return
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = UNKNOWN_MEMBER
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = -1
        self._rejoin()

    def _joined(self, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self._join()
            return
        if answer.error_code:
            self._refused(answer.error_code)
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        given = range_of(answer.members, self.scenario.partitions) if answer.members else {}
        self.place.send(
            self,
            SyncGroupRequest(
                GROUP,
                self.generation,
                self.member_id,
                self.instance,
                protocol_name=answer.protocol_name,
                assignments=tuple(
                    SyncGroupAssignment(name, struct.pack(f">{len(of)}i", *of))
                    for name, of in given.items()
                ),
            ),
        )

    def _synced(self, answer: SyncGroupResponse) -> None:
        if answer.error_code:
            self._refused(answer.error_code)
            return
        of = struct.unpack(f">{len(answer.assignment) // 4}i", answer.assignment)
        self.state = ClientState.STEADY
        self.place.tell(self.number, f"generation {self.generation}: {len(of)} partitions")
        self.place.own(self.number, of)
        self._beat += 1
        self._heartbeat_later(self._beat)

    def _heartbeat_later(self, beat: int) -> None:
        self._later(self.scenario.heartbeat_interval, lambda: self._heartbeat(beat))

    def _heartbeat(self, beat: int) -> None:
        if beat == self._beat and self.state in {ClientState.STEADY, ClientState.REVOKING}:
            request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.instance)
            self.place.send(self, request)
            self._heartbeat_later(beat)
