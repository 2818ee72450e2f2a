"""Checks the canary: the first slots with new code must commit before others get it [22]."""

from collections.abc import Sequence
from typing import NoReturn

from fleet.act.steps.receipts import SETTLE_POLL, settle_limit, settled_from_here
from fleet.act.steps.work import StepStart, StepWork, errors_of
from fleet.errors import FleetError
from fleet.model import Step
from fleet.slots import Phase, Slot, WorkerReport
from fleet.text import slots_of


def give_up(work: StepWork, step: Step, error: FleetError) -> str:
    """Removes the step's workers, of which none got warm; returns the reason.

    Workers of the old revision never stopped.
    """
    new, slots = step.revision, work.slots()
    running = {slots[n].revision or new for n in step.slots if n in slots}
    old = min(running - {new}, default=new)
    warm = set(work.pool.warm(new)) if old == new else set()
    work.progress(f"  no worker of {new} gets warm ({error}); removing them")
    work.remove(sorted(set(work.pool.free(new)) - warm))
    work.keep_standbys(old)
    return (
        f"no worker of revision {new} got warm: {error}; no slot was handed over, {old} still runs"
    )


def wait_for_canary(
    work: StepWork, numbers: Sequence[int], revision: str, *, once_settled: bool = False
) -> bool:
    """Waits for `canary_batches` commits (True), or for `bake` without data and errors.

    Of several slots one must commit and none may fail. Raises FleetError with the first error. An
    unfinished batch is data, and the wait lasts until it ends. once_settled: `bake` counts from
    when the group is settled, which failing code may prevent.
    """
    rollout = work.spec.rollout
    settled = settled_from_here(work) if once_settled else _always
    since: float | None = None
    committed = False

    def is_done() -> bool:
        nonlocal committed, since
        found = work.slots()
        slots = [found[n] for n in numbers]
        reports = raise_on_canary_error(work, slots, revision)
        for slot in slots:
            if slot.revision != revision or slot.phase is not Phase.ACTIVE:
                raise FleetError(
                    f"slot {slot.number} is {slot.phase} and no longer runs {revision}"
                )
        committed = any(slot.batches >= rollout.canary_batches for slot in slots)
        if since is None and settled():
            since = work.clock.monotonic()
        baked = since is not None and work.clock.monotonic() - since >= rollout.bake
        return committed or (baked and not _batch_in_hand(slots, reports))

    wanted = f"{rollout.canary_batches} batch{'' if rollout.canary_batches == 1 else 'es'}"
    work.progress(f"  canary: {slots_of(numbers)} must commit {wanted}")
    limit, poll = work.spec.canary_limit + 30.0, None
    if once_settled:
        limit, poll = limit + settle_limit(work), SETTLE_POLL
    work.wait(is_done, limit, "the canary", poll)
    return committed


def _always() -> bool:
    return True


def _batch_in_hand(slots: Sequence[Slot], reports: Sequence[WorkerReport]) -> bool:
    """Tells whether an owner reported an unfinished batch at its last renewal."""
    owned = {(slot.number, slot.owner) for slot in slots}
    return any(report.in_hand and (report.slot, report.worker) in owned for report in reports)


def raise_on_canary_error(
    work: StepWork, slots: Sequence[Slot], revision: str
) -> tuple[WorkerReport, ...]:
    """Raises the first error of a revision, from slots or reports; returns all reports.

    A slot with a new owner no longer has the error, but the old owner's report does.
    """
    for slot in slots:
        raise_on_error(work, slot, revision)
    reports = work.store.reports(work.spec.group)
    for report in reports:
        if report.revision == revision and report.phase == "failed" and report.error:
            _fail(work, revision, report.error)
    return reports


def raise_on_error(work: StepWork, slot: Slot, revision: str) -> None:
    """Raises FleetError if the canary's slot has an error, or if its owner died.

    An error that the old revision has too is not the new one's, unless the canary does not work.
    """
    if slot.revision == revision and slot.error:
        others = errors_of(s for s in work.slots().values() if s.revision != revision)
        if not errors_of([slot]) <= {*others, *(work.lease.recall(StepStart).errors or ())}:
            _fail(work, revision, slot.error)
        elif slot.phase is not Phase.ACTIVE:
            _fail(work, revision, f"{slot.error} (the old revision has the same error)")
    if slot.revision == revision and slot.owner and work.is_dead(slot):
        raise FleetError(f"worker {slot.owner} died as the canary")


def _fail(work: StepWork, revision: str, sentence: str) -> NoReturn:
    work.keep_traceback(revision)
    raise FleetError(sentence)
