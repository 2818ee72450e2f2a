"""Actors on one memory, switched between any two of their requests by a seeded scheduler.

Each actor is a coroutine of its own (a greenlet) with a store of its own; it stops before every
request and the scheduler picks who goes on. It may also be killed there, be told that nobody
answers, or lose the answer of a write that was stored. Time moves only by what actors wait.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from greenlet import getcurrent, greenlet

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.slots import Slot
from fleet.slots.backend import Entry, Key, SlotTargetsRecord, Value
from fleet.slots.store import Store
from tests.support.memory_slots import Memory, MemoryBackend


class Stopped(BaseException):
    """Killed: no line of its own runs after this."""


class Interrupted(MemoryBackend):
    """A back end that lets others go first before each request."""

    def __init__(self, world: "World", *, away: float, reads_cache: bool) -> None:
        super().__init__(world.memory, clock=world.clock)
        self._world = world
        self._away = away
        self._hears = reads_cache
        self._heard: dict[object, Any] = {}

    @property
    def reads_cache(self) -> bool:
        """Whether readings may be old."""
        return self._hears

    def _told(self, what: object, now: Any, *, fresh: bool) -> Any:
        old = self._hears and not fresh and what in self._heard
        if not old or self._world.random.random() < 0.3:  # the watch has caught up
            self._heard[what] = now
        return self._heard[what]

    def _turn(self) -> None:
        self._world.turn()
        if self._world.random.random() < self._away:
            raise Unreachable("away")

    def read(self, key: Key, *, fresh: bool) -> Entry | None:
        """After whoever goes first."""
        self._turn()
        return self._told(key, super().read(key, fresh=fresh), fresh=fresh)

    def scan(
        self, group: str, *, fresh: bool
    ) -> tuple[SlotTargetsRecord | None, Mapping[int, Slot]]:
        self._turn()
        return self._told(group, super().scan(group, fresh=fresh), fresh=fresh)

    def swap(self, key: Key, value: Value, seen: Entry | None) -> Value:
        """The same; its answer may be lost."""
        self._turn()
        stored = super().swap(key, value, seen)
        if self._world.random.random() < self._away:
            raise Unreachable("the answer was lost")
        return stored


class World:
    """One memory, one clock, one order of everything."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.memory = Memory()
        self.clock = ManualClock()
        self._actors: list[greenlet] = []
        self._main = getcurrent()
        self.killed: set[str] = set()
        self._names: dict[greenlet, str] = {}

    def store(self, *, away: float = 0.0, reads_cache: bool = False) -> Store:
        backend = Interrupted(self, away=away, reads_cache=reads_cache)
        return Store(backend, clock=self.clock, jitter=self.random.random)

    def quiet(self) -> Store:
        """For who looks on: nothing comes between."""
        return Store(MemoryBackend(self.memory, clock=self.clock), clock=self.clock)

    def add(self, name: str, act: Callable[[], Any]) -> None:
        """One more that runs from its first request to its end."""
        actor = greenlet(act)
        self._actors.append(actor)
        self._names[actor] = name

    def turn(self) -> None:
        """The others, until it is ours again."""
        if getcurrent() is not self._main:
            self._main.switch()

    def run(self, *, kills: float = 0.0, after: Callable[[], None] = lambda: None) -> None:
        """All to their ends, `after` each step; kills: how likely one dies at a step."""
        while self._actors:
            actor = self.random.choice(self._actors)
            if self.random.random() < kills:
                self.killed.add(self._names[actor])
                if actor:  # begun: it ends where it stands
                    actor.throw(Stopped)
            else:
                actor.switch()
            if actor.dead or self._names[actor] in self.killed:
                self._actors.remove(actor)
            after()
