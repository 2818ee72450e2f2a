"""Which slot a standby may take: pure.

A slot is for the taking where it is open, not leaving, not quarantined, and free or held by a
worker whose lease has expired [13]; a handover pins it to one revision. Without a pin, rule 22:
a slot goes to any standby of its last holder's revision (or to anybody where it never had one);
a standby of another revision waits one lease, and takes a second slot only after the first of
its revision is active, so that a bad revision takes one slot, not all. Standbys that race for
several slots begin at different ones, by their names.
"""

import zlib
from collections.abc import Mapping, Sequence

from fleet.slots import Gate, Phase, Slot


def candidates(
    gate: Gate,
    slots: Sequence[Slot],
    *,
    worker: str,
    revision: str,
    dead: frozenset[int],
    waited: frozenset[int],
) -> tuple[Slot, ...]:
    """Slots that this standby may take now, best first.

    dead: slots whose holder this worker has watched expire. waited: slots that this worker has
    seen takeable for one lease.
    """
    known = {slot.number: slot for slot in slots}
    numbers = sorted(gate.open - gate.leaving - gate.quarantined)
    found = [
        slot
        for slot in (known.get(n, Slot(group=gate.group, number=n)) for n in numbers)
        if takeable(slot, dead) and _admits(gate, slot, known, revision, waited)
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
    known: Mapping[int, Slot],
    revision: str,
    waited: frozenset[int],
) -> bool:
    pin = gate.handover.get(slot.number)
    if pin is not None:
        return pin.revision == revision
    if slot.revision is None or slot.revision == revision:
        return True
    return slot.number in waited and not _unproven(known, revision)


def _unproven(known: Mapping[int, Slot], revision: str) -> bool:
    """A slot of this revision is held, and none of them is active yet."""
    held = [s for s in known.values() if s.holder is not None and s.revision == revision]
    return bool(held) and not any(s.phase is Phase.ACTIVE for s in held)
