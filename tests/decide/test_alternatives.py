"""The other ways of a plan's changes: their expected costs, and which is the cheapest that may
be.
"""

from dataclasses import replace
from typing import Any

import pytest

from fleet.decide.alternatives import find_wasteful_growth, with_alternatives
from fleet.decide.expected_costs import simulate_change, simulated_group, with_expected_costs
from fleet.decide.plans import make_plan
from fleet.decide.state_snapshot import StateSnapshot
from fleet.model import Alternative
from tests.decide.test_expected_costs import flowing
from tests.decide.worlds import NOW, spec, state_snapshot

RANGE = {"assignor": "range"}
DYNAMIC = {"membership": "dynamic"}


def ways(seen: StateSnapshot, wanted: int, *, roll: bool = False) -> dict[str, Alternative]:
    """By name."""
    plan = make_plan(seen, wanted=wanted, now=NOW, force_roll=roll)
    plan_with_ways = with_alternatives(seen, with_expected_costs(seen, plan))
    assert plan_with_ways.id == plan.id
    return {each.way: each for each in plan_with_ways.alternatives}


def marks(found: dict[str, Alternative]) -> dict[str, str]:
    """Taken, cheapest, within the limits."""
    return {
        name: "t" * way.chosen + "c" * way.cheapest + "k" * way.keeps_limits
        for name, way in found.items()
    }


def test_all_at_once_costs_least_rebalances() -> None:
    """Range rebalances once for each part; more of them than the storm budget are no way."""
    found = ways(state_snapshot(spec(worker=RANGE), held=4, topics={"orders": 24}), 10)
    assert {name: way.rebalances for name, way in found.items()} == {
        "all at once": 1,
        "3 at a time": 2,
        "one by one": 6,
    }
    assert marks(found) == {"all at once": "tck", "3 at a time": "k", "one by one": ""}
    assert found["one by one"].exceeded == ("storm.rebalances",)
    assert found["one by one"].moved > found["all at once"].moved
    assert found["one by one"].settled_s > found["all at once"].settled_s


def test_a_leave_in_parts_is_of_those_who_are_there() -> None:
    """The parts of a leave: the first has the most beside it."""
    seen = state_snapshot(spec(worker=RANGE), held=4, topics={"orders": 24})
    found = ways(seen, 2)
    group = simulated_group(seen)
    assert group is not None
    costs = [simulate_change(group, "leave", staying, 1) for staying in (3, 2)]
    assert found["one by one"].moved == sum(cost.moved for cost in costs if cost)
    assert marks(found) == {"all at once": "tck", "one by one": "k"}


def test_a_roll_is_no_wider_than_it_may_be() -> None:
    """Nothing rebalances: the widest allowed settles first and is taken."""
    rollout = {"max_parallel": 2}
    found = ways(state_snapshot(spec(rollout=rollout), held=6), 6, roll=True)
    assert marks(found) == {
        "all at once": "",
        "3 at a time": "",
        "2 at a time": "tck",
        "one by one": "k",
    }
    assert found["2 at a time"].settled_s < found["one by one"].settled_s
    assert found["all at once"].exceeded == ("rollout.max_parallel",)


def test_rolling_batches_are_one_change() -> None:
    """Of dynamic members: each rolling batch joins and leaves, so that fewer and larger ones
    cost less.
    """
    fleet = spec(worker=DYNAMIC | RANGE, rollout={"max_parallel": 2}, storm={"rebalances": 6})
    found = ways(state_snapshot(fleet, held=6, topics={"orders": 24}), 6, roll=True)
    assert {name: way.rebalances for name, way in found.items()} == {
        "all at once": 2,
        "3 at a time": 4,
        "2 at a time": 6,
        "one by one": 12,
    }
    assert {way.step for way in found.values()} == {0}
    assert marks(found)["2 at a time"] == "tck"


def test_what_moves_too_much_is_beyond_the_limits() -> None:
    """The storm budget of a group may bound moves, too."""
    fleet = spec(worker=RANGE, storm={"moved": 10})
    found = ways(state_snapshot(fleet, held=2, topics={"orders": 24}), 4)
    assert found["all at once"].moved > 10
    assert marks(found) == {"all at once": "t", "one by one": ""}
    assert {way.exceeded for way in found.values()} == {("storm.moved",)}


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        pytest.param(state_snapshot(held=0), 3, id="nobody-works-on"),
        pytest.param(state_snapshot(held=3), 0, id="nobody-stays"),
        pytest.param(state_snapshot(held=3), 4, id="one-member"),
        pytest.param(state_snapshot(held=3), 3, id="nothing-to-do"),
    ],
)
def test_there_is_one_way_only(seen: StateSnapshot, wanted: int) -> None:
    """Nothing to divide, or nobody for whom it would matter."""
    assert ways(seen, wanted) == {}


def test_a_backlog_is_waited_for_where_it_ever_ends() -> None:
    """100 wait and 50/s come; two members read 200/s: gone in 0.7 s."""
    later = ways(flowing((60, 2.0), (40, 2.0)), 4)["all at once, after the backlog is read"]
    now = ways(flowing((60, 2.0), (40, 2.0)), 4)["all at once"]
    assert later.starts_in_s == 0.7
    assert replace(later, starts_in_s=0.0, way=now.way, backlog=now.backlog) == replace(
        now, chosen=False, cheapest=False
    )
    assert 0 < later.backlog < now.backlog
    never = ways(flowing((5_000, 10.0), (5_000, 10.0)), 4)
    assert list(never) == ["all at once", "one by one"]


# --- whether more members are worth their rebalance --------------------------------------------

SMALL = flowing((60, 2.0), (40, 2.0))
"""Two members that read 100/s each; 50/s come."""
GROWING = flowing((6_000, 20.0), (4_000, 20.0))
"""500/s come."""
LARGE = flowing((60_000, 1000.0), (60_000, 1000.0))
"""120/s come: those two need 25 minutes."""


LAG = {"policy": "lag", "records_per_worker": 100}


def told(seen: StateSnapshot, wanted: int = 4, **declared: Any) -> str:
    """What speaks against that many slots."""
    seen = replace(seen, spec=spec(**declared))
    return find_wasteful_growth(
        seen, with_expected_costs(seen, make_plan(seen, wanted=wanted, now=NOW))
    )


def test_what_is_read_sooner_without_it_is_refused_with_the_figures() -> None:
    """Two members need 0.7 s, and the rebalance alone takes 0.8 s."""
    sentence = told(SMALL)
    assert "2 more slots would not pay off: 2 slots read the 100 waiting records" in sentence
    assert "Of that, 0.8 s are for 2 rebalances with 6 partitions moved" in sentence
    assert "`fleet scale orders 4`" in sentence


@pytest.mark.parametrize(
    ("seen", "wanted", "declared"),
    [
        pytest.param(LARGE, 4, {}, id="sooner-with-it"),
        pytest.param(GROWING, 4, {}, id="never-without-it"),
        pytest.param(SMALL, 4, {"replicas": {"min": 4, "max": 9}}, id="the-least-declared"),
        pytest.param(
            *(SMALL, 4, {"scaling": {**LAG, "floors": [{"hours": "00:00-24:00", "min": 4}]}}),
            id="the-floor-of-the-hour",
        ),
        pytest.param(SMALL, 4, {"scaling": {"policy": "fixed", "workers": 4}}, id="fixed"),
        pytest.param(
            SMALL, 4, {"scaling": {"policy": "drain_time"}}, id="for-the-busiest-member-alone"
        ),
        pytest.param(SMALL, 1, {}, id="a-leave"),
        pytest.param(replace(SMALL, reports=()), 4, {}, id="no-capacity-known"),
    ],
)
def test_nothing_speaks_against_it(seen: StateSnapshot, wanted: int, declared: dict) -> None:
    """It brings more than it costs, a person declared it, or nobody can tell."""
    assert told(seen, wanted, **declared) == ""
