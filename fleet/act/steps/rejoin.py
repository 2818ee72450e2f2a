"""A forced rebalance: one holder leaves and joins again, asked for once."""

from dataclasses import dataclass, replace

from fleet.act.steps.open_slots import all_active
from fleet.act.steps.work import StepWork
from fleet.model import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinMemory:
    """Whether it was asked for."""

    asked: int | None = None
    """The holder's token."""


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Ask the holder that is there, and wait until it is back."""
    number = step.slots[0]
    if work.lease.recall(RejoinMemory).asked is None:
        token = work.slots()[number].token
        work.write_gate(lambda gate: replace(gate, rejoin={**gate.rejoin, number: token}))
        work.lease.remember(RejoinMemory(asked=token))

    def back() -> bool:
        return number not in work.gate().rejoin and all_active(work, (number,))

    work.wait(back, work.join_limit, f"slot {number} to rejoin")
    return ()
