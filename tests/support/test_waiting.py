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


def test_what_moves_in_circles_ends() -> None:
    """A worker that is restarted for ever moves, and gets nowhere."""
    clock = ManualClock()
    with pytest.raises(AssertionError, match="waited 900 s for rest"):
        until(lambda: False, "rest", progress=lambda: int(clock.monotonic()), clock=clock)


def test_who_gets_a_part_of_a_core_has_longer(load: list[float]) -> None:
    """Three processes want each core: all that is awaited takes three times as long."""
    load[0] = 3.0 * (os.cpu_count() or 1)
    clock = ManualClock()
    with pytest.raises(AssertionError, match="waited 180 s for rest: nothing moved"):
        until(lambda: False, "rest", progress=lambda: 0, still=60, clock=clock)


def test_it_ends_on_the_busiest_machine(load: list[float]) -> None:
    """Thirty wait for each core, and the group goes on working: it is told all the same."""
    load[0] = 30.0 * (os.cpu_count() or 1)
    clock = ManualClock()
    with pytest.raises(AssertionError, match="waited 2700 s for rest"):
        until(lambda: False, "rest", progress=lambda: int(clock.monotonic()), clock=clock)


def test_answer_is_handed_on() -> None:
    """Asked until it is true."""
    answers = iter([None, "", "found"])
    assert until(lambda: next(answers), "it", clock=ManualClock()) == "found"


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
