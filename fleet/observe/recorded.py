"""Counted generations as `Rebalance` values, with what a member diff alone says of the cause.

Problem: a decision about one group, made in a process that lives for a second, needs that
group's last rebalances, not the whole replay of the log. Choice: the count of `counting`,
one value per generation; who left and whose session expired is told apart nowhere in it, so
a departure stays ambiguous. Cost: coarser causes than `fleet.history`.
"""

from collections.abc import Sequence

from fleet.counted import Counted, Generation
from fleet.rebalances import Cause, Confidence, Known, Rebalance


def rebalances_of(counted: Counted, *, cluster: str, protocol: str) -> list[Rebalance]:
    """The rebalances of one group in order; `protocol` is classic or consumer."""
    found = []
    before = counted.from_generation
    for generation in counted.generations:
        causes, confidence = _causes(generation)
        found.append(
            Rebalance(
                cluster=cluster,
                group=counted.group,
                protocol=protocol,
                number=generation.number,
                before=before,
                incarnation=0,
                started_at=None,
                start_known=Known.NOT,
                ended_at=generation.at,
                end_known=Known.RECORD,
                cause=causes[0],
                confidence=confidence,
                also=tuple(causes[1:]),
                joined=tuple(sorted(generation.joined)),
                left=tuple(sorted(generation.left)),
                replaced=tuple(sorted(generation.replaced)),
                members=len(generation.members),
                moved=generation.moved,
                aborted=generation.aborted,
                assignor=generation.protocol,
                log_partition=-1,
                log_offset=-1,
            )
        )
        before = generation.number
    return found


def _causes(generation: Generation) -> tuple[Sequence[Cause], Confidence]:
    """What changed, the likeliest first."""
    causes = []
    if generation.joined:
        causes.append(Cause.JOIN)
    if generation.left:
        causes.append(Cause.DEPARTURE)
    if generation.added_partitions:
        causes.append(Cause.PARTITIONS)
    if generation.resubscribed:
        causes.append(Cause.SUBSCRIPTION)
    if causes:
        sure = causes[0] is not Cause.DEPARTURE
        return causes, Confidence.CERTAIN if sure else Confidence.AMBIGUOUS
    if generation.protocol == "cooperative-sticky":
        return [Cause.SECOND_ROUND], Confidence.LIKELY
    return [Cause.UNKNOWN], Confidence.AMBIGUOUS
