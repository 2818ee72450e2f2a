"""Opens slots, and stops all members for a change that cannot share a generation [23].

Problem: between the leave and the joins the group stands still, and the new code may not start, or
may fail on its first batch. Choice: workers of the new revision are warm before any member leaves.
The old workers wait without a slot until the new ones have a good canary. A failure before the
leave has changed nothing. After it, the new members leave and the old ones join again. Cost: twice
as many workers meanwhile. Without room for them, the old ones stop after the leave, and going back
waits for their start.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from fleet.act.steps.canary import give_up, raise_on_canary_error, wait_for_canary
from fleet.act.steps.leave_slots import drop_owners, leave_together
from fleet.act.steps.work import StepWork, StopMemory, asking
from fleet.errors import FleetError, LostLease, NoRoom, RolledBack, Unreachable
from fleet.model import Step, StepKind
from fleet.slots import STAYS, Handover, Phase, Slot, SlotTargets, WorkerReport
from fleet.text import plural, slots_of

# Opening slots: one write of the slot targets, so that all members join in one rebalance [19].


OPEN_AHEAD: Final = 1.5
"""Seconds between the slot targets write and the joint subscribe: to take, build, connect [19]."""


def open_slots(work: StepWork, step: Step) -> tuple[str, ...]:
    """Opens the step's slots."""
    return open_together(work, step.slots, step.revision)


def open_together(
    work: StepWork,
    numbers: Sequence[int],
    revision: str,
    *,
    pinned: bool = False,
    canary: bool = False,
) -> tuple[str, ...]:
    """Opens slots in one write and waits until all are active; returns their join spread.

    pinned: standbys of other revisions, kept for a rollback, cannot take them until
    `StepWork.unpin`. canary: the first error of a new owner ends the wait.
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
            lambda targets: with_open_slots(
                targets, missing, pins, at=work.clock.now() + OPEN_AHEAD
            )
        )
        work.progress(f"  opened {slots_of(numbers)}{'' if len(numbers) == 1 else ' together'}")

    opens = work.targets().open_at

    def active() -> bool:
        nonlocal raised
        ready = all_active(work, numbers, revision)
        if not ready and work.pool.silent():  # a warm one froze: another takes its slot
            unowned = frozenset(numbers) - work.pool.owners().keys()
            work.pool.ensure(revision, len(unowned), least=0)
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
    if work.window is not None:  # also after a dead manager
        work.window.restore()
    joins = spread(work.store.reports(work.spec.group), numbers)
    return (*joins, *([apart] if apart else ()))


def _warm(work: StepWork, revision: str, missing: frozenset[int]) -> None:
    """Warms workers for the slots and, if there is room, for slots of later steps and standbys,
    which start at the same time.
    """
    steps = work.lease.change.plan.steps
    opens = {n for step in steps if step.kind is StepKind.OPEN for n in step.slots}
    together = missing | (opens - work.targets().open) if missing <= opens else missing
    count = work.pool.ensure(
        revision, len(together) + work.spec.replicas.standby, least=len(missing)
    )
    work.progress(f"  warming {plural(count, 'standby')} of revision {revision}")
    work.await_warm(revision, count)


def _all_joined(work: StepWork, numbers: Collection[int], opens: float) -> bool:
    """Tells whether all have subscribed, so that their assignment need not wait any more."""
    reports = work.store.reports(work.spec.group)
    joined = {r.slot for r in reports if r.joined_at is not None and r.joined_at >= opens}
    return joined.issuperset(numbers)


def all_active(work: StepWork, numbers: Sequence[int], revision: str) -> bool:
    """Tells whether all slots are active; raises FleetError if a worker cannot start."""
    work.pool.raise_if_unhealthy(revision)
    slots = work.slots()
    return all(n in slots and slots[n].phase is Phase.ACTIVE for n in numbers)


def with_open_slots(
    targets: SlotTargets, missing: frozenset[int], pins: dict[int, Handover], *, at: float
) -> SlotTargets:
    """Opens the missing slots, whose owners subscribe at one wall time."""
    return replace(
        asking(targets, pins),
        open=targets.open | missing,
        open_at=at,
        leaving=targets.leaving - missing,
    )


def pins_of(
    slots: Mapping[int, Slot], numbers: Collection[int], revision: str
) -> dict[int, Handover]:
    """Returns requests that let only the revision take these free slots."""
    return {
        n: Handover(token=slots[n].token if n in slots else 0, revision=revision) for n in numbers
    }


def spread(reports: Sequence[WorkerReport], numbers: Sequence[int]) -> tuple[str, ...]:
    """Describes the time between the first and the last join."""
    joined = [r.joined_at for r in reports if r.slot in set(numbers) and r.joined_at]
    if len(joined) < 2:
        return ()
    return (f"joins were spread over {max(joined) - min(joined):.3f} s",)


# A forced rebalance is requested once, even if its actor dies. The version of the slot targets is
# stored before the write; a request and its answer raise it by two. If others write the targets
# twice meanwhile, a missing request counts as answered, and the receipt differs.


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinMemory:
    """Remembers the rejoin request."""

    asked: int | None = None
    """The owner's token."""
    version: int | None = None
    """Version of the slot targets before the request; None: it was already there."""


def force_rejoin(work: StepWork, step: Step) -> tuple[str, ...]:
    """Asks the owner to rejoin and waits until it is back."""
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
    """Tells whether the stored request was written: it still stands or was answered."""
    if memory.asked is None or memory.version is None:
        return memory.asked is not None
    return targets.rejoin.get(number) == memory.asked or targets.version >= memory.version + 2


# Replacing workers: a warm standby for each open slot without an owner, and the wanted standbys.


def warm_standbys(work: StepWork, step: Step) -> tuple[str, ...]:
    """Waits until every open slot has an owner and all wanted standbys are warm."""
    standby = work.spec.replicas.standby
    targets = work.targets()
    numbers = targets.open - targets.quarantined
    unowned = numbers - work.pool.owners().keys()
    grace = work.spec.rollout.drain_timeout
    work.pool.settle_standbys(step.revision, standby + len(unowned), grace=grace)

    def is_complete() -> bool:
        work.pool.raise_if_unhealthy(step.revision)
        owned = numbers <= work.pool.owners().keys()
        return owned and len(work.pool.warm(step.revision)) >= standby

    limit = work.spec.rollout.warm_timeout + work.spec.runtime.lease
    what = f"owners of all slots and {plural(standby, 'warm standby')}"
    work.await_starts(step.revision, is_complete, limit, what)
    return ()


def stop_all(work: StepWork, step: Step) -> tuple[str, ...]:
    """Warms the new workers, then removes every member in one request."""
    memory = work.lease.recall(StopMemory)
    if memory.undone is not None:
        _put_back(work, step, memory.undone)
    if memory.stopped is None:
        slots = work.slots()
        ran = {n: revision for n in step.slots if n in slots and (revision := slots[n].revision)}
        # A dead owner must not be replaced by a worker that cannot share its generation.
        stays = {n: Handover(token=STAYS, revision=revision) for n, revision in ran.items()}
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
        work.progress("  no room for old and new workers at once: stopping the old ones")
        drop_owners(work)
        work.retire_all(step.revision)
    return notes


def reopen(work: StepWork, step: Step) -> tuple[str, ...]:
    """Opens the slots of such a plan; its workers must commit before the old ones stop."""
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
    """Returns the slots that the plan opens."""
    steps = work.lease.change.plan.steps
    return {n for each in steps if each.kind is StepKind.OPEN for n in each.slots}


def _warm_before(work: StepWork, step: Step) -> None:
    """Warms the new workers, or at least one if there is no room for all."""
    revision, wanted = step.revision, len(_opens(work)) + work.spec.replicas.standby
    try:
        count = work.pool.ensure(revision, wanted, least=1)
        work.progress(f"  warming {plural(count, 'standby')} of revision {revision}")
        work.await_warm(revision, count)
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
    """Removes the new members, then lets the old ones join again."""
    memory = work.lease.recall(StopMemory)
    old, stopped = memory.ran, memory.stopped or ()
    if not old:
        raise FleetError(f"{error}; the old revision is unknown")
    work.progress(f"  failed ({error}); {slots_of(stopped)} go back to {old}")
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
