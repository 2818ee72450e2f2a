"""What brokers allow, and what a plan would need of them beyond that.

Problem: members of another session timeout cannot share a generation, so the old ones leave before
the new ones join. Where brokers refuse those (26), nobody is in the group until a person corrects
fleet.yaml; the same happens to the members that are too many (81). Choice: what brokers tell of
their bounds is compared before anything is done. Cost: bounds that nobody may read are not known,
and show as before: the first worker that is refused fails the change.
"""

from typing import Final

from fleet.config.spec import ClassicWorker
from fleet.decide.world import GroupWorld
from fleet.model import Plan, StepKind
from fleet.model.broker_limits import BrokerLimits
from fleet.text import duration, plural

_JOINS: Final = frozenset({StepKind.OPEN, StepKind.ROLL})


def beyond_limits(world: GroupWorld, plan: Plan, limits: BrokerLimits) -> tuple[str, ...]:
    """Why brokers would refuse the members that the plan brings; empty = nothing is known of it."""
    if not brings_members(plan):
        return ()
    return tuple(filter(None, (_session(world, limits), _size(world, plan, limits))))


def brings_members(plan: Plan) -> bool:
    """Whether brokers need be asked at all: who only leaves is refused nothing."""
    return any(step.kind in _JOINS for step in plan.steps)


def _session(world: GroupWorld, limits: BrokerLimits) -> str:
    worker = world.spec.worker
    if not isinstance(worker, ClassicWorker):  # under KIP-848 it is the group's own setting
        return ""
    least, longest = limits.least_session or 0.0, limits.longest_session or float("inf")
    if least <= worker.session_timeout <= longest:
        return ""
    name, bound, word = (
        ("group.min.session.timeout.ms", least, "at least")
        if worker.session_timeout < least
        else ("group.max.session.timeout.ms", longest, "at most")
    )
    return (
        f"worker.session_timeout of {world.spec.group} is {duration(worker.session_timeout)}, and "
        f"the brokers allow {word} {duration(bound)} ({name}): every member would be refused "
        "(error 26); declare one that they allow"
    )


def _size(world: GroupWorld, plan: Plan, limits: BrokerLimits) -> str:
    classic = isinstance(world.spec.worker, ClassicWorker)
    most = limits.classic_members if classic else limits.consumer_members
    members = _most_members(world, plan)
    if most is None or members <= most:
        return ""
    name = "group.max.size" if classic else "group.consumer.max.size"
    return (
        f"{world.spec.group} would have {plural(members, 'member')}, and the brokers allow {most} "
        f"({name}): the others would be refused (error 81); want fewer workers, or raise it on the "
        "brokers"
    )


def _most_members(world: GroupWorld, plan: Plan) -> int:
    """Members that the group has at the fullest moment of its steps, other people's included."""
    held = set(world.open_slots())
    most = 0
    for step in plan.steps:
        if step.kind in _JOINS:  # a wave's successors join before the others leave
            most = max(most, len(held | set(step.slots)))
        if step.kind is StepKind.OPEN:
            held |= set(step.slots)
        elif step.kind in {StepKind.LEAVE, StepKind.STOP_ALL}:
            held -= set(step.slots)
        elif step.kind is StepKind.ROLL:
            held = _after_wave(held, step.slots)
    return most + len(world.strangers())


def _after_wave(held: set[int], slots: tuple[int, ...]) -> set[int]:
    """A roll of static members names slots that are held; a wave those that leave and those that
    come.
    """
    fresh = set(slots) - held
    return (held - set(slots)) | fresh if fresh else held
