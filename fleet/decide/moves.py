"""Which partitions change owner when members come or go.

Problem: a plan states what it moves before it acts. Choice: the range assignor is computed
exactly as librdkafka does it: per topic, members in order, first ones one more; static
members are ordered by group.instance.id as bytes (so -10 before -2), others by member id
(`rd_kafka_group_member_cmp`). For sticky assignors only what balance demands is said, a lower
bound. Cost: racks (KIP-881) are not modelled; a broker rack turns range rack-aware.
"""

from collections.abc import Mapping, Sequence

from fleet.model import GroupSnapshot, TopicPartition


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
