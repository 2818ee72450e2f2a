"""What a step may cost, stated before it is done.

Counted in coordinator records: generations (classic) or assignment epochs (KIP-848), by the
cost table of the group protocol (docs/design/protocol.md 2.4 to 2.6; [19, 21, 23, 28]). Moved
partitions are exact for static members under range, a lower bound for the sticky assignors.
A price is a promise: where it cannot be one number, it is a range with its reason. What is
expected within it, and how long it takes, `fleet.decide.forecast` plays to the coordinator's model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.config.spec import ClassicWorker, ConsumerWorker
from fleet.decide.scaling import expected_topics, subscribed
from fleet.decide.world import GroupWorld
from fleet.model import GroupSnapshot, Price, TopicPartition
from fleet.text import plural

# Range is computed exactly as librdkafka does it (`rd_kafka_group_member_cmp`): per topic, members
# ordered by group.instance.id as bytes (-10 before -2), first ones one more; racks (KIP-881) are
# not modelled. For sticky assignors only what balance demands is said, a lower bound.


def range_owners(members: Sequence[str], topics: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Owner of every partition under range, for members named by instance id."""
    order = sorted(members, key=lambda name: name.encode())
    owners: dict[TopicPartition, str] = {}
    if not order:
        return owners
    for topic, count in topics.items():
        each, extra = divmod(count, len(order))
        for index, member in enumerate(order):
            start = each * index + min(index, extra)
            for partition in range(start, start + each + (1 if index < extra else 0)):
                owners[TopicPartition(topic, partition)] = member
    return owners


def owners_now(group: GroupSnapshot) -> dict[TopicPartition, str]:
    """Owner of every owned partition, by instance id where there is one, else by member id."""
    return {tp: m.instance_id or m.member_id for m in group.members for tp in m.partitions}


def moved(before: Mapping[TopicPartition, str], after: Mapping[TopicPartition, str]) -> int:
    """Partitions that pass from one owner to another; from or to nobody is no move."""
    return sum(1 for tp, owner in after.items() if before.get(tp, owner) != owner)


def least_moved(owned: Sequence[int], *, leavers: Sequence[int], joiners: int, total: int) -> int:
    """Fewest partitions that must change owner so that counts differ by at most one.

    `owned` are counts of the members that stay, `leavers` of those that go. What leavers
    held moves in any case, if somebody is left to take it.
    """
    members = len(owned) + joiners
    if members == 0:
        return 0
    each, extra = divmod(total, members)
    # The larger shares go to those who hold most already: that moves least.
    shares = [each + 1] * extra + [each] * (members - extra)
    largest = sorted(owned, reverse=True)
    surplus = sum(max(0, have - share) for have, share in zip(largest, shares, strict=False))
    return surplus + sum(leavers)


_COOPERATIVE = "2 where partitions move between survivors, as the assignor may decide"
_STICKY_LEAVE = (
    "2 where the assignor also moves partitions of those who stay (librdkafka issue #3306)"
)
_JOINS_WITHIN = 1.0
"""Seconds within which the members of one gate join, on a busy machine too."""
_EPOCHS = "new assignments; the first join of an empty group is assigned before the others"


@dataclass(frozen=True, slots=True)
class Pricing:
    """Prices for one group's world. `emptied`: an earlier step of the plan stopped all slots."""

    world: GroupWorld
    emptied: bool = False

    # --- the six kinds of step -------------------------------------------------------------

    def open(self, numbers: Sequence[int], *, beside: Sequence[int]) -> Price:
        """Slots opened together while the slots `beside` are held."""
        if self._is_first(beside):
            many = self._consumer and len(numbers) > 1
            fewest, all_of_them = self._moved_from_empty(numbers)
            return Price(
                rebalances_min=1,
                rebalances_max=2 if many else 1,
                moved_min=fewest,
                moved_max=all_of_them,
                note=_EPOCHS if many else "",
            )
        least, most = self._moved(beside, joining=numbers)
        return Price(
            rebalances_min=1,
            rebalances_max=1 if self._range else 2,
            moved_min=least,
            moved_max=most,
            note=self._open_note(),
        )

    def first_is_alone(self, beside: Sequence[int]) -> bool:
        """Whether the first of several members that join is assigned before the others come."""
        delay = self.world.initial_delay
        late = delay is not None and delay < _JOINS_WITHIN
        return late and not self._consumer and self._is_first(beside)

    def _is_first(self, beside: Sequence[int]) -> bool:
        """Whether nobody is in the group when a slot opens beside these."""
        emptied = self.emptied and not self.world.strangers()
        return not beside and (emptied or self.world.is_empty())

    def leave(self, numbers: Sequence[int], *, staying: Sequence[int]) -> Price:
        """Slots closed together, one batched leave; all of them where nobody stays."""
        if not staying and not self.world.strangers():
            return self.stop_all(numbers)
        least, most = self._moved(staying, leaving=numbers)
        sticky = not self._range and not self._consumer
        return Price(
            rebalances_min=0 if self.world.is_empty() else 1,
            rebalances_max=2 if sticky else 1,
            moved_min=least,
            moved_max=most,
            note=_STICKY_LEAVE if sticky else "",
        )

    def stop_all(self, numbers: Sequence[int]) -> Price:
        """Every slot leaves: the generation that makes the group Empty; nothing is owned after."""
        if self.world.strangers():
            return self.leave_to_strangers(numbers)
        if self._consumer_now:
            note = (
                "an empty KIP-848 group raises its epoch; an assignment for nobody may be left out"
            )
            return Price(rebalances_min=0, rebalances_max=1, moved_min=0, moved_max=0, note=note)
        if self.world.is_empty():
            note = "nobody is in the group: 1 where somebody joins before"
            return Price(rebalances_min=0, rebalances_max=1, moved_min=0, moved_max=0, note=note)
        return Price(rebalances_min=1, rebalances_max=1, moved_min=0, moved_max=0)

    def leave_to_strangers(self, numbers: Sequence[int]) -> Price:
        """All our slots leave, members that are not ours stay and take over."""
        del numbers
        sticky = not self._range and not self._consumer
        return Price(
            rebalances_min=1,
            rebalances_max=2 if sticky else 1,
            note="members that are not ours take over the partitions",
        )

    def roll(self, numbers: Sequence[int], *, subscription_changed: bool = False) -> Price:
        """Slots handed over one by one: no rebalance, which only static members can do."""
        count = len(numbers)
        if subscription_changed and self._consumer:
            return Price(
                rebalances_min=1,
                rebalances_max=max(1, count),
                note="under KIP-848 each member's new subscription is an assignment of its own",
            )
        return Price(rebalances_min=0, rebalances_max=0, moved_min=0, moved_max=0)

    def wave(self, index: int, waves: int, *, width: int) -> Price:
        """`width` dynamic members join beside those that they replace, which then leave."""
        return Price(
            rebalances_min=2,
            rebalances_max=2 if self._range else 3,
            note=(
                f"wave {index} of {waves}: one join of {plural(width, 'dynamic member')}, then "
                "one batched leave of as many; static members roll with 0"
            ),
        )

    def rejoin(self, number: int, *, members: int) -> Price:
        """One holder leaves and joins again, so that a new subscription is assigned."""
        del number
        if members <= 1:
            note = "alone in the group: one generation to Empty and one back"
            return Price(rebalances_min=2, rebalances_max=2, note=note)
        return Price(
            rebalances_min=1,
            rebalances_max=1 if self._range else 2,
            note="" if self._range else _COOPERATIVE,
        )

    @staticmethod
    def warm() -> Price:
        """Standbys are no members."""
        return Price(rebalances_min=0, rebalances_max=0, moved_min=0, moved_max=0)

    # --- what they are made of -------------------------------------------------------------

    @property
    def _range(self) -> bool:
        worker = self.world.spec.worker
        return isinstance(worker, ClassicWorker) and worker.assignor == "range"

    @property
    def _consumer(self) -> bool:
        return isinstance(self.world.spec.worker, ConsumerWorker)

    @property
    def _consumer_now(self) -> bool:
        """What leaves is what runs now, whatever shall run next."""
        group = self.world.group
        if group is not None and group.exists and group.type in {"classic", "consumer"}:
            return group.type == "consumer"
        return self._consumer

    def _open_note(self) -> str:
        if self._range:
            return "range stops every member for the length of the rebalance"
        if self._consumer:
            return "new assignments, merged by the group's assignment interval"
        return "2 where partitions move: one generation takes them, the next gives them"

    def _moved_from_empty(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Nobody owns anything, but a partition may go to another than it had last."""
        group = self.world.group
        if group is None or not group.exists:
            return 0, 0
        topics = self._topics()
        before = owners_now(group)
        if self._range and before:
            names = [self.world.slot(n).instance_id() for n in numbers]
            exact = moved(before, range_owners(names, topics))
            return exact, exact
        return 0, sum(topics.values())

    def _topics(self) -> dict[str, int]:
        world = self.world
        return subscribed(expected_topics(world.topics, world.spec), world.spec)

    def _moved(
        self, held: Sequence[int], *, joining: Sequence[int] = (), leaving: Sequence[int] = ()
    ) -> tuple[int | None, int | None]:
        """Least and most partitions that change owner; None where it cannot be said."""
        world, worker = self.world, self.world.spec.worker
        if world.strangers() or worker is None:
            return None, None  # their subscriptions are not known
        topics = self._topics()
        name = {n: world.slot(n).instance_id() for n in (*held, *joining, *leaving)}
        group = None if self.emptied else world.group
        before = {} if group is None else owners_now(group)
        if self._range:
            if worker.membership == "dynamic":
                return None, None  # ordered by member ids that do not exist yet
            before = before or range_owners([name[n] for n in (*held, *leaving)], topics)
            after = range_owners([name[n] for n in (*held, *joining)], topics)
            exact = moved(before, after)
            return exact, exact
        if before and worker.membership == "static":
            counts = {n: sum(1 for owner in before.values() if owner == name[n]) for n in name}
        else:
            counts = _even((*held, *leaving), sum(topics.values()))
        least = least_moved(
            [counts.get(n, 0) for n in held],
            leavers=[counts.get(n, 0) for n in leaving],
            joiners=len(joining),
            total=sum(topics.values()),
        )
        return least, None


def _even(numbers: Sequence[int], total: int) -> dict[int, int]:
    """Counts of a balanced group."""
    if not numbers:
        return {}
    each, extra = divmod(total, len(numbers))
    return {n: each + (1 if i < extra else 0) for i, n in enumerate(numbers)}
