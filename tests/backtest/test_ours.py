"""Policies of fleet.yaml in the back-test, by the same function as the manager."""

import time

import pytest

from fleet.backtest.load import shape
from fleet.backtest.ours import PolicyRule, policy_rule, replayed_spec
from fleet.backtest.replay import Setting, replay
from fleet.backtest.rules import keda

DRAIN = {"policy": "drain_time"}


def test_a_fixed_policy_is_its_number() -> None:
    """From one worker to the declared number, once."""
    load = shape("steady", partitions=6, days=0.1, mean=800, capacity=1_000, seed=1)
    found = replay(load, policy_rule({"policy": "fixed", "workers": 3}, partitions=6), Setting())
    assert [(each.before, each.after) for each in found.steps] == [(1, 3)]


@pytest.mark.parametrize("name", ["steady", "daily", "burst", "stuck-sink"])
def test_a_shape_is_late_no_longer_than_under_another_rule(name: str) -> None:
    """Fewer rebalances than a third of KEDA's rule, and most steps up have the right size."""
    load = shape(name, partitions=12, days=1, mean=2_500, capacity=1_000, seed=7)
    found = replay(load, policy_rule(DRAIN, partitions=12), Setting(first=4))
    other = replay(load, keda(10_000, stabilisation=0), Setting(first=4))
    assert found.late_hours <= other.late_hours + 0.05
    assert found.rebalances * 3 <= other.rebalances
    assert found.right_at_once(load) >= 0.9


def test_a_stuck_sink_does_not_pile_up_workers() -> None:
    """While nobody reads anything, more workers would not help."""
    load = shape("stuck-sink", partitions=12, days=1, mean=2_500, capacity=1_000, seed=7)
    found = replay(load, policy_rule(DRAIN, partitions=12), Setting(first=4))
    during = found.members[int(0.5 * 8640) + 30 : int(0.5 * 8640) + 170]
    assert during.max() < 9


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
