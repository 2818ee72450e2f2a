"""librdkafka's sticky assignor: everyone keeps what balance allows, for one topic.

Problem: with cooperative-sticky it is the balancing that decides which partitions move, so that
counts alone say too little. Choice: the steps of librdkafka 2.15 in its order, which is
deterministic: who claims what by generation; free partitions, the highest first, to whoever has
least; then single partitions from the largest share to the smallest, undone where that brought no
better balance. Equal shares stand by member id. Cost: all members subscribe to the one topic, and
racks are not looked at, both of which librdkafka treats by other steps.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TypeAlias

from fleet.sim.assignors.client_side import HeardMember, Shares

_Pair: TypeAlias = tuple[str, str]
"""From whom, to whom."""


def sticky(members: Sequence[HeardMember], partitions: int) -> Shares:
    """Everyone's share."""
    balancing = _Balancing(members, partitions)
    if len(members) > 1:
        balancing.balance()
    else:
        balancing.give_free()
    return {member_id: tuple(sorted(share)) for member_id, share in balancing.shares.items()}


class _Moves:
    """Which partition went from whom to whom, so that one that would go back is found."""

    def __init__(self) -> None:
        self.of: dict[int, _Pair] = {}
        self.between: dict[_Pair, list[int]] = {}

    def better(self, partition: int, old: str, new: str) -> int:
        """The partition to move instead: one that came the other way, if there is one."""
        if partition in self.of and self.between:
            old = self.of[partition][0]
        back = self.between.get((new, old))
        return back[0] if back else partition

    def add(self, partition: int, old: str, new: str) -> None:
        """It moved."""
        before = self.of.get(partition)
        if before is None:
            self._note(partition, (old, new))
            return
        listed = self.between.get(before, [])
        if partition in listed:
            listed.remove(partition)
        if not listed:
            self.between.pop(before, None)
        if before[0] != new:
            self._note(partition, (before[0], new))

    def _note(self, partition: int, pair: _Pair) -> None:
        self.of[partition] = pair
        self.between.setdefault(pair, []).append(partition)


class _Balancing:
    def __init__(self, members: Sequence[HeardMember], partitions: int) -> None:
        self.partitions = partitions
        self.shares: dict[str, list[int]] = {m.member_id: [] for m in members}
        self.before: dict[int, str] = {}
        """Who had a partition before the one who has it now."""
        self._take_up(members)
        self.names = sorted(self.shares, key=str.encode)
        self.rank = {name: n for n, name in enumerate(self.names)}
        self.ladder = sorted((len(share), self.rank[name]) for name, share in self.shares.items())
        """Every member by the size of its share, then by its id."""
        self.owner = {p: name for name, share in self.shares.items() for p in share}
        self.was_empty = not self.owner
        self.order = self._order()
        self.free = [p for p in self.order if p not in self.owner]
        self.moves = _Moves()

    def _take_up(self, members: Sequence[HeardMember]) -> None:
        claims: dict[int, list[tuple[int, str]]] = {}
        for member in members:
            for partition in member.owned:
                if partition < self.partitions:
                    claims.setdefault(partition, []).append((member.generation, member.member_id))
        for partition in sorted(claims):
            found = sorted(claims[partition], key=lambda claim: claim[0])
            if len({generation for generation, _ in found}) < len(found):
                continue  # two of one generation: neither is believed
            self.shares[found[-1][1]].append(partition)
            if len(found) > 1:
                self.before[partition] = found[-2][1]

    def _order(self) -> list[int]:
        """One partition of the largest share after the other, then those that nobody has."""
        left = [(-size, -rank) for size, rank in self.ladder if size]
        heapq.heapify(left)
        shares = {name: list(share) for name, share in self.shares.items()}
        order: list[int] = []
        while left:
            size, rank = left[0]
            share = shares[self.names[-rank]]
            taken = next((p for p in share if p in self.before), share[0])
            share.remove(taken)
            order.append(taken)
            if share:
                heapq.heapreplace(left, (size + 1, rank))
            else:
                heapq.heappop(left)
        if not order:
            return list(range(self.partitions))
        return order + [p for p in reversed(range(self.partitions)) if p not in self.owner]

    def give_free(self) -> None:
        """Each free partition to the smallest share."""
        for partition in self.free:
            smallest = self._smallest
            self._resize(smallest, 1)
            self.shares[smallest].append(partition)
            self.owner[partition] = smallest

    def balance(self) -> None:
        """Free ones first, then moves."""
        self.give_free()
        kept = {name: list(share) for name, share in self.shares.items()}
        if self.free:
            self._moved_among(self.free)
        if (
            self._moved_among(self.order)
            and not self.was_empty
            and _imbalance(self.shares) >= _imbalance(kept)
        ):
            self.shares = kept

    def _moved_among(self, partitions: Sequence[int]) -> bool:
        ever = False
        while True:
            moved = False
            for partition in partitions:
                if self._is_balanced:
                    break
                moved |= self._moved(partition)
            ever |= moved
            if not moved:
                return ever

    def _moved(self, partition: int) -> bool:
        mine = len(self.shares[self.owner[partition]])
        former = self.before.get(partition)
        if former is not None and mine > len(self.shares[former]) + 1:
            self._move(partition, former)
        elif mine > self.ladder[0][0] + 1:
            self._move(partition, self._smallest)
        else:
            return False
        return True

    def _move(self, partition: int, new: str) -> None:
        partition = self.moves.better(partition, self.owner[partition], new)
        old = self.owner[partition]
        self.moves.add(partition, old, new)
        self._resize(new, 1)
        self._resize(old, -1)
        self.shares[new].append(partition)
        self.shares[old].remove(partition)
        self.owner[partition] = new

    def _resize(self, name: str, by: int) -> None:
        size, rank = len(self.shares[name]), self.rank[name]
        del self.ladder[bisect_left(self.ladder, (size, rank))]
        insort(self.ladder, (size + by, rank))

    @property
    def _smallest(self) -> str:
        return self.names[self.ladder[0][1]]

    @property
    def _is_balanced(self) -> bool:
        return self.ladder[-1][0] - self.ladder[0][0] <= 1


def _imbalance(shares: dict[str, list[int]]) -> int:
    """The differences in size of all pairs, added up."""
    sizes = sorted(len(share) for share in shares.values())
    last = len(sizes) - 1
    return sum(size * (2 * place - last) for place, size in enumerate(sizes))
