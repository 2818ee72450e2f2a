"""One group on which changes are performed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.act.change import Performer
from fleet.model import Step, StepKind
from fleet.slots import Change, Slot, SlotTargets
from fleet.slots.store import Store
from tests.acting.standbys import GROUP, Behaviour, Crowd, Turning
from tests.support.declared import group_spec
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.plans import plan_of, step_of


class Killed(Exception):
    """The actor's end."""


class Window:
    """The join window of a KIP-848 group."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def widen(self) -> str | None:
        self.said.append("widen")
        return None

    def restore(self) -> bool:
        self.said.append("restore")
        return True


class Scene:
    """A manager, its store, and a crowd of workers."""

    def __init__(self, **spec: Any) -> None:
        self.clock = Turning()
        self.memory = Memory()
        self.store = self.opened()
        rollout = {"bake": 10, **spec.pop("rollout", {})}
        usual = {"replicas": {"min": 0, "max": 9, "standby": 1}, "rollout": rollout}
        self.spec = group_spec(GROUP, **{**usual, **spec})
        static = self.spec.worker is not None and self.spec.worker.membership == "static"
        self.crowd = Crowd(self.store, self.clock, static=static)
        self.window = Window()
        self.told: list[str] = []
        self.actor = 0

    def opened(self) -> Store:
        """The store, once more."""
        return Store(MemoryBackend(self.memory, clock=self.clock), clock=self.clock)

    def performer(self) -> Performer:
        crowd: Any = self.crowd
        return Performer(
            spec=self.spec,
            store=self.store,
            runtime=crowd,
            ledger=crowd,
            leave=crowd.leave,
            window=self.window,  # type: ignore[arg-type]
            clock=self.clock,
            progress=self.told.append,
        )

    def begin(self, *steps: Step, revision: str = "new") -> Change:
        """A change that nobody performs yet."""
        self.actor += 1
        plan = plan_of(*steps, id=f"plan-{self.actor}", revision=revision)
        begun = self.store.begin_change(plan, actor=f"a{self.actor}", started_at=self.clock.now())
        assert begun is not None
        return begun

    def perform(self, *steps: Step, revision: str = "new") -> Change:
        return self.performer().perform(self.begin(*steps, revision=revision))

    def killed_when(self, change: Change, seen: Callable[[], bool]) -> Change:
        """The change, adopted by another actor after the first ended where `seen` was true."""
        turn = self.clock.turn

        def dies() -> None:
            turn()
            if seen():
                raise Killed

        self.clock.turn = dies
        with pytest.raises(Killed):
            self.performer().perform(change)
        self.clock.turn = turn
        self.told.clear()
        adopted = self.store.adopt(self.store.change(GROUP), actor="next")
        assert adopted is not None
        return adopted

    def running(self, count: int, revision: str = "old") -> None:
        """So many slots held by workers of a revision, and one standby."""
        self.perform(step_of(StepKind.OPEN, range(count), revision), revision=revision)
        assert {s.revision for s in self.slots()} == {revision}
        self.crowd.left.clear()
        self.crowd.removed.clear()
        self.window.said.clear()
        self.told.clear()

    def slots(self) -> tuple[Slot, ...]:
        return self.store.slots(GROUP)

    def targets(self) -> SlotTargets:
        return self.store.targets(GROUP)

    def like(self, revision: str, **how: Any) -> None:
        """Workers of a revision are so."""
        self.crowd.like[revision] = Behaviour(**how)

    def revisions(self) -> list[str | None]:
        """Of the slots, by number."""
        return [slot.revision for slot in self.slots()]


@pytest.fixture
def scene() -> Iterator[Callable[..., Scene]]:
    """Makes one, of a spec."""
    made: list[Scene] = []

    def new(**spec: Any) -> Scene:
        made.append(Scene(**spec))
        return made[-1]

    yield new
    for each in made:
        each.store.close()
