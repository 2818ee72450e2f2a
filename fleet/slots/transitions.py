"""How slots and changes move: every write of the store as a pure function of what is stored.

Problem: which writes a stale actor may still make decides whether two processes ever use one
`group.instance.id`; written once for each back end, the rules drift apart. Choice: a function
takes what is stored and what its caller saw, and gives what is to be stored, or None where the
caller has seen an older state; back ends only compare and swap (`fleet.slots.backend`). What a
phase may become stands in one table; a move that is not in it is a defect of ours, and raises
with the story. Cost: what a caller may not do and what it came too late for look different
(IllegalMove, None), and both have to be tested.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from fleet.errors import LostLease
from fleet.model import Plan
from fleet.slots import Change, ChangeState, Handover, Phase, Slot, SlotTargets, WorkerReport
from fleet.slots.backend import SlotTargetsRecord

# What the slots of a group show of a revision: its first owner is its canary [22].
#
# New code takes one slot of other code first. No other of these slots is its own before a canary
# has worked, by a batch or by finding nothing to read without an error. A manager's canary has to
# commit `rollout.canary_batches` besides (`fleet.act.steps.canary`); what takes the first slot
# where nobody manages is told by a claim in the slot targets (`fleet.slots.store`), what a pod has
# seen of its own by a note (`Canary` in `fleet.worker.slot.reporting`).


_GOING: Final = frozenset({Phase.DRAINING, Phase.DRAINED})


def waits_for_canary(slots: Iterable[Slot], wanted: Slot, revision: str) -> bool:
    """Whether `revision` may not have this slot yet: it was another revision's, and of those
    that this one holds, or was the last to hold, none has shown that it works [22].

    An owner that fails on every record ends, or is active in the end with nothing left to read.
    """
    if wanted.revision in {None, revision}:
        return False
    mine = [s for s in slots if s.revision == revision]
    return bool(mine) and not any(is_good_canary(s) or s.batches > 0 for s in mine)


def has_worked(phase: Phase, *, error: str | None, batches: int) -> bool:
    """Whether a member has shown that its revision works: by a batch, or by finding nothing to
    read without an error.
    """
    return phase is Phase.ACTIVE and (error is None or batches > 0)


def is_good_canary(slot: Slot) -> bool:
    """Whether its owner has shown that its revision works."""
    worked = has_worked(slot.phase, error=slot.error, batches=slot.batches)
    return slot.owner is not None and worked


def is_failed_canary(seen: Slot | WorkerReport) -> bool:
    """Whether a slot's last owner, or a worker, failed before it had committed a batch."""
    return seen.error is not None and seen.batches == 0


def has_good_canary(slots: Iterable[Slot], revision: str) -> bool:
    """Whether an owner of this revision has shown that it works."""
    return any(slot.revision == revision and is_good_canary(slot) for slot in slots)


def alone(slots: Iterable[Slot], former: Slot | None, revision: str) -> bool:
    """Whether a revision that fails has nobody to leave its slot to, or works elsewhere: so that
    it may wait for better weather. former: its slot as it was before it took it.
    """
    slots = tuple(slots)
    if has_good_canary(slots, revision):
        return True
    known = {slot.revision for slot in (*slots, *(() if former is None else (former,)))}
    return known <= {None, revision} and (former is None or not is_failed_canary(former))


def missing_canary(targets: SlotTargets, slots: Iterable[Slot], revision: str) -> str | None:
    """Which slot has to show first that this revision works; None where it has, or none is there.

    A managed roll has pins, and holds its Deployment by itself.
    """
    slots = tuple(slots)
    if targets.handover or has_good_canary(slots, revision):
        return None
    shows = sorted(
        slot.number
        for slot in slots
        if slot.number in targets.open - targets.leaving - targets.quarantined
        and (slot.owner is None or slot.revision == revision or slot.phase in _GOING)
    )
    return f"slot {shows[0]} has to show first that this revision works" if shows else None


def doubt(
    reports: Iterable[WorkerReport], slots: Sequence[Slot], *, worker: str, revision: str
) -> str | None:
    """Why another standby of this revision doubts it; None where it has a good canary."""
    if has_good_canary(slots, revision):
        return None
    return next(
        (
            f"{report.worker} of the same revision fails: {report.error}"
            for report in reports
            if report.revision == revision and report.worker != worker and is_failed_canary(report)
        ),
        None,
    )


class Event(StrEnum):
    """What happens to a slot."""

    TAKE = "take"
    """A worker that saw it free, or its owner's lease run out."""
    JOIN = "join"
    """Its owner joins: for the first time, or again after a forced rebalance."""
    ACTIVATE = "activate"
    """Its owner has committed a batch, or found nothing to read."""
    DRAIN = "drain"
    HOLD = "hold"
    """Its owner is drained, and stays a member until the others are."""
    CLOSE = "close"
    RELEASE = "release"
    """Its owner gives it up."""
    CLEAR = "clear"
    """A batched leave removed its member."""


TOLD: Final[Mapping[Phase, Event]] = {
    Phase.JOINING: Event.JOIN,
    Phase.ACTIVE: Event.ACTIVATE,
    Phase.DRAINING: Event.DRAIN,
    Phase.DRAINED: Event.HOLD,
    Phase.CLOSED: Event.CLOSE,
}
"""What an owner says by a renewal. It renews every few seconds, so a phase may be passed over."""

_HELD: Final = tuple(TOLD)

MOVES: Final[Mapping[tuple[Phase, Event], Phase]] = {
    **{(phase, Event.TAKE): Phase.JOINING for phase in Phase},  # the dead leave any phase behind
    **{(phase, event): told for phase in _HELD for told, event in TOLD.items()},
    **{(phase, Event.RELEASE): Phase.FREE for phase in _HELD},
    (Phase.CLOSED, Event.RELEASE): Phase.CLOSED,  # its member is to be removed yet
    **{(phase, Event.CLEAR): Phase.FREE for phase in Phase},
}


class IllegalMove(Exception):
    """A defect: what was to be written has no meaning for a slot of that phase."""


def moved(slot: Slot, event: Event) -> Phase:
    """The phase after `event`. Raises IllegalMove where the table has none."""
    after = MOVES.get((slot.phase, event))
    if after is None:
        allowed = sorted(each.value for phase, each in MOVES if phase is slot.phase)
        raise IllegalMove(
            f"slot {slot.number} of group {slot.group} is {slot.phase.value} "
            f"(owner {slot.owner or 'nobody'}, token {slot.token}, counter {slot.counter}): "
            f"'{event.value}' is not possible there, only {', '.join(allowed)}"
        )
    return after


# --- slots ----------------------------------------------------------------------------------


def admits(
    record: SlotTargetsRecord,
    number: int,
    *,
    worker: str,
    revision: str,
    void: Handover | None = None,
) -> bool:
    """Whether the slot targets let this worker take this slot. void: a pin that has ended, as
    it saw.
    """
    targets = record.targets
    pinned = targets.handover.get(number)
    if pinned == void:
        pinned = None
    if worker in record.going or (pinned is not None and pinned.revision != revision):
        return False
    return number in targets.open - targets.leaving - targets.quarantined


def is_as_seen(stored: Slot, seen: Slot) -> bool:
    """Whether nobody took or renewed it since."""
    return (stored.owner, stored.token, stored.counter) == (seen.owner, seen.token, seen.counter)


def is_held_by(stored: Slot, owner: Slot) -> bool:
    """Whether it is still this owner's, of this very take."""
    mine = (owner.owner, owner.token)
    return stored.owner is not None and (stored.owner, stored.token) == mine


def taken(
    stored: Slot, *, worker: str, revision: str, spark_session: str | None, lease: float = 0.0
) -> Slot:
    """The slot in a new owner's hands: token + 1, not clean until it is released so."""
    return replace(
        stored,
        owner=worker,
        token=stored.token + 1,
        phase=moved(stored, Event.TAKE),
        clean=False,
        batches=0,
        error=None,
        owner_ended=False,
        revision=revision,
        # A new owner may die before it has ended the session of an unclean predecessor: until its
        # first renewal the slot names that one still.
        spark_session=spark_session if stored.clean else stored.spark_session,
        lease=lease,
    )


def given_back(stored: Slot, before: Slot) -> Slot:
    """A take undone: as it was `before`, without an owner; the token has grown."""
    phase = Phase.CLOSED if before.phase is Phase.CLOSED else Phase.FREE
    return _unheld(replace(before, token=stored.token), phase)


def told_by(owner: Slot) -> Event:
    """What a renewal of this phase says. Raises IllegalMove for one that no owner has."""
    event = TOLD.get(owner.phase)
    if event is None:
        raise IllegalMove(
            f"{owner.owner or 'nobody'} renews slot {owner.number} of group {owner.group} as "
            f"{owner.phase.value}: an owner's slot is {', '.join(phase.value for phase in TOLD)}"
        )
    return event


def renewed(stored: Slot, told: Slot) -> Slot | None:
    """With what its owner tells, counter + 1; None where somebody else has it, or may: whoever
    was said to have ended stops.
    """
    if not is_held_by(stored, told) or stored.owner_ended:
        return None
    return replace(
        stored,
        counter=stored.counter + 1,
        phase=moved(stored, told_by(told)),
        member_id=told.member_id,
        spark_session=told.spark_session,
        batches=told.batches,
        error=told.error,
        lease=told.lease,
    )


def owner_ended(stored: Slot, seen: Slot) -> Slot | None:
    """For the taking, with all that a new owner cures; None where that owner has it no more."""
    if not is_held_by(stored, seen) or stored.owner_ended:
        return None
    return replace(stored, owner_ended=True)


def released(stored: Slot, held: Slot, *, clean: bool) -> Slot | None:
    """Given up by its owner; None where it is somebody else's. Its member is named still."""
    if not is_held_by(stored, held):
        return None
    return _unheld(replace(stored, clean=clean), moved(stored, Event.RELEASE))


def cleared(stored: Slot, seen: Slot) -> Slot | None:
    """After its member was removed: member, revision and a dead owner forgotten.

    None where it was taken since. Spark session and `clean` stay for the next new owner.
    """
    if stored.token != seen.token:
        return None
    return _unheld(replace(stored, member_id=None, revision=None), moved(stored, Event.CLEAR))


def _unheld(slot: Slot, phase: Phase) -> Slot:
    """With nobody in it, alive or dead."""
    return replace(slot, owner=None, owner_ended=False, phase=phase)


# --- changes --------------------------------------------------------------------------------


def begun(
    last: Change | None,
    plan: Plan,
    *,
    actor: str,
    started_at: float,
    lease: float = 0.0,
    after: int = 0,
) -> Change | None:
    """The change that carries a plan out; None while another one runs.

    after: the latest token known of elsewhere, where the last change is. Asked again by who did not
    hear that it was stored, it is the one that runs.
    """
    if last is not None and last.state is ChangeState.RUNNING:
        stored = (last.actor, last.plan.id, last.started_at)
        return last if stored == (actor, plan.id, started_at) else None
    return Change(
        group=plan.group,
        plan=plan,
        state=ChangeState.RUNNING,
        actor=actor,
        token=(last.token if last else after) + 1,
        counter=0,
        step=0,
        started_at=started_at,
        lease=lease,
    )


def adopted(last: Change | None, seen: Change, *, actor: str, lease: float = 0.0) -> Change | None:
    """In another actor's hands, token + 1; None where it has ended or moved since it was seen."""
    if last is None or last.state is not ChangeState.RUNNING:
        return None
    if (last.actor, last.token, last.counter) != (seen.actor, seen.token, seen.counter):
        return None
    return replace(last, actor=actor, token=last.token + 1, lease=lease)


def advanced(last: Change | None, told: Change) -> Change:
    """With what its actor tells, counter + 1. Raises LostLease where it is another's by now."""
    if last is None or (last.actor, last.token) != (told.actor, told.token):
        raise lost(told, last)
    return replace(told, plan=last.plan, counter=last.counter + 1)


def lost(change: Change, last: Change | None) -> LostLease:
    """Why its actor has to stop. last: the change as stored."""
    owner = f"{last.actor} (token {last.token})" if last else "nobody"
    return LostLease(
        f"the change of group {change.group} belongs to {owner} now, not to {change.actor} "
        f"(token {change.token}): stop acting on it; `fleet status {change.group}` shows how it "
        "goes on"
    )
