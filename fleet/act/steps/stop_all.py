"""Stopping all members and opening again, for what cannot share a generation with what runs [23].

Problem: between the leave and the joins the group stands still, and the new code may not start, or
fail on its first batch. Choice: workers of the new revision are warm before anybody is asked to
leave; those that left wait without a slot until the new ones have proven themselves. What fails
before the leave has touched nothing; what fails after it lets the new ones leave and the old ones
join again, whoever goes on. Cost: twice as many workers for that while. If there is no room for
them the old ones end after the leave, and going back waits for their start.
"""

from typing import NoReturn

from fleet.act.steps.canary import give_up, wait_for_canary
from fleet.act.steps.leave_slots import drop_holders, leave_together
from fleet.act.steps.open_slots import open_together
from fleet.act.steps.step_memory import StopMemory
from fleet.act.steps.work import StepWork, asking
from fleet.errors import FleetError, LostLease, NoRoom, RolledBack, Unreachable
from fleet.model import Step, StepKind
from fleet.slots import Handover
from fleet.text import plural, slots_of


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Warm what comes next, then let every member leave in one request."""
    memory = work.lease.recall(StopMemory)
    if memory.undone is not None:
        _put_back(work, step, memory.undone)
    if memory.stopped is None:
        slots = work.slots()
        ran = {n: revision for n in step.slots if n in slots and (revision := slots[n].revision)}
        # One who dies meanwhile is not followed by a worker that cannot share its generation.
        stays = {n: Handover(token=0, revision=revision) for n, revision in ran.items()}
        work.write_gate(lambda gate: asking(gate, stays))
        _warm(work, step)
        old = min(set(ran.values()) - {step.revision}, default="")
        work.lease.remember(StopMemory(stopped=step.slots, ran=old))
    try:
        notes = leave_together(work, step.slots)
    except LostLease:
        raise
    except FleetError as error:
        _undo(work, step, error)
    work.unpin(step.slots)
    if len(work.pool.free(step.revision)) < len(_opens(work)):
        work.progress("  no room for old and new workers at once: the old ones end")
        drop_holders(work)
        work.retire_all(step.revision)
    return notes


def reopen(work: StepWork, step: Step) -> tuple[str, ...]:
    """Open the slots of such a plan: its workers have to commit before what ran is given up."""
    memory = work.lease.recall(StopMemory)
    if memory.undone is not None:
        _put_back(work, step, memory.undone)
    try:
        notes = open_together(work, step.slots, step.revision, pinned=True, canary=True)
        wait_for_canary(work, step.slots, step.revision)
    except LostLease:
        raise
    except FleetError as error:
        _undo(work, step, error)
    work.unpin(step.slots)
    if _opens(work) <= work.gate().open:
        work.retire_all(step.revision)
    return notes


def _opens(work: StepWork) -> set[int]:
    """Slots that the plan opens."""
    steps = work.lease.change.plan.steps
    return {n for each in steps if each.kind is StepKind.OPEN for n in each.slots}


def _warm(work: StepWork, step: Step) -> None:
    """Have the new workers warm, or at least one where there is no room for all."""
    revision, wanted = step.revision, len(_opens(work)) + work.spec.replicas.standby
    try:
        count = work.pool.ensure(revision, wanted, least=1)
        work.progress(f"  warming {plural(count, 'standby')} of revision {revision}")
        limit = work.spec.rollout.warm_timeout
        work.pool.await_warm(revision, count, timeout=limit, wait=work.wait)
    except (LostLease, Unreachable):
        raise
    except NoRoom as error:
        raise FleetError(give_up(work, step, error)) from error
    except FleetError as error:
        raise RolledBack(give_up(work, step, error)) from error


def _undo(work: StepWork, step: Step, error: FleetError) -> NoReturn:
    work.lease.remember(StopMemory(undone=str(error)))
    if work.lease.change.traceback is None:
        work.keep_traceback(step.revision)
    _put_back(work, step, str(error))


def _put_back(work: StepWork, step: Step, error: str) -> NoReturn:
    """The new members leave, then those that ran before join again."""
    memory = work.lease.recall(StopMemory)
    old, stopped = memory.ran, memory.stopped or ()
    if not old:
        raise FleetError(f"{error}; what ran before it is not known")
    work.progress(f"  it failed ({error}); {slots_of(stopped)} go back to {old}")
    gate, slots = work.gate(), work.slots()
    back = {n for n, pin in gate.handover.items() if pin.revision == old}
    back |= {n for n, slot in slots.items() if slot.revision == old}
    going = tuple(sorted(gate.open - (back - gate.leaving)))
    if going:
        leave_together(work, going, again=True)
    work.remove([w.name for w in work.pool.wanted() if w.revision == step.revision])
    open_together(work, stopped, old, pinned=True)
    work.unpin((*stopped, *going))
    work.keep_standbys(old)
    raise RolledBack(
        f"workers of revision {step.revision} failed: {error}; {slots_of(stopped)} run {old} again"
    )
