"""Policies of fleet.yaml in the back-test, by the same function as the manager."""

import random
import time
from functools import cache
from itertools import pairwise

import pytest

from fleet.backtest.load import SHAPES, LoadSeries, shape
from fleet.backtest.ours import PolicyRule, policy_rule, replayed_spec
from fleet.backtest.replay import Observation, Outcome, Setting, replay
from fleet.backtest.rules import keda
from fleet.decide.scaling import ScalingMemory
from fleet.model import GroupSnapshot

DRAIN = {"policy": "drain_time"}


def test_a_fixed_policy_is_its_number() -> None:
    """From one worker to the declared number, once."""
    load = shape("steady", partitions=6, days=0.1, mean=800, capacity=1_000, seed=1)
    found = replay(load, policy_rule({"policy": "fixed", "workers": 3}, partitions=6), Setting())
    assert [(each.before, each.after) for each in found.steps] == [(1, 3)]


@cache
def replayed(name: str, policy: str) -> Outcome:
    """A day of a shape by a policy."""
    return replay(day(name), policy_rule({"policy": policy}, partitions=12), Setting(first=4))


def day(name: str) -> LoadSeries:
    """A day of a shape."""
    return shape(name, partitions=12, days=1, mean=2_500, capacity=1_000, seed=7)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_less_backlog_than_under_a_rule_with_more_workers(name: str) -> None:
    """With a third of its rebalances at most, and steps up of the right size."""
    found = replayed(name, "drain_time")
    other = replay(day(name), keda(5_000, stabilisation=0), Setting(first=4))
    assert found.worker_hours <= other.worker_hours
    assert found.backlog_seconds <= other.backlog_seconds
    assert found.late_hours <= other.late_hours + 0.05
    assert found.rebalances * 3 <= other.rebalances
    assert found.right_at_once(day(name)) >= 0.9


@pytest.mark.parametrize("policy", ["drain_time", "packed"])
@pytest.mark.parametrize("name", SHAPES)
def test_no_shape_makes_a_group_flap(name: str, policy: str) -> None:
    """No step is taken back within 20 minutes."""
    steps = replayed(name, policy).steps
    for first, then in pairwise(steps):
        is_back = (then.after > then.before) != (first.after > first.before)
        assert not is_back or then.at - first.at >= 20 * 60


def test_a_stuck_sink_does_not_pile_up_workers() -> None:
    """While nobody reads anything, more workers would not help."""
    during = replayed("stuck-sink", "drain_time").members[int(0.5 * 8640) + 30 :][:140]
    assert during.max() < 9


class Shaky(PolicyRule):
    """Cannot read the group now and then, and forgets everything now and then."""

    rng = random.Random(5)
    fails = False

    def __call__(self, seen: Observation) -> int:
        """Asks, and checks what a failure and a restart may do."""
        self.fails, restarts = self.rng.random() < 0.1, self.rng.random() < 0.02
        if restarts:
            self.memory = ScalingMemory()
        wanted = super().__call__(seen)
        if seen.settled and self.fails:
            assert wanted >= seen.members
        if seen.settled and restarts:
            assert wanted <= seen.members
        return wanted

    def _group(self, seen: Observation) -> GroupSnapshot | None:
        return None if self.fails else super()._group(seen)


@pytest.mark.parametrize("policy", ["drain_time", "packed"])
def test_failed_lag_never_shrinks_and_a_restart_never_grows(policy: str) -> None:
    """And the group still follows its load."""
    spec = replayed_spec({"policy": policy, "idle": "10m"}, partitions=12)
    load = shape("daily", partitions=12, days=0.75, mean=2_500, capacity=1_000, seed=7)
    found = replay(load, Shaky(spec), Setting(first=4))
    assert found.late_hours < 0.5
    assert {each.after > each.before for each in found.steps} == {True, False}


def test_two_weeks_are_replayed_in_seconds() -> None:
    """One of the fourteen days, in processor time."""
    load = shape("burst", partitions=12, days=1, mean=2_500, capacity=1_000, seed=7)
    rule = PolicyRule(replayed_spec(DRAIN, partitions=12))
    began = time.process_time()
    replay(load, rule, Setting(first=4))
    assert time.process_time() - began < 10 / 14 * 4  # a busy machine is slower


def test_a_budget_of_changes_is_replayed() -> None:
    """No hour has more of them than declared."""
    load = shape("burst", partitions=12, days=0.5, mean=2_500, capacity=1_000, seed=7)
    lag = {"policy": "lag", "records_per_worker": 10_000, "down_after": "0s"}
    free = replay(load, policy_rule(lag, partitions=12), Setting())
    bound = replay(load, policy_rule({**lag, "changes_per_hour": 2}, partitions=12), Setting())
    at = [each.at for each in bound.steps]
    assert all(later - first >= 3600 for first, later in zip(at, at[2:], strict=False))
    assert len(at) > 4
    assert len(free.steps) > 2 * len(at)
