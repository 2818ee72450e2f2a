"""A broker's coordinator (the model) with a network before it, and what can be seen from there.

Requests of one process keep their order. A request that gets no answer (a connection that is cut,
a coordinator that is away) is told as None after the client's grace period.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fleet.sim.coordinator.classic_coordinator import ClassicCoordinator
from fleet.sim.coordinator.classic_group import ClassicGroup, ClassicState, CoordinatorConfig
from fleet.sim.coordinator.requests import (
    Client,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from fleet.worker.slot.leave_completion import Leave
from tests.schedules.simulated_time import Process, Simulation

GROUP = "orders"
_HEAD = b"\0\0" + struct.pack(">i", 1) + b"\0\x06orders"
SUBSCRIPTION = _HEAD[:6] + b"\0\x06orders" + struct.pack(">i", -1)
LOST_AFTER = 2.0
"""Seconds until a client takes a connection for dead."""


def assignment_of(partitions: tuple[int, ...]) -> bytes:
    """As consumers write it (version 0)."""
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return _HEAD + numbers + struct.pack(">i", -1)


def partitions_of(assignment: bytes) -> tuple[int, ...]:
    """The reverse; nothing where there is none."""
    if not assignment:
        return ()
    (count,) = struct.unpack_from(">i", assignment, len(_HEAD))
    return struct.unpack_from(f">{count}i", assignment, len(_HEAD) + 4)


_COMPLETE = frozenset({ClassicState.STABLE, ClassicState.EMPTY})


class Round(NamedTuple):
    """A completed generation."""

    at: float
    generation: int
    joined: frozenset[str]
    left: frozenset[str]
    """Instance ids, else member ids."""


class SimulatedBroker:
    """See the module; `accepted` is called for each partition of a commit that is accepted."""

    def __init__(self, world: Simulation, *, initial_delay: float) -> None:
        self.world = world
        config = CoordinatorConfig(initial_rebalance_delay=int(initial_delay * 1000))
        self.coordinator = ClassicCoordinator(self._uuids(), config=config)
        self.away = False
        self.cut: dict[str, float] = {}
        """Process → when its connections work again."""
        self.rounds: list[Round] = []
        self.accepted: Callable[[OffsetCommitRequest, Process], None] = lambda *_: None
        self._asked: dict[int, tuple[Process, Callable[[Any], None], Any]] = {}
        self._tickets = 0
        self._latest: dict[tuple[Process, bool], float] = {}
        self._wakes_at = float("inf")
        self._generation = 0
        self._members: frozenset[str] = frozenset()

    def _uuids(self) -> Iterator[str]:
        while True:
            yield f"{self.world.random.getrandbits(64):016x}"

    @property
    def group(self) -> ClassicGroup | None:
        """Our group, as its coordinator has it now."""
        return self.coordinator.groups.get(GROUP)

    # --- the network --------------------------------------------------------------------------

    def send(self, process: Process, request: Any, answered: Callable[[Any], None]) -> None:
        """Ask the coordinator; `answered` gets its answer, or None."""
        self._tickets += 1
        ticket = self._tickets

        def arrives() -> None:
            if self._is_cut(process) or self.away:
                process.later(LOST_AFTER, lambda: answered(None))
                return
            self._asked[ticket] = (process, answered, request)
            self._catch_up()
            if not isinstance(request, Fetch):
                client = Client(process.name)
                self._answers(self.coordinator.request(ticket, request, client).answers)
            else:
                self._answers({ticket: request.look()})

        self._travel(process, arrives, up=True)

    def _travel(self, process: Process, arrives: Callable[[], None], *, up: bool) -> None:
        world = self.world
        at = world.now + 0.0005 + 0.004 * world.random.random()
        at = max(at, self._latest.get((process, up), 0.0))
        self._latest[process, up] = at
        if up:
            world.at(at, arrives)
        else:
            process.later(at - world.now, arrives)

    def _is_cut(self, process: Process) -> bool:
        return self.cut.get(process.name, 0.0) > self.world.now

    def _answers(self, answers: dict[int, Any]) -> None:
        for ticket, answer in answers.items():
            process, answered, request = self._asked.pop(ticket)
            if isinstance(request, OffsetCommitRequest) and _is_accepted(answer):
                self.accepted(request, process)
            if self._is_cut(process):
                process.later(LOST_AFTER, lambda a=answered: a(None))
            else:
                self._travel(process, lambda a=answered, b=answer: a(b), up=False)
        self._look()

    # --- the coordinator ----------------------------------------------------------------------

    def _catch_up(self) -> None:
        behind = int(self.world.now * 1000) - self.coordinator.now
        if behind > 0:
            self._answers(self.coordinator.advance(behind).answers)

    def _look(self) -> None:
        """Note completed generations; be there when the next timer goes off."""
        group = self.group
        if group is not None and group.generation != self._generation and group.state in _COMPLETE:
            self._note(group)
        due = self.coordinator.around.timers.next_deadline
        if due is not None and due / 1000 < self._wakes_at:
            self._wakes_at = due / 1000
            self.world.at(self._wakes_at, self._wake)

    def _wake(self) -> None:
        self._wakes_at = float("inf")
        if self.away:
            return
        due = self.coordinator.around.timers.next_deadline
        if due is not None and due <= self.world.now * 1000 + 1:
            behind = max(0, max(due, int(self.world.now * 1000)) - self.coordinator.now)
            self._answers(self.coordinator.advance(behind).answers)
        else:
            self._look()

    def _note(self, group: ClassicGroup) -> None:
        names = frozenset(m.group_instance_id or m.member_id for m in group.members.values())
        if group.generation < self._generation:
            self.world.violated(
                f"I9: generation {group.generation} after generation {self._generation}"
            )
        joined, left = names - self._members, self._members - names
        self._generation, self._members = group.generation, names
        self.rounds.append(Round(self.world.now, group.generation, joined, left))
        told = f"generation {group.generation}, {len(names)} members"
        self.world.tell("group", f"{told} +{sorted(joined)} -{sorted(left)}")

    def owner(self, partition: int) -> str | None:
        """The member id that owns it by the stored assignment; None: nobody, or not stable."""
        group = self.group
        if group is None or group.state is not ClassicState.STABLE:
            return None
        for member in group.members.values():
            if partition in partitions_of(member.assignment):
                return member.member_id
        return None

    def move(self, seconds: float) -> None:
        """Its broker is gone; another one loads its log so much later."""
        self.world.tell("coordinator", f"is gone for {seconds:.1f} s")
        self._catch_up()
        self.away = True
        for process, answered, _ in list(self._asked.values()):
            process.later(LOST_AFTER, lambda a=answered: a(None))
        self._asked.clear()
        self.world.after(seconds, self._comes)

    def _comes(self) -> None:
        if not self.away:
            return
        self.away = False
        behind = int(self.world.now * 1000) - self.coordinator.now
        self.coordinator.around.timers.clear()
        self.coordinator.advance(behind)
        self.coordinator.failover(kept=True)
        self.world.tell("coordinator", "is loaded elsewhere")
        self._look()

    def leave_by(self, process: Process) -> Leave:
        """LeaveGroup as a thread of this process sends it, waiting for the answer."""

        def leave(group: str, members: Any, reason: str = "") -> str | None:
            return _leave(self, process, members)

        return leave


class Fetch(NamedTuple):
    """A question that the group's state machine does not see: committed offsets."""

    look: Callable[[], Any]


def _is_accepted(answer: Any) -> bool:
    return isinstance(answer, OffsetCommitResponse) and not answer.error_code


def _leave(broker: SimulatedBroker, process: Process, members: Any) -> str | None:
    from fleet.errors import Unreachable
    from fleet.sim.coordinator.requests import MemberIdentity
    from tests.schedules.simulated_time import Bell

    told: list[Any] = []
    bell = Bell(process)
    who = tuple(MemberIdentity(member_id, instance) for instance, member_id in members)
    broker.world.tell(process.name, f"sends a leave for {[i or m for i, m in members]}")

    def answered(answer: Any) -> None:
        told.append(answer)
        bell.ring()

    broker.send(process, LeaveGroupRequest(GROUP, who), answered)
    while not told:
        bell.wait(60.0)
    answer = told[0]
    if answer is None or answer.error_code:
        raise Unreachable("the coordinator does not answer the leave")
    codes = {m.group_instance_id or m.member_id: m.error_code for m in answer.members}
    told = [f"{n} was answered with {code}" for n, code in codes.items() if code not in {0, 25}]
    return "; ".join(told) or None
