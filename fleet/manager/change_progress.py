"""Reports the progress of a group's running change.

Problem: a user wants to follow a change that another process carries out. Choice: progress is read
from the change in the store and from the coordinator's records since the step began. Any process
can read it, and the actor does not wait. Cost: each refresh reads the store, a snapshot of the
group and its part of the log.
"""

from dataclasses import dataclass

from fleet.act.steps.handover import HandoverMemory, is_rolled
from fleet.act.steps.work import StepStart
from fleet.manager.cycle import Fleet
from fleet.model import Step, StepKind
from fleet.slots import Change, ChangeState, Phase, Slot, SlotTargets
from fleet.slots.codec import from_json
from fleet.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProgress:
    """Describes the progress of a change; unknown figures are None."""

    step: int
    """Counted from one."""
    steps: int
    kind: StepKind
    slots_done: int | None
    slots: int
    """Slots of the current step."""
    lag: int | None
    """Waiting records of the group."""
    longest_downtime: float | None
    """Seconds; of the partitions that the current step has moved so far."""
    rebalances: int | None
    """Rebalances since the current step began, external ones included."""

    @property
    def sentence(self) -> str:
        """Describes the progress in one line."""
        parts = [f"step {self.step} of {self.steps} ({self.kind})"]
        if self.slots_done is not None:
            parts.append(f"{self.slots_done} of {plural(self.slots, 'slot')} done")
        if self.lag is not None:
            parts.append(f"{self.lag:,} records waiting")
        if self.rebalances is not None:
            parts.append(plural(self.rebalances, "rebalance"))
        if self.longest_downtime is not None:
            parts.append(f"longest downtime so far {self.longest_downtime:.2f} s")
        return ", ".join(parts)


def change_progress(fleet: Fleet, group: str) -> ChangeProgress | None:
    """Returns the progress of the group's change; None if none is running."""
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
        slots_done=count_finished_slots(step, change, fleet.slots(group), fleet.targets(group)),
        slots=len(step.slots),
        lag=seen.lag if seen is not None else None,
        longest_downtime=counted.longest_downtime_s if counted is not None else None,
        rebalances=counted.rebalances if counted is not None else None,
    )


def count_finished_slots(
    step: Step, change: Change, slots: tuple[Slot, ...], targets: SlotTargets
) -> int | None:
    """Counts the finished slots of the current step; None for steps without slots."""
    found = {slot.number: slot for slot in slots}
    mine = [found.get(n) for n in step.slots]
    if step.kind is StepKind.ROLL:
        memory = from_json(HandoverMemory, change.detail)
        return sum(is_rolled(slot, targets, step.revision, memory) for slot in mine)
    if step.kind is StepKind.OPEN:
        return sum(slot is not None and slot.phase is Phase.ACTIVE for slot in mine)
    if step.kind in (StepKind.LEAVE, StepKind.STOP_ALL):
        return sum(slot is None or slot.owner is None for slot in mine)
    return None
