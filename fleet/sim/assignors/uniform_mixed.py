"""uniform, where members subscribe to different topics: balanced first, then as little moves.

Each member keeps what it still subscribes to; free partitions go, topic by topic, to the topic's
member with the least; then partitions of one topic at a time go from its fullest members to its
emptiest until these differ by one at most, over all topics, at most 16 times over. Topics with
many partitions per member come first. This finds a good balance, not always the best one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from fleet.sim.assignors.applicants import Applicants, Target, Targets, unfolded
from fleet.sim.hashing.hash_order import HashOrder

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
                target = unfolded(target)
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
            taker = ladder.next_low()
            if ladder.is_level():
                break
            self._give(topic, partition, taker)
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

    def _give(self, topic: bytes, partition: int, taker: int) -> None:
        giver = self.owners[topic][partition]
        if giver is not None:
            target = self._changeable(giver)
            del target[topic][partition]
            if not target[topic]:
                del target[topic]
            self.held[giver] -= 1
        target = self._changeable(taker)
        share = -(-self.given.partitions[topic] // len(self.subscribers[topic]))
        chosen = target.found(topic, HashOrder(int(share / 0.75 + 1)))
        chosen[partition] = None
        self.owners[topic][partition] = taker
        self.held[taker] += 1

    def _changeable(self, number: int) -> Target:
        member = self.given.members[number].id
        if member not in self.unfolded:
            self.targets[member] = unfolded(self.targets[member])
            self.unfolded.add(member)
        return self.targets[member]
