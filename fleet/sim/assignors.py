"""uniform, where all members subscribe to the same topics: even, and as little moves as may be.

Each member keeps what it has up to its quota; what is over, and what nobody had, goes to members
below theirs. The quota is the partitions per member; as many members as the division leaves over
may have one more, and who has more than the quota already is asked first.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Final, NamedTuple, TypeAlias

from fleet.sim.hashing import HashOrder, Neighbours

# What an assignor is given and what it gives back.


Target: TypeAlias = HashOrder[bytes, HashOrder[int, None]]
"""Partitions by topic id (16 bytes): what a member shall own."""
Targets: TypeAlias = dict[str, Target]
"""What each member shall own, by member id."""


class AssignmentFailed(Exception):
    """The assignor could not place every partition."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A member to be assigned to: the ids of its topics, and what it shall own until now.

    `subscribed` is how many topics it names, existing or not.
    """

    id: str
    instance: str | None
    topics: Iterable[bytes]
    subscribed: int
    target: Target


@dataclass(frozen=True, slots=True)
class Applicants:
    """All members, in the order in which the coordinator walks them."""

    members: tuple[Applicant, ...]
    partitions: Mapping[bytes, int]
    owners: Mapping[bytes, Mapping[int, str]]
    homogeneous: bool

    def topics_of_first(self) -> list[bytes]:
        """The topics of the first member, as a Java set of them is walked."""
        first = self.members[0]
        return list(HashOrder.collected(first.topics, None, first.subscribed))


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


# range: of each topic, neighbouring partitions to neighbouring members.
#
# Members stand in the order of their instance ids, those without after them by member id; the
# first ones get one partition more where the count does not divide.


def assign_ranges(given: Applicants) -> Targets:
    """The target of every member."""
    members = sorted(given.members, key=_place)
    shares: dict[bytes, list[int]] = {}
    for member in members:
        for topic in member.topics if not given.homogeneous else members[0].topics:
            shares.setdefault(topic, [0, 0])[0] += 1
    targets: Targets = {}
    for member in members:
        topics = list(members[0].topics if given.homogeneous else member.topics)
        size = len(topics) if given.homogeneous else member.subscribed
        target: Target = HashOrder(int(size / 0.75 + 1))
        for topic in topics:
            partitions = _next_range(shares[topic], given.partitions[topic])
            if partitions:
                target[topic] = partitions
        targets[member.id] = target
    return targets


def _place(member: Applicant) -> tuple[bool, str]:
    return (member.instance is None, member.id if member.instance is None else member.instance)


def _next_range(share: list[int], count: int) -> Neighbours:
    """`share` is [members that have not been served, partitions given] and is moved on.

    The rounded-up share of what is left is what Kafka gives: quota and one of the extras first.
    """
    left, start = share
    size = -(-(count - start) // left)
    share[0], share[1] = left - 1, start + size
    return Neighbours(start, start + size)


# librdkafka's sticky assignor: everyone keeps what balance allows, for one topic.
#
# Problem: with cooperative-sticky it is the balancing that decides which partitions move, so that
# counts alone say too little. Choice: the steps of librdkafka 2.15 in its order, which is
# deterministic: who claims what by generation; free partitions, the highest first, to whoever has
# least; then single partitions from the largest share to the smallest, undone where that brought
# no better balance. Equal shares stand by member id. Cost: all members subscribe to the one topic,
# and racks are not looked at, both of which librdkafka treats by other steps.


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


# uniform, where members subscribe to different topics: balanced first, then as little moves.
#
# Each member keeps what it still subscribes to; free partitions go, topic by topic, to the topic's
# member with the least; then partitions of one topic at a time go from its fullest members to its
# emptiest until these differ by one at most, over all topics, at most 16 times over. Topics with
# many partitions per member come first. This finds a good balance, not always the best one.


_ROUNDS: Final = 16


def assign_uniformly_mixed(given: Applicants) -> Targets:
    """The target of every member."""
    plan = _Plan(given)
    if plan.subscribers:
        plan.keep()
        plan.place_free()
        plan.balance()
    return plan.targets


class _Ladder:
    """A topic's members by what they hold: from the emptiest up, from the fullest down.

    `held` is shared with the plan and changes between the calls. Both walks go level by level:
    all members of the lowest level get one before the next level joins them, and so from above.
    """

    def __init__(self, members: Sequence[int], held: Sequence[int]) -> None:
        self.held = held
        self.order = sorted(members, key=lambda member: (held[member], member))
        self.lowest = held[self.order[0]] - 1
        self.low_end = self.low_next = 0
        self.highest = held[self.order[-1]] + 1
        self.high_start = self.high_end = len(self.order)
        self.high_next = len(self.order) - 1

    @property
    def spread(self) -> int:
        """How much more the fullest member holds than the emptiest."""
        return self.held[self.order[-1]] - self.held[self.order[0]]

    def is_level(self) -> bool:
        """Whether the two walks have met."""
        return self.highest - self.lowest <= 1

    def next_low(self) -> int:
        """The member that gets the next partition."""
        if self.low_next >= self.low_end:
            self.lowest += 1
            while self.low_end < len(self.order) and self._at(self.low_end) == self.lowest:
                self.low_end += 1
            self.low_next = 0
        self.low_next += 1
        return self.order[self.low_next - 1]

    def next_high(self) -> int | None:
        """The member that gives the next partition; None where there is none left."""
        if self.high_next < self.high_start:
            if self.high_end <= self.high_start and self.high_start > 0:
                self.highest = self._at(self.high_start - 1)
            else:
                self.highest -= 1
            while self.high_start > 0 and self._at(self.high_start - 1) == self.highest:
                self.high_start -= 1
            self.high_next = self.high_end - 1
        if self.high_next < 0:
            return None
        self.high_next -= 1
        return self.order[self.high_next + 1]

    def leave_out_high(self) -> None:
        """The member just named has nothing of this topic to give: it is asked no more."""
        at, last = self.high_next + 1, self.high_end - 1
        self.order[at], self.order[last] = self.order[last], self.order[at]
        self.high_end = last

    def _at(self, place: int) -> int:
        return self.held[self.order[place]]


class _Plan:
    """Members by number, in the coordinator's order."""

    def __init__(self, given: Applicants) -> None:
        self.given = given
        self.held = [0] * len(given.members)
        self.subscribers: HashOrder[bytes, list[int]] = HashOrder()
        self.targets: Targets = {}
        self.unfolded: set[str] = set()
        for number, member in enumerate(given.members):
            for topic in member.topics:
                if topic not in self.subscribers:
                    self.subscribers[topic] = []
                self.subscribers[topic].append(number)
        self.owners: dict[bytes, list[int | None]] = {
            topic: [None] * given.partitions[topic] for topic in self.subscribers
        }

    def keep(self) -> None:
        """What members have of topics to which they still subscribe stays theirs."""
        for number, member in enumerate(self.given.members):
            subscribed = set(member.topics)
            target = member.target
            gone = [topic for topic in target if topic not in subscribed]
            if gone:
                target = unfold(target)
                for topic in gone:
                    del target[topic]
                self.unfolded.add(member.id)
            for topic, partitions in target.items():
                self.held[number] += len(partitions)
                for partition in partitions:
                    self.owners[topic][partition] = number
            self.targets[member.id] = target

    def place_free(self) -> None:
        """What nobody has goes to the emptiest."""
        free = {
            topic: [partition for partition, owner in enumerate(owners) if owner is None]
            for topic, owners in self.owners.items()
        }
        for topic in self._by_density([topic for topic, those in free.items() if those]):
            ladder = _Ladder(self.subscribers[topic], self.held)
            for partition in free[topic]:
                self._give(topic, partition, ladder.next_low())

    def balance(self) -> None:
        """Until a whole round changes nothing."""
        shared = [topic for topic, members in self.subscribers.items() if len(members) > 1]
        topics = self._by_density(shared)
        last_change: int | None = None
        for _ in range(_ROUNDS):
            for place, topic in enumerate(topics):
                if place == last_change:
                    return
                if self._level(topic) or last_change is None:
                    last_change = place

    def _level(self, topic: bytes) -> int:
        """Moves partitions of one topic; how many."""
        ladder = _Ladder(self.subscribers[topic], self.held)
        if ladder.spread <= 1:
            return 0
        gives: dict[int | None, list[int]] = {}
        for partition, owner in enumerate(self.owners[topic]):
            gives.setdefault(owner, []).append(partition)
        moves = 0
        while not ladder.is_level():
            giver = self._next_giver(ladder, gives)
            if giver is None:
                break
            partition = gives[giver].pop()
            new_owner = ladder.next_low()
            if ladder.is_level():
                break
            self._give(topic, partition, new_owner)
            moves += 1
        return moves

    @staticmethod
    def _next_giver(ladder: _Ladder, gives: Mapping[int | None, list[int]]) -> int | None:
        """The fullest member that has something of the topic to give."""
        while (giver := ladder.next_high()) is not None and not gives.get(giver):
            ladder.leave_out_high()
        return giver

    def _by_density(self, topics: list[bytes]) -> list[bytes]:
        """Most partitions per member first; then fewest members; then by id, as signed numbers."""

        def place(topic: bytes) -> tuple[float, int, int, int]:
            members = len(self.subscribers[topic])
            high = int.from_bytes(topic[:8], "big", signed=True)
            low = int.from_bytes(topic[8:], "big", signed=True)
            return -self.given.partitions[topic] / members, members, high, low

        return sorted(topics, key=place)

    def _give(self, topic: bytes, partition: int, new_owner: int) -> None:
        giver = self.owners[topic][partition]
        if giver is not None:
            target = self._changeable(giver)
            del target[topic][partition]
            if not target[topic]:
                del target[topic]
            self.held[giver] -= 1
        target = self._changeable(new_owner)
        share = -(-self.given.partitions[topic] // len(self.subscribers[topic]))
        chosen = target.found(topic, HashOrder(int(share / 0.75 + 1)))
        chosen[partition] = None
        self.owners[topic][partition] = new_owner
        self.held[new_owner] += 1

    def _changeable(self, number: int) -> Target:
        member = self.given.members[number].id
        if member not in self.unfolded:
            self.targets[member] = unfold(self.targets[member])
            self.unfolded.add(member)
        return self.targets[member]


Places = list[tuple[bytes, int]]


def assign_uniformly(given: Applicants) -> Targets:
    """The target of every member. Raises AssignmentFailed where partitions stay over."""
    if not given.homogeneous:
        return assign_uniformly_mixed(given)
    topics = given.topics_of_first()
    if not topics:
        return {}
    free: Places = [
        (topic, partition)
        for topic in topics
        for partition in range(given.partitions[topic])
        if partition not in given.owners.get(topic, ())
    ]
    count = sum(given.partitions[topic] for topic in topics)
    targets, short = _keep_quotas(given, topics, count, free)
    _fill(targets, short, free, {member.id: member.target for member in given.members})
    return targets


def _keep_quotas(
    given: Applicants, topics: list[bytes], count: int, free: Places
) -> tuple[Targets, list[tuple[str, int]]]:
    """(what members keep, who is how many short); what they give up is added to `free`."""
    least, extras = divmod(count, len(given.members))
    targets: Targets = {}
    short: list[tuple[str, int]] = []
    for place, member in enumerate(given.members):
        may_have_extra = extras > 0
        target, quota = _kept(member.target, topics, least + may_have_extra, free)
        later = len(given.members) - place
        if may_have_extra and quota > 0 and later > extras:
            quota -= 1  # enough others are left who may take the extra one
            may_have_extra = False
        if quota > 0:
            short.append((member.id, quota))
        extras -= may_have_extra
        targets[member.id] = target
    return targets, short


def _kept(target: Target, topics: list[bytes], quota: int, free: Places) -> tuple[Target, int]:
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


def _fill(targets: Targets, short: list[tuple[str, int]], free: Places, before: Targets) -> None:
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
    if at < len(free):
        raise AssignmentFailed(f"{len(free) - at} partitions were left over")
