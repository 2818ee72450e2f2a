"""A standby concludes nothing from a store that was silent [13]."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.slots import Gate, Handover, Phase
from fleet.slots.evidence import known_for
from fleet.slots.sqlite import SqliteStore
from fleet.worker.slot.slot_lease import SlotWatcher


class FedStore(SqliteStore):
    """Says since when it knows, as a store does that is fed by watches."""

    since: float | None = 0.0

    def known_since(self) -> float | None:
        """As the test says."""
        return self.since


class Scene:
    """One slot that a worker held and renews no more, one standby that looks."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = FedStore(folder / "fleet.db", cluster="main", clock=self.clock)
        self.store.since = self.clock.monotonic()
        self.store.write_gate(Gate(group="g", open=frozenset({0, 1})))
        held = self.store.take(
            self.store.slots("g")[0], worker="w", revision="r", spark_session=None
        )
        assert held is not None
        assert held.phase is Phase.JOINING
        self.watcher = SlotWatcher(self.store, group="g", lease=10.0, clock=self.clock)
        self.watcher.look()
        self.dead()

    def later(self, seconds: float) -> None:
        """Time goes by, with a look each second."""
        while seconds > 0:
            self.clock.sleep(min(1.0, seconds))
            seconds -= 1.0
            self.watcher.look()

    def dead(self) -> frozenset[int]:
        self.watcher.look()
        return self.watcher.dead()

    def takeable(self) -> list[int]:
        """What a standby may take."""
        self.watcher.look()
        slots = self.watcher.takeable(worker="s", revision="r", since=0.0)
        return sorted(slot.number for slot in slots)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_lease_expires_while_the_store_is_known(scene: Scene):
    """As with any store."""
    scene.later(10.0)
    assert scene.dead() == {0}
    assert scene.takeable() == [0, 1]


def test_silence_expires_nothing(scene: Scene):
    """While nothing is known nobody is dead and nothing is taken, not even a free slot."""
    scene.clock.sleep(5.0)
    scene.store.since = None
    scene.later(300.0)
    assert scene.dead() == frozenset()
    assert scene.takeable() == []


def test_after_silence_a_holder_has_a_whole_lease(scene: Scene):
    """It could not renew while nobody answered; what was free is free at once."""
    scene.store.since = None
    scene.later(300.0)
    scene.store.since = scene.clock.monotonic()
    assert scene.takeable() == [1]
    scene.later(9.9)
    assert scene.dead() == frozenset()
    scene.later(0.2)
    assert scene.dead() == {0}


def test_a_store_that_cannot_tell_is_always_known(tmp_path: Path):
    """The local one: it answers or it does not."""
    store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=ManualClock())
    assert known_for(store, 5.0) == float("inf")


def test_a_slot_that_was_handed_over_is_left_to_others(scene: Scene):
    """While it is pinned, for a lease; how long it was free before its holder says nothing."""
    slot = scene.store.slots("g")[0]
    scene.later(10.0)
    assert scene.takeable() == [0, 1]
    scene.later(60.0)  # as long as its holder took
    assert scene.store.release(slot, clean=True)
    asked = Handover(token=slot.token, revision="r")
    scene.store.write_gate(replace(scene.store.gate("g"), handover={0: asked}))
    scene.watcher.released(slot, handed=True)
    assert scene.takeable() == [1]
    scene.later(10.0)
    assert scene.takeable() == [0, 1]
    scene.store.write_gate(replace(scene.store.gate("g"), handover={}))
    scene.watcher.forget()
    assert scene.takeable() == [0, 1]
