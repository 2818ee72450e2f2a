"""The target of a KIP-848 group: when it may be computed anew, by which assignor, from whom.

Problem: a start of many members would compute a target for each of them. Choice: Kafka's of 4.3
(KIP-1263): a new target is computed at a heartbeat of any member, and not before an interval has
gone by since the last one. Cost: a lone join may wait for the interval.
"""

from collections.abc import Callable, Mapping
from typing import Final

from fleet.sim.assignors.applicants import (
    Applicant,
    Applicants,
    AssignmentFailed,
    Target,
    Targets,
)
from fleet.sim.assignors.range_assignor import assign_ranges
from fleet.sim.assignors.uniform import assign_uniformly
from fleet.sim.coordinator.consumer_group import EpochGroup, recount
from fleet.sim.coordinator.consumer_member import ConsumerMember
from fleet.sim.coordinator.consumer_records import (
    TARGET,
    TARGET_EPOCH,
    ConsumerRecord,
    TargetEpochValue,
    TargetValue,
)
from fleet.sim.coordinator.request_refusals import assignor_failed
from fleet.sim.coordinator.topic_image import TopicImage
from fleet.sim.hashing.hash_order import HashOrder

ASSIGNORS: Final[Mapping[str, Callable[[Applicants], Targets]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}


def may_compute(group: EpochGroup, interval_ms: int, now: int) -> bool:
    """Whether the interval since the last target has gone by; the first one waits for nothing."""
    never = group.computed_ms == 0
    return never or interval_ms == 0 or now >= group.computed_ms + interval_ms


def assignor_of(group: EpochGroup, old: ConsumerMember, new: ConsumerMember, default: str) -> str:
    """The assignor that most members ask for; at a tie, the first as Java walks them."""
    counts = HashOrder.copied(group.assignors)
    recount(counts, old.assignor, new.assignor)
    wanted = counts.items()
    return max(wanted, key=lambda each: each[1])[0] if wanted else default


def computed(
    group: EpochGroup,
    new: ConsumerMember,
    *,
    epoch: int,
    assignor: str,
    image: TopicImage,
    now: int,
    homogeneous: bool,
) -> tuple[Target, list[ConsumerRecord]]:
    """(the new target of that member, the records of all that change).

    `new` is the member as its heartbeat makes it; it may replace a static member of another id.
    Raises RequestRefused (UNKNOWN_SERVER_ERROR) where the assignor fails.
    """
    applicants = _applicants(group, new, image)
    given = Applicants(
        tuple(applicants.values()),
        image.partitions,
        group.target_owners,
        homogeneous,
    )
    try:
        targets = ASSIGNORS[assignor](given)
    except AssignmentFailed as error:
        raise assignor_failed(group.id, epoch, str(error)) from error
    records: list[ConsumerRecord] = []
    for member in applicants:
        target = targets.get(member, HashOrder())
        if member not in group.targets or target != group.targets[member]:
            value = TargetValue.of(target)
            records.append(ConsumerRecord(TARGET, group.id, member, value))
    records.append(ConsumerRecord(TARGET_EPOCH, group.id, None, TargetEpochValue(epoch, now)))
    return targets.get(new.id, HashOrder()), records


def _applicants(
    group: EpochGroup, new: ConsumerMember, image: TopicImage
) -> HashOrder[str, Applicant]:
    """All members as they will be, in the order of a Java map of them."""

    def applicant(member: ConsumerMember, target: Target) -> Applicant:
        names = group.names_of(member)
        return Applicant(member.id, member.instance, image.ids_of(names), len(names), target)

    found: HashOrder[str, Applicant] = HashOrder()
    for member in group.members.values():
        found[member.id] = applicant(member, group.targets.get(member.id, HashOrder()))
    inherited = group.statics.get(new.instance) if new.instance is not None else None
    target = group.targets.get(inherited or new.id, HashOrder())
    updates: HashOrder[str, ConsumerMember | None] = HashOrder()
    updates[new.id] = new
    if inherited is not None and inherited != new.id:
        updates[inherited] = None
    for member_id, update in updates.items():
        if update is None:
            found.pop(member_id, None)
        else:
            found[member_id] = applicant(update, target)
    return found
