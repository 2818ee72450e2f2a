"""Which slot a standby may take: pure.

A slot is for the taking where it is open, not leaving, not quarantined, and free or held by a
worker whose lease has expired [13]; a handover pins it to one revision, while standbys of that one
live. Without a pin [22]:
a free slot goes to the standby whose revision was published last, older ones wait one lease; a
revision takes a second slot of another one only after its first is active, so that a bad one
takes one slot, not all (a preference here, on what was last read; the store says so again in the
transaction of the take). A slot on which a revision failed before its first commit there is any
other revision's at once, while that one waits a lease before it tries again. While a managed roll
has pins in the gate, its other slots stay with the revision they have: the canary has not worked
yet. Standbys that race for several slots begin at different ones, by their names.
"""

import zlib
from collections.abc import Collection, Iterable, Sequence

from fleet.slots import Gate, Slot, WorkerReport
from fleet.slots.canaries import is_failed_canary, waits_for_canary


def candidates(
    gate: Gate,
    slots: Sequence[Slot],
    *,
    worker: str,
    revision: str,
    dead: frozenset[int],
    waited: frozenset[int],
    newest: bool,
    handed: frozenset[int] = frozenset(),
    void: Collection[int] = (),
) -> tuple[Slot, ...]:
    """Slots that this standby may take now, best first.

    dead: slots whose holder this worker has watched expire. waited: slots that this worker has
    seen takeable for one lease. newest: no standby of a later revision waits. handed: slots that
    this worker was asked to hand over, and did. void: slots whose pin has ended.
    """
    known = {slot.number: slot for slot in slots}
    numbers = sorted(gate.open - gate.leaving - gate.quarantined)
    found = [
        slot
        for slot in (known.get(n, Slot(group=gate.group, number=n)) for n in numbers)
        if takeable(slot, dead)
        and (slot.number not in handed or slot.number in waited)
        and _admits(
            gate,
            slot,
            slots,
            revision,
            newest=newest,
            waited=slot.number in waited,
            void=slot.number in void,
        )
    ]
    if not found:
        return ()
    first = zlib.crc32(worker.encode()) % len(found)
    return tuple(found[first:] + found[:first])


def takeable(slot: Slot, dead: frozenset[int]) -> bool:
    """Free, or held by the dead."""
    return slot.holder is None or slot.number in dead


def _admits(
    gate: Gate,
    slot: Slot,
    slots: Sequence[Slot],
    revision: str,
    *,
    newest: bool,
    waited: bool,
    void: bool,
) -> bool:
    pin = gate.handover.get(slot.number)
    if pin is not None and not void:
        return pin.revision == revision
    rolling = bool(gate.handover) and slot.revision is not None
    first = slot.revision == revision if rolling else newest
    if is_failed_canary(slot) and not rolling:
        first = slot.revision != revision
    return (first or waited) and not waits_for_canary(slots, slot, revision)


def outranked(
    reports: Iterable[WorkerReport], *, revision: str, since: float
) -> WorkerReport | None:
    """A standby of another revision that was published after ours, None where there is none."""
    return next(
        (
            report
            for report in reports
            if report.phase == "standby"
            and report.revision != revision
            and (report.since or 0.0) > since
        ),
        None,
    )
