"""A standby concludes nothing from a store that was silent [13]."""

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.slots import Gate, Handover, Phase
from fleet.slots.evidence import known_for
from fleet.slots.sqlite import SqliteStore
from fleet.worker.slot.slot_lease import SlotWatcher
from tests.support.slot_records import report_of


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


PIN = Handover(token=1, revision="new")


class Pinned(Scene):
    """Slot 1, released by its holder, is pinned to another revision than the standby's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        held = self.store.take(
            self.store.slots("g")[1], worker="v", revision="r", spark_session=None
        )
        assert held is not None
        gate = self.store.gate("g")
        assert self.store.write_gate(replace(gate, handover={1: PIN})) is not None
        assert self.store.release(held, clean=True)
        self.counter, self.phase = 0, "standby"

    def later(self, seconds: float, *alive: str) -> None:
        """Time goes by; workers of these revisions report meanwhile."""
        while seconds > 0:
            self.clock.sleep(1.0)
            seconds -= 1.0
            self.counter += 1
            for revision in alive:
                self.store.report(
                    report_of(
                        worker=f"w-{revision}",
                        revision=revision,
                        counter=self.counter,
                        phase=self.phase,
                    )
                )
            self.store.beat("g")
            self.takeable()

    def pinned(self) -> bool:
        """Whether slot 1 is not for this standby."""
        return 1 not in self.takeable()


@pytest.mark.parametrize("revision", ["new", "new~5d9f"])
def test_a_pin_holds_while_its_revision_has_a_standby(tmp_path: Path, revision: str):
    """One of a template that is not registered yet, too; without any it ends after a lease."""
    scene = Pinned(tmp_path)
    scene.later(60.0, revision)
    assert scene.pinned()
    scene.later(9.0)
    assert scene.pinned()
    scene.later(2.0)
    assert not scene.pinned()
    assert scene.watcher.void == {1: PIN}
    (seen,) = (s for s in scene.watcher.slots if s.number == 1)
    taken = scene.store.take(
        seen, worker="s", revision="r", spark_session=None, void=scene.watcher.void[1]
    )
    assert taken is not None
    assert (taken.holder, taken.token) == ("s", 2)


@pytest.mark.parametrize("phase", ["starting", "active"])
def test_workers_that_cannot_take_it_soon_keep_no_pin(tmp_path: Path, phase: str):
    """Those that come back start first; a holder has its slot."""
    scene = Pinned(tmp_path)
    scene.phase = phase
    scene.later(9.0, "new")
    assert scene.pinned()
    scene.later(3.0, "new")
    assert not scene.pinned()


def test_a_pin_stands_while_reports_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who is there is not known then."""
    scene = Pinned(tmp_path)

    def away(group: str) -> None:
        raise Unreachable("the store is away")

    monkeypatch.setattr(scene.store, "reports", away)
    scene.later(60.0)
    assert scene.pinned()
