"""Rolling dynamic members in waves: new ones join together, then the old leave together.

Problem: a dynamic member has no name that a successor could take over, so that new code for it
is a join and a leave; done one by one that is 2N rebalances. Choice: a wave of k warm workers
of the new revision joins through the gate beside the k that it replaces; once the first wave
has proven itself and the group is settled, the k old ones drain, poll no more, and leave in
one request before they close. With room for all of them that is one join and one leave for the
whole fleet. Cost: k more workers (and members) while a wave lasts, and everything moves.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleet.errors import FleetError, LostLease, RolledBack
from fleet.model import Step, StepKind

if TYPE_CHECKING:
    from fleet.act.steps import StepWork


def roll_wave(work: "StepWork", step: Step) -> tuple[str, ...]:
    """One wave: `step.slots` names the slots that leave and those that their successors take."""
    change = work.lease.change
    if "old" not in change.detail:
        gate = work.store.gate(work.spec.group)
        work.lease.remember(old=sorted(set(step.slots) & gate.open))
    remembered = work.lease.change.detail.get("old")
    old = tuple(int(n) for n in remembered) if isinstance(remembered, list) else ()
    fresh = tuple(n for n in step.slots if n not in old)
    rolls = [i for i, each in enumerate(change.plan.steps) if each.kind is StepKind.ROLL]
    is_first, is_last = change.step == rolls[0], change.step == rolls[-1]
    failure = work.lease.change.detail.get("failure")
    if failure is not None:
        _roll_back(work, step, fresh, str(failure))
    try:
        spread = work.open_together(fresh, step.revision, pinned=True, on_trial=is_first)
        _remember_members(work, step)
        if is_first:  # before it is settled: code that fails may never let it settle
            work.prove(fresh, step.revision)
        work.settle()
        _remember_members(work, step)
        work.unpin(fresh)
    except LostLease:
        raise
    except FleetError as error:
        if not is_first:
            raise
        work.lease.remember(failure=str(error))
        _remember_members(work, step)
        _roll_back(work, step, fresh, str(error))
    work.progress(f"  slot(s) {numbers_of(fresh)} run {step.revision}")
    notes = work.leave_together(old)
    work.drop_holders()
    if is_last:
        work.retire_all(step.revision)
    return (*spread, *notes)


def _roll_back(work: "StepWork", step: Step, fresh: Sequence[int], error: str) -> None:
    """The new wave leaves; the old members never stopped being there."""
    work.progress(f"  the first wave failed ({error}); it leaves again")
    work.leave_together(fresh)
    work.unpin(fresh)
    failed = [w.name for w in work.crew.wanted() if w.revision == step.revision]
    work.crew.remove(failed, grace=work.spec.rollout.drain_timeout)
    raise RolledBack(f"the first wave failed: {error}; its workers left, the old ones go on")


def _remember_members(work: "StepWork", step: Step) -> None:
    """A dynamic member id is forgotten when its slot is left: keep those that the receipt needs."""
    before = work.lease.change.detail.get("members")
    known = {str(each) for each in before} if isinstance(before, list) else set()
    now = {
        slot.member_id
        for slot in work.store.slots(work.spec.group)
        if slot.number in step.slots and slot.member_id
    }
    if not now <= known:
        work.lease.remember(members=sorted(known | now))


def numbers_of(numbers: Sequence[int]) -> str:
    """`1, 2, 3`."""
    return ", ".join(str(n) for n in numbers)
