"""More groups than a tick of the schedule reaches: all have their turn soon."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import DagsterInstance

from fleet.clock import ManualClock
from fleet.config.spec import GroupSpec
from fleet.dagster.reconcile_schedule import TICK_DEADLINE, Tick, TickOutcome, rotate
from tests.orchestration.made import group, spec

GROUPS = 1_000
BEGINNING = 1_795_617_180
"""Any minute, in seconds since the epoch."""


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


def reached(instance: DagsterInstance, minute: int, fleets: list[GroupSpec]) -> set[str]:
    """Whom a tick has a look at."""
    cycle: Any = SimpleNamespace(clock=ManualClock(), spec=spec())
    snapshot: Any = SimpleNamespace()
    said = Tick(cycle, instance, snapshot, partitions=[]).all(
        rotate(fleets, minute + BEGINNING // 60)
    )
    assert {each.group for each in said} == {fleet.group for fleet in fleets}
    return {each.group for each in said if each.sentence == "no change needed"}


@pytest.mark.parametrize(("a_tick", "ticks"), [(400, 5), (100, 20)])
def test_everybody_is_reached_within_twice_the_ticks_it_takes(instance, monkeypatch, a_tick, ticks):
    """Whichever tick is the first: nothing is remembered from one to the next."""

    def planned(self: Tick, fleet: GroupSpec) -> TickOutcome:
        self._cycle.clock.sleep(TICK_DEADLINE / (a_tick - 0.5))
        return TickOutcome(group=fleet.group, sentence="no change needed")

    monkeypatch.setattr(Tick, "reconcile", planned)
    one = group()
    fleets = [one.model_copy(update={"group": f"g{n}"}) for n in range(GROUPS)]
    looks = [reached(instance, minute, fleets) for minute in range(2 * ticks)]
    assert {len(look) for look in looks} == {a_tick}
    for first in range(len(looks) - ticks):
        missed = GROUPS - len(set().union(*looks[first : first + ticks]))
        assert missed == 0, f"{missed} groups not reached in {ticks} ticks from tick {first} on"
