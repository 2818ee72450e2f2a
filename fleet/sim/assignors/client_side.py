"""What the leader of a classic group gives to whom, as librdkafka's assignors do, for one topic.

Problem: who owns what after a rebalance, and how many rebalances it takes, is the leader's
business; an assignor that only balances would price moves wrong. Choice: range and roundrobin as
librdkafka 2.15 has them, members in its order (instance ids where both have one, else member ids,
as bytes), and what it does with any assignor's result in a cooperative group: a partition that
another still owns is given to nobody yet. Cost: one topic, no racks.
"""

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import NamedTuple, TypeAlias


class HeardMember(NamedTuple):
    """A member as the leader hears of it; `owned` in the generation that it names."""

    member_id: str
    instance_id: str | None = None
    owned: tuple[int, ...] = ()
    generation: int = -1


Shares: TypeAlias = dict[str, tuple[int, ...]]
"""Partitions by member id."""
Assignor: TypeAlias = Callable[[Sequence[HeardMember], int], Shares]
"""Members and the number of partitions in, everyone's share out."""


def in_order(members: Sequence[HeardMember]) -> list[HeardMember]:
    """As librdkafka's range and roundrobin walk them."""
    return sorted(members, key=cmp_to_key(_compared))


def _compared(one: HeardMember, other: HeardMember) -> int:
    if one.instance_id is not None and other.instance_id is not None:
        a, b = one.instance_id.encode(), other.instance_id.encode()
    else:
        a, b = one.member_id.encode(), other.member_id.encode()
    return (a > b) - (a < b)


def ranges(members: Sequence[HeardMember], partitions: int) -> Shares:
    """Neighbouring partitions; the first members get what does not divide."""
    ordered = in_order(members)
    each, more = divmod(partitions, len(ordered))
    starts = [n * each + min(n, more) for n in range(len(ordered) + 1)]
    return {m.member_id: tuple(range(starts[n], starts[n + 1])) for n, m in enumerate(ordered)}


def round_robin(members: Sequence[HeardMember], partitions: int) -> Shares:
    """One partition for each in turn."""
    ordered = in_order(members)
    return {m.member_id: tuple(range(n, partitions, len(ordered))) for n, m in enumerate(ordered)}


def withheld(members: Sequence[HeardMember], shares: Shares) -> Shares:
    """The same without what another member still owns: it is revoked first (KIP-429).

    Where two claim one partition, the later member counts as its owner.
    """
    owner = {partition: m.member_id for m in members for partition in m.owned}
    return {
        member_id: tuple(p for p in share if owner.get(p, member_id) == member_id)
        for member_id, share in shares.items()
    }
