"""Rolling static members: slot after slot passes from its holder to a warm worker of new code.

Problem: a successor reads on within milliseconds only where it is warm, and bad code must not
get past the first slot. Choice: the holder is asked to drain once enough workers of the new
revision are warm; the first slot is the canary, and goes back where it fails [22]; a few
standbys are kept ahead, started between two handovers and not beside them, because a start
takes the cores that a successor's first batch needs. Cost: a start's seconds per slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from fleet.act.waves import numbers_of
from fleet.errors import FleetError, LostLease, NoRoom, RolledBack, Unreachable
from fleet.model import Step
from fleet.slots import Handover, Phase, Slot

if TYPE_CHECKING:
    from fleet.act.steps import StepWork

STOCK_PATIENCE: Final = 20.0
"""Seconds that a handover waits for standbys it does not need itself."""
JOIN_LIMIT: Final = 90.0
"""Seconds for a member to get or give up its slot, beyond drain and lease."""


class Handovers:
    """One ROLL step of static members."""

    def __init__(self, work: "StepWork") -> None:
        self._work = work

    def perform(self, step: Step) -> tuple[str, ...]:
        """Hand over what is not handed over yet."""
        if "tokens" not in self._work.lease.change.detail:
            slots = self._work.slots()
            self._work.lease.remember(tokens={str(n): slots[n].token for n in step.slots})
        todo = [n for n in step.slots if not self._rolled(n, step.revision)]
        canary_due = len(todo) == len(step.slots) or "canary" in self._work.lease.change.detail
        width = self._work.spec.rollout.max_parallel
        stock = self._first_stock(step, len(todo)) if canary_due else self._stock(step, len(todo))
        while todo:
            turn = todo[:1] if canary_due else todo[: min(width, stock)]
            if canary_due:
                self._await_first(step, stock)
            else:
                self._await_stock(step, stock)
            self._hand_over(step, turn, canary=canary_due)
            todo = todo[len(turn) :]
            canary_due = False
            stock = self._stock(step, len(todo))
        self._work.retire_all(step.revision)
        return ()

    def _rolled(self, number: int, revision: str) -> bool:
        """Taken since the step began by a worker of the revision, and confirmed."""
        slot = self._work.slots().get(number)
        gate = self._work.store.gate(self._work.spec.group)
        return (
            slot is not None
            and slot.token > self._token_before(number)
            and slot.revision == revision
            and slot.phase is Phase.ACTIVE
            and number not in gate.handover
        )

    def _token_before(self, number: int) -> int:
        tokens = self._work.lease.change.detail.get("tokens")
        return int(tokens[str(number)]) if isinstance(tokens, dict) else 0

    def _stock(self, step: Step, left: int) -> int:
        """Keep new standbys ahead of the roll, never more than are still needed; how many.

        Where there is no room for them, one will do: slot after slot.
        """
        standby = self._work.spec.replicas.standby
        ahead = min(left, self._work.spec.rollout.max_parallel + 1)
        return self._work.crew.ensure(step.revision, ahead + standby, least=min(left, 1))

    def _first_stock(self, step: Step, left: int) -> int:
        """The same before the canary: without room for a single one, nothing was touched yet."""
        try:
            return self._stock(step, left)
        except NoRoom as error:
            if "canary" in self._work.lease.change.detail:
                raise
            self._give_up(step, error)

    def _await_stock(self, step: Step, stock: int) -> None:
        """Let those that were just started become warm, for a while.

        A start takes the cores that the next handover's first batch needs: its pause doubled.
        """
        work = self._work
        deadline = work.clock.monotonic() + STOCK_PATIENCE

        def warm() -> bool:
            work.crew.raise_if_ill(step.revision)
            waited = work.clock.monotonic() > deadline
            return waited or len(work.crew.warm(step.revision)) >= stock

        work.wait(
            warm,
            STOCK_PATIENCE + JOIN_LIMIT,
            f"{stock} warm standby(s) of revision {step.revision}",
        )

    def _await_first(self, step: Step, stock: int) -> None:
        """The same before the canary: a revision that never gets warm has touched nothing yet."""
        work = self._work
        try:
            self._await_stock(step, stock)
            limit = work.spec.rollout.warm_timeout
            work.crew.await_warm(step.revision, 1, timeout=limit, wait=work.wait)
        except (LostLease, Unreachable):
            raise
        except FleetError as error:
            if "canary" in work.lease.change.detail:
                raise
            self._give_up(step, error)

    def _give_up(self, step: Step, error: FleetError) -> NoReturn:
        """Its workers go; those of the old revision never stopped."""
        work, grace = self._work, self._work.spec.rollout.drain_timeout
        slots = work.slots()
        running = {revision for n in step.slots if (revision := slots[n].revision)}
        old = min(running - {step.revision}, default=step.revision)
        warm = set(work.crew.warm(step.revision)) if old == step.revision else set()
        work.progress(f"  no worker of {step.revision} gets warm ({error}); they go again")
        work.crew.remove(sorted(set(work.crew.free(step.revision)) - warm), grace=grace)
        work.crew.settle_standbys(old, work.spec.replicas.standby, grace=grace, least=0)
        raise RolledBack(
            f"no worker of revision {step.revision} got warm: {error}; nothing was handed over, "
            f"{old} goes on"
        ) from error

    def _hand_over(self, step: Step, numbers: Sequence[int], *, canary: bool) -> None:
        rollout = self._work.spec.rollout
        self._work.crew.await_warm(
            step.revision, len(numbers), timeout=rollout.warm_timeout, wait=self._work.wait
        )
        before = {n: self._work.slots()[n] for n in numbers}
        if canary and "canary" not in self._work.lease.change.detail:
            old = before[numbers[0]]
            self._work.lease.remember(canary=numbers[0], old_revision=old.revision or "")
        self._ask(before, step.revision)
        started = self._work.clock.monotonic()
        limit = rollout.drain_timeout + self._work.spec.runtime.lease + JOIN_LIMIT
        try:
            self._work.wait(
                lambda: all(self._taken(n, step.revision, canary=canary) for n in numbers),
                limit,
                f"slot(s) {numbers_of(numbers)} to pass to revision {step.revision}",
            )
            if canary:
                self._work.prove(numbers[:1], step.revision)
        except LostLease:
            raise
        except FleetError as error:
            if not canary:
                raise
            self._roll_back(numbers[0], step, error)
        took = self._work.clock.monotonic() - started
        self._work.write_gate(lambda gate: replace(gate, handover=without(gate.handover, numbers)))
        done = {
            s.holder for n, s in before.items() if s.holder and s.token <= self._token_before(n)
        }
        self._work.crew.remove(sorted(done), grace=rollout.drain_timeout)
        kind = "canary slot" if canary else "slot"
        self._work.progress(
            f"  {kind} {numbers_of(numbers)} runs {step.revision} after {took:.1f} s"
        )

    def _ask(self, slots: dict[int, Slot], revision: str) -> None:
        asks = {
            n: Handover(token=s.token, revision=revision)
            for n, s in slots.items()
            if s.token <= self._token_before(n) or s.revision != revision
        }
        self._work.write_gate(
            lambda gate: replace(gate, handover={**gate.handover, **asks}) if asks else None
        )

    def _taken(self, number: int, revision: str, *, canary: bool) -> bool:
        slot = self._work.slots()[number]
        if canary:
            self._work.crew.raise_if_ill(revision)
            self._work.raise_on_error(slot, revision)
        taken = slot.token > self._token_before(number)
        return taken and slot.revision == revision and slot.phase is Phase.ACTIVE

    def _roll_back(self, number: int, step: Step, error: FleetError) -> None:
        old = str(self._work.lease.change.detail.get("old_revision", ""))
        self._work.progress(f"  the canary failed ({error}); slot {number} goes back to {old}")
        slot = self._work.slots()[number]
        asks = (
            {}  # the old holder has it still: take the ask back, then it is void
            if slot.revision == old
            else {number: Handover(token=slot.token, revision=old)}
        )
        self._work.write_gate(
            lambda gate: replace(gate, handover={**without(gate.handover, (number,)), **asks})
        )
        failed = [w.name for w in self._work.crew.wanted() if w.revision == step.revision != old]
        self._work.crew.remove(failed, grace=self._work.spec.rollout.drain_timeout)

        def home_again() -> bool:
            now = self._work.slots()[number]
            return now.revision == old and now.phase is Phase.ACTIVE

        limit = self._work.spec.rollout.drain_timeout + self._work.spec.runtime.lease + JOIN_LIMIT
        self._work.wait(home_again, limit, f"slot {number} to run revision {old} again")
        self._work.write_gate(
            lambda gate: replace(gate, handover=without(gate.handover, (number,)))
        )
        self._work.crew.settle_standbys(
            old,
            self._work.spec.replicas.standby,
            grace=self._work.spec.rollout.drain_timeout,
            least=0,
        )
        raise RolledBack(
            f"the canary on slot {number} failed: {error}; it runs {old} again"
        ) from error


def without(asks: Mapping[int, Handover], numbers: Sequence[int]) -> dict[int, Handover]:
    """The asks of all other slots."""
    return {n: h for n, h in asks.items() if n not in set(numbers)}
