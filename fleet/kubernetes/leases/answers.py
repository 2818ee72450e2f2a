"""What workers answer to the slot targets, which only managers write: pure.

Problem: a worker completes a leave whose manager is silent, ends a forced rebalance, quarantines
its slot, and opens the first slots if there is no manager. If it may write the slot targets for
that, it may open, close and hand over any slot. Choice: workers write numbered answers into a Lease
of their own. A reader applies those that the last writer of the slot targets has not seen, each as
far as the slot targets ask for it. So a manager and a worker may write at the same moment, and
neither takes the other's word away. Cost: a reader needs two objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet.slots import SlotTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One worker's answer; slots by number."""

    number: int = 0
    """Counts the answers of a group, from 1."""
    left: frozenset[int] = frozenset()
    """Slots whose leave is completed."""
    quarantined: frozenset[int] = frozenset()
    rejoin: Mapping[int, int] = field(default_factory=dict)
    """Slot → token of the owner that asks itself to join again."""
    rejoined: Mapping[int, int] = field(default_factory=dict)
    """Slot → token of the owner that was asked to join again, and has."""
    opened: frozenset[int] = frozenset()
    """The first slots, if no slot targets were written yet."""
    open_at: float = 0.0


def answer_between(before: SlotTargets, after: SlotTargets, *, number: int) -> Answer:
    """Returns the answer that makes `after` of `before`.

    Raises ValueError if a worker may not write the difference.
    """
    answer = Answer(
        number=number,
        left=before.leaving - after.leaving,
        quarantined=after.quarantined - before.quarantined,
        rejoin={n: t for n, t in after.rejoin.items() if before.rejoin.get(n) != t},
        rejoined={n: t for n, t in before.rejoin.items() if n not in after.rejoin},
        opened=after.open - before.open,
        open_at=after.open_at,
    )
    if with_answer(before, answer) != replace(after, version=before.version + 1):
        raise ValueError(
            f"a worker wrote slot targets {after} over {before}: only a manager may do that"
        )
    return answer


def with_answer(targets: SlotTargets, answer: Answer) -> SlotTargets:
    """Returns slot targets with an answer, as far as they ask for it; version + 1."""
    left = answer.left & targets.leaving
    opened = answer.opened if targets.version == 0 else frozenset[int]()
    rejoin = {
        number: token
        for number, token in {**targets.rejoin, **answer.rejoin}.items()
        if answer.rejoined.get(number) != token
    }
    return replace(
        targets,
        version=targets.version + 1,
        open=(targets.open - left) | opened,
        open_at=answer.open_at if opened else targets.open_at,
        leaving=targets.leaving - left,
        rejoin=rejoin,
        quarantined=targets.quarantined | answer.quarantined,
    )
