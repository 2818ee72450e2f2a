"""Assigns the partitions of a group to another number of members, by the group's own assignor.

Problem: what more members achieve depends on who would own which partition. A sum over the group
hides a member with two busy partitions. Choice: the assignors of the coordinator's model, for
members that subscribe to the same topics and leave from the highest number on. Results are cached,
since owners change only with a rebalance. Cost: for `sticky`, all topics count as one.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from fleet.sim.assignors import (
    ReportedMember,
    Shares,
    Target,
    assign_uniformly,
    ranges,
    round_robin,
    sticky,
)
from fleet.sim.hashing import HashOrder

NOBODY: Final = -1
"""In place of a member's number: no member owns the partition."""
Owners = tuple[int, ...]
"""Number of the owner of each partition, topic after topic."""


@lru_cache(maxsize=16_384)
def owners_after(protocol: str, topics: tuple[int, ...], owners: Owners, members: int) -> Owners:
    """Returns the owners when the group has `members` members.

    protocol: range, roundrobin, sticky, cooperative-sticky or consumer (KIP-848). topics: the
    number of partitions of each topic.
    """
    if members < 1:
        return (NOBODY,) * len(owners)
    names = [_name(number) for number in range(members)]
    if protocol == "range":
        plain = [ReportedMember(name) for name in names]
        made: list[int] = []
        for count in topics:
            made += _by_place(ranges(plain, count), count)
        return tuple(made)
    if protocol == "consumer":
        return _uniform(topics, owners, names)
    owned: dict[int, list[int]] = {}
    for place, owner in enumerate(owners):
        owned.setdefault(owner, []).append(place)
    told = [
        ReportedMember(name, owned=tuple(owned.get(number, ())), generation=1)
        for number, name in enumerate(names)
    ]
    assign = round_robin if protocol == "roundrobin" else sticky
    return tuple(_by_place(assign(told, len(owners)), len(owners)))


def _name(number: int) -> str:
    return f"{number:05}"


def _by_place(shares: Shares, count: int) -> list[int]:
    found = [NOBODY] * count
    for name, places in shares.items():
        for place in places:
            found[place] = int(name)
    return found


def _uniform(topics: Sequence[int], owners: Owners, names: Sequence[str]) -> Owners:
    ids = [number.to_bytes(16, "big") for number in range(len(topics))]
    places = [(ids[n], p) for n, count in enumerate(topics) for p in range(count)]
    held: dict[str, dict[bytes, list[int]]] = {name: {} for name in names}
    known: dict[bytes, dict[int, str]] = {}
    for (topic, number), owner in zip(places, owners, strict=True):
        if 0 <= owner < len(names):
            held[names[owner]].setdefault(topic, []).append(number)
            known.setdefault(topic, {})[number] = names[owner]
    targets: dict[str, Target] = {}
    for name in names:
        target: Target = HashOrder(len(held[name]))
        for topic, numbers in held[name].items():
            target[topic] = HashOrder.collected(numbers, None)
        targets[name] = target
    made = assign_uniformly(targets, ids, dict(zip(ids, topics, strict=True)), known)
    owner_of = {
        (topic, number): int(name)
        for name, target in made.items()
        for topic, numbers in target.items()
        for number in numbers
    }
    return tuple(owner_of[place] for place in places)
