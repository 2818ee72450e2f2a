"""Storms when the clock is set back: by what is the time now, not until it has caught up."""

from dataclasses import replace
from typing import Any

import pytest

from fleet.decide.storms.assessment import Storm
from fleet.model.rebalances import CoordinatorMove
from tests.decide.test_storms import BUDGET, flapping, look, together


def storm(group: str) -> Storm:
    """Of that group."""
    found = look(flapping(), 300)
    assert found is not None
    return replace(found, group=group)


def _ended(before: Storm | None, rebalances: Any, now: float) -> float:
    """How many seconds after `now` a storm is over, looked at every 15 s."""
    for seconds in range(0, 9000, 15):
        before = look(rebalances, now + seconds, before=before)
        if before is None:
            return seconds
    raise AssertionError(before)


@pytest.mark.parametrize("back", [7200, 30])
def test_a_clock_set_back_holds_a_calming_storm_for_its_calm(back: int) -> None:
    """From then on: not until the clock has caught up."""
    calming = look([], 900, before=look(flapping(times=3), 200))
    assert calming is not None
    assert calming.calm_since == 900
    after = look([], 900 - back, before=calming)
    assert after is not None
    assert (after.words, after.since <= 900 - back) == (calming.words, True)
    assert _ended(after, [], 900 - back) == BUDGET.calm
    lasting = look(flapping(times=3), 200)
    assert lasting is not None
    assert _ended(lasting, [], 200 - back) <= 2 * BUDGET.calm


def test_a_clock_set_back_keeps_a_storm_that_goes_on() -> None:
    """By what the log tells of the time that it is now."""
    storm = look(flapping(times=9), 360)
    for_now = look(flapping(times=9, start=-7200), 360 - 7200, before=storm)
    assert for_now is not None
    assert for_now.calm_since is None
    assert _ended(for_now, flapping(times=9, start=-7200), 360 - 7200) > BUDGET.calm


def test_a_clock_set_back_ends_the_clusters_storm_in_time_too() -> None:
    """Of ten groups, and of coordinators that moved."""
    many = together([storm(f"g{n}") for n in range(12)], 1000)
    calming = together([], 1010, before=many)
    assert calming is not None
    back = together([], 1010 - 7200, before=calming)
    assert back is not None
    assert together([], 1010 - 7200 + BUDGET.calm, before=back) is None
    move = CoordinatorMove(at=1000, partitions=5, of=50, lost=(0,), gained=(1,))
    moved = together([], 1000, moves=[move])
    assert moved is not None
    back = together([], 1000 - 7200, before=moved)
    assert back is not None
    assert together([], 1000 - 7200 + BUDGET.window + BUDGET.calm, before=back) is None
