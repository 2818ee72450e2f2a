"""What the slots of a group show of a revision: its first holder is its canary [22].

New code takes one slot of other code first. No other of these slots is its own before a canary has
worked, by a batch or by finding nothing to read without an error. A manager's canary has to commit
`rollout.canary_batches` besides (`fleet.act.steps.canary`); what takes the first slot where nobody
manages is told by a claim in the gate (`fleet.slots.acquire`), what a pod has seen of its own by a
note (`fleet.worker.canary_note`).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from fleet.slots import Gate, Phase, Slot, WorkerReport

_GOING: Final = frozenset({Phase.DRAINING, Phase.DRAINED})


def waits_for_canary(slots: Iterable[Slot], wanted: Slot, revision: str) -> bool:
    """Whether `revision` may not have this slot yet: it was another revision's, and of those
    that this one holds, or was the last to hold, none has shown that it works [22].

    A holder that fails on every record ends, or is active in the end with nothing left to read.
    """
    if wanted.revision in {None, revision}:
        return False
    mine = [s for s in slots if s.revision == revision]
    return bool(mine) and not any(is_good_canary(s) or s.batches > 0 for s in mine)


def is_good_canary(slot: Slot) -> bool:
    """Whether its holder has shown that its revision works: by a batch, or by finding nothing to
    read without an error.
    """
    well = slot.error is None or slot.batches > 0
    return slot.holder is not None and slot.phase is Phase.ACTIVE and well


def is_failed_canary(slot: Slot) -> bool:
    """Whether its last holder failed on it before it had committed a batch."""
    return slot.error is not None and slot.batches == 0


def has_good_canary(slots: Iterable[Slot], revision: str) -> bool:
    """Whether a holder of this revision has shown that it works."""
    return any(slot.revision == revision and is_good_canary(slot) for slot in slots)


def alone(slots: Iterable[Slot], former: Slot | None, revision: str) -> bool:
    """Whether a revision that fails has nobody to leave its slot to, or works elsewhere: so that
    it may wait for better weather. former: its slot as it was before it took it.
    """
    slots = tuple(slots)
    if has_good_canary(slots, revision):
        return True
    known = {slot.revision for slot in (*slots, *(() if former is None else (former,)))}
    return known <= {None, revision} and (former is None or not is_failed_canary(former))


def missing_canary(gate: Gate, slots: Iterable[Slot], revision: str) -> str | None:
    """Which slot has to show first that this revision works; None where it has, or none is there.

    A managed roll has pins, and holds its Deployment by itself.
    """
    slots = tuple(slots)
    if gate.handover or has_good_canary(slots, revision):
        return None
    shows = sorted(
        slot.number
        for slot in slots
        if slot.number in gate.open - gate.leaving - gate.quarantined
        and (slot.holder is None or slot.revision == revision or slot.phase in _GOING)
    )
    return f"slot {shows[0]} has to show first that this revision works" if shows else None


def doubt(
    reports: Iterable[WorkerReport], slots: Sequence[Slot], *, worker: str, revision: str
) -> str | None:
    """Why another standby of this revision doubts it; None where it has a good canary."""
    if has_good_canary(slots, revision):
        return None
    return next(
        (
            f"{report.worker} of the same revision fails: {report.error}"
            for report in reports
            if report.revision == revision
            and report.worker != worker
            and report.error is not None
            and report.batches == 0
        ),
        None,
    )
