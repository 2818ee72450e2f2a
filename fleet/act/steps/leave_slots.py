"""Leaving slots: their members drain, close, and go in one request [21].

Problem: a static member that stops stays in its group until its session ends, k that leave one by
one cost k rebalances, and a request that is late may name who came after. Choice: two phases; the
members as they were seen closed are written to the change before one request names them, by both
ids [16], and their member ids stay in the slots, so that any live worker can complete the leave.
Cost: all wait for the slowest drain, and for a lease where an owner died.
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
    """Who left: whose workers go, and whom the request names."""

    owners: Mapping[int, str] | None = None
    """Slot → the worker that held it before it was asked."""
    leaving: Mapping[int, tuple[int, str | None]] | None = None
    """Slot → (token, member id) as it was seen closed."""
    sent_at: float | None = None
    """Wall time of the request that names them."""


def leave_slots(work: StepWork, step: Step) -> tuple[str, ...]:
    """Let the step's members go, their workers with them."""
    notes = leave_together(work, step.slots)
    drop_owners(work)
    return notes


def leave_together(work: StepWork, slots: Sequence[int], *, again: bool = False) -> tuple[str, ...]:
    """Let these drain and leave in one request; static members close before it.

    A dynamic member's close is a leave of its own: it polls no more, and closes when the
    one request has removed it.
    again: others have left in this step before them.
    """
    numbers = frozenset(slots)
    if again or work.lease.recall(LeaveMemory).owners is None:
        held = {n: worker for n, worker in work.pool.owners().items() if n in numbers}
        work.lease.remember(LeaveMemory(owners=held))
    work.write_targets(lambda targets: asked_to_leave(targets, numbers))
    work.progress(f"  draining {slots_of(slots)}, then one leave for all")
    seen = _await_closed(work, numbers)
    # What is remembered finds out, too, whether the change is still ours.
    if again or work.lease.recall(LeaveMemory).leaving is None:
        told = {slot.number: (slot.token, slot.member_id) for slot in seen}
        work.lease.remember(LeaveMemory(leaving=told))
    return _send_leave(work, numbers)


def _await_closed(work: StepWork, numbers: frozenset[int]) -> list[Slot]:
    """The slots as they stood when all were closed by their owners, or held by the dead."""
    closed: list[Slot] = []

    def all_closed() -> bool:
        targets = work.targets()
        closed[:] = [s for n, s in sorted(work.slots().items()) if n in numbers & targets.open]
        return gone(closed, is_dead=work.is_dead)

    limit = work.spec.rollout.drain_timeout + work.spec.runtime.lease + 30.0
    work.wait(all_closed, limit, f"{slots_of(sorted(numbers))} to close")
    return closed


def _send_leave(work: StepWork, numbers: frozenset[int]) -> tuple[str, ...]:
    """Name the members that were seen closed, and no others: not who came after them [16]."""
    left = as_they_left(work.slots(), work.lease.recall(LeaveMemory))
    still_open = work.targets().open
    going = [slot for slot in left if slot.number in still_open]
    members = [(_instance_of(work, s), s.member_id) for s in going if s.member_id]
    if members:
        work.lease.remember(LeaveMemory(sent_at=work.clock.now()))
        why = work.leave(work.spec.group, members, reason=f"fleet {work.lease.change.plan.id}")
        if why is not None:
            raise FleetError(f"the batched leave was refused: {why}; plan again")
    work.write_targets(lambda targets: shut(targets, numbers))
    work.wait(lambda: _all_released(work, numbers), work.join_limit, "the members to close")
    for slot in left:
        work.store.clear(slot)
    return () if going else ("the workers had completed the leave themselves",)


def _instance_of(work: StepWork, slot: Slot) -> str | None:
    """The member's instance id; what it runs says so, not what shall run next."""
    wanted = work.spec.worker is not None and work.spec.worker.membership == "static"
    static = work.pool.is_static(slot.revision, otherwise=wanted)
    return slot.instance_id() if static else None


def _all_released(work: StepWork, numbers: frozenset[int]) -> bool:
    slots = [s for n, s in work.slots().items() if n in numbers]
    held = [s for s in slots if s.owner is not None and not work.is_dead(s)]
    return not held


def drop_owners(work: StepWork) -> None:
    """Remove the workers that held the slots which left."""
    held = set((work.lease.recall(LeaveMemory).owners or {}).values())
    work.remove([w.name for w in work.pool.wanted() if w.name in held])


def asked_to_leave(targets: SlotTargets, numbers: frozenset[int]) -> SlotTargets:
    """The slot targets with those of the slots that are open leaving."""
    return replace(targets, leaving=targets.leaving | (numbers & targets.open))


def shut(targets: SlotTargets, numbers: frozenset[int]) -> SlotTargets:
    """The slot targets without the slots."""
    return replace(targets, open=targets.open - numbers, leaving=targets.leaving - numbers)


def gone(slots: Collection[Slot], *, is_dead: Callable[[Slot], bool]) -> bool:
    """Whether nobody drains any more: each is closed, free, or held by the dead."""
    draining = [  # every one is looked at, at every look
        s for s in slots if not (is_dead(s) or s.phase is Phase.CLOSED or s.owner is None)
    ]
    return not draining


def as_they_left(slots: Mapping[int, Slot], memory: LeaveMemory) -> list[Slot]:
    """The slots as the change remembers them; without those that others hold since."""
    told = memory.leaving or {}
    return [
        replace(slot, member_id=told[n][1])
        for n, slot in sorted(slots.items())
        if n in told and told[n][0] == slot.token
    ]
