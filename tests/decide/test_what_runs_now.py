"""Plans go by what is there: what runs now leaves, what is quarantined is not."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.decide.plans import count_least_moved, count_moved, make_plan
from fleet.decide.scaling import most_owners, subscribed_topics
from fleet.decide.slugs import k8s_slug, slug
from fleet.model import StepKind, TopicPartition
from tests.decide.worlds import NOW, settings, spec, state_snapshot

CONSUMER = spec(worker={"protocol": "consumer"})
CLASSIC = spec()


def test_what_leaves_is_priced_as_what_it_is():
    """An empty KIP-848 group may leave an assignment out; a classic one never."""
    for now, then, least in ((CONSUMER, CLASSIC, 0), (CLASSIC, CONSUMER, 1)):
        here = state_snapshot(then, held=3, runs=(now, "code"))
        published = {here.slots[0].revision: settings(now)}
        plan = make_plan(replace(here, published=published), wanted=3, now=NOW)
        stop = plan.steps[0]
        assert stop.kind is StepKind.STOP_ALL
        assert (stop.expected_cost.rebalances_min, stop.expected_cost.rebalances_max) == (least, 1)


# --- names, moves and capacity ----------------------------------------------------------------


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


def test_a_move_has_two_owners() -> None:
    """From nobody, and to nobody, is no move."""
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    assert count_moved({a: "x"}, {a: "y", b: "y"}) == 1
    assert count_moved({a: "x", b: "x"}, {a: "x"}) == 0


@given(
    owned=st.lists(st.integers(0, 20), max_size=8),
    leavers=st.lists(st.integers(0, 20), max_size=4),
    joiners=st.integers(0, 8),
)
def test_the_least_moved_is_a_bound(owned: list[int], leavers: list[int], joiners: int) -> None:
    """Never more than there are; all that leavers held; nothing where nobody is left."""
    total = sum(owned) + sum(leavers)
    least = count_least_moved(owned, leavers=leavers, joiners=joiners, total=total)
    assert 0 <= least <= total
    assert least >= sum(leavers) or not (owned or joiners)
    if not leavers and not joiners and owned and max(owned) - min(owned) <= 1:
        assert least == 0


def test_patterns_match_whole_names() -> None:
    """A topic that a name and a pattern both mean counts once."""
    topics = {"orders": 3, "orders.eu": 4, "other": 5}
    assert subscribed_topics(topics, spec(topics=["^orders.*"])) == {"orders": 3, "orders.eu": 4}
    assert most_owners(topics, spec(topics=["^orders.*", "orders"])) == 7
