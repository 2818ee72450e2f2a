"""Rolls dynamic members in rolling batches: new members join together, then old ones leave.

Problem: a successor cannot take over a dynamic member's name, so that new code needs a join and a
leave; one by one that is 2N rebalances. Choice: k warm workers of the new revision join together
beside the k that they replace. When the first batch has a good canary and the group is settled, the
old members drain, stop polling, and leave in one request. With room for all, the whole fleet needs
one join and one leave. With more members than partitions, the new ones may get nothing to read.
Their canary then runs again after the old ones, which stay warm, have left; these return if it
fails. Cost: k more workers during a batch, all partitions move, and without data the first batch
waits for `bake` twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fleet.act.steps.canary import wait_for_canary
from fleet.act.steps.leave_slots import drop_owners, leave_together
from fleet.act.steps.membership import open_together
from fleet.act.steps.receipts import settle
from fleet.act.steps.work import StepStart, StepWork, asking, member_ids
from fleet.errors import FleetError, LostLease, RolledBack, Unreachable
from fleet.model import Plan, Step, StepKind
from fleet.slots import STAYS, Handover
from fleet.text import slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingBatchMemory:
    """Remembers whom a rolling batch replaces, and whether it failed."""

    old: tuple[int, ...] | None = None
    """The step's slots that were open before it."""
    failure: str | None = None
    """Error of the first rolling batch, which then leaves again."""
    old_revision: str | None = None
    """Revision of the old members, if it is known."""
    committed: bool | None = None
    """Whether the first rolling batch committed beside the old members."""
    late: str | None = None
    """Error after the old members had left, which then come back."""


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Performs one rolling batch; `step.slots` names the old slots and the new ones."""
    old, fresh = _old_and_fresh(work, step)
    is_first, is_last = place_of(work.lease.change.plan, work.lease.change.step)
    memory = work.lease.recall(RollingBatchMemory)
    if memory.late is not None:
        _come_back(work, step, old, fresh, memory.late)
    if memory.failure is not None:
        _roll_back(work, step, fresh, memory.failure)
    if work.pool.replaces_workers:
        _keep_old(work, step.revision)
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
        work.unpin(sorted(work.targets().handover))
        work.retire_all(step.revision)
    return (*spread, *notes)


def _keep_old(work: StepWork, revision: str) -> None:
    """Pins the old slots to what they run.

    Standbys of the new revision are then not ready, so that a Deployment replaces no owner before
    its rolling batch has left.
    """
    old = {
        n: Handover(token=STAYS, revision=slot.revision)
        for n, slot in work.slots().items()
        if n in work.targets().open and slot.revision not in {None, revision}
    }
    work.write_targets(lambda targets: asking(targets, old))


def place_of(plan: Plan, step: int) -> tuple[bool, bool]:
    """Tells whether a step is the plan's first roll, and whether its last."""
    rolls = [i for i, each in enumerate(plan.steps) if each.kind is StepKind.ROLL]
    return step == rolls[0], step == rolls[-1]


def _old_and_fresh(work: StepWork, step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the old and the new slots, which are distinguished once, before any opens."""
    old = work.lease.recall(RollingBatchMemory).old
    if old is None:
        old = tuple(sorted(set(step.slots) & work.targets().open))
        slots = work.slots()
        runs = {slots[n].revision for n in old if n in slots} - {None, step.revision}
        work.lease.remember(RollingBatchMemory(old=old, old_revision=next(iter(runs), None)))
    return old, tuple(n for n in step.slots if n not in old)


def _canary_alone(work: StepWork, step: Step, old: Sequence[int], fresh: Sequence[int]) -> None:
    """Waits for the canary again, now that the new members own all partitions."""
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
    """Lets the old members, which wait without a slot, join again; then removes the new ones."""
    revision = work.lease.recall(RollingBatchMemory).old_revision
    if revision is None:
        raise FleetError(f"the first rolling batch failed: {error}; the old revision is unknown")
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
    """Removes the new members; the old ones never stopped."""
    work.progress(f"  the first rolling batch failed ({error}); its members leave")
    leave_together(work, fresh)
    work.unpin(fresh)
    work.remove([w.name for w in work.pool.wanted() if w.revision == step.revision])
    raise RolledBack(
        f"the first rolling batch failed: {error}; its members left, the old ones continue"
    )


def _remember_members(work: StepWork, step: Step) -> None:
    """Stores dynamic member ids for the receipt, since slots lose them."""
    known = set(work.lease.recall(StepStart).members or ())
    now = member_ids(work.slots().values(), step.slots)
    if not now <= known:
        work.lease.remember(StepStart(members=tuple(sorted(known | now))))
