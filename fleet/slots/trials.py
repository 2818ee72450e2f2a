"""What the slots of a group show of a revision: new code is tried on one of them first [22]."""

from collections.abc import Iterable

from fleet.slots import Phase, Slot


def on_trial(slots: Iterable[Slot], wanted: Slot, revision: str) -> bool:
    """Whether `revision` may not have this slot yet: it was another revision's, and of those
    that this one holds, or was the last to hold, none has shown that it works [22].

    A holder that fails on every record ends, or is active in the end with nothing left to read.
    """
    if wanted.revision in {None, revision}:
        return False
    mine = [s for s in slots if s.revision == revision]
    return bool(mine) and not any(proven(s) or s.batches > 0 for s in mine)


def proven(slot: Slot) -> bool:
    """Whether its holder has shown that its revision works: by a batch, or by finding nothing to
    read without an error.
    """
    well = slot.error is None or slot.batches > 0
    return slot.holder is not None and slot.phase is Phase.ACTIVE and well


def spoiled(slot: Slot) -> bool:
    """Whether its last holder failed on it before it had committed a batch."""
    return slot.error is not None and slot.batches == 0
