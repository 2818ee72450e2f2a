"""Packs partitions into members by their rates. Pure.

Problem: Kafka's assignors count partitions and know no rates, so that skew costs members. How many,
only a packing shows. Choice: bin packing with sizes that vary: a partition is an item, a member a
bin with the capacity of one worker. First, Best and Worst Fit Decreasing pack anew. The modified
ones of Landau et al. (arXiv 2402.06085) begin with the present owners and move less; what moves is
their R-score. Cost: members of librdkafka and of KIP-848 cannot carry out a packing, since the
first know only their own assignors and the second those of the coordinator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from fleet.decide.assignments import NOBODY, Owners

Fit = Literal["first", "best", "worst"]
"""Which member with enough room gets a partition: the first, the fullest, the emptiest."""
_ROUNDING: Final = 1.0 + 1e-9


class _Bins:
    """Holds members that get partitions one after the other."""

    def __init__(self, sizes: Sequence[float], capacity: float, owners: Owners, fit: Fit) -> None:
        self._sizes, self._capacity, self._before = sizes, capacity * _ROUNDING, owners
        self._fit = fit
        self._loads: dict[int, float] = {}
        self.owners = [NOBODY] * len(sizes)

    def decreasing(self, places: Iterable[int]) -> list[int]:
        """Returns partitions, the largest first."""
        return sorted(places, key=lambda place: -self._sizes[place])

    def try_open_members(self, place: int) -> bool:
        """Gives a partition to a member that has partitions already, if one has room."""
        rest = self._capacity - self._sizes[place]
        fitting = [member for member, load in self._loads.items() if load <= rest]
        if not fitting:
            return False
        load_of = self._loads.__getitem__
        if self._fit == "first":
            member = fitting[0]
        else:
            member = (max if self._fit == "best" else min)(fitting, key=load_of)
        self._give(place, member)
        return True

    def try_owner(self, place: int) -> bool:
        """Leaves a partition with its owner, if that has room."""
        owner = self._before[place]
        if self._loads.get(owner, 0.0) + self._sizes[place] > self._capacity:
            return False
        self._give(place, owner)
        return True

    def place(self, place: int) -> None:
        """Gives a partition to a member with room, else to a new one, its owner if possible."""
        if self.try_open_members(place):
            return
        owner = self._before[place]
        if owner == NOBODY or owner in self._loads:
            owner = next(n for n in range(len(self._loads) + 1) if n not in self._loads)
        self._give(place, owner)

    def _give(self, place: int, member: int) -> None:
        self._loads[member] = self._loads.get(member, 0.0) + self._sizes[place]
        self.owners[place] = member


def pack(
    sizes: Sequence[float], capacity: float, owners: Owners | None = None, *, fit: Fit = "best"
) -> Owners:
    """Returns owners that a packing anew gives, the largest partition first.

    owners: the present ones; a member keeps its number if that is possible. A partition above the
    capacity gets a member of its own.
    """
    bins = _Bins(sizes, capacity, owners or (NOBODY,) * len(sizes), fit)
    for place in bins.decreasing(range(len(sizes))):
        bins.place(place)
    return tuple(bins.owners)


def repack(
    sizes: Sequence[float],
    capacity: float,
    owners: Owners,
    *,
    fit: Fit = "worst",
    largest_first: bool = False,
) -> Owners:
    """Returns owners by a modified fit, which moves less than a packing anew.

    Member by member, the fullest first, the smallest partitions go to members before it as long as
    they fit there. The member keeps of the rest what it can read; what remains is packed last.
    largest_first: begin with the member that has the largest partition.
    """
    bins = _Bins(sizes, capacity, owners, fit)
    owned: dict[int, list[int]] = {}
    for place, owner in enumerate(owners):
        owned.setdefault(owner, []).append(place)
    left = owned.pop(NOBODY, [])
    total = max if largest_first else sum

    def load(member: int) -> float:
        return total(sizes[place] for place in owned[member])

    for member in sorted(owned, key=load, reverse=True):
        places = bins.decreasing(owned[member])
        while places and bins.try_open_members(places[-1]):
            places.pop()
        left += [place for place in places if not bins.try_owner(place)]
    for place in bins.decreasing(left):
        bins.place(place)
    return tuple(bins.owners)


def members_of(owners: Owners) -> int:
    """Counts the members that own a partition."""
    return len(set(owners) - {NOBODY})


def r_score(sizes: Sequence[float], before: Owners, after: Owners, capacity: float) -> float:
    """Returns the rate of all partitions that change their owner, in workers.

    So much is not read in each second of a rebalance. A partition that nobody owned does not count.
    """
    moved = (
        size
        for size, old, new in zip(sizes, before, after, strict=True)
        if old not in {NOBODY, new}
    )
    return sum(moved) / capacity


ALGORITHMS: Final[Mapping[str, Callable[[Sequence[float], float, Owners], Owners]]] = {
    "FFD": partial(pack, fit="first"),
    "BFD": partial(pack, fit="best"),
    "WFD": partial(pack, fit="worst"),
    "MBF": partial(repack, fit="best"),
    "MWF": partial(repack, fit="worst"),
    "MBFP": partial(repack, fit="best", largest_first=True),
    "MWFP": partial(repack, fit="worst", largest_first=True),
}
"""First, Best, Worst Fit Decreasing; Modified Best and Worst Fit, by sum or largest Partition."""
