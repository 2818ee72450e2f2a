"""range: of each topic, neighbouring partitions to neighbouring members.

Members stand in the order of their instance ids, those without after them by member id; the
first ones get one partition more where the count does not divide.
"""

from fleet.sim.assignors.applicants import Applicant, Applicants, Target, Targets
from fleet.sim.hashing.hash_order import HashOrder, Neighbours


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
