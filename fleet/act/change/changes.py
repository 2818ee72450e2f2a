"""Beginning, picking up and ending changes: one at a time per group, whoever asks.

The row of a group's running change is its lease. A change whose actor is silent for one lease
is adopted and carried on from the step it stands at; one whose actor is alive refuses every
other. Where nothing can be written, silence proves nothing, and that is told in time. Aborting
takes back what was asked of slots that have not moved yet; slots already closed for a leave can
only go on to leave, which any live worker completes [21].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fleet.act.liveness import sign
from fleet.clock import Clock
from fleet.errors import Refused, Unreachable
from fleet.model import Plan
from fleet.slots import Change, ChangeState, Gate, Phase
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store

Progress = Callable[[str], None]
Perform = Callable[[Change, Progress], Change]
Held = Callable[[], str]
"""Which pause holds the group now, in words; empty = none."""
LOOK = 0.2
"""Seconds between two looks at somebody's lease."""
_BLIND: Final = 3
"""Leases after which who cannot write is told so: a lock or an upgrade has passed by then."""


def _never() -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class GroupChanges:
    """The changes of one group."""

    group: str
    store: Store
    clock: Clock
    lease: float
    """Seconds after which a silent actor is dead."""
    perform: Perform

    def running(self) -> Change | None:
        """The unfinished change, whoever has it."""
        change = self.store.change(self.group)
        return change if change is not None and change.state is ChangeState.RUNNING else None

    def alive(self) -> bool:
        """Whether somebody is changing the group now; looks for up to one lease.

        Raises Unreachable where no write of its own went through for three: it says nothing of
        others then [38].
        """
        watch = LeaseWatch.over(self.store, group=self.group, lease=self.lease, clock=self.clock)
        first: tuple[str, int, int] | None = None
        while True:
            now = self.clock.monotonic()
            change = self.running()
            if change is None:
                return False
            mark = (change.actor, change.token, change.counter)
            first = first or mark
            if mark != first:
                return True
            if watch.expired(self.group, mark, now, told=change.lease):
                return False
            if watch.blind >= _BLIND * self.lease:
                raise self._unproven(change, watch.blind)
            self.clock.sleep(LOOK)

    def begin(self, plan: Plan, *, actor: str, progress: Progress) -> Change:
        """Start the plan and carry it out; Refused where it may not or another change runs."""
        if plan.refusals:
            raise Refused(" ".join(plan.refusals))
        change = self.store.begin_change(
            plan, actor=actor, started_at=self.clock.now(), lease=self.lease
        )
        if change is None:
            raise Refused(self._busy())
        sign(self.store, change)
        return self.perform(change, progress)

    def resume(self, *, actor: str, progress: Progress, held: Held = _never) -> Change | None:
        """Carry on an unfinished change of a dead actor; None where none is unfinished.

        Raises Refused where its actor is alive, or the group is held: what was interrupted before
        an incident is not carried on in it, also where that began while the lease was waited out.
        """
        left = self.running()
        if left is None:
            return None
        self._unless_held(left, held)
        progress(f"{left.actor} left a change of {self.group}; waiting whether it goes on")
        adopted = self._adopt(actor, held)
        if adopted is None:
            return None
        progress(f"picked up plan {adopted.plan.id} at step {adopted.step + 1}")
        return self.perform(adopted, progress)

    def abort(self, *, actor: str) -> Change | None:
        """End an unfinished change of a dead actor where it stands; asks are taken back."""
        adopted = self._adopt(actor)
        if adopted is None:
            return None
        self._take_back(adopted)
        return self.store.advance(
            replace(
                adopted,
                state=ChangeState.ABORTED,
                sentence=f"aborted by {actor}",
                ended_at=self.clock.now(),
            )
        )

    def _unless_held(self, left: Change, held: Held) -> None:
        if pause := held():
            raise Refused(
                f"{left.actor} left a change of group {self.group} unfinished, and {pause}; "
                f"`fleet apply {self.group} --abort` ends the change where it stands"
            )

    def _adopt(self, actor: str, held: Held = _never) -> Change | None:
        if self.running() is None:
            return None
        if self.alive():
            raise Refused(self._busy())
        seen = self.running()
        if seen is None:
            return None
        self._unless_held(seen, held)
        adopted = self.store.adopt(seen, actor=actor, lease=self.lease)
        if adopted is None:
            raise Refused(self._busy())
        sign(self.store, adopted)
        return adopted

    def _take_back(self, adopted: Change) -> None:
        """What was asked is asked no more; a slot that its holder has closed for a leave stays."""

        def kept(gate: Gate) -> Gate | None:
            slots = self.store.slots(self.group)
            closed = {slot.number for slot in slots if slot.phase is Phase.CLOSED}
            after = replace(gate, leaving=gate.leaving & closed, handover={}, rejoin={})
            return None if after == gate else after

        self.store.change_gate(self.group, kept, by=adopted)

    def _unproven(self, change: Change, seconds: float) -> Unreachable:
        why = self.store.writes.refusal or "a write takes too long, or what is read may be old"
        return Unreachable(
            f"whether {change.actor} still works on its change of group {self.group} is not known: "
            f"its silence proves nothing while nothing can be written, for {seconds:.0f} s now "
            f"({why}); mend that, then try again"
        )

    def _busy(self) -> str:
        change = self.store.change(self.group)
        who = change.actor if change else "somebody"
        return (
            f"{who} is changing group {self.group}; see `fleet status {self.group}`, then try again"
        )
