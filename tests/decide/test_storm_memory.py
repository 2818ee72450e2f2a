"""A storm is told also where nothing can be kept, or read, beside the slots."""

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.manager.cycle import Fleet
from fleet.slots.store import Store
from tests.support.declared import declaration, fleet_spec
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.rebalances import rebalance

NOW = 1000.0
STORMY = [rebalance(n, NOW - 100.0 + 10 * n, group="g") for n in range(1, 8)]


class ReadOnly(Store):
    """Of a disk that is full."""

    def put_manager_state(self, *_: object) -> None:
        raise Unreachable("the disk is full")


@pytest.fixture
def fleet() -> Any:
    """What the judgement uses of an open fleet; a place of slots has to be given."""
    budget = {"rebalances": 5, "window": "10m"}
    clock = ManualClock(NOW)
    spec = fleet_spec(declaration("g", storm=budget))
    return SimpleNamespace(spec=spec, clock=clock, readable_changes=lambda _: ())


def storm(fleet: Any, **how: Any) -> Any:
    return Fleet.storm(fleet, "g", STORMY, **how)


def test_it_is_told_where_the_place_of_the_slots_is_away(fleet):
    """By what the log says alone."""
    assert storm(fleet, kept=False) is not None


def test_it_is_told_where_it_cannot_be_noted(fleet):
    """The next look finds it in the log again."""
    fleet.store = ReadOnly(MemoryBackend(Memory(), clock=fleet.clock), clock=fleet.clock)
    assert storm(fleet) is not None


def test_it_is_noted_where_it_can_be(fleet):
    """Longer than the log is read for."""
    fleet.store = Store(MemoryBackend(Memory(), clock=fleet.clock), clock=fleet.clock)
    assert storm(fleet) is not None
    assert fleet.store.manager_state("g", "storm")


def test_one_that_was_noted_before_the_clock_was_set_back_is_not_the_last_for_hours(fleet):
    """Who does not read the log shows what was seen within the window, by either clock."""
    fleet.store = Store(MemoryBackend(Memory(), clock=fleet.clock), clock=fleet.clock)
    assert storm(fleet) is not None
    assert Fleet.last_storm(fleet, "g") is not None
    fleet.clock.at -= 7200.0
    assert Fleet.last_storm(fleet, "g") is None
