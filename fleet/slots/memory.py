"""Slots in this process' memory: for simulations and tests, as real as the other places.

Several stores may share one (`Memory`), as processes share a file. Nothing of it is durable.
"""

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.clock import Clock
from fleet.slots import Change, Slot
from fleet.slots.backend import (
    KEPT_CHANGES,
    Entry,
    Key,
    Moved,
    Remark,
    Remarks,
    SlotTargetsRecord,
    Space,
    Value,
    is_next,
)
from fleet.slots.evidence import Writes


@dataclass(slots=True)
class Memory:
    """What is stored."""

    objects: dict[Key, Entry] = field(default_factory=dict)
    ended: dict[str, list[Change]] = field(default_factory=dict)
    remarks: dict[tuple[Space, str], dict[str, Remark]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    versions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    last: int = 0


class MemoryBackend:
    """`fleet.slots.backend.Backend` over a Memory."""

    def __init__(self, memory: Memory, *, clock: Clock) -> None:
        self._memory = memory
        self._writes = Writes(clock)

    @property
    def writes(self) -> Writes:
        """Of this back end alone, as of a process."""
        return self._writes

    @property
    def hears(self) -> bool:
        """Every reading is fresh."""
        return False

    def beat(self, group: str) -> None:
        """Always through."""
        del group
        with self._writes.one() as write:
            write.stored = True

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """The object."""
        del fresh
        with self._memory.lock:
            return self._memory.objects.get(key)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """The slot targets and all slots of a group."""
        del fresh
        with self._memory.lock:
            found = [(k, e.value) for k, e in self._memory.objects.items() if k.group == group]
        targets = [value for _, value in found if isinstance(value, SlotTargetsRecord)]
        slots = {key.number: value for key, value in found if isinstance(value, Slot)}
        return (targets[0] if targets else None), slots

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Store `value` if the object is still as seen."""
        memory = self._memory
        with self._writes.one() as write, memory.lock:
            stored = memory.objects.get(key)
            if (stored and stored.version) != (seen and seen.version):
                raise Moved
            if stored is not None and is_next(stored.value, value):
                self._keep(stored.value)
            memory.last = next(memory.versions)
            memory.objects[key] = Entry(value, memory.last)
            write.stored = True
            return value

    def _keep(self, ended: Value | None) -> None:
        assert isinstance(ended, Change)
        kept = self._memory.ended.setdefault(ended.group, [])
        kept.insert(0, ended)
        del kept[KEPT_CHANGES - 1 :]

    def ended(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Latest first."""
        with self._memory.lock:
            return tuple(self._memory.ended.get(group, ())[:limit])

    def entries(self, space: Space, group: str) -> Mapping[str, Remark]:
        """A map of small values."""
        with self._memory.lock:
            return dict(self._memory.remarks.get((space, group), {}))

    def merge(self, space: Space, group: str | None, values: Remarks | None) -> int:
        """Replace these keys, None removes."""
        memory = self._memory
        with memory.lock:
            places = [g for s, g in memory.remarks if s is space] if group is None else [group]
            there = 0
            for place in places:
                found = memory.remarks.setdefault((space, place), {})
                told: Remarks = dict.fromkeys(found) if values is None else values
                there += len(told.keys() & found.keys())
                found.update({k: v for k, v in told.items() if v is not None})
                for key in [k for k, v in told.items() if v is None]:
                    found.pop(key, None)
            memory.last = next(memory.versions)
            return there

    def version(self) -> int:
        """Of the last write."""
        return self._memory.last

    def known_since(self) -> float | None:
        """Since ever."""
        return float("-inf")

    def close(self) -> None:
        """Nothing to give back."""
