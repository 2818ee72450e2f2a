"""What scaling other people's consumers will cost: within the range that is promised, or unsaid."""

import random
from dataclasses import replace

import pytest

from fleet.decide.forecast.other_ways import foretold_of_pods
from fleet.model import GroupSnapshot, Plan, Price, TopicPartition
from tests.decide.test_adopted import adopted, group, plan


def owning(*instances: str | None, partitions: int = 12, **changes: str) -> GroupSnapshot:
    """A group whose members own partitions in turn."""
    seen = group(*instances)
    members = tuple(
        replace(
            member,
            partitions=frozenset(
                TopicPartition("orders", p) for p in range(n, partitions, len(instances))
            ),
        )
        for n, member in enumerate(seen.members)
    )
    return replace(seen, members=members, **{"type": "classic", "assignor": "range", **changes})


def price(seen: GroupSnapshot | None, pods: int, wanted: int) -> Price:
    """Of the one step."""
    made: Plan = plan(seen, adopted(pods), wanted)
    told = foretold_of_pods(made, seen, adopted(pods))
    assert told.id == made.id
    return told.steps[0].price


def test_it_lies_within_the_range() -> None:
    """Worlds from a seed, every protocol, static and dynamic."""
    rng = random.Random(6)
    for _ in range(40):
        pods, wanted = rng.randint(2, 6), rng.randint(1, 8)
        kind = rng.choice(["range", "roundrobin", "cooperative-sticky", "consumer"])
        told = {"type": "consumer", "assignor": "uniform"} if kind == "consumer" else {}
        static = rng.random() < 0.5
        names = [f"m-{n}" if static else None for n in range(pods)]
        if wanted == pods:
            continue
        seen = owning(*names, **({"assignor": kind} | told))
        expected = price(seen, pods, wanted)
        assert expected.rebalances_expected is not None, (kind, names, pods, wanted)
        promised = range(expected.rebalances_min, expected.rebalances_max + 1)
        assert expected.rebalances_expected in promised, (kind, names, pods, wanted)
        assert expected.settled_s is not None


def test_static_members_leave_in_one_request() -> None:
    """Dynamic ones by their own close."""
    named, unnamed = price(owning("a", "b", "c"), 3, 1), price(owning(*[None] * 3), 3, 1)
    assert (named.rebalances_expected, unnamed.rebalances_expected) == (1, 1)
    assert named.settled_s is not None
    assert unnamed.settled_s is not None
    assert 1 < named.settled_s < 10, "not at the end of their sessions"


@pytest.mark.parametrize(
    ("seen", "pods", "wanted"),
    [
        pytest.param(None, 3, 1, id="no-group"),
        pytest.param(owning("a", "b", "c"), 2, 1, id="a-member-elsewhere"),
        pytest.param(owning("a", "b"), 3, 1, id="a-pod-without"),
        pytest.param(owning("a", "b", assignor="stream"), 2, 1, id="not-modelled"),
        pytest.param(owning("a", "b", type="share"), 2, 1, id="no-consumers"),
        pytest.param(owning("a", "b"), 2, 0, id="nobody-stays"),
        pytest.param(owning("a", "b", partitions=1000), 2, 1, id="too-large"),
        pytest.param(group("a", "b"), 2, 1, id="nothing-owned"),
    ],
)
def test_what_cannot_be_said_is_not(seen: GroupSnapshot | None, pods: int, wanted: int) -> None:
    """The promised range stands alone."""
    assert price(seen, pods, wanted).rebalances_expected is None
