"""A forced rebalance: one holder leaves and joins again, asked for once.

Problem: the actor may die beside its write to the gate, and the holder may have answered before
the next actor looks: nothing at the gate tells then whether it was asked at all. Choice: the
gate's version is remembered before it is written; an ask and its answer are two versions more.
Cost: where others write the gate twice while the change has no actor, what was not asked yet
counts as answered; the receipt differs then.
"""

from dataclasses import dataclass, replace

from fleet.act.steps.open_slots import all_active
from fleet.act.steps.work import StepWork
from fleet.model import Step
from fleet.slots import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinMemory:
    """Of whom it is or was asked."""

    asked: int | None = None
    """The holder's token."""
    version: int | None = None
    """Of the gate before it is asked; None: it was asked already."""


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Ask the holder that is there, and wait until it is back."""
    number = step.slots[0]

    def asking(gate: Gate) -> Gate:
        if _was_asked(gate, number, work.lease.recall(RejoinMemory)):
            return gate
        token = work.slots()[number].token
        by_itself = gate.rejoin.get(number) == token
        version = None if by_itself else gate.version
        work.lease.remember(RejoinMemory(asked=token, version=version))
        return replace(gate, rejoin={**gate.rejoin, number: token})

    work.write_gate(asking)

    def back() -> bool:
        return number not in work.gate().rejoin and all_active(work, (number,), step.revision)

    work.await_ready(back, work.join_limit, (number,), f"slot {number} to rejoin")
    return ()


def _was_asked(gate: Gate, number: int, memory: RejoinMemory) -> bool:
    """Whether the gate was written since that was remembered: it asks still, or was answered."""
    if memory.asked is None or memory.version is None:
        return memory.asked is not None
    return gate.rejoin.get(number) == memory.asked or gate.version >= memory.version + 2
