"""uniform, where all members subscribe to the same topics: even, and as little moves as may be.

Each member keeps what it has up to its quota; what is over, and what nobody had, goes to members
below theirs. The quota is the partitions per member; as many members as the division leaves over
may have one more, and who has more than the quota already is asked first.
"""

from fleet.sim.assignors.applicants import (
    Applicants,
    AssignmentFailed,
    Target,
    Targets,
    unfolded,
)
from fleet.sim.assignors.uniform_mixed import assign_uniformly_mixed
from fleet.sim.hashing.hash_order import HashOrder

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
            changed = unfolded(target) if changed is None else changed
            del changed[topic]
        elif len(partitions) <= quota:
            quota -= len(partitions)
        else:
            changed = unfolded(target) if changed is None else changed
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
            target = unfolded(target)
        for topic, partition in free[at : at + quota]:
            chosen = target.found(topic, HashOrder())
            chosen[partition] = None
        targets[member] = target
        at += quota
    if at < len(free):
        raise AssignmentFailed(f"{len(free) - at} partitions were left over")
