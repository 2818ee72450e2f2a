"""One slot kept: what a renewal finds, what a silent store means, and how it is given up."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.slots import Gate, Phase, Slot
from fleet.slots.sqlite import SqliteStore
from fleet.worker.events import Events
from fleet.worker.holding import Holding, Looker

LEASE = 3000.0
"""Its third is longer than any test: what is renewed is renewed by the test."""


class Store(SqliteStore):
    """May be silent, and counts what is asked of it."""

    silent = False
    renewals = 0

    def renew(self, slot: Slot) -> Slot | None:
        """As it is, unless nobody answers."""
        self.renewals += 1
        if self.silent:
            raise Unreachable("nobody answers")
        return super().renew(slot)


class Scene:
    """Slot 0, held by `w`."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = Store(folder / "fleet.db", cluster="main", clock=self.clock)
        self.store.write_gate(Gate(group="g", open=frozenset({0})))
        taken = self.store.take(self.slot(), worker="w", revision="r", spark_session=None)
        assert taken is not None
        self.fields: dict[str, Any] = {"member_id": "m", "phase": Phase.ACTIVE}
        self.holding = Holding(
            self.store,
            taken,
            lease=LEASE,
            fields=lambda: self.fields,
            after=lambda: None,
            clock=self.clock,
            events=Events(worker="w", clock=self.clock, environ={}),
        )

    def slot(self) -> Slot:
        """As stored."""
        return self.store.slots("g")[0]

    def lose(self) -> None:
        """Somebody takes it, who has watched the lease expire."""
        assert self.store.take(self.slot(), worker="x", revision="r", spark_session=None)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.holding.abandon()


def test_a_renewal_writes_what_the_holder_does(scene: Scene):
    """And raises the counter, by which others know that it lives."""
    before = scene.slot().counter
    assert scene.holding.renew()
    now = scene.slot()
    assert (now.counter, now.phase, now.member_id) == (before + 1, Phase.ACTIVE, "m")
    assert scene.holding.slot == now


def test_another_holder_ends_it(scene: Scene):
    """Once and for all: a store that says so is not asked again [12]."""
    scene.lose()
    assert not scene.holding.renew()
    assert scene.holding.lost
    asked = scene.store.renewals
    assert not scene.holding.renew()
    assert not scene.holding.still_ours()
    assert scene.store.renewals == asked
    assert not scene.holding.release(clean=True)
    assert scene.slot().holder == "x"


def test_a_silent_store_is_no_loss(scene: Scene):
    """Nobody else can take the slot then either; it is tried again soon [12]."""
    scene.store.silent = True
    assert scene.holding.renew()
    assert not scene.holding.lost
    assert scene.holding._pause < LEASE / 10, "before the lease of a store that is back is over"
    scene.store.silent = False
    assert scene.holding.renew()
    assert scene.holding._pause == LEASE / 3


def test_an_old_renewal_is_not_believed(scene: Scene):
    """Before a batch is run again: what was true a third of a lease ago may be no more."""
    assert scene.holding.renew()
    asked = scene.store.renewals
    scene.clock.sleep(LEASE / 3 - 1)
    assert scene.holding.still_ours()
    assert scene.store.renewals == asked
    scene.lose()
    scene.clock.sleep(2)
    assert not scene.holding.still_ours()


@pytest.mark.parametrize("clean", [True, False])
def test_a_release_says_whether_it_was_clean(scene: Scene, clean: bool):
    """The next taker has to cure first where it was not [3]."""
    assert scene.holding.release(clean=clean)
    left = scene.slot()
    assert (left.holder, left.clean, left.member_id) == (None, clean, "m")
    assert left.phase is Phase.FREE


@pytest.mark.parametrize(("gone", "member"), [(False, "m"), (True, None)])
def test_a_release_for_a_leave(scene: Scene, gone: bool, member: str | None):
    """Closed, with the member id that the leave names; a dynamic one left with its close."""
    assert scene.holding.release(clean=True, closed=True, gone=gone)
    left = scene.slot()
    assert (left.holder, left.phase, left.member_id) == (None, Phase.CLOSED, member)


def test_a_dynamic_member_that_closed_is_nobodys(scene: Scene):
    """No leave is sent for it."""
    assert scene.holding.release(clean=True, gone=True)
    assert (scene.slot().phase, scene.slot().member_id) == (Phase.FREE, None)


def test_what_is_abandoned_is_not_renewed(scene: Scene):
    """Its thread ends, and writes nothing more."""
    asked = scene.store.renewals
    scene.holding.abandon()
    scene.holding._thread.join(timeout=5.0)
    assert not scene.holding._thread.is_alive()
    assert scene.store.renewals == asked


def test_a_standby_reads_again_though_nothing_is_told(scene: Scene, monkeypatch):
    """At least once a second: a version that stands still must not blind it."""
    looker = Looker(scene.store, group="g", lease=LEASE, clock=scene.clock)
    monkeypatch.setattr(scene.store, "data_version", lambda: 7)
    assert looker.look()
    scene.store.write_gate(replace(scene.store.gate("g"), open=frozenset({0, 1})))
    scene.clock.sleep(0.9)
    assert not looker.look()
    scene.clock.sleep(0.2)
    assert looker.look()
    assert looker.gate.open == {0, 1}


def test_the_dead_are_not_dead_while_nothing_is_known(scene: Scene, monkeypatch):
    """What was concluded a moment ago holds for as long as the store is heard of [13]."""
    looker = Looker(scene.store, group="g", lease=9.0, clock=scene.clock)
    for _ in range(15):
        looker.look()
        scene.clock.sleep(1.0)
    looker.look()
    assert looker.dead() == {0}
    monkeypatch.setattr(scene.store, "known_since", lambda: None, raising=False)
    assert looker.dead() == frozenset()
