"""The last steps of a batched leave, taken by whoever is alive.

Problem: the actor that asked k slots to leave together may die before the LeaveGroup goes out;
the closed members would then stay in the group until their sessions end, and block every
rebalance meanwhile. Choice: the intent stands in the gate, the member ids in the slots; where
the change's actor was silent for one lease and every leaving slot is closed, any live worker of
the group sends the one request and takes the slots out of the gate [21]. Both steps may be done
twice: who is gone answers 25, and the gate is written by compare-and-set.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.slots import ChangeState, Gate, Phase, Slot
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.text import slots_of
from fleet.worker.events import Events

Leave = Callable[[str, Sequence[tuple[str | None, str]]], str | None]
"""Sends one LeaveGroup for all (instance id, member id); why not all are gone, or None.

A dynamic member's instance id is None."""


def all_drained(gate: Gate, slots: Sequence[Slot], dead: frozenset[int]) -> bool:
    """Whether every leaving slot has committed what it had: now they may close together."""
    quiet = {Phase.DRAINED, Phase.CLOSED}
    return all(
        slot.phase in quiet or slot.holder is None or slot.number in dead
        for slot in slots
        if slot.number in gate.leaving
    )


def all_closed(gate: Gate, slots: Sequence[Slot], dead: frozenset[int]) -> bool:
    """Whether no living process is a member through a leaving slot, or would join again."""
    return all(
        slot.holder is None or slot.number in dead or slot.phase is Phase.CLOSED
        for slot in slots
        if slot.number in gate.leaving
    )


class LeaveCompleter:
    """Watches one group's change actor, and ends a leave that it left behind."""

    def __init__(
        self,
        store: Store,
        *,
        group: str,
        static: bool,
        lease: float,
        leave: Leave,
        clock: Clock,
        events: Events,
    ) -> None:
        self._store = store
        self._group = group
        self._static = static
        self._leave = leave
        self._clock = clock
        self._events = events
        self._watch = LeaseWatch.over(store, group=group, lease=lease, clock=clock)

    def step(self, gate: Gate, slots: Sequence[Slot], dead: frozenset[int]) -> bool:
        """Complete the leave if it is due and nobody else does; True where it was done."""
        if not gate.leaving or not all_closed(gate, slots, dead) or not self._actor_silent(gate):
            return False
        going = [slot for slot in slots if slot.number in gate.leaving]
        named = slots_of([slot.number for slot in going])
        self._events.log(f"nobody completes the leave of {named}: doing it")
        members = [
            (slot.instance_id() if self._static else None, slot.member_id)
            for slot in going
            if slot.member_id
        ]
        if members:
            try:
                refusal = self._leave(self._group, members)
            except FleetError as error:
                refusal = str(error)
            if refusal is not None:
                self._events.log_rarely(f"the leave of {named} was refused: {refusal}")
                return False
        for slot in going:
            if slot.holder is None or slot.number in dead:  # a living one clears its own
                self._store.clear(slot)
        written = self._store.write_gate(
            replace(gate, open=gate.open - gate.leaving, leaving=frozenset())
        )
        self._events.emit("leave_completed", slots=sorted(gate.leaving), written=bool(written))
        return written is not None

    def _actor_silent(self, gate: Gate) -> bool:
        now = self._clock.monotonic()
        change = self._store.change(self._group)
        seen, told = None, 0.0
        if change is not None and change.state is ChangeState.RUNNING:
            seen, told = (change.actor, change.token, change.counter), change.lease
        return self._watch.expired("actor", (gate.plan_id, gate.leaving, seen), now, told=told)
