"""A wait ends when nothing moves, not when a clock says so."""

import os
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.slots import SlotTargets
from fleet.slots.sqlite import SqliteStore
from tests.support.waiting import sizes, stored, until


@pytest.fixture(autouse=True)
def load(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the machine's load is told to be: none."""
    loads = [0.0]
    monkeypatch.setattr(os, "getloadavg", lambda: (loads[0], 0.0, 0.0))
    return loads


def test_slow_is_not_stuck() -> None:
    """Each step takes nearly all that is allowed without one; ten of them are no failure."""
    clock = ManualClock()
    began = clock.monotonic()
    steps = lambda: int(clock.monotonic() - began) // 50  # noqa: E731 - the thing that moves
    assert until(lambda: steps() == 10, "ten steps", progress=steps, still=60, clock=clock)
    assert clock.monotonic() - began == pytest.approx(500, abs=2)


def test_what_stands_still_is_named() -> None:
    """What was awaited, for how long nothing moved, what was last seen, and the picture."""
    clock = ManualClock()
    began = clock.monotonic()
    steps = lambda: min(3, int(clock.monotonic() - began) // 50)  # noqa: E731
    with pytest.raises(AssertionError, match=r"for ten steps: nothing moved .* seen: 3\nlogs"):
        until(
            lambda: steps() == 10,
            "ten steps",
            progress=steps,
            still=60,
            picture=lambda: "logs",
            clock=clock,
        )
    assert clock.monotonic() - began == pytest.approx(210, abs=2)


@pytest.mark.parametrize(
    ("queue", "moves", "words"),
    [
        pytest.param(0.0, True, "waited 900 s for rest", id="in circles"),
        pytest.param(3.0, False, "waited 180 s for rest: nothing moved", id="a third of a core"),
        pytest.param(30.0, True, "waited 2700 s for rest", id="the busiest machine"),
    ],
)
def test_it_ends(load: list[float], queue: float, moves: bool, words: str) -> None:
    """On a busy machine later, by three times at most."""
    load[0] = queue * (os.cpu_count() or 1)
    clock = ManualClock()
    progress = lambda: int(clock.monotonic()) if moves else 0  # noqa: E731
    with pytest.raises(AssertionError, match=words):
        until(lambda: False, "rest", progress=progress, still=60, clock=clock)


def test_leases_are_no_progress(tmp_path: Path) -> None:
    """A stuck group renews its leases for ever; the slot targets, a taken slot, a line of a log
    count.
    """
    clock = ManualClock()
    store = SqliteStore(tmp_path / "fleet.db", cluster="main", clock=clock)
    try:
        before = stored(store, "g")
        store.write_targets(SlotTargets(group="g", open=frozenset({0})))
        opened = stored(store, "g")
        taken = store.take(store.slots("g")[0], worker="w", revision="r", spark_session=None)
        assert taken is not None
        held = stored(store, "g")
        assert len({before, opened, held}) == 3
        assert store.renew(taken) is not None
        assert stored(store, "g") == held
    finally:
        store.close()
    log = tmp_path / "log"
    assert sizes([log]) == ()
    log.write_text("line\n")
    assert sizes([log]) == (("log", 5),)
