"""uniform, where all members subscribe to the same topics: even, and as little moves as may be.

Each member keeps what it has up to its quota; what is over, and what nobody had, goes to members
below theirs. The quota is the partitions per member; as many members as the division leaves over
may have one more, and who has more than the quota already is asked first.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cmp_to_key
from typing import NamedTuple, TypeAlias

from fleet.sim.hashing import HashOrder

# What an assignor is given and what it gives back.


Target: TypeAlias = HashOrder[bytes, HashOrder[int, None]]
"""Partitions by topic id (16 bytes): what a member shall own."""
Targets: TypeAlias = dict[str, Target]
"""What each member shall own, by member id."""


def unfold(target: Target) -> Target:
    """A copy that may be changed."""
    copy: Target = HashOrder(len(target))
    for topic, partitions in target.items():
        copy[topic] = HashOrder.collected(partitions, None)
    return copy


# What the leader of a classic group gives to whom, as librdkafka's assignors do, for one topic.
#
# Problem: who owns what after a rebalance, and how many rebalances it takes, is the leader's
# business; an assignor that only balances would expected cost moves wrong. Choice: range and
# roundrobin as librdkafka 2.15 has them, members in its order (instance ids where both have one,
# else member ids, as bytes), and what it does with any assignor's result in a cooperative group: a
# partition that another still owns is given to nobody yet. Cost: one topic, no racks.


class ReportedMember(NamedTuple):
    """A member as the leader hears of it; `owned` in the generation that it names."""

    member_id: str
    instance_id: str | None = None
    owned: tuple[int, ...] = ()
    generation: int = -1


Shares: TypeAlias = dict[str, tuple[int, ...]]
"""Partitions by member id."""
Assignor: TypeAlias = Callable[[Sequence[ReportedMember], int], Shares]
"""Members and the number of partitions in, everyone's share out."""


def in_order(members: Sequence[ReportedMember]) -> list[ReportedMember]:
    """As librdkafka's range and roundrobin walk them."""
    return sorted(members, key=cmp_to_key(_compared))


def _compared(one: ReportedMember, other: ReportedMember) -> int:
    if one.instance_id is not None and other.instance_id is not None:
        a, b = one.instance_id.encode(), other.instance_id.encode()
    else:
        a, b = one.member_id.encode(), other.member_id.encode()
    return (a > b) - (a < b)


def ranges(members: Sequence[ReportedMember], partitions: int) -> Shares:
    """Neighbouring partitions; the first members get what does not divide."""
    ordered = in_order(members)
    each, more = divmod(partitions, len(ordered))
    starts = [n * each + min(n, more) for n in range(len(ordered) + 1)]
    return {m.member_id: tuple(range(starts[n], starts[n + 1])) for n, m in enumerate(ordered)}


def round_robin(members: Sequence[ReportedMember], partitions: int) -> Shares:
    """One partition for each in turn."""
    ordered = in_order(members)
    return {m.member_id: tuple(range(n, partitions, len(ordered))) for n, m in enumerate(ordered)}


def withhold(members: Sequence[ReportedMember], shares: Shares) -> Shares:
    """The same without what another member still owns: it is revoked first (KIP-429).

    Where two claim one partition, the later member counts as its owner.
    """
    owner = {partition: m.member_id for m in members for partition in m.owned}
    return {
        member_id: tuple(p for p in share if owner.get(p, member_id) == member_id)
        for member_id, share in shares.items()
    }


# librdkafka's sticky assignor: everyone keeps what balance allows, for one topic.
#
# Problem: with cooperative-sticky it is the balancing that decides which partitions move, so that
# counts alone say too little. Choice: the steps of librdkafka 2.15 in its order, which is
# deterministic: who claims what by generation; free partitions, the highest first, to the member
# with the fewest; then single partitions from the largest share to the smallest, undone where that
# brought no better balance. Equal shares stand by member id. Cost: all members subscribe to the one
# topic, and racks are not looked at, both of which librdkafka treats by other steps.


_Pair: TypeAlias = tuple[str, str]
"""From whom, to whom."""


def sticky(members: Sequence[ReportedMember], partitions: int) -> Shares:
    """Assigns partitions as the sticky assignor does."""
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
        """Notes that a partition moved."""
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
    def __init__(self, members: Sequence[ReportedMember], partitions: int) -> None:
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

    def _take_up(self, members: Sequence[ReportedMember]) -> None:
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


Places = list[tuple[bytes, int]]


def assign_uniformly(
    members: Mapping[str, Target],
    topics: Collection[bytes],
    partitions: Mapping[bytes, int],
    owners: Mapping[bytes, Mapping[int, str]],
) -> Targets:
    """Returns the target of every member from its last one.

    All members subscribe to `topics`. Members and topics stand in the coordinator's order.
    """
    if not topics:
        return {}
    free: Places = [
        (topic, partition)
        for topic in topics
        for partition in range(partitions[topic])
        if partition not in owners.get(topic, ())
    ]
    count = sum(partitions[topic] for topic in topics)
    targets, short = _keep_quotas(members, topics, count, free)
    _fill(targets, short, free, members)
    return targets


def _keep_quotas(
    members: Mapping[str, Target], topics: Collection[bytes], count: int, free: Places
) -> tuple[Targets, list[tuple[str, int]]]:
    """(what members keep, who is how many short); what they give up is added to `free`."""
    least, extras = divmod(count, len(members))
    targets: Targets = {}
    short: list[tuple[str, int]] = []
    for place, (member_id, last) in enumerate(members.items()):
        may_have_extra = extras > 0
        target, quota = _kept(last, topics, least + may_have_extra, free)
        later = len(members) - place
        if may_have_extra and quota > 0 and later > extras:
            quota -= 1  # enough others are left who may take the extra one
            may_have_extra = False
        if quota > 0:
            short.append((member_id, quota))
        extras -= may_have_extra
        targets[member_id] = target
    return targets, short


def _kept(
    target: Target, topics: Collection[bytes], quota: int, free: Places
) -> tuple[Target, int]:
    """(what stays of a target, what the quota leaves)."""
    changed: Target | None = None
    for topic, partitions in target.items():
        if topic not in topics:
            changed = unfold(target) if changed is None else changed
            del changed[topic]
        elif len(partitions) <= quota:
            quota -= len(partitions)
        else:
            changed = unfold(target) if changed is None else changed
            given_up = list(partitions)[quota:]
            quota = 0
            stays = HashOrder.collected(partitions, None)
            for partition in given_up:
                del stays[partition]
            changed[topic] = stays
            if not stays:
                del changed[topic]
            free.extend((topic, partition) for partition in given_up)
    return target if changed is None else changed, quota


def _fill(
    targets: Targets, short: list[tuple[str, int]], free: Places, before: Mapping[str, Target]
) -> None:
    at = 0
    for member, quota in short:
        target = targets[member]
        if target is before[member]:
            target = unfold(target)
        for topic, partition in free[at : at + quota]:
            chosen = target.found(topic, HashOrder())
            chosen[partition] = None
        targets[member] = target
        at += quota
