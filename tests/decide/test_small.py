"""Names, moves, capacity and verdicts."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decide.capacity import ownable, subscribed
from fleet.decide.moves import least_moved, moved, range_owners
from fleet.decide.names import k8s_slug, slug
from fleet.decide.verdict import budget_verdict, lag_verdict
from fleet.model import LagCase, TopicPartition
from fleet.spec import Storm
from tests.decide.worlds import group_of, lagging, member, spec


def test_names_that_look_alike_do_not_collide() -> None:
    """orders.v1, orders-v1 and orders_v1 are three groups, in Dagster and in Kubernetes."""
    groups = ["orders.v1", "orders-v1", "orders_v1", "Orders.v1"]
    assert len({slug("main", g) for g in groups}) == 4
    assert len({k8s_slug("main", g) for g in groups}) == 4
    assert slug("a", "b_c") != slug("a_b", "c")
    assert slug("main", "orders.v1").startswith("main_orders_v1_")


@given(cluster=st.text(max_size=80), group=st.text(max_size=300))
def test_names_are_allowed_everywhere(cluster: str, group: str) -> None:
    """Whatever the ids hold, the names are legal and short."""
    name = slug(cluster, group)
    assert re.fullmatch(r"[A-Za-z0-9_]{9,49}", name)
    label = k8s_slug(cluster, group)
    assert re.fullmatch(r"[a-z][-a-z0-9]{0,47}[a-z0-9]", label)


def test_range_gives_topic_by_topic_to_the_first() -> None:
    """Two topics of 3 for two members: the first member has two of each."""
    owners = range_owners(["b", "a"], {"t0": 3, "t1": 3})
    assert [str(tp) for tp, owner in owners.items() if owner == "a"] == [
        "t0-0",
        "t0-1",
        "t1-0",
        "t1-1",
    ]


def test_a_move_has_two_owners() -> None:
    """From nobody, and to nobody, is no move."""
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert moved({a: "x"}, {a: "y", b: "y"}) == 1
    assert moved({a: "x", b: "x"}, {a: "x"}) == 0


@given(
    owned=st.lists(st.integers(0, 20), max_size=8),
    leavers=st.lists(st.integers(0, 20), max_size=4),
    joiners=st.integers(0, 8),
)
def test_the_least_moved_is_a_bound(owned: list[int], leavers: list[int], joiners: int) -> None:
    """Never more than there are; all that leavers held; nothing where nobody is left."""
    total = sum(owned) + sum(leavers)
    least = least_moved(owned, leavers=leavers, joiners=joiners, total=total)
    assert 0 <= least <= total
    assert least >= sum(leavers) or not (owned or joiners)
    if not leavers and not joiners and owned and max(owned) - min(owned) <= 1:
        assert least == 0


def test_patterns_match_as_the_clients_do() -> None:
    """Clients search from the start, the broker of KIP-848 wants the whole name."""
    topics = {"orders": 3, "orders.eu": 4, "other": 5}
    assert subscribed(topics, spec(topics=["^orders"])) == {"orders": 3, "orders.eu": 4}
    whole = spec(topics=["^orders"], worker={"protocol": "consumer"})
    assert subscribed(topics, whole) == {"orders": 3}
    assert ownable(topics, spec(topics=["^orders", "orders"])) == 7


@pytest.mark.parametrize(
    ("lags", "records", "seconds", "ok", "said"),
    [
        pytest.param((5, 6), 11, None, True, "11 records waiting", id="at-the-limit"),
        pytest.param((5, 7), 11, None, False, "the limit is 11 records", id="above"),
        pytest.param((None,), 11, None, False, "is unknown", id="unknown"),
        pytest.param((None,), None, None, True, "is unknown", id="unknown-no-limit"),
        pytest.param((5,), None, 3.0, False, "the limit is 3 s", id="old"),
    ],
)
def test_lag_verdicts(lags: tuple, records: int, seconds: float, ok: bool, said: str) -> None:
    """A verdict is a yes or no with its sentence; unknown is not well where a limit is set."""
    parts = tuple(
        replace(p, lag_seconds=4.0 if p.lag is not None else None) for p in lagging(*lags)
    )
    verdict = lag_verdict(
        group_of((member("a"),), partitions=parts), limit_records=records, limit_seconds=seconds
    )
    assert (verdict.ok, bool(verdict)) == (ok, ok)
    assert said in verdict.sentence


def test_odd_lags_are_named() -> None:
    """Committed below the log's start, deleted topics, groups that are not there: named."""
    below = tuple(replace(p, case=LagCase.BELOW_START) for p in lagging(5))
    assert "below log start" in lag_verdict(group_of((), partitions=below)).sentence
    never = tuple(replace(p, case=LagCase.NEVER_COMMITTED) for p in lagging(None))
    assert "never committed" in lag_verdict(group_of((), partitions=never)).sentence
    assert not lag_verdict(replace(group_of(()), exists=False))


def test_budget_verdicts() -> None:
    """The storm's budget includes its own number; what is not counted is not a storm."""
    assert budget_verdict(5, Storm()).ok
    bad = budget_verdict(6, Storm())
    assert not bad
    assert bad.sentence == "6 rebalances in the last 600 s, budget 5"
    assert budget_verdict(None, Storm()).ok
