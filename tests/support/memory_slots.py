"""Slots in this process's memory, for simulated schedules and tests.

Several stores may share one `Memory`, as processes share a file. Nothing is durable.
"""

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.clock import Clock
from fleet.slots import Change, Slot
from fleet.slots.backend import (
    KEPT_CHANGES,
    ConcurrentWrite,
    Entry,
    Key,
    MapValue,
    MapValues,
    SlotTargetsRecord,
    Space,
    Value,
    is_new_change,
)
from fleet.slots.evidence import WriteLog


@dataclass(slots=True)
class Memory:
    """The stored objects and maps."""

    objects: dict[Key, Entry] = field(default_factory=dict)
    ended: dict[str, list[Change]] = field(default_factory=dict)
    maps: dict[tuple[Space, str], dict[str, MapValue]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    versions: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    last: int = 0


class MemoryBackend:
    """A `fleet.slots.backend.Backend` over a Memory."""

    def __init__(self, memory: Memory, *, clock: Clock) -> None:
        self._memory = memory
        self._writes = WriteLog(clock)

    @property
    def writes(self) -> WriteLog:
        """Returns the log of this back end's writes."""
        return self._writes

    @property
    def reads_cache(self) -> bool:
        """Returns False: every read is fresh."""
        return False

    def beat(self, group: str) -> None:
        """Counts as a stored write."""
        del group
        with self._writes.track() as write:
            write.stored = True

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """Returns the object; None if it does not exist."""
        del fresh
        with self._memory.lock:
            return self._memory.objects.get(key)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """Returns the slot targets and all slots of a group."""
        del fresh
        with self._memory.lock:
            found = [(k, e.value) for k, e in self._memory.objects.items() if k.group == group]
        targets = [value for _, value in found if isinstance(value, SlotTargetsRecord)]
        slots = {key.number: value for key, value in found if isinstance(value, Slot)}
        return (targets[0] if targets else None), slots

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """Stores `value` if the object is still as seen."""
        memory = self._memory
        with self._writes.track() as write, memory.lock:
            stored = memory.objects.get(key)
            if (stored and stored.version) != (seen and seen.version):
                raise ConcurrentWrite
            if stored is not None and is_new_change(stored.value, value):
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

    def ended_changes(self, group: str, *, limit: int) -> tuple[Change, ...]:
        """Returns the ended changes, latest first."""
        with self._memory.lock:
            return tuple(self._memory.ended.get(group, ())[:limit])

    def entries(self, space: Space, group: str) -> Mapping[str, MapValue]:
        """Returns one map of small values."""
        with self._memory.lock:
            return dict(self._memory.maps.get((space, group), {}))

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """Replaces these keys; None removes a key."""
        memory = self._memory
        with memory.lock:
            places = [g for s, g in memory.maps if s is space] if group is None else [group]
            there = 0
            for place in places:
                found = memory.maps.setdefault((space, place), {})
                told: MapValues = dict.fromkeys(found) if values is None else values
                there += len(told.keys() & found.keys())
                found.update({k: v for k, v in told.items() if v is not None})
                for key in [k for k, v in told.items() if v is None]:
                    found.pop(key, None)
            memory.last = next(memory.versions)
            return there

    def version(self) -> int:
        """Returns the number of the last write."""
        return self._memory.last

    def known_since(self) -> float | None:
        """Returns minus infinity: reads are always current."""
        return float("-inf")

    def close(self) -> None:
        """Does nothing: there is nothing to close."""
