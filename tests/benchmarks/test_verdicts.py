"""What `benchmarks roll` and `sync_join` make of what was recorded, on values made by hand."""

from dataclasses import replace

import pytest

from benchmarks import roll, sync_join
from benchmarks.figures import spread
from fleet.model.rebalances import RebalanceCounts
from tests.support.rebalances import rebalance


def recorded(*downtimes, rebalances=0):
    """A stretch of the coordinator's records."""
    generations = tuple(rebalance(n, float(n)) for n in range(rebalances))
    return RebalanceCounts(
        group="g", generations=generations, replacements=2, every_downtime=downtimes
    )


def rolled(**changes):
    """A good result of four handovers in two rolls, with some of our side changed."""
    ours = roll.side_of(
        [recorded(0.0, 0.1), recorded(0.1, 0.2)], handovers=4, account=(0, 0), seconds=20.0
    )
    baseline = roll.side_of(
        [recorded(1.0, 2.0, rebalances=4)], handovers=2, account=(0, 3), seconds=30.0
    )
    return roll.RollResult(
        protocol="range",
        slots=2,
        wanted=4,
        batch=spread([0.1, 0.2, 0.3]),
        ours=replace(ours, **changes),
        baseline=baseline,
    )


def test_a_good_roll_meets_every_goal():
    """The baseline's own repetitions are shown, not held against us."""
    result = rolled()
    assert result.met
    assert result.goals()[1].limit == pytest.approx(0.2), "seconds"
    assert result.ratios() == {
        "rebalances_per_roll": None,
        "downtime_p95": 10.0,
        "downtime_partition_seconds_per_roll": 15.0,
    }


@pytest.mark.parametrize(
    ("changes", "goal"),
    [
        ({"rebalances": 1}, "rebalances of all rolls"),
        ({"downtimes": spread([0.1, 0.8])}, "downtime of a partition at p95, seconds"),
        ({"downtimes": None}, "downtime of a partition at p95, seconds"),
        ({"lost": 1}, "records lost"),
        ({"duplicates": 1}, "duplicate records"),
        ({"handovers": 3}, "handovers missing"),
    ],
)
def test_what_a_roll_may_not_cost(changes, goal):
    """Each broken promise is its own missed goal."""
    assert rolled(**changes).missed() == [goal]
    assert not rolled(**changes).met


def one(k, joins=1, leaves=1, apart=0.01, **seconds):
    """The synchronized joins run with so many rebalances."""
    rounds = sync_join.Round(joined=k, moved=2 * k)
    took = sync_join.ChangeTimes(**{"settled": 1.2, "downtime": 0.4, **seconds})
    return sync_join.SyncJoinRun(
        k=k,
        joins=(rounds,) * joins,
        leaves=(rounds,) * leaves,
        spread=apart,
        join=took,
        leave=took,
    )


def gated(*runs, protocol="range", lost=0):
    """A result of these runs, two of each k asked for."""
    return sync_join.SyncJoinResult(
        protocol=protocol,
        options=sync_join.SyncJoinOptions(joins=(2, 5), runs=2),
        runs=runs,
        patient=(one(2, settled=4.0), one(5, downtime=3.0)),
        cpu={"broker": 0.5, "workers": 1.5},
        patient_cpu={"broker": 0.4, "workers": 1.4},
        batch=0.1,
        at_once=(one(2, joins=2, apart=0.4), one(5, joins=3)),
        in_turn=(one(2, joins=2), one(5, joins=5)),
        lost=lost,
        duplicates=0,
    )


def test_a_good_sync_join_meets_every_goal():
    """Each k has a line with counts of counts."""
    result = gated(one(2), one(5), one(2), one(5, apart=None))
    assert result.missed() == ["spread of joins, seconds"], "an unknown spread proves nothing"
    result = gated(one(2), one(5), one(2), one(5))
    assert result.met
    joins = result.figures()["joins"]
    assert joins["+5 synchronized"]["rebalances"] == {1: 2}
    assert joins["+5 baseline, in turn"]["rebalances"] == {5: 1}


@pytest.mark.parametrize(
    ("protocol", "run", "goals"),
    [
        ("range", one(5, joins=2), ["rebalances per synchronized joins"]),
        ("cooperative-sticky", one(5, joins=2), []),
        ("consumer", one(5, joins=2), []),
        ("consumer", one(5, joins=3), ["rebalances per synchronized joins"]),
        ("range", one(5, joins=0), ["synchronized joins without any rebalance"]),
        ("range", one(5, leaves=2), ["rebalances per batched leave"]),
        ("cooperative-sticky", one(5, leaves=2), []),
        ("range", one(5, apart=0.11), ["spread of joins, seconds"]),
        ("range", one(5, settled=1.6), ["settled at p95, seconds"]),
        ("range", one(5, settled=None), ["settled at p95, seconds"]),
        ("range", one(5, downtime=0.91), ["longest downtime at p95, seconds"]),
    ],
)
def test_what_a_sync_join_may_not_cost(protocol, run, goals):
    """One bad run of four is enough."""
    assert gated(one(2), one(5), one(2), run, protocol=protocol).missed() == goals


def test_runs_that_are_missing_and_records_that_are_lost():
    """Neither is overlooked."""
    assert gated(one(2), one(5)).missed() == ["runs missing"]
    assert gated(one(2), one(5), one(2), one(5), lost=1).missed() == ["records lost"]
