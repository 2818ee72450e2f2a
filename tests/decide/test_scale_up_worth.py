"""A policy's scale-up has to end the backlog sooner than it would end by itself."""

from dataclasses import replace
from typing import Any

import pytest

from fleet.decide.forecast.expected_costs import foretold
from fleet.decide.forecast.other_ways import not_worth
from fleet.decide.plans import make_plan
from fleet.decide.world import GroupWorld
from tests.decide.test_expected_costs import flowing
from tests.decide.worlds import NOW, spec

SMALL = flowing((60, 2.0), (40, 2.0))
"""Two members that read 100/s each; 50/s come."""
GROWING = flowing((6_000, 20.0), (4_000, 20.0))
"""500/s come."""
LARGE = flowing((60_000, 1000.0), (60_000, 1000.0))
"""120/s come: those two need 25 minutes."""


def told(seen: GroupWorld, wanted: int = 4, **declared: Any) -> str:
    """What speaks against that many slots."""
    seen = replace(seen, spec=spec(**declared))
    return not_worth(seen, foretold(seen, make_plan(seen, wanted=wanted, now=NOW)))


def test_what_is_read_sooner_without_it_is_refused_with_the_figures() -> None:
    """Two members need 0.7 s, and the rebalance alone takes 0.8 s."""
    said = told(SMALL)
    assert "2 slots more would cost more than they bring: the 2 there are have read the 100" in said
    assert "of which 0.8 s are 2 rebalances with 6 partitions moved" in said
    assert "`fleet scale orders 4`" in said


@pytest.mark.parametrize(
    ("seen", "wanted", "declared"),
    [
        pytest.param(LARGE, 4, {}, id="sooner-with-it"),
        pytest.param(GROWING, 4, {}, id="never-without-it"),
        pytest.param(SMALL, 4, {"replicas": {"min": 4, "max": 9}}, id="the-least-declared"),
        pytest.param(SMALL, 4, {"scaling": {"policy": "fixed", "workers": 4}}, id="fixed"),
        pytest.param(SMALL, 1, {}, id="a-leave"),
        pytest.param(replace(SMALL, reports=()), 4, {}, id="no-capacity-known"),
    ],
)
def test_nothing_speaks_against_it(seen: GroupWorld, wanted: int, declared: dict) -> None:
    """It brings more than it costs, a person declared it, or nobody can tell."""
    assert told(seen, wanted, **declared) == ""
