"""What brokers would refuse is refused before anybody leaves; what is not known refuses nothing."""

from dataclasses import replace
from typing import Any

import pytest

from fleet.decide.plans import make_plan
from fleet.decide.refusals import beyond_limits
from fleet.decide.world import GroupWorld
from fleet.model import UNKNOWN, BrokerLimits, StepKind
from tests.decide.worlds import NOW, group_of, member, spec, world

RANGE = {"assignor": "range"}
BOUNDS = BrokerLimits(least_session=6.0, longest_session=60.0)


def told(seen: GroupWorld, limits: BrokerLimits, *, wanted: int, roll: bool = False) -> str:
    plan = make_plan(seen, wanted=wanted, now=NOW, force_roll=roll)
    return " ".join(beyond_limits(seen, plan, limits))


def session(length: str) -> dict[str, Any]:
    return {**RANGE, "session_timeout": length, "heartbeat_interval": "1s"}


@pytest.mark.parametrize(
    ("length", "limits", "words"),
    [
        ("90s", BOUNDS, "is 90 s, and the brokers allow at most 60 s (group.max.session"),
        ("20s", replace(BOUNDS, least_session=30.0), "allow at least 30 s (group.min.session"),
        ("20s", replace(BOUNDS, least_session=20.0), None),
        ("60s", BOUNDS, None),
        ("90s", UNKNOWN, None),
    ],
)
def test_a_session_out_of_bounds(length: str, limits: BrokerLimits, words: str | None) -> None:
    """All would leave before the first is refused."""
    before, after = spec(worker=RANGE), spec(worker=session(length))
    seen = world(after, held=3, runs=(before, "code"))
    assert StepKind.STOP_ALL in {s.kind for s in make_plan(seen, wanted=3, now=NOW).steps}
    sentence = told(seen, limits, wanted=3)
    assert words in sentence if words else sentence == ""


def test_a_leave_is_refused_to_nobody() -> None:
    """It is how a fleet with such a session gets out of it."""
    seen = world(spec(worker=session("90s")), held=3)
    assert told(seen, BOUNDS, wanted=1) == ""
    assert told(seen, BOUNDS, wanted=4) != ""


@pytest.mark.parametrize(
    ("worker", "limits", "name"),
    [
        (RANGE, BrokerLimits(classic_members=4), "group.max.size"),
        ({"protocol": "consumer"}, BrokerLimits(consumer_members=4), "group.consumer.max.size"),
    ],
)
def test_members_that_are_too_many(worker: dict, limits: BrokerLimits, name: str) -> None:
    """Each protocol has its bound; as many as are allowed are allowed."""
    seen = world(spec(worker=worker), held=2)
    assert told(seen, limits, wanted=4) == ""
    sentence = told(seen, limits, wanted=5)
    assert f"would have 5 members, and the brokers allow 4 ({name})" in sentence
    other = BrokerLimits(
        classic_members=limits.consumer_members, consumer_members=limits.classic_members
    )
    assert told(seen, other, wanted=5) == ""


def test_other_peoples_members_count() -> None:
    """They have a place each."""
    seen = world(spec(worker=RANGE), held=2)
    assert seen.group is not None
    both = (*seen.members(), member("theirs", instance_id=None))
    crowded = replace(seen, group=group_of(both, assignor="range"))
    limits = BrokerLimits(classic_members=4)
    assert told(crowded, limits, wanted=3) == ""
    assert "5 members" in told(crowded, limits, wanted=4)


@pytest.mark.parametrize(("membership", "most"), [("static", 3), ("dynamic", 4)])
def test_a_wave_needs_room(membership: str, most: int) -> None:
    """Dynamic members join beside those that they replace; static ones replace them."""
    worker = {**RANGE, "membership": membership}
    seen = world(spec(worker=worker), held=3, runs=(spec(worker=worker), "old"))
    assert told(seen, BrokerLimits(classic_members=most), wanted=3) == ""
    assert told(seen, BrokerLimits(classic_members=most - 1), wanted=3) != ""


def test_a_leave_comes_before() -> None:
    """Who has left takes no place; a group that is stopped first is filled anew."""
    after = spec(worker=session("30s"))
    seen = world(after, held=(2, 3), runs=(spec(worker=RANGE), "code"))
    assert told(seen, BrokerLimits(classic_members=2), wanted=2) == ""


def test_a_leave_of_nobody_costs_nothing() -> None:
    """Nobody joined, as brokers refuse them: the way out of it is not held to a rebalance."""
    before, after = spec(worker=session("30s")), spec(worker=RANGE)
    seen = replace(world(after, held=2, runs=(before, "code")), group=group_of(()))
    stop, *_ = make_plan(seen, wanted=2, now=NOW).steps
    assert (stop.kind, str(stop.price.rebalances_min)) == (StepKind.STOP_ALL, "0")
    there = world(after, held=2, runs=(before, "code"))
    assert make_plan(there, wanted=2, now=NOW).steps[0].price.rebalances_min == 1
    fewer = make_plan(replace(world(held=2), group=group_of(())), wanted=1, now=NOW)
    assert [s.price.rebalances_min for s in fewer.steps if s.kind is StepKind.LEAVE] == [0]
