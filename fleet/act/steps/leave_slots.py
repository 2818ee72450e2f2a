"""Leaving slots: their members drain, close, and go in one request [21].

Problem: a static member that stops stays in its group until its session ends, k that leave one by
one cost k rebalances, and a request that is late may name who came after. Choice: two phases; the
members as they were seen closed are written to the change before one request names them, by both
ids [16], and their member ids stay in the slots, so that any live worker can complete the leave.
Cost: all wait for the slowest drain, and for a lease where a holder died.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fleet.act.steps.work import StepStart, StepWork, errors_of, member_ids
from fleet.config.spec import ClassicWorker
from fleet.decide.receipts import judge
from fleet.errors import FleetError, Unreachable
from fleet.model import GroupState, Receipt, Step, StepKind
from fleet.model.rebalances import Counted
from fleet.slots import Gate, Phase, Slot
from fleet.text import plural, slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveMemory:
    """Who left: whose workers go, and whom the request names."""

    holders: Mapping[int, str] | None = None
    """Slot → the worker that held it before it was asked."""
    leaving: Mapping[int, tuple[int, str | None]] | None = None
    """Slot → (token, member id) as it was seen closed."""
    sent_at: float | None = None
    """Wall time of the request that names them."""


def leave_slots(work: StepWork, step: Step) -> tuple[str, ...]:
    """Let the step's members go, their workers with them."""
    notes = leave_together(work, step.slots)
    drop_holders(work)
    return notes


def leave_together(work: StepWork, slots: Sequence[int], *, again: bool = False) -> tuple[str, ...]:
    """Let these drain and leave in one request; static members close before it.

    A dynamic member's close is a leave of its own: it polls no more, and closes when the
    one request has removed it.
    again: others have left in this step before them.
    """
    numbers = frozenset(slots)
    if again or work.lease.recall(LeaveMemory).holders is None:
        held = {n: worker for n, worker in work.pool.holders().items() if n in numbers}
        work.lease.remember(LeaveMemory(holders=held))
    work.write_gate(lambda gate: asked_to_leave(gate, numbers))
    work.progress(f"  draining {slots_of(slots)}, then one leave for all")
    seen = _await_closed(work, numbers)
    # What is remembered finds out, too, whether the change is still ours.
    if again or work.lease.recall(LeaveMemory).leaving is None:
        told = {slot.number: (slot.token, slot.member_id) for slot in seen}
        work.lease.remember(LeaveMemory(leaving=told))
    return _send_leave(work, numbers)


def _await_closed(work: StepWork, numbers: frozenset[int]) -> list[Slot]:
    """The slots as they stood when all were closed by their holders, or held by the dead."""
    closed: list[Slot] = []

    def all_closed() -> bool:
        gate = work.gate()
        closed[:] = [s for n, s in sorted(work.slots().items()) if n in numbers & gate.open]
        return gone(closed, is_dead=work.is_dead)

    limit = work.spec.rollout.drain_timeout + work.spec.runtime.lease + 30.0
    work.wait(all_closed, limit, f"{slots_of(sorted(numbers))} to close")
    return closed


def _send_leave(work: StepWork, numbers: frozenset[int]) -> tuple[str, ...]:
    """Name the members that were seen closed, and no others: not who came after them [16]."""
    left = as_they_left(work.slots(), work.lease.recall(LeaveMemory))
    still_open = work.gate().open
    going = [slot for slot in left if slot.number in still_open]
    members = [(_instance_of(work, s), s.member_id) for s in going if s.member_id]
    if members:
        work.lease.remember(LeaveMemory(sent_at=work.clock.now()))
        why = work.leave(work.spec.group, members, reason=f"fleet {work.lease.change.plan.id}")
        if why is not None:
            raise FleetError(f"the batched leave was refused: {why}; plan again")
    work.write_gate(lambda gate: shut(gate, numbers))
    work.wait(lambda: _all_released(work, numbers), work.join_limit, "the members to close")
    for slot in left:
        work.store.clear(slot)
    return () if going else ("the workers had completed the leave themselves",)


def _instance_of(work: StepWork, slot: Slot) -> str | None:
    """The member's instance id; what it runs says so, not what shall run next."""
    wanted = work.spec.worker is not None and work.spec.worker.membership == "static"
    static = work.pool.is_static(slot.revision, otherwise=wanted)
    return slot.instance_id() if static else None


def _all_released(work: StepWork, numbers: frozenset[int]) -> bool:
    slots = [s for n, s in work.slots().items() if n in numbers]
    held = [s for s in slots if s.holder is not None and not work.is_dead(s)]
    return not held


def drop_holders(work: StepWork) -> None:
    """Remove the workers that held the slots which left."""
    held = set((work.lease.recall(LeaveMemory).holders or {}).values())
    work.remove([w.name for w in work.pool.wanted() if w.name in held])


def asked_to_leave(gate: Gate, numbers: frozenset[int]) -> Gate:
    """The gate with those of the slots that are open leaving."""
    return replace(gate, leaving=gate.leaving | (numbers & gate.open))


def shut(gate: Gate, numbers: frozenset[int]) -> Gate:
    """The gate without the slots."""
    return replace(gate, open=gate.open - numbers, leaving=gate.leaving - numbers)


def gone(slots: Collection[Slot], *, is_dead: Callable[[Slot], bool]) -> bool:
    """Whether nobody drains any more: each is closed, free, or held by the dead."""
    draining = [  # every one is looked at, at every look
        s for s in slots if not (is_dead(s) or s.phase is Phase.CLOSED or s.holder is None)
    ]
    return not draining


def as_they_left(slots: Mapping[int, Slot], memory: LeaveMemory) -> list[Slot]:
    """The slots as the change remembers them; without those that others hold since."""
    told = memory.leaving or {}
    return [
        replace(slot, member_id=told[n][1])
        for n, slot in sorted(slots.items())
        if n in told and told[n][0] == slot.token
    ]


# What a step cost. Rebalances are recorded after the step's work, and its actor may die in between:
# where the records stand is written to the change before anything moves, and the receipt is read
# once the group is settled [25].


SETTLE_POLL: Final = 0.5
"""Seconds between two looks at what the coordinator recorded."""
_LONG_PAUSE: Final = 15.0
"""Seconds that no partition stands still in a roll, however busy the machine: somebody was dead,
frozen or away.
"""
_QUIET: Final = 2.0
"""Seconds; also for the first commits of partitions that moved, which end their pauses."""


def begin(work: StepWork, step: Step) -> None:
    """Write down where counting starts, and whose members are ours; once for a step."""
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
    """Seconds for that."""
    return _quiet(work) + work.spec.rollout.drain_timeout + 60.0


def _quiet(work: StepWork) -> float:
    worker = work.spec.worker
    return _QUIET + (worker.heartbeat_interval if isinstance(worker, ClassicWorker) else 0.0)


def settled_from_here(work: StepWork) -> Callable[[], bool]:
    """Whether the group is settled: to be asked again and again, since it has to stay so."""
    quiet = _quiet(work)
    seen: object = None
    since_when = work.clock.monotonic()

    def settled() -> bool:
        nonlocal seen, since_when
        try:
            counted = _counted(work)
            state = work.ledger.state(work.spec.group)
        except Unreachable:  # a broker that is away: look again, within the limit
            seen, since_when = None, work.clock.monotonic()
            return False
        calm = state in {GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD}
        mark = (state, counted.to_generation if counted else None)
        if mark != seen or not calm:
            seen, since_when = mark, work.clock.monotonic()
        return calm and work.clock.monotonic() - since_when >= quiet

    return settled


def receipt(work: StepWork, step: Step, notes: tuple[str, ...]) -> Receipt:
    """What the step in hand cost, once the group is settled; notes: what it says itself."""
    change, ended = work.lease.change, work.clock.now()
    if step.kind is not StepKind.WARM:
        settle(work)
    made = judge(
        plan=change.plan,
        step_index=change.step,
        counted=_counted(work),
        our_instances=_ours(work, step),
        started_at=change.step_began,
        ended_at=ended,
        moved_at=_moved_at(work, step),
        most_pause=max(_LONG_PAUSE, work.spec.runtime.lease)
        if step.kind is StepKind.ROLL
        else None,
        extra=(*notes, *_gaps(work, step)),
    )
    work.progress(
        f"  recorded {plural(made.ours, 'rebalance')} where {step.price} expected, "
        f"{plural(made.moved, 'partition')} moved: {made.verdict}"
    )
    return made


def _gaps(work: StepWork, step: Step) -> list[str]:
    """Where members that came went on after Kafka had deleted the group's commits."""
    begun = work.lease.recall(StepStart).started_at or 0.0
    came = [r for r in work.store.reports(work.spec.group) if (r.joined_at or 0.0) >= begun]
    return sorted({r.gap for r in came if r.gap is not None and r.slot in step.slots})


def _counted(work: StepWork) -> Counted | None:
    since = work.lease.recall(StepStart).position
    return None if since is None else work.ledger.counted(work.spec.group, since)


def _moved_at(work: StepWork, step: Step) -> float | None:
    """Wall time of the first join of those that came, or of the request that removed who left.

    None of a step that is several such moves.
    """
    if step.kind in {StepKind.LEAVE, StepKind.STOP_ALL}:
        return work.lease.recall(LeaveMemory).sent_at
    if step.kind is not StepKind.OPEN:
        return None
    begun = work.lease.recall(StepStart).started_at or 0.0
    reports = work.store.reports(work.spec.group)
    joined = [r.joined_at for r in reports if r.slot in step.slots and r.joined_at is not None]
    return min((at for at in joined if at >= begun), default=None)


def _ours(work: StepWork, step: Step) -> frozenset[str]:
    """Who of the recorded members is ours: instance ids, and for dynamic members member ids.

    A dynamic member has another id each time, so those from before the step count as well.
    """
    names = {f"{work.spec.group}-{n}" for n in step.slots}
    now = member_ids(work.slots().values(), step.slots)
    return frozenset(names | now).union(work.lease.recall(StepStart).members or ())
