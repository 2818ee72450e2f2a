"""Reading and compare-and-swap of single objects of a back end.

A write that was decided on an older state must not be stored: it is a function of the object as
it stands, asked again on every newer one until it is stored or says no.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.slots import Change, Gate, Slot
from fleet.slots.backend import Backend, Key, Kind, Moved, Value
from fleet.slots.gates import GateRecord

PATIENCE: Final = 4.0
"""Seconds for which a write is tried again while others write the same object."""
_PAUSE: Final = 0.02

Found = TypeVar("Found")
Made = TypeVar("Made")


def turns(
    what: str, *, clock: Clock, jitter: Callable[[], float] = random.random
) -> Iterator[None]:
    """Turns of a write that others may overtake, with short pauses; Unreachable in the end."""
    deadline = clock.monotonic() + PATIENCE
    while True:
        yield
        if clock.monotonic() > deadline:
            raise Unreachable(f"{what} changes too often to be written")
        clock.sleep(jitter() * _PAUSE)


def edited(
    read: Callable[[bool], Found],
    edit: Callable[[Found], Made | None],
    swap: Callable[[Made, Found], Made],
    *,
    hears: bool,
    turns: Iterator[None],
) -> Made | None:
    """Store what `edit` makes of what is read, asked again on every newer one; None: it says no.

    hears: what was heard of it (`read(False)`) is good enough to begin with, since the swap
    compares and raises Moved; a no is believed only of what was read for this (`read(True)`).
    """
    fresh = not hears
    for _ in turns:
        found = read(fresh)
        wanted = edit(found)
        if wanted is None and not fresh:
            fresh, found = True, read(True)
            wanted = edit(found)
        if wanted is None:
            return None
        with contextlib.suppress(Moved):
            return swap(wanted, found)
        fresh = True
    return None


class Objects:
    """The objects of one back end."""

    def __init__(
        self, backend: Backend, *, clock: Clock, jitter: Callable[[], float] = random.random
    ) -> None:
        self.backend = backend
        self.clock = clock
        self._jitter = jitter

    def again(self, what: str) -> Iterator[None]:
        """Turns of a write that others may overtake."""
        return turns(what, clock=self.clock, jitter=self._jitter)

    def edit(self, key: Key, edit: Callable[[Value | None], Value | None]) -> Value | None:
        """Store what `edit` makes of the object (see `edited`); None: it says no."""
        return edited(
            lambda fresh: self.backend.read(key, fresh=fresh),
            lambda entry: edit(None if entry is None else entry.value),
            lambda wanted, entry: self.backend.swap(key, wanted, entry),
            hears=self.backend.hears,
            turns=self.again(f"{key.kind.value} {key.number} of group {key.group}"),
        )

    def change_record(
        self, group: str, edit: Callable[[GateRecord], GateRecord | None]
    ) -> GateRecord | None:
        """What is stored with the gate once `edit` is done; None where it says no."""
        stored = self.edit(Key(group, Kind.GATE), lambda value: edit(record_of(group, value)))
        return None if stored is None else record_of(group, stored)

    def change_slot(self, slot: Slot, edit: Callable[[Slot], Slot | None]) -> Slot | None:
        """The slot once `edit` is stored; None where it says no, or there is no such slot."""

        def of(value: Value | None) -> Slot | None:
            return edit(value) if isinstance(value, Slot) else None

        stored = self.edit(key_of(slot), of)
        return stored if isinstance(stored, Slot) else None

    def read_slot(self, slot: Slot) -> Slot | None:
        """The slot as it is now; None where there is no such slot."""
        entry = self.backend.read(key_of(slot), fresh=True)
        return entry.value if entry is not None and isinstance(entry.value, Slot) else None

    def make(self, group: str, number: int) -> None:
        """The slot's object is there before the slot opens."""
        key = Key(group, Kind.SLOT, number)
        if self.backend.read(key, fresh=True) is None:
            with contextlib.suppress(Moved):  # somebody made it in this moment
                self.backend.swap(key, Slot(group=group, number=number), None)

    def record(self, group: str, *, fresh: bool = False) -> GateRecord:
        """What is stored with the gate."""
        entry = self.backend.read(Key(group, Kind.GATE), fresh=fresh)
        return record_of(group, None if entry is None else entry.value)


def key_of(slot: Slot) -> Key:
    """Of a slot's object."""
    return Key(slot.group, Kind.SLOT, slot.number)


def record_of(group: str, value: Value | None) -> GateRecord:
    """What the gate's object says; nothing is open where there is none."""
    return value if isinstance(value, GateRecord) else GateRecord(gate=Gate(group=group))


def change_of(value: Value | None) -> Change | None:
    """What the change's object says."""
    return value if isinstance(value, Change) else None
