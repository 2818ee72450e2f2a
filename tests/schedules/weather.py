"""The place that keeps slots, with weather: away, slow, readable but not writable; for one or all.

Each process has a connection of its own (`Connection`), over one memory. Before every request
others may go first; a write that is not answered may have been stored or not.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType

from fleet.errors import Unreachable
from fleet.slots import Phase, Slot
from fleet.slots.backend import Entry, Key, Kind, MapValues, SlotTargetsRecord, Space, Value
from fleet.slots.store import Store
from fleet.slots.transitions import is_at_rest
from tests.schedules.simulated_time import Process
from tests.support.memory_slots import Memory, MemoryBackend

OVERTAKEN = 0.3
"""How often others go first before a request."""
GRACE = 1.0
"""Seconds until who asks a silent store gives up."""
LISTED = 0.3
"""Seconds until an owner that sees all slots again knows them."""


class Sky(StrEnum):
    """How a store answers."""

    FAIR = "fair"
    AWAY = "away"
    SLOW = "slow"
    READ_ONLY = "read only"


class Weather:
    """Of all processes, and of single ones."""

    def __init__(self) -> None:
        self.all = Sky.FAIR
        self.of: dict[str, Sky] = {}

    def over(self, process: Process) -> Sky:
        """What this process meets now."""
        return self.of.get(process.name, self.all)


class Connection(MemoryBackend):
    """One process' way to the store."""

    def __init__(
        self,
        memory: Memory,
        process: Process,
        weather: Weather,
        written: Callable[[Value | None, Value, Process], None],
    ) -> None:
        super().__init__(memory, clock=process)
        self._process = process
        self._weather = weather
        self._written = written

    def _turn(self) -> Sky:
        process, chance = self._process, self._process.world.random.random()
        sky = self._weather.over(process)
        if sky is Sky.SLOW:
            process.sleep(0.1 + 0.4 * chance)
            sky = self._weather.over(process)
        elif chance < OVERTAKEN:
            process.sleep(0.0002 + 0.005 * chance)
            sky = self._weather.over(process)
        if sky is Sky.AWAY:
            process.sleep(GRACE)
            raise Unreachable("the store does not answer")
        return sky

    def _refused(self, sky: Sky) -> None:
        if sky is Sky.READ_ONLY:
            raise Unreachable("the store cannot be written")

    def version(self) -> int:
        """Costs nothing, unless it does not answer."""
        if self._weather.over(self._process) is Sky.AWAY:
            self._turn()
        return super().version()

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """After whoever goes first."""
        self._turn()
        if key.kind is Kind.TARGETS:
            self._process.reaches_targets()
        return super().read(key, fresh=fresh)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        """The same."""
        self._turn()
        return super().scan(group, fresh=fresh)

    def beat(self, group: str) -> None:
        """As a swap."""
        del group
        with self.writes.track() as write:
            write.refused = True
            self._refused(self._turn())
            write.refused, write.stored = False, True

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """The same; who waits in vain does not know what was stored."""
        rng = self._process.world.random
        with self.writes.track() as write:
            write.refused = True
            try:
                self._refused(self._turn())
            except Unreachable:
                if self._weather.over(self._process) is Sky.AWAY and rng.random() < 0.2:
                    self._store(key, value, seen)
                raise
            write.refused = False
            stored = self._store(key, value, seen)
            write.stored = True
            return stored

    def _store(self, key: Key, value: Value, seen: Entry | None) -> Value:
        stored = super().swap(key, value, seen)
        self._written(None if seen is None else seen.value, stored, self._process)
        return stored

    def merge(self, space: Space, group: str | None, values: MapValues | None) -> int:
        """As a swap; nobody compares."""
        self._refused(self._turn())
        return super().merge(space, group, values)


class PodStore(Store):
    """Hides other slots at rest from a slot's owner, as a pod's watch does, and a while longer."""

    _own: int | None = None
    _hides_until = math.inf
    _seen: Mapping[int, Slot] = MappingProxyType({})

    def attend(self, group: str, slot: int | None) -> bool:
        """As the product."""
        self._own = self._own if slot is None else slot
        self._hides_until = self._clock.monotonic() + LISTED if slot is None else math.inf
        return slot is not None

    def _hides(self) -> bool:
        return self._own is not None and self._clock.monotonic() < self._hides_until

    def known_since(self) -> float | None:
        """Nothing, until all is listed."""
        listing = self._hides() and self._hides_until < math.inf
        return None if listing else super().known_since()

    def slots(self, group: str) -> tuple[Slot, ...]:
        """What is hidden is as it was seen last, owned and active."""
        found, before = super().slots(group), self._seen
        hides = self._hides()
        self._seen = {
            each.number: _at_rest(before.get(each.number, each))
            if hides and each.number != self._own and is_at_rest(each)
            else each
            for each in found
        }
        return tuple(self._seen.values())


def _at_rest(slot: Slot) -> Slot:
    return replace(slot, owner=slot.owner or "another", phase=Phase.ACTIVE)


def store_of(connection: Connection, process: Process) -> Store:
    """The store's rules over this connection."""
    return PodStore(connection, clock=process, jitter=process.world.random.random)
