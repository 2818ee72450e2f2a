"""Opening slots: one gate write for all, so that their members join in one rebalance [19]."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fleet.act.steps.canary import raise_on_canary_error
from fleet.act.steps.work import StepWork, asking
from fleet.model import Step, StepKind
from fleet.slots import Gate, Handover, Phase, Slot, WorkerReport
from fleet.text import plural, slots_of

OPEN_AHEAD: Final = 1.5
"""Seconds between the gate write and the joint subscribe: time to take, build, connect [19]."""


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
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
    canary: the first error of a taker ends the wait, with that error.
    """
    missing = frozenset(numbers) - work.gate().open
    apart: str | None = None
    raised = False
    if missing:
        _warm(work, revision, missing)
        pins = pins_of(work.slots(), missing, revision) if pinned else {}
        if work.window is not None and len(missing) > 1:
            apart = work.window.widen()
            raised = apart is None
        work.write_gate(lambda gate: opened(gate, missing, pins, at=work.clock.now() + OPEN_AHEAD))
        work.progress(f"  opened {slots_of(numbers)}{'' if len(numbers) == 1 else ' together'}")

    opens = work.gate().open_at

    def active() -> bool:
        nonlocal raised
        ready = all_active(work, numbers, revision)
        if not ready and work.pool.silent():  # one that was warm is frozen: another takes its slot
            unheld = frozenset(numbers) - work.pool.holders().keys()
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
    together = missing | (opens - work.gate().open) if missing <= opens else missing
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
    work.pool.raise_if_ill(revision)
    slots = work.slots()
    return all(n in slots and slots[n].phase is Phase.ACTIVE for n in numbers)


def opened(gate: Gate, missing: frozenset[int], pins: dict[int, Handover], *, at: float) -> Gate:
    """The gate with the missing slots open, their holders to subscribe at one wall time."""
    return replace(
        asking(gate, pins),
        open=gate.open | missing,
        open_at=at,
        leaving=gate.leaving - missing,
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
