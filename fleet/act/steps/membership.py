"""Stopping all members and opening again, for what cannot share a generation with what runs [23].

Problem: between the leave and the joins the group stands still, and the new code may not start, or
fail on its first batch. Choice: workers of the new revision are warm before anybody is asked to
leave; those that left wait without a slot until the new ones have a good canary. What fails
before the leave has touched nothing; what fails after it lets the new ones leave and the old ones
join again, whoever goes on. Cost: twice as many workers for that while. If there is no room for
them the old ones end after the leave, and going back waits for their start.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from fleet.act.steps.canary import give_up, raise_on_canary_error, wait_for_canary
from fleet.act.steps.leave_slots import drop_owners, leave_together
from fleet.act.steps.work import StepWork, StopMemory, asking
from fleet.errors import FleetError, LostLease, NoRoom, RolledBack, Unreachable
from fleet.model import Step, StepKind
from fleet.slots import Handover, Phase, Slot, SlotTargets, WorkerReport
from fleet.text import plural, slots_of

# Opening slots: one slot targets write for all, so that their members join in one rebalance [19].


OPEN_AHEAD: Final = 1.5
"""Seconds between the slot targets write and the joint subscribe: time to take, build, connect
[19].
"""


def open_slots(work: StepWork, step: Step) -> tuple[str, ...]:
    """Open the step's slots."""
    return open_together(work, step.slots, step.revision)


def open_together(
    work: StepWork,
    numbers: Sequence[int],
    revision: str,
    *,
    pinned: bool = False,
    canary: bool = False,
) -> tuple[str, ...]:
    """Open slots in one write and wait until all are active; the spread of their joins.

    pinned: standbys of other revisions, which are kept for a rollback, may not take them
    until `StepWork.unpin`.
    canary: the first error of a new owner ends the wait, with that error.
    """
    missing = frozenset(numbers) - work.targets().open
    apart: str | None = None
    raised = False
    if missing:
        _warm(work, revision, missing)
        pins = pins_of(work.slots(), missing, revision) if pinned else {}
        if work.window is not None and len(missing) > 1:
            apart = work.window.widen()
            raised = apart is None
        work.write_targets(
            lambda targets: opened(targets, missing, pins, at=work.clock.now() + OPEN_AHEAD)
        )
        work.progress(f"  opened {slots_of(numbers)}{'' if len(numbers) == 1 else ' together'}")

    opens = work.targets().open_at

    def active() -> bool:
        nonlocal raised
        ready = all_active(work, numbers, revision)
        if not ready and work.pool.silent():  # one that was warm is frozen: another takes its slot
            unheld = frozenset(numbers) - work.pool.owners().keys()
            work.pool.ensure(revision, len(unheld), least=0)
        if raised and work.window is not None and _all_joined(work, missing, opens):
            raised = False
            work.window.restore()
        if canary:
            raise_on_canary_error(
                work, [s for n, s in work.slots().items() if n in numbers], revision
            )
        return ready

    limit = work.join_limit + work.spec.rollout.drain_timeout
    work.await_ready(active, limit, numbers, f"{slots_of(numbers)} to become active")
    if work.window is not None:  # also one that a dead manager left raised
        work.window.restore()
    told = spread(work.store.reports(work.spec.group), numbers)
    return (*told, *([apart] if apart else ()))


def _warm(work: StepWork, revision: str, missing: frozenset[int]) -> None:
    """Have workers for the slots, and, as far as there is room, for those that later steps of the
    change open and the standbys beside them: they start at the same time.
    """
    steps = work.lease.change.plan.steps
    opens = {n for step in steps if step.kind is StepKind.OPEN for n in step.slots}
    together = missing | (opens - work.targets().open) if missing <= opens else missing
    count = work.pool.ensure(
        revision, len(together) + work.spec.replicas.standby, least=len(missing)
    )
    work.progress(f"  warming {plural(count, 'standby')} of revision {revision}")
    work.pool.await_warm(revision, count, timeout=work.spec.rollout.warm_timeout, wait=work.wait)


def _all_joined(work: StepWork, numbers: Collection[int], opens: float) -> bool:
    """Whether all have subscribed, so that their assignment need not be held back any more."""
    reports = work.store.reports(work.spec.group)
    joined = {r.slot for r in reports if r.joined_at is not None and r.joined_at >= opens}
    return joined.issuperset(numbers)


def all_active(work: StepWork, numbers: Sequence[int], revision: str) -> bool:
    """Whether all slots have a ready member; FleetError where one of the revision cannot start."""
    work.pool.raise_if_unhealthy(revision)
    slots = work.slots()
    return all(n in slots and slots[n].phase is Phase.ACTIVE for n in numbers)


def opened(
    targets: SlotTargets, missing: frozenset[int], pins: dict[int, Handover], *, at: float
) -> SlotTargets:
    """The slot targets with the missing slots open, their owners to subscribe at one wall time."""
    return replace(
        asking(targets, pins),
        open=targets.open | missing,
        open_at=at,
        leaving=targets.leaving - missing,
    )


def pins_of(
    slots: Mapping[int, Slot], numbers: Collection[int], revision: str
) -> dict[int, Handover]:
    """Asks that only the revision may take these, which ask nobody to go."""
    return {
        n: Handover(token=slots[n].token if n in slots else 0, revision=revision) for n in numbers
    }


def spread(reports: Sequence[WorkerReport], numbers: Sequence[int]) -> tuple[str, ...]:
    """Between the first and the last subscribe of several."""
    joined = [r.joined_at for r in reports if r.slot in set(numbers) and r.joined_at]
    if len(joined) < 2:
        return ()
    return (f"joins were spread over {max(joined) - min(joined):.3f} s",)


# A forced rebalance is asked for once, whenever its actor dies: the slot targets' version is
# remembered before it is written, and an ask and its answer are two versions more. Where others
# write the slot targets twice meanwhile, what was not asked yet counts as answered; the receipt
# differs then.


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinMemory:
    """Of whom it is or was asked."""

    asked: int | None = None
    """The owner's token."""
    version: int | None = None
    """Of the slot targets before it is asked; None: it was asked already."""


def force_rejoin(work: StepWork, step: Step) -> tuple[str, ...]:
    """Ask the owner that is there, and wait until it is back."""
    number = step.slots[0]

    def asking(targets: SlotTargets) -> SlotTargets:
        if _was_asked(targets, number, work.lease.recall(RejoinMemory)):
            return targets
        token = work.slots()[number].token
        by_itself = targets.rejoin.get(number) == token
        version = None if by_itself else targets.version
        work.lease.remember(RejoinMemory(asked=token, version=version))
        return replace(targets, rejoin={**targets.rejoin, number: token})

    work.write_targets(asking)

    def back() -> bool:
        return number not in work.targets().rejoin and all_active(work, (number,), step.revision)

    work.await_ready(back, work.join_limit, (number,), f"slot {number} to rejoin")
    return ()


def _was_asked(targets: SlotTargets, number: int, memory: RejoinMemory) -> bool:
    """Whether the slot targets were written since that was remembered: it asks still, or was
    answered.
    """
    if memory.asked is None or memory.version is None:
        return memory.asked is not None
    return targets.rejoin.get(number) == memory.asked or targets.version >= memory.version + 2


# Making up for workers: a warm standby for each open slot without an owner, and those wanted.


def warm_standbys(work: StepWork, step: Step) -> tuple[str, ...]:
    """Wait until every slot that may be held is, and as many standbys as are wanted are warm."""
    standby = work.spec.replicas.standby
    targets = work.targets()
    numbers = targets.open - targets.quarantined
    unheld = numbers - work.pool.owners().keys()
    grace = work.spec.rollout.drain_timeout
    work.pool.settle_standbys(step.revision, standby + len(unheld), grace=grace)

    def manned() -> bool:
        work.pool.raise_if_unhealthy(step.revision)
        held = numbers <= work.pool.owners().keys()
        return held and len(work.pool.warm(step.revision)) >= standby

    limit = work.spec.rollout.warm_timeout + work.spec.runtime.lease
    work.wait(manned, limit, f"every open slot to be held and {plural(standby, 'warm standby')}")
    return ()


def stop_all(work: StepWork, step: Step) -> tuple[str, ...]:
    """Warm what comes next, then let every member leave in one request."""
    memory = work.lease.recall(StopMemory)
    if memory.undone is not None:
        _put_back(work, step, memory.undone)
    if memory.stopped is None:
        slots = work.slots()
        ran = {n: revision for n in step.slots if n in slots and (revision := slots[n].revision)}
        # One who dies meanwhile is not followed by a worker that cannot share its generation.
        stays = {n: Handover(token=0, revision=revision) for n, revision in ran.items()}
        work.write_targets(lambda targets: asking(targets, stays))
        _warm_before(work, step)
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
        drop_owners(work)
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
    if _opens(work) <= work.targets().open:
        work.retire_all(step.revision)
    return notes


def _opens(work: StepWork) -> set[int]:
    """Slots that the plan opens."""
    steps = work.lease.change.plan.steps
    return {n for each in steps if each.kind is StepKind.OPEN for n in each.slots}


def _warm_before(work: StepWork, step: Step) -> None:
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
    targets, slots = work.targets(), work.slots()
    back = {n for n, pin in targets.handover.items() if pin.revision == old}
    back |= {n for n, slot in slots.items() if slot.revision == old}
    going = tuple(sorted(targets.open - (back - targets.leaving)))
    if going:
        leave_together(work, going, again=True)
    work.remove([w.name for w in work.pool.wanted() if w.revision == step.revision])
    open_together(work, stopped, old, pinned=True)
    work.unpin((*stopped, *going))
    work.keep_standbys(old)
    raise RolledBack(
        f"workers of revision {step.revision} failed: {error}; {slots_of(stopped)} run {old} again"
    )
