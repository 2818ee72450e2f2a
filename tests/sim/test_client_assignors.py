"""What leaders of classic groups give to whom, by librdkafka's rules."""

import random

import pytest

from fleet.log.records import assignment, subscription
from fleet.sim.assignors import ReportedMember, ranges, round_robin, sticky, withhold
from fleet.sim.scenarios import coordinator_sides

ABC = [ReportedMember(name) for name in "cab"]


def has(name: str, *partitions: int) -> ReportedMember:
    """A member that owns these in generation 1."""
    return ReportedMember(name, None, partitions, 1)


def test_ranges() -> None:
    """Neighbouring partitions; the first members get one more."""
    assert ranges(ABC, 7) == {"a": (0, 1, 2), "b": (3, 4), "c": (5, 6)}
    assert ranges(ABC, 1) == {"a": (0,), "b": (), "c": ()}


def test_round_robin() -> None:
    """One for each in turn."""
    assert round_robin(ABC, 7) == {"a": (0, 3, 6), "b": (1, 4), "c": (2, 5)}


def test_order_is_by_instance_id_where_both_have_one() -> None:
    """As bytes: -10 before -2."""
    found = ranges(
        [ReportedMember("x", "g-2"), ReportedMember("y", "g-10"), ReportedMember("z", "g-0")], 3
    )
    assert found == {"z": (0,), "y": (1,), "x": (2,)}


def test_a_sticky_start_goes_round() -> None:
    """Lowest partition first to the member with the fewest."""
    assert sticky(ABC, 7) == {"a": (0, 3, 6), "b": (1, 4), "c": (2, 5)}


def test_a_newcomer_gets_from_whoever_has_most() -> None:
    """And what it gets is withheld until it was given up."""
    members = [has("a", 0, 3, 6), has("b", 1, 4), has("c", 2, 5), has("d")]
    found = sticky(members, 7)
    assert found == {"a": (3, 6), "b": (1, 4), "c": (2, 5), "d": (0,)}
    assert withhold(members, found) == found | {"d": ()}


def test_the_free_ones_go_to_whoever_has_least_the_highest_first() -> None:
    """Nobody else's moves."""
    members = [
        ReportedMember("b", None, (1, 4), 1),
        ReportedMember("c", None, (2, 5), 1),
        ReportedMember("d", None, (0,), 1),
    ]
    assert sticky(members, 7) == {"b": (1, 3, 4), "c": (2, 5), "d": (0, 6)}


def test_the_newest_of_two_claims_counts() -> None:
    """And two of one generation are both disbelieved."""
    members = [ReportedMember("a", None, (0, 1, 2), 4), ReportedMember("b", None, (0, 3, 4), 3)]
    assert sticky(members, 5) == {"a": (0, 1, 2), "b": (3, 4)}
    members = [ReportedMember("a", None, (0,), 3), ReportedMember("b", None, (0,), 3)]
    assert sticky(members, 1) == {"a": (0,), "b": ()}


@pytest.mark.parametrize("seed", range(200))
def test_whatever_was_claimed_all_is_given_once_and_evenly(seed: int) -> None:
    """And who claims nothing disputed loses no more than balance takes."""
    rng = random.Random(seed)
    count, partitions = rng.randint(1, 9), rng.randint(1, 30)
    owned = list(range(partitions))
    rng.shuffle(owned)
    members = []
    for number in range(count):
        size = rng.randint(0, partitions // count)
        members.append(ReportedMember(f"m{number}", None, tuple(owned[:size]), 1))
        del owned[:size]
    found = sticky(members, partitions)
    assert sorted(p for share in found.values() for p in share) == list(range(partitions))
    sizes = [len(share) for share in found.values()]
    assert max(sizes) - min(sizes) <= 1
    lost = sum(len(set(m.owned) - set(found[m.member_id])) for m in members)
    assert lost <= sum(max(0, len(m.owned) - partitions // count) for m in members)


def test_the_bytes_are_those_of_a_consumer() -> None:
    """Read by the decoder of the coordinator's log, and by the leader."""
    blob = coordinator_sides.subscription((3, 1), 7, (1, 3))
    assert subscription(blob) == (("topic",), {"topic": (3, 1)})
    assert coordinator_sides.claimed("m", "i", blob) == ReportedMember("m", "i", (3, 1), 7)
    assert coordinator_sides.claimed("m", None, coordinator_sides.subscription()) == ReportedMember(
        "m"
    )
    given = coordinator_sides.assignment((2, 5))
    assert assignment(given) == {"topic": (2, 5)}
    assert coordinator_sides.assigned(given) == (2, 5)
    assert coordinator_sides.assigned(coordinator_sides.assignment(())) == ()
    assert coordinator_sides.assigned(b"") == ()
