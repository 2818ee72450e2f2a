"""Which module performs which kind of step."""

from collections.abc import Callable

from fleet.act.steps import handover, leave_slots, open_slots, rejoin, standbys, stop_all, wave
from fleet.act.steps.step_memory import StopMemory
from fleet.act.steps.work import StepWork
from fleet.model import Step, StepKind

Perform = Callable[[StepWork, Step], tuple[str, ...]]


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Do what is missing of the step; sentences for its receipt."""
    # Of the plan's revision: fleet.yaml may say something else since, and a roll of static members
    # carried on as a wave would take out every slot.
    worker = work.spec.worker
    wanted = worker is None or worker.membership == "static"
    dynamic = not work.pool.is_static(step.revision, otherwise=wanted)
    stopped = work.lease.recall(StopMemory).stopped is not None
    kinds: dict[StepKind, Perform] = {
        StepKind.OPEN: stop_all.reopen if stopped else open_slots.perform,
        StepKind.LEAVE: leave_slots.perform,
        StepKind.STOP_ALL: stop_all.perform,
        StepKind.ROLL: wave.perform if dynamic else handover.perform,
        StepKind.REJOIN: rejoin.perform,
        StepKind.WARM: standbys.perform,
    }
    return kinds[step.kind](work, step)
