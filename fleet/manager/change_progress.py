"""How far a group's running change is: what whoever watches it is shown.

Looked up beside the actor, from what it keeps of its change in the store and what the coordinator
recorded since the step began, so that any process can tell it and the actor is not held up. Cost:
one look is a read of the store, a snapshot of the group and a read of its part of the log.
"""

from dataclasses import dataclass

from fleet.act.steps.handover import HandoverMemory, rolled
from fleet.act.steps.work import StepStart
from fleet.manager.cycle import Fleet
from fleet.model import Step, StepKind
from fleet.slots import Change, ChangeState, Phase, Slot, SlotTargets
from fleet.slots.codec import from_json
from fleet.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProgress:
    """A moment of a change. Figures that nobody can tell are None."""

    step: int
    """Counted from one."""
    steps: int
    kind: StepKind
    slots_done: int | None
    slots: int
    """Slots of the step in hand."""
    lag: int | None
    """Records that wait in the group."""
    longest_downtime: float | None
    """Seconds: of the partitions that the step in hand has moved so far."""
    rebalances: int | None
    """Recorded since the step in hand began, ours and others'."""

    @property
    def sentence(self) -> str:
        """All that is known, in one line."""
        parts = [f"step {self.step} of {self.steps} ({self.kind})"]
        if self.slots_done is not None:
            parts.append(f"{self.slots_done} of {plural(self.slots, 'slot')} done")
        if self.lag is not None:
            parts.append(f"{self.lag:,} records waiting")
        if self.rebalances is not None:
            parts.append(plural(self.rebalances, "rebalance"))
        if self.longest_downtime is not None:
            parts.append(f"longest pause so far {self.longest_downtime:.2f} s")
        return ", ".join(parts)


def change_progress(fleet: Fleet, group: str) -> ChangeProgress | None:
    """How far the group's change is; None where none is being carried out."""
    change = fleet.change(group)
    if change is None or change.state is not ChangeState.RUNNING:
        return None
    if change.step >= len(change.plan.steps):
        return None
    step = change.plan.steps[change.step]
    since = from_json(StepStart, change.detail).position
    counted = None if since is None else fleet.counted(group, since)
    seen = fleet.snapshot([group]).groups.get(group)
    return ChangeProgress(
        step=change.step + 1,
        steps=len(change.plan.steps),
        kind=step.kind,
        slots_done=slots_done(step, change, fleet.slots(group), fleet.targets(group)),
        slots=len(step.slots),
        lag=seen.lag if seen is not None else None,
        longest_downtime=counted.longest_downtime_s if counted is not None else None,
        rebalances=counted.rebalances if counted is not None else None,
    )


def slots_done(
    step: Step, change: Change, slots: tuple[Slot, ...], targets: SlotTargets
) -> int | None:
    """How many slots of the step in hand are as they shall be; None for steps without slots."""
    found = {slot.number: slot for slot in slots}
    mine = [found.get(n) for n in step.slots]
    if step.kind is StepKind.ROLL:
        memory = from_json(HandoverMemory, change.detail)
        return sum(rolled(slot, targets, step.revision, memory) for slot in mine)
    if step.kind is StepKind.OPEN:
        return sum(slot is not None and slot.phase is Phase.ACTIVE for slot in mine)
    if step.kind in (StepKind.LEAVE, StepKind.STOP_ALL):
        return sum(slot is None or slot.owner is None for slot in mine)
    return None
