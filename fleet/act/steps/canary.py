"""The proof of new code: the first that run it have to commit before any other does [22]."""

from collections.abc import Sequence
from typing import NoReturn

from fleet.act.steps.cost import SETTLE_POLL, settle_limit, settled_from_here
from fleet.act.steps.work import StepWork
from fleet.errors import FleetError
from fleet.slots import Phase, Slot
from fleet.text import slots_of


def prove(
    work: StepWork, numbers: Sequence[int], revision: str, *, once_settled: bool = False
) -> bool:
    """Wait for `canary_batches` commits (True), or for `bake` without data and without error.

    Of several slots one has to commit, none may fail. Raises FleetError with the first error.
    once_settled: `bake` counts from when the group is settled; code that fails may never let it.
    """
    rollout = work.spec.rollout
    settled = settled_from_here(work) if once_settled else _always
    since: float | None = None
    committed = False

    def proven() -> bool:
        nonlocal committed, since
        found = work.slots()
        slots = [found[n] for n in numbers]
        raise_on_trial(work, slots, revision)
        for slot in slots:
            if slot.revision != revision or slot.phase is not Phase.ACTIVE:
                raise FleetError(
                    f"slot {slot.number} is {slot.phase} and no longer runs {revision}"
                )
        committed = any(slot.batches >= rollout.canary_batches for slot in slots)
        if since is None and settled():
            since = work.clock.monotonic()
        return committed or (since is not None and work.clock.monotonic() - since >= rollout.bake)

    wanted = f"{rollout.canary_batches} batch{'' if rollout.canary_batches == 1 else 'es'}"
    work.progress(f"  canary: {slots_of(numbers)} must commit {wanted}")
    limit, poll = rollout.bake + 30.0, None
    if once_settled:
        limit, poll = limit + settle_limit(work), SETTLE_POLL
    work.wait(proven, limit, "the canary", poll)
    return committed


def _always() -> bool:
    return True


def raise_on_trial(work: StepWork, slots: Sequence[Slot], revision: str) -> None:
    """The first error of a revision: a slot that is taken again keeps none, its report does."""
    for slot in slots:
        raise_on_error(work, slot, revision)
    for report in work.store.reports(work.spec.group):
        if report.revision == revision and report.phase == "failed" and report.error:
            _fail(work, revision, report.error)


def raise_on_error(work: StepWork, slot: Slot, revision: str) -> None:
    """FleetError where a slot on trial tells an error, or its holder died."""
    if slot.revision == revision and slot.error:
        _fail(work, revision, slot.error)
    if slot.revision == revision and slot.holder and work.is_dead(slot):
        raise FleetError(f"worker {slot.holder} died while it was the canary")


def _fail(work: StepWork, revision: str, sentence: str) -> NoReturn:
    work.keep_traceback(revision)
    raise FleetError(sentence)
