"""Owners after a change of size, by the assignor of the group."""

from collections import Counter

import pytest

from fleet.decide.assignments import NOBODY, owners_after

PROTOCOLS = ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("members", [1, 3, 5, 12])
def test_everybody_gets_an_even_share(protocol: str, members: int) -> None:
    """From nobody, and from any number before."""
    for before in (0, 1, 4, 12):
        owners = owners_after(protocol, (12,), (NOBODY,) * 12, before)
        made = owners_after(protocol, (12,), owners, members)
        sizes = Counter(made).values()
        assert len(sizes) == members
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("protocol", ["cooperative-sticky", "consumer"])
def test_who_stays_keeps_what_balance_allows(protocol: str) -> None:
    """Of 12 partitions 4 move to a third member, and back when it leaves."""
    two = owners_after(protocol, (12,), (NOBODY,) * 12, 2)
    three = owners_after(protocol, (12,), two, 3)
    assert sum(a != b for a, b in zip(two, three, strict=True)) == 4
    again = owners_after(protocol, (12,), three, 2)
    assert all(b == c for b, c in zip(three, again, strict=True) if b < 2)


def test_range_assigns_each_topic_by_itself() -> None:
    """Two topics of two: the third member owns nothing."""
    assert owners_after("range", (2, 2), (NOBODY,) * 4, 3) == (0, 1, 0, 1)
    assert owners_after("range", (3, 1), (NOBODY,) * 4, 0) == (NOBODY,) * 4
