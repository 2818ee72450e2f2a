"""Rolls static members: hands slot after slot over to a warm worker of the new revision.

Problem: only a warm new owner continues within milliseconds, and bad code must not get past the
first slot. Choice: the old owner drains when enough workers of the new revision are warm. The first
slot is the canary, which goes back if it fails [22]. A few standbys start ahead, between two
handovers, since a start needs the CPU of a new owner's first batch. A place that replaces workers
by itself (a Deployment) does so once the canary is good; then the roll only watches, and goes back
if nothing moves any more. Cost: the seconds of a start per slot.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

from fleet.act.steps.canary import give_up, raise_on_error, wait_for_canary
from fleet.act.steps.work import StepWork, asking
from fleet.errors import FleetError, LostLease, NoRoom, RolledBack, Unreachable
from fleet.model import Step
from fleet.slots import Handover, Phase, Slot, SlotTargets
from fleet.text import numbers_of, plural, slots_of

STOCK_GRACE: Final = 20.0
"""Seconds that a handover waits for standbys of later handovers."""
_TRIES: Final = 3
"""Attempts to hand over a slot before the roll fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverMemory:
    """Remembers the state before a roll and its progress."""

    tokens: Mapping[int, int] | None = None
    """Slot → its token when the roll began; a higher token is a new owner."""
    canary: int | None = None
    """First slot of the roll."""
    old_revision: str | None = None
    """Old revision of the canary; empty if unknown."""
    by_itself: bool | None = None
    """True if the runtime replaces the workers after the canary."""
    stalled: str | None = None
    """Why the runtime stopped replacing them; the roll then goes back."""
    canary_passed: bool | None = None
    """True when the canary has committed; no slot goes back after that."""

    def has_new_owner(self, slot: Slot) -> bool:
        """Tells whether the slot has a new owner since the roll began."""
        return slot.token > (self.tokens or {}).get(slot.number, 0)


def perform(work: StepWork, step: Step) -> tuple[str, ...]:
    """Hands over the slots that are not handed over yet."""
    if work.lease.recall(HandoverMemory).tokens is None:
        slots = work.slots()
        tokens = {n: slots[n].token for n in step.slots}
        is_new = any(slots[n].revision != step.revision for n in step.slots)
        by_itself = is_new and work.pool.replaces_workers
        work.lease.remember(HandoverMemory(tokens=tokens, by_itself=by_itself))
    roll = _Roll(work, step)
    roll.all_slots()
    work.retire_all(step.revision)
    return roll.notes


class _Roll:
    """Performs one roll from its current state."""

    def __init__(self, work: StepWork, step: Step) -> None:
        self._work = work
        self._step = step
        self._new = step.revision
        self.notes: tuple[str, ...] = ()
        """Sentences for the receipt."""

    def _memory(self) -> HandoverMemory:
        return self._work.lease.recall(HandoverMemory)

    def _canary_asked(self) -> bool:
        return self._memory().canary is not None

    def all_slots(self) -> None:
        """Hands over the canary alone, then as many slots at once as allowed."""
        slots, targets, memory = self._work.slots(), self._work.targets(), self._memory()
        if memory.stalled is not None:
            self._go_back(memory.stalled)
        todo = [
            n for n in self._step.slots if not is_rolled(slots.get(n), targets, self._new, memory)
        ]
        canary_due = not memory.canary_passed
        if memory.canary is not None and canary_due:
            todo = [memory.canary, *(n for n in todo if n != memory.canary)]
        width = self._work.spec.rollout.max_parallel
        stock = self._first_stock(len(todo)) if canary_due else self._stock(len(todo))
        while todo and (canary_due or not memory.by_itself):
            turn = todo[:1] if canary_due else todo[: min(width, stock)]
            if canary_due:
                self._await_first(stock)
            else:
                self._await_stock(stock)
            self._hand_over(turn, canary=canary_due)
            if canary_due:
                self._work.lease.remember(HandoverMemory(canary_passed=True))
            todo = todo[len(turn) :]
            canary_due = False
            stock = self._stock(len(todo))
        if memory.by_itself:
            self._await_rollout()

    # --- a place that replaces workers by itself ---------------------------------------------

    def _await_rollout(self) -> None:
        """Waits until the runtime has replaced all workers; goes back if it stands still.

        The runtime itself says when nothing has moved for too long.
        """
        work, memory = self._work, self._memory()
        told = {memory.canary}
        complete_at: float | None = None
        stalled: str | None = None

        def is_over() -> bool:
            nonlocal complete_at, stalled
            slots, now = work.slots(), work.clock.monotonic()
            todo = {n for n in self._step.slots if not self._is_handed_over(slots[n], memory)}
            if fresh := sorted(set(self._step.slots) - todo - told):
                told.update(fresh)
                runs_it = "runs" if len(fresh) == 1 else "run"
                work.progress(f"  {slots_of(fresh)} {runs_it} {self._new}")
            status = work.pool.rollout(self._new)
            stalled, self.notes = status.stalled, status.notes
            if status.complete and not todo:
                return True
            complete_at = complete_at or now if status.complete else None
            if complete_at is not None and now - complete_at > limit:
                raise FleetError(
                    f"no worker of revision {self._new} took {slots_of(sorted(todo))} within "
                    f"{limit:.0f} s"
                )
            return stalled is not None

        limit = work.pass_limit + work.spec.batch_limit
        work.progress("  the other workers are replaced next")
        work.wait(is_over, math.inf, f"all workers to run revision {self._new}", 1.0)
        if stalled is not None:
            work.lease.remember(HandoverMemory(stalled=stalled))
            self._go_back(stalled)

    def _is_handed_over(self, slot: Slot, memory: HandoverMemory) -> bool:
        return runs(slot, self._new) and memory.has_new_owner(slot)

    def _go_back(self, why: str) -> NoReturn:
        """Lets the runtime replace the new workers by the old revision's again."""
        work, old = self._work, self._memory().old_revision or ""
        if work.lease.change.traceback is None:
            work.keep_traceback(self._new)
        work.progress(f"  {why}; all slots go back to {old}")

        def again() -> bool:
            work.remove([w.name for w in work.pool.wanted() if w.revision == self._new != old])
            slots = work.slots()
            return not any(slots[n].revision == self._new for n in self._step.slots)

        work.wait(again, work.pass_limit * len(self._step.slots), f"all slots to run {old} again")
        raise RolledBack(f"{why}; all slots run {old} again")

    # --- standbys ahead ---------------------------------------------------------------------

    def _stock(self, left: int) -> int:
        """Starts standbys ahead of the roll, at most as needed; returns their number.

        Without room, one is enough: slot after slot.
        """
        spec = self._work.spec
        if self._memory().by_itself:
            if self._memory().canary_passed:
                return 0
            return self._work.pool.ensure(self._new, spec.rollout.max_parallel, least=1)
        ahead = min(left, spec.rollout.max_parallel + 1)
        return self._work.pool.ensure(self._new, ahead + spec.replicas.standby, least=min(left, 1))

    def _first_stock(self, left: int) -> int:
        """Does the same before the canary; without room for one standby, no slot has changed.

        The roll then fails and can be retried, since the revision is not to blame.
        """
        try:
            return self._stock(left)
        except NoRoom as error:
            if self._canary_asked():
                raise
            raise FleetError(give_up(self._work, self._step, error)) from error

    def _await_stock(self, stock: int) -> None:
        """Let those that were just started become warm, for a while.

        A start takes the cores that the next handover's first batch needs: its pause doubled.
        """
        work = self._work
        deadline = work.clock.monotonic() + STOCK_GRACE

        def warm() -> bool:
            work.pool.raise_if_unhealthy(self._new)
            waited = work.clock.monotonic() > deadline
            return waited or len(work.pool.warm(self._new)) >= stock

        limit = STOCK_GRACE + work.join_limit
        work.wait(warm, limit, f"{plural(stock, 'warm standby')} of revision {self._new}")

    def _await_first(self, stock: int) -> None:
        """Waits before the canary; a revision that never gets warm has changed no slot."""
        try:
            self._await_stock(stock)
            self._work.await_warm(self._new, 1)
        except (LostLease, Unreachable):
            raise
        except FleetError as error:
            if self._canary_asked():
                raise
            raise RolledBack(give_up(self._work, self._step, error)) from error

    # --- one handover -----------------------------------------------------------------------

    def _hand_over(self, numbers: Sequence[int], *, canary: bool) -> None:
        work, memory = self._work, self._memory()
        work.await_warm(self._new, len(numbers))
        before = {n: s for n, s in work.slots().items() if n in numbers}
        if canary and memory.canary is None:
            was = before[numbers[0]].revision or ""
            work.lease.remember(HandoverMemory(canary=numbers[0], old_revision=was))
        started = work.clock.monotonic()
        try:
            self._pass(numbers, canary=canary)
            if canary:
                wait_for_canary(work, numbers[:1], self._new)
        except LostLease:
            raise
        except FleetError as error:
            if not canary:
                raise
            self._roll_back(numbers[0], error)
        took = work.clock.monotonic() - started
        work.unpin(numbers)
        work.remove(sorted(owners_before(before, memory)))
        kind = "canary slot" if canary else "slot"
        work.progress(f"  {kind} {numbers_of(numbers)} runs {self._new} after {took:.1f} s")

    def _pass(self, numbers: Sequence[int], *, canary: bool) -> None:
        """Asks the owners to drain until workers of the new revision own all slots.

        A standby may freeze after it answered. A slot without a new owner then goes back to its old
        revision, and the handover is retried with another standby.
        """
        work, memory = self._work, self._memory()
        what = f"the handover of {slots_of(numbers)} to revision {self._new}"
        for _ in range(_TRIES):
            now = work.slots()
            asks = asks_of({n: now[n] for n in numbers}, self._new, memory)
            work.write_targets(partial(asking, asks=asks))
            over = partial(self._taken_or_not, numbers, self._untaken(numbers), canary=canary)
            work.await_ready(over, work.pass_limit, numbers, what, revision=self._new)
            if self._taken(numbers, canary=canary):
                return
            self._put_back(numbers)
            work.pool.ensure(self._new, len(numbers), least=0)
            work.await_warm(self._new, len(numbers))
        raise FleetError(f"no standby of revision {self._new} took {slots_of(numbers)}")

    def _taken_or_not(
        self, numbers: Sequence[int], untaken: Callable[[], bool], *, canary: bool
    ) -> bool:
        return self._taken(numbers, canary=canary) or untaken()

    def _untaken(self, numbers: Sequence[int]) -> Callable[[], bool]:
        """Returns a check whether one of these slots is free for too long."""
        work, limit = self._work, self._work.spec.runtime.lease / 3
        since: dict[int, float] = {}

        def free_for_long() -> bool:
            now, slots = work.clock.monotonic(), work.slots()
            free = {n for n in numbers if slots[n].owner is None}
            for n in numbers:
                since[n] = since.get(n, now) if n in free else now
            return any(now - since[n] > limit and self._old(slots[n]) for n in free)

        return free_for_long

    def _old(self, slot: Slot) -> str | None:
        """Returns a slot's old revision, if it differs."""
        return slot.revision if slot.revision != self._new else None

    def _put_back(self, numbers: Sequence[int]) -> None:
        """Gives slots without a new owner back to their old revision."""
        work = self._work
        now = work.slots()
        back = {
            n: Handover(token=0, revision=old)
            for n in numbers
            if now[n].owner is None and (old := self._old(now[n])) is not None
        }
        named = slots_of(sorted(back))
        work.progress(
            f"  no standby took {named}: the old revision continues, starting another standby"
        )
        work.write_targets(lambda targets: asking(targets, back))

        def are_active() -> bool:
            return all(work.slots()[n].phase is Phase.ACTIVE for n in numbers)

        work.await_ready(are_active, work.pass_limit, numbers, f"{named} to have owners again")

    def _taken(self, numbers: Sequence[int], *, canary: bool) -> bool:
        found, memory = self._work.slots(), self._memory()
        slots = [found[n] for n in numbers]
        if canary:
            self._work.pool.raise_if_unhealthy(self._new)
            for slot in slots:
                raise_on_error(self._work, slot, self._new)
        self._ask_again(slots)
        return all(runs(slot, self._new) and memory.has_new_owner(slot) for slot in slots)

    def _ask_again(self, slots: Sequence[Slot]) -> None:
        """Asks owners of another revision again, who took a slot while no new worker was there,
        when all these slots have warm workers.
        """
        work, pins = self._work, self._work.targets().handover
        lost = {
            slot.number: slot
            for slot in slots
            if slot.owner is not None
            and slot.revision != self._new
            and (pin := pins.get(slot.number)) is not None
            and slot.token > pin.token
        }
        if lost and len(work.pool.warm(self._new)) >= len(lost):
            again = asks_of(lost, self._new, self._memory())
            work.progress(f"  handing over {slots_of(sorted(lost))} again: {self._new} is back")
            work.write_targets(lambda targets: asking(targets, again))

    def _roll_back(self, number: int, error: FleetError) -> NoReturn:
        """Gives the slot back to a standby of the old revision, which was kept for that."""
        work, old = self._work, self._memory().old_revision or ""
        if work.lease.change.traceback is None:
            work.keep_traceback(self._new)
        work.progress(f"  the canary failed ({error}); slot {number} goes back to {old}")
        back = way_back(work.slots()[number], old)
        work.write_targets(lambda targets: asking(targets, back, instead_of=(number,)))
        owners = {slot.owner for n, slot in work.slots().items() if n != number}
        failed = [w.name for w in work.pool.wanted() if w.revision == self._new != old]
        work.remove([name for name in failed if name not in owners])
        what = f"slot {number} to run revision {old} again"

        def again() -> bool:
            return runs(work.slots()[number], old)

        work.await_ready(again, work.pass_limit, (number,), what, revision=old)
        work.unpin((number,))
        work.keep_standbys(old)
        raise RolledBack(
            f"the canary on slot {number} failed: {error}; it runs {old} again"
        ) from error


def runs(slot: Slot, revision: str) -> bool:
    """Tells whether the slot has an active member of the revision."""
    return slot.revision == revision and slot.phase is Phase.ACTIVE


def is_rolled(
    slot: Slot | None, targets: SlotTargets, revision: str, memory: HandoverMemory
) -> bool:
    """Tells whether the slot is handed over to the revision and confirmed."""
    return (
        slot is not None
        and memory.has_new_owner(slot)
        and runs(slot, revision)
        and slot.number not in targets.handover
    )


def asks_of(
    slots: Mapping[int, Slot], revision: str, memory: HandoverMemory
) -> dict[int, Handover]:
    """Returns the handover requests for slots without a new owner of the revision."""
    return {
        n: Handover(token=slot.token, revision=revision)
        for n, slot in slots.items()
        if not memory.has_new_owner(slot) or slot.revision != revision
    }


def owners_before(slots: Mapping[int, Slot], memory: HandoverMemory) -> set[str]:
    """Returns the workers that owned the slots when the roll began."""
    return {s.owner for s in slots.values() if s.owner and not memory.has_new_owner(s)}


def way_back(slot: Slot, revision: str) -> dict[int, Handover]:
    """Returns the request that gives a slot back to `revision`; none if it still runs it."""
    if slot.revision == revision:
        return {}
    return {slot.number: Handover(token=slot.token, revision=revision)}
