"""Rolling dynamic members in rolling batches: new ones join together, then the old leave together.

Problem: a dynamic member has no name that a successor could take over, so that new code for it
is a join and a leave; done one by one that is 2N rebalances. Choice: a rolling batch of k warm
workers of the new revision joins by a synchronized join beside the k that it replaces; once the
first rolling batch has a good canary and the group is settled, the k old ones drain, poll no more,
and leave in one request before they close. With room for all of them that is one join and one leave
for the whole fleet. Beside the old ones the new may have been given nothing to read, where members
are more than partitions: then their canary is waited for once more when the old ones, still warm,
have left, and these come back where they fail. Cost: k more workers (and members) while a rolling
batch lasts, everything moves, and without any data the first rolling batch waits for `bake` twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fleet.act.steps.canary import wait_for_canary
from fleet.act.steps.leave_slots import drop_owners, leave_together
from fleet.act.steps.membership import open_together
from fleet.act.steps.receipts import settle
from fleet.act.steps.work import StepStart, StepWork, member_ids
from fleet.errors import FleetError, LostLease, RolledBack, Unreachable
from fleet.model import Plan, Step, StepKind
from fleet.text import slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingBatchMemory:
    """Of one rolling batch: whom it replaces, and whether it failed."""

    old: tuple[int, ...] | None = None
    """The step's slots that were open before it."""
    failure: str | None = None
    """Of the first rolling batch, which leaves again, whoever goes on."""
    old_revision: str | None = None
    """What the old ones run, where it is known."""
    committed: bool | None = None
    """Whether the first rolling batch proved itself by commits, beside the old ones."""
    late: str | None = None
    """How it failed after they had left: they come back, whoever goes on."""


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """One rolling batch: `step.slots` names the slots that leave and those that their successors
    take.
    """
    old, fresh = _old_and_fresh(work, step)
    is_first, is_last = place_of(work.lease.change.plan, work.lease.change.step)
    memory = work.lease.recall(RollingBatchMemory)
    if memory.late is not None:
        _come_back(work, step, old, fresh, memory.late)
    if memory.failure is not None:
        _roll_back(work, step, fresh, memory.failure)
    try:
        spread = open_together(work, fresh, step.revision, pinned=True, canary=is_first)
        _remember_members(work, step)
        if is_first:  # before it is settled: code that fails may never let it settle
            committed = wait_for_canary(work, fresh, step.revision)
            work.lease.remember(RollingBatchMemory(committed=memory.committed or committed))
        settle(work)
        _remember_members(work, step)
        work.unpin(fresh)
    except LostLease:
        raise
    except FleetError as error:
        if not is_first:
            raise
        work.lease.remember(RollingBatchMemory(failure=str(error)))
        _remember_members(work, step)
        _roll_back(work, step, fresh, str(error))
    work.progress(f"  {slots_of(fresh)} run {step.revision}")
    notes = leave_together(work, old)
    if is_first and not work.lease.recall(RollingBatchMemory).committed:
        _canary_alone(work, step, old, fresh)
    drop_owners(work)
    if is_last:
        work.retire_all(step.revision)
    return (*spread, *notes)


def place_of(plan: Plan, step: int) -> tuple[bool, bool]:
    """Whether a step is the plan's first roll, and whether its last."""
    rolls = [i for i, each in enumerate(plan.steps) if each.kind is StepKind.ROLL]
    return step == rolls[0], step == rolls[-1]


def _old_and_fresh(work: StepWork, step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The slots that leave, and those that take their place: told apart once, before any opens."""
    old = work.lease.recall(RollingBatchMemory).old
    if old is None:
        old = tuple(sorted(set(step.slots) & work.targets().open))
        slots = work.slots()
        runs = {slots[n].revision for n in old if n in slots} - {None, step.revision}
        work.lease.remember(RollingBatchMemory(old=old, old_revision=next(iter(runs), None)))
    return old, tuple(n for n in step.slots if n not in old)


def _canary_alone(work: StepWork, step: Step, old: Sequence[int], fresh: Sequence[int]) -> None:
    """What the old ones had is the new ones' now: the first that may have anything to read."""
    try:
        wait_for_canary(work, fresh, step.revision, once_settled=True)
    except (LostLease, Unreachable):
        raise
    except FleetError as error:
        work.lease.remember(RollingBatchMemory(late=str(error)))
        _come_back(work, step, old, fresh, str(error))


def _come_back(
    work: StepWork, step: Step, old: Sequence[int], fresh: Sequence[int], error: str
) -> NoReturn:
    """The old ones, which wait without a slot, join once more; then the new rolling batch
    leaves.
    """
    revision = work.lease.recall(RollingBatchMemory).old_revision
    if revision is None:
        raise FleetError(
            f"the first rolling batch failed: {error}; what ran before it is not known"
        )
    work.progress(
        f"  the first rolling batch failed ({error}); {slots_of(old)} go back to {revision}"
    )
    open_together(work, old, revision, pinned=True)
    _remember_members(work, step)
    leave_together(work, fresh, again=True)
    work.unpin((*old, *fresh))
    work.remove([w.name for w in work.pool.wanted() if w.revision == step.revision])
    raise RolledBack(
        f"the first rolling batch failed: {error}; {slots_of(old)} run {revision} again"
    )


def _roll_back(work: StepWork, step: Step, fresh: Sequence[int], error: str) -> NoReturn:
    """The new rolling batch leaves; the old members never stopped being there."""
    work.progress(f"  the first rolling batch failed ({error}); it leaves again")
    leave_together(work, fresh)
    work.unpin(fresh)
    work.remove([w.name for w in work.pool.wanted() if w.revision == step.revision])
    raise RolledBack(
        f"the first rolling batch failed: {error}; its workers left, the old ones go on"
    )


def _remember_members(work: StepWork, step: Step) -> None:
    """A dynamic member id is forgotten when its slot is left: keep those that the receipt needs."""
    known = set(work.lease.recall(StepStart).members or ())
    now = member_ids(work.slots().values(), step.slots)
    if not now <= known:
        work.lease.remember(StepStart(members=tuple(sorted(known | now))))
