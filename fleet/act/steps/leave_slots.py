"""Closes slots: their members drain, close and leave in one request [21].

Problem: a stopped static member stays in its group until its session ends, k single leaves cost k
rebalances, and a late request may name a successor. Choice: two phases. The closed members are
written to the change before one request names them, by both ids [16]. Their member ids stay in the
slots, so that any live worker can complete the leave. Cost: all wait for the slowest drain, and for
a lease if an owner died.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.act.steps.work import StepWork
from fleet.errors import FleetError
from fleet.model import Step
from fleet.slots import Phase, Slot, SlotTargets
from fleet.text import slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveMemory:
    """Remembers the workers to remove and the members in the request."""

    owners: Mapping[int, str] | None = None
    """Slot → its owner before the leave."""
    leaving: Mapping[int, tuple[int, str | None]] | None = None
    """Slot → (token, member id) when it was closed."""
    sent_at: float | None = None
    """Wall time of the request."""


def leave_slots(work: StepWork, step: Step) -> tuple[str, ...]:
    """Removes the step's members and their workers."""
    notes = leave_together(work, step.slots)
    drop_owners(work)
    return notes


def leave_together(work: StepWork, slots: Sequence[int], *, again: bool = False) -> tuple[str, ...]:
    """Drains these slots and removes their members in one request.

    Static members close before it. A dynamic member's close would be its own leave, so it stops
    polling and closes after the request. again: the step had another leave before.
    """
    numbers = frozenset(slots)
    if again or work.lease.recall(LeaveMemory).owners is None:
        owners = {n: worker for n, worker in work.pool.owners().items() if n in numbers}
        work.lease.remember(LeaveMemory(owners=owners))
    work.write_targets(lambda targets: request_leave(targets, numbers))
    work.progress(f"  draining {slots_of(slots)}, then one leave for all")
    seen = _await_closed(work, numbers)
    # This write also checks whether the change is still ours.
    if again or work.lease.recall(LeaveMemory).leaving is None:
        leaving = {slot.number: (slot.token, slot.member_id) for slot in seen}
        work.lease.remember(LeaveMemory(leaving=leaving))
    return _send_leave(work, numbers)


def _await_closed(work: StepWork, numbers: frozenset[int]) -> list[Slot]:
    """Waits until all slots are closed, free or have a dead owner; returns them."""
    closed: list[Slot] = []

    def all_closed() -> bool:
        targets = work.targets()
        closed[:] = [s for n, s in sorted(work.slots().items()) if n in numbers & targets.open]
        return are_drained(closed, is_dead=work.is_dead)

    limit = work.spec.rollout.drain_timeout + work.spec.runtime.lease + 30.0
    work.wait(all_closed, limit, f"{slots_of(sorted(numbers))} to close")
    return closed


def _send_leave(work: StepWork, numbers: frozenset[int]) -> tuple[str, ...]:
    """Sends the leave for the closed members, and never for their successors [16]."""
    left = slots_that_left(work.slots(), work.lease.recall(LeaveMemory))
    still_open = work.targets().open
    going = [slot for slot in left if slot.number in still_open]
    members = [(_instance_of(work, s), s.member_id) for s in going if s.member_id]
    if members:
        work.lease.remember(LeaveMemory(sent_at=work.clock.now()))
        why = work.leave(work.spec.group, members, reason=f"fleet {work.lease.change.plan.id}")
        if why is not None:
            raise FleetError(f"the coordinator refused the batched leave: {why}; plan again")
    work.write_targets(lambda targets: close_slots(targets, numbers))
    work.wait(lambda: _all_released(work, numbers), work.join_limit, "the members to close")
    for slot in left:
        work.store.clear(slot)
    return () if going else ("the workers completed the leave themselves",)


def _instance_of(work: StepWork, slot: Slot) -> str | None:
    """Returns the member's instance id, by its revision and not the wanted one."""
    wanted = work.spec.worker is not None and work.spec.worker.membership == "static"
    static = work.pool.is_static(slot.revision, otherwise=wanted)
    return slot.instance_id() if static else None


def _all_released(work: StepWork, numbers: frozenset[int]) -> bool:
    slots = [s for n, s in work.slots().items() if n in numbers]
    owned = [s for s in slots if s.owner is not None and not work.is_dead(s)]
    return not owned


def drop_owners(work: StepWork) -> None:
    """Removes the workers that owned the closed slots."""
    owners = set((work.lease.recall(LeaveMemory).owners or {}).values())
    work.remove([w.name for w in work.pool.wanted() if w.name in owners])


def request_leave(targets: SlotTargets, numbers: frozenset[int]) -> SlotTargets:
    """Adds the open ones of the slots to the leaving ones."""
    return replace(targets, leaving=targets.leaving | (numbers & targets.open))


def close_slots(targets: SlotTargets, numbers: frozenset[int]) -> SlotTargets:
    """Removes the slots from the slot targets."""
    return replace(targets, open=targets.open - numbers, leaving=targets.leaving - numbers)


def are_drained(slots: Collection[Slot], *, is_dead: Callable[[Slot], bool]) -> bool:
    """Tells whether each slot is closed, free or has a dead owner."""
    draining = [  # each one is checked every time
        s for s in slots if not (is_dead(s) or s.phase is Phase.CLOSED or s.owner is None)
    ]
    return not draining


def slots_that_left(slots: Mapping[int, Slot], memory: LeaveMemory) -> list[Slot]:
    """Returns the closed slots from the change's memory, without those with new owners."""
    closed = memory.leaving or {}
    return [
        replace(slot, member_id=closed[n][1])
        for n, slot in sorted(slots.items())
        if n in closed and closed[n][0] == slot.token
    ]
