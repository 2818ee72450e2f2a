"""Writes the receipt of a step from the coordinator's records.

Problem: a step's rebalances are recorded after its work, and its actor may die in between. Choice:
the position in the records is written to the change before anything moves, and the receipt is made
when the group is settled [25]. Cost: 2 s of waiting per step, with the classic protocol a heartbeat
more.
"""

from collections.abc import Callable
from typing import Final

from fleet.act.steps.leave_slots import LeaveMemory
from fleet.act.steps.work import StepStart, StepWork, errors_of, member_ids
from fleet.config.spec import ClassicWorker
from fleet.decide.receipts import make_receipt
from fleet.errors import Unreachable
from fleet.model import GroupState, Receipt, Step, StepKind
from fleet.model.rebalances import RebalanceCounts
from fleet.text import plural

SETTLE_POLL: Final = 0.5
"""Seconds between two reads of the coordinator's records."""
_LONG_PAUSE: Final = 15.0
"""Seconds of downtime that no partition has in a roll, unless a process was dead or frozen."""
_QUIET: Final = 2.0
"""Seconds; also for the first commits of moved partitions, which end their downtime."""


def begin(work: StepWork, step: Step) -> None:
    """Stores where counting starts and the fleet's own members, once for a step."""
    if work.lease.recall(StepStart).started_at is None:
        slots = work.slots().values()
        start = StepStart(
            started_at=work.clock.now(),
            position=work.ledger.position(work.spec.group),
            members=tuple(sorted(member_ids(slots, step.slots))),
            errors=tuple(sorted(errors_of(slots))),
        )
        work.lease.remember(start)


def settle(work: StepWork) -> None:
    """Wait for Stable (or Empty) with no new generation for 2 s, classic a heartbeat more [25].

    A KIP-848 group is Stable once its group epoch, its assignment epoch and every member's epoch
    are one, and no heartbeat of a member that is there changes that. A cooperative member of a
    classic group joins once more after its group was Stable, when it has heard what it gave up.
    """
    what = f"group {work.spec.group} to settle"
    work.wait(settled_from_here(work), settle_limit(work), what, poll=SETTLE_POLL)


def settle_limit(work: StepWork) -> float:
    """Returns the longest wait for a settled group in seconds."""
    return _quiet(work) + work.spec.rollout.drain_timeout + 60.0


def _quiet(work: StepWork) -> float:
    worker = work.spec.worker
    return _QUIET + (worker.heartbeat_interval if isinstance(worker, ClassicWorker) else 0.0)


def settled_from_here(work: StepWork) -> Callable[[], bool]:
    """Returns a check whether the group is settled, to be called repeatedly."""
    quiet = _quiet(work)
    seen: object = None
    since_when = work.clock.monotonic()

    def settled() -> bool:
        nonlocal seen, since_when
        try:
            counted = _counted(work)
            state = work.ledger.state(work.spec.group)
        except Unreachable:  # no broker answers: retry within the limit
            seen, since_when = None, work.clock.monotonic()
            return False
        cooldown = state in {GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD}
        mark = (state, counted.to_generation if counted else None)
        if mark != seen or not cooldown:
            seen, since_when = mark, work.clock.monotonic()
        return cooldown and work.clock.monotonic() - since_when >= quiet

    return settled


def receipt(work: StepWork, step: Step, notes: tuple[str, ...]) -> Receipt:
    """Makes the receipt of the current step when the group is settled; notes are added."""
    change, ended = work.lease.change, work.clock.now()
    if step.kind is not StepKind.WARM:
        settle(work)
    made = make_receipt(
        plan=change.plan,
        step_index=change.step,
        counted=_counted(work),
        our_instances=_ours(work, step),
        started_at=change.step_began,
        ended_at=ended,
        moved_at=_moved_at(work, step),
        most_downtime=max(_LONG_PAUSE, work.spec.runtime.lease)
        if step.kind is StepKind.ROLL
        else None,
        extra=(*notes, *_gaps(work, step)),
    )
    work.progress(
        f"  recorded {plural(made.rebalances, 'rebalance')}, expected {step.expected_cost}, "
        f"{plural(made.moved, 'partition')} moved: {made.result}"
    )
    return made


def _gaps(work: StepWork, step: Step) -> list[str]:
    """Lists where new members continued after Kafka had deleted the group's commits."""
    begun = work.lease.recall(StepStart).started_at or 0.0
    came = [r for r in work.store.reports(work.spec.group) if (r.joined_at or 0.0) >= begun]
    return sorted({r.gap for r in came if r.gap is not None and r.slot in step.slots})


def _counted(work: StepWork) -> RebalanceCounts | None:
    since = work.lease.recall(StepStart).position
    return None if since is None else work.ledger.counted(work.spec.group, since)


def _moved_at(work: StepWork, step: Step) -> float | None:
    """Returns the wall time of the first join, or of the leave request; None for other steps."""
    if step.kind in {StepKind.LEAVE, StepKind.STOP_ALL}:
        return work.lease.recall(LeaveMemory).sent_at
    if step.kind is not StepKind.OPEN:
        return None
    begun = work.lease.recall(StepStart).started_at or 0.0
    reports = work.store.reports(work.spec.group)
    joined = [r.joined_at for r in reports if r.slot in step.slots and r.joined_at is not None]
    return min((at for at in joined if at >= begun), default=None)


def _ours(work: StepWork, step: Step) -> frozenset[str]:
    """Returns the fleet's own members: instance ids, and member ids of dynamic members.

    A dynamic member gets a new id at each join, so ids from before the step count too.
    """
    names = {f"{work.spec.group}-{n}" for n in step.slots}
    now = member_ids(work.slots().values(), step.slots)
    return frozenset(names | now).union(work.lease.recall(StepStart).members or ())
