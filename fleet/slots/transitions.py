"""Every write of slots and changes as a pure function of the stored state.

Problem: which writes a stale actor may still make decides whether two processes ever use one
`group.instance.id`. If each back end has its own rules, they diverge. Choice: a function takes the
stored state and what its caller read. It returns what to store, or None if the caller has read an
older state. Back ends only compare and swap (`fleet.slots.backend`). An owner writes any phase but
`free`; a release keeps `closed` for a leave, and everything else makes the slot free.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from fleet.errors import LostLease
from fleet.model import Plan
from fleet.slots import (
    STAYS,
    Change,
    ChangeState,
    Handover,
    Phase,
    Slot,
    SlotTargets,
    WorkerReport,
)
from fleet.slots.backend import SlotTargetsRecord

# The first owner of a revision among a group's slots is its canary [22].
#
# New code takes one slot of other code first. It gets no other such slot before its canary has
# worked: by a batch, or by nothing to read without an error. A manager's canary must also commit
# `rollout.canary_batches` (`fleet.act.steps.canary`). Without a manager a claim in the slot targets
# decides who takes the first slot (`fleet.slots.store`). A pod records what its own canary has
# shown (`Canary` in `fleet.worker.slot.reporting`).


_DRAINING_PHASES: Final = frozenset({Phase.DRAINING, Phase.DRAINED})


def waits_for_canary(slots: Iterable[Slot], wanted: Slot, revision: str) -> bool:
    """Whether `revision` may not have this slot yet [22].

    The slot was another revision's, and none of the slots that this revision owns, or owned last,
    has shown that it works. An owner that fails on every record ends, or becomes active with
    nothing left to read.
    """
    if wanted.revision in {None, revision}:
        return False
    mine = [s for s in slots if s.revision == revision]
    return bool(mine) and not any(is_good_canary(s) or s.batches > 0 for s in mine)


def has_worked(phase: Phase, *, error: str | None, batches: int) -> bool:
    """Whether a member has shown that its revision works.

    That is a batch, or nothing to read without an error.
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


def is_alone(slots: Iterable[Slot], former: Slot | None, revision: str) -> bool:
    """Whether a failing revision may wait for transient errors to end.

    It may if no other revision can take its slot, or if it works elsewhere. former: its slot as it
    was before the take.
    """
    slots = tuple(slots)
    if has_good_canary(slots, revision):
        return True
    known = {slot.revision for slot in (*slots, *(() if former is None else (former,)))}
    return known <= {None, revision} and (former is None or not is_failed_canary(former))


def describe_missing_canary(
    targets: SlotTargets, slots: Iterable[Slot], revision: str
) -> str | None:
    """Says why a standby of this revision is on trial; None if its revision works.

    A Deployment replaces no pod for one that is on trial: the revision's first slot has to show
    that it works, or a manager keeps all slots at the revision that they run.
    """
    slots = tuple(slots)
    usable = targets.open - targets.leaving - targets.quarantined
    pins = targets.handover.items()
    kept = {pin.revision for n, pin in pins if pin.token == STAYS and n in usable} - {revision}
    if kept:
        return f"waits while slots stay with revision {min(kept)}"
    if has_good_canary(slots, revision):
        return None
    shows = sorted(
        slot.number
        for slot in slots
        if slot.number in usable
        and (slot.owner is None or slot.revision == revision or slot.phase in _DRAINING_PHASES)
    )
    return (
        f"waits for the owner of slot {shows[0]} to show that this revision works"
        if shows
        else None
    )


def describe_doubt(
    reports: Iterable[WorkerReport], slots: Sequence[Slot], *, worker: str, revision: str
) -> str | None:
    """Says why another standby of this revision doubts it; None if it has a good canary."""
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


# --- slots ----------------------------------------------------------------------------------


def can_take(
    record: SlotTargetsRecord,
    number: int,
    *,
    worker: str,
    revision: str,
    void: Handover | None = None,
) -> bool:
    """Whether the slot targets let this worker take this slot. void: a pin that has ended."""
    targets = record.targets
    pinned = targets.handover.get(number)
    if pinned == void:
        pinned = None
    if worker in record.going or (pinned is not None and pinned.revision != revision):
        return False
    return number in targets.open - targets.leaving - targets.quarantined


def is_unchanged(stored: Slot, seen: Slot) -> bool:
    """Whether no worker took or renewed it since."""
    return (stored.owner, stored.token, stored.counter) == (seen.owner, seen.token, seen.counter)


def is_at_rest(slot: Slot) -> bool:
    """Whether owners of other slots need not see it before its phase or its owner changes."""
    return slot.owner is not None and slot.phase is Phase.ACTIVE


def is_owned_by(stored: Slot, owner: Slot) -> bool:
    """Whether it is still this owner's, by the same take."""
    mine = (owner.owner, owner.token)
    return stored.owner is not None and (stored.owner, stored.token) == mine


def take_slot(
    stored: Slot, *, worker: str, revision: str, spark_session: str | None, lease: float = 0.0
) -> Slot:
    """Returns the slot with a new owner: token + 1, not clean until a clean release."""
    return replace(
        stored,
        owner=worker,
        token=stored.token + 1,
        phase=Phase.JOINING,
        clean=False,
        batches=0,
        error=None,
        owner_ended=False,
        revision=revision,
        # A new owner may die before it has ended an unclean predecessor's session. So the slot
        # names that session until the first renewal.
        spark_session=spark_session if stored.clean else stored.spark_session,
        lease=lease,
    )


def undo_take(stored: Slot, before: Slot) -> Slot:
    """Returns the slot as it was `before`, without an owner; the token has grown."""
    return _released(replace(before, token=stored.token))


def renew_slot(stored: Slot, told: Slot) -> Slot | None:
    """Returns the slot with its owner's fields, counter + 1.

    None if another worker owns it or may own it: an owner that was recorded as ended has to stop.
    """
    if not is_owned_by(stored, told) or stored.owner_ended:
        return None
    assert told.phase is not Phase.FREE, "only a release makes a slot free"
    return replace(
        stored,
        counter=stored.counter + 1,
        phase=told.phase,
        member_id=told.member_id,
        spark_session=told.spark_session,
        batches=told.batches,
        error=told.error,
        lease=told.lease,
    )


def mark_owner_ended(stored: Slot, seen: Slot) -> Slot | None:
    """Returns the slot with its owner's end recorded; None if that owner has it no more."""
    if not is_owned_by(stored, seen) or stored.owner_ended:
        return None
    return replace(stored, owner_ended=True)


def release_slot(stored: Slot, held: Slot, *, clean: bool) -> Slot | None:
    """Returns the slot without an owner, its member still named; None if another owns it."""
    if not is_owned_by(stored, held):
        return None
    return _released(replace(stored, clean=clean))


def clear_slot(stored: Slot, seen: Slot) -> Slot | None:
    """Returns the slot after its member's removal, without member, revision and dead owner.

    None if it was taken since. Spark session and `clean` stay for the next owner.
    """
    if stored.token != seen.token:
        return None
    return replace(_released(stored), member_id=None, revision=None, phase=Phase.FREE)


def _released(slot: Slot) -> Slot:
    """Returns the slot without an owner, alive or dead; closed for a leave if it was."""
    phase = Phase.CLOSED if slot.phase is Phase.CLOSED else Phase.FREE
    return replace(slot, owner=None, owner_ended=False, phase=phase)


# --- changes --------------------------------------------------------------------------------


def begin_change(
    last: Change | None,
    plan: Plan,
    *,
    actor: str,
    started_at: float,
    lease: float = 0.0,
    after: int = 0,
) -> Change | None:
    """Returns the change that carries a plan out; None while another one runs.

    after: the latest token known from the slot targets, if the last change is missing. A caller
    that missed the answer gets the running one.
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


def adopt_change(
    last: Change | None, seen: Change, *, actor: str, lease: float = 0.0
) -> Change | None:
    """Returns the change with another actor, token + 1; None if it ended or was written since."""
    if last is None or last.state is not ChangeState.RUNNING:
        return None
    if (last.actor, last.token, last.counter) != (seen.actor, seen.token, seen.counter):
        return None
    return replace(last, actor=actor, token=last.token + 1, lease=lease)


def advance_change(last: Change | None, told: Change) -> Change:
    """Returns the change with its actor's fields, counter + 1.

    Raises LostLease if another actor has it now.
    """
    if last is None or (last.actor, last.token) != (told.actor, told.token):
        raise lost_lease(told, last)
    return replace(told, plan=last.plan, counter=last.counter + 1)


def lost_lease(change: Change, last: Change | None) -> LostLease:
    """Returns why the actor has to stop. last: the change as stored."""
    owner = f"{last.actor} (token {last.token})" if last else "no actor"
    return LostLease(
        f"the change of group {change.group} belongs to {owner} now, not to {change.actor} "
        f"(token {change.token}): stop acting on it; `fleet status {change.group}` shows how it "
        "goes on"
    )
