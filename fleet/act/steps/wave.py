"""Rolling dynamic members in waves: new ones join together, then the old leave together.

Problem: a dynamic member has no name that a successor could take over, so that new code for it
is a join and a leave; done one by one that is 2N rebalances. Choice: a wave of k warm workers
of the new revision joins through the gate beside the k that it replaces; once the first wave
has proven itself and the group is settled, the k old ones drain, poll no more, and leave in
one request before they close. With room for all of them that is one join and one leave for the
whole fleet. Cost: k more workers (and members) while a wave lasts, and everything moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fleet.act.steps.canary import prove
from fleet.act.steps.cost import settle
from fleet.act.steps.leave_slots import drop_holders, leave_together
from fleet.act.steps.open_slots import open_together
from fleet.act.steps.step_memory import StepStart
from fleet.act.steps.work import StepWork, member_ids
from fleet.errors import FleetError, LostLease, RolledBack
from fleet.model import Plan, Step, StepKind
from fleet.text import slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveMemory:
    """Of one wave: whom it replaces, and whether it failed."""

    old: tuple[int, ...] | None = None
    """The step's slots that were open before it."""
    failure: str | None = None
    """Of the first wave, which leaves again, whoever goes on."""


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """One wave: `step.slots` names the slots that leave and those that their successors take."""
    old, fresh = _old_and_fresh(work, step)
    is_first, is_last = place_of(work.lease.change.plan, work.lease.change.step)
    failure = work.lease.recall(WaveMemory).failure
    if failure is not None:
        _roll_back(work, step, fresh, failure)
    try:
        spread = open_together(work, fresh, step.revision, pinned=True, on_trial=is_first)
        _remember_members(work, step)
        if is_first:  # before it is settled: code that fails may never let it settle
            prove(work, fresh, step.revision)
        settle(work)
        _remember_members(work, step)
        work.unpin(fresh)
    except LostLease:
        raise
    except FleetError as error:
        if not is_first:
            raise
        work.lease.remember(WaveMemory(failure=str(error)))
        _remember_members(work, step)
        _roll_back(work, step, fresh, str(error))
    work.progress(f"  {slots_of(fresh)} run {step.revision}")
    notes = leave_together(work, old)
    drop_holders(work)
    if is_last:
        work.retire_all(step.revision)
    return (*spread, *notes)


def place_of(plan: Plan, step: int) -> tuple[bool, bool]:
    """Whether a step is the plan's first roll, and whether its last."""
    rolls = [i for i, each in enumerate(plan.steps) if each.kind is StepKind.ROLL]
    return step == rolls[0], step == rolls[-1]


def _old_and_fresh(work: StepWork, step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The slots that leave, and those that take their place: told apart once, before any opens."""
    old = work.lease.recall(WaveMemory).old
    if old is None:
        old = tuple(sorted(set(step.slots) & work.gate().open))
        work.lease.remember(WaveMemory(old=old))
    return old, tuple(n for n in step.slots if n not in old)


def _roll_back(work: StepWork, step: Step, fresh: Sequence[int], error: str) -> NoReturn:
    """The new wave leaves; the old members never stopped being there."""
    work.progress(f"  the first wave failed ({error}); it leaves again")
    leave_together(work, fresh)
    work.unpin(fresh)
    work.remove([w.name for w in work.pool.wanted() if w.revision == step.revision])
    raise RolledBack(f"the first wave failed: {error}; its workers left, the old ones go on")


def _remember_members(work: StepWork, step: Step) -> None:
    """A dynamic member id is forgotten when its slot is left: keep those that the receipt needs."""
    known = set(work.lease.recall(StepStart).members or ())
    now = member_ids(work.slots().values(), step.slots)
    if not now <= known:
        work.lease.remember(StepStart(members=tuple(sorted(known | now))))
