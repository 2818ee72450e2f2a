"""The kinds of step, each written as "make it so" over observed slots.

Opening is one gate write for all k slots [19]; leaving is two-phase, with the member ids
kept in the slots so that any live worker can complete it [21]; a roll asks one holder after
the other to hand over to a warm standby, the first being the canary [22]. A step that is
performed again skips what is already so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fleet.act.crew import Crew, Wait
from fleet.act.handovers import JOIN_LIMIT, Handovers, without
from fleet.act.join_window import JoinWindow
from fleet.act.lease import ChangeLease
from fleet.act.waves import numbers_of as _numbers
from fleet.act.waves import roll_wave
from fleet.clock import Clock
from fleet.errors import FleetError
from fleet.evidence import Watch
from fleet.model import Step, StepKind
from fleet.slots import Gate, Handover, Phase, Slot, SlotStore
from fleet.spec import GroupSpec

OPEN_AHEAD = 1.5
"""Seconds between the gate write and the joint subscribe: time to take, build, connect [19]."""
Leave = Callable[..., str | None]


@dataclass(kw_only=True)
class StepWork:
    """Performs one step; returns sentences for its receipt."""

    spec: GroupSpec
    store: SlotStore
    crew: Crew
    leave: Leave
    lease: ChangeLease
    wait: Wait
    settle: Callable[[], None]
    """Waits until the group is Stable and stays so [25]."""
    clock: Clock
    progress: Callable[[str], None]
    window: JoinWindow | None
    """Of a KIP-848 group: raised while several slots open, so that their joins are one."""
    _watch: Watch = field(init=False)
    _closed: tuple[Slot, ...] = field(init=False, default=())
    """The leaving slots as they stood when all were closed."""

    def __post_init__(self) -> None:
        lease = self.spec.runtime.lease
        self._watch = Watch.over(self.store, group=self.spec.group, lease=lease, clock=self.clock)

    def perform(self, step: Step) -> tuple[str, ...]:
        """Do what is missing of the step."""
        return {
            StepKind.OPEN: self._open,
            StepKind.LEAVE: self._leave,
            StepKind.STOP_ALL: self._leave,
            StepKind.ROLL: self._roll,
            StepKind.REJOIN: self._rejoin,
            StepKind.WARM: self._warm,
        }[step.kind](step)

    # --- reading and writing ----------------------------------------------------------------

    def slots(self) -> dict[int, Slot]:
        """The group's slots as they stand now, by number."""
        return {slot.number: slot for slot in self.store.slots(self.spec.group)}

    def write_gate(self, change: Callable[[Gate], Gate | None]) -> Gate:
        """Change the gate by compare-and-set; `change` returns None where nothing is to do."""
        self.lease.check()
        ours = self.lease.change

        def signed(gate: Gate) -> Gate | None:
            wanted = change(gate)
            return None if wanted is None else replace(wanted, plan_id=ours.plan.id)

        group = self.spec.group
        return self.store.change_gate(group, signed, by=ours) or self.store.gate(group)

    # --- open -------------------------------------------------------------------------------

    def _open(self, step: Step) -> tuple[str, ...]:
        return self.open_together(step.slots, step.revision)

    def open_together(
        self,
        numbers: Sequence[int],
        revision: str,
        *,
        pinned: bool = False,
        on_trial: bool = False,
    ) -> tuple[str, ...]:
        """Open slots in one write and wait until all are active; the spread of their joins.

        pinned: standbys of other revisions, which are kept for a rollback, may not take them
        until `unpin`.
        on_trial: the first error of a taker ends the wait, with that error.
        """
        missing = set(numbers) - self.store.gate(self.spec.group).open
        standby = self.spec.replicas.standby
        apart: str | None = None
        if missing:
            count = self.crew.ensure(revision, len(missing) + standby, least=len(missing))
            self.progress(f"  warming {count} standby(s) of revision {revision}")
            limit = self.spec.rollout.warm_timeout
            self.crew.await_warm(revision, count, timeout=limit, wait=self.wait)
            slots = self.slots()
            tokens = {n: slots[n].token if n in slots else 0 for n in missing if pinned}
            pins = {n: Handover(token=token, revision=revision) for n, token in tokens.items()}
            if self.window is not None and len(missing) > 1:
                apart = self.window.widen()
            self.write_gate(
                lambda gate: replace(
                    gate,
                    open=gate.open | missing,
                    open_at=self.clock.now() + OPEN_AHEAD,
                    leaving=gate.leaving - missing,
                    handover={**gate.handover, **pins},
                )
            )
            self.progress(f"  opened slot(s) {_numbers(numbers)} together")
        self.wait(
            lambda: self._all_active(numbers, trial=revision if on_trial else None),
            JOIN_LIMIT + self.spec.rollout.drain_timeout,
            f"slot(s) {_numbers(numbers)} to be active",
        )
        if self.window is not None:  # also one that a dead manager left raised
            self.window.restore()
        return (*self._spread(numbers), *([apart] if apart else ()))

    def unpin(self, numbers: Sequence[int]) -> None:
        """Let anybody take these again."""
        self.write_gate(
            lambda gate: (
                replace(gate, handover=without(gate.handover, numbers))
                if set(numbers) & gate.handover.keys()
                else None
            )
        )

    def _all_active(self, numbers: Sequence[int], *, trial: str | None = None) -> bool:
        self.crew.raise_if_ill(self.lease.change.plan.revision)
        slots = self.slots()
        if trial is not None:
            self._raise_on_trial([slots[n] for n in numbers if n in slots], trial)
        return all(n in slots and slots[n].phase is Phase.ACTIVE for n in numbers)

    def _spread(self, numbers: Sequence[int]) -> tuple[str, ...]:
        reports = self.store.reports(self.spec.group)
        joined = [r.joined_at for r in reports if r.slot in set(numbers) and r.joined_at]
        if len(joined) < 2:
            return ()
        return (f"joins were spread over {max(joined) - min(joined):.3f} s",)

    # --- leave ------------------------------------------------------------------------------

    def _leave(self, step: Step) -> tuple[str, ...]:
        notes = self.leave_together(step.slots)
        self.drop_holders()
        if step.kind is StepKind.STOP_ALL:
            old = {w.name for w in self.crew.wanted() if w.revision != step.revision}
            self.crew.remove(old, grace=self.spec.rollout.drain_timeout)
        return notes

    def leave_together(self, slots: Sequence[int]) -> tuple[str, ...]:
        """Let these drain and leave in one request; static members close before it [21].

        A dynamic member's close is a leave of its own: it polls no more, and closes when the
        one request has removed it.
        """
        numbers = frozenset(slots)
        if "holders" not in self.lease.change.detail:
            held = {str(n): w for n, w in self.crew.holders().items() if n in numbers}
            self.lease.remember(holders=held)
        self.write_gate(
            lambda gate: (
                replace(gate, leaving=gate.leaving | (numbers & gate.open))
                if not (numbers & gate.open) <= gate.leaving
                else None
            )
        )
        self.progress(f"  draining slot(s) {_numbers(slots)}, then one leave for all")
        limit = self.spec.rollout.drain_timeout + self.spec.runtime.lease + 30.0
        what = f"slot(s) {_numbers(slots)} to close"
        self.wait(lambda: self._all_closed(numbers), limit, what)
        return self._send_leave(numbers)

    def _all_closed(self, numbers: frozenset[int]) -> bool:
        """Closed by their holders, already gone from the gate, or held by the dead."""
        gate = self.store.gate(self.spec.group)
        slots = [s for n, s in self.slots().items() if n in numbers & gate.open]
        gone = [  # every one is looked at, at every look
            self.is_dead(s) or s.phase is Phase.CLOSED or s.holder is None for s in slots
        ]
        if not all(gone):
            return False
        self._closed = tuple(sorted(slots, key=lambda slot: slot.number))
        return True

    def is_dead(self, slot: Slot) -> bool:
        """Its holder's lease has expired [13]; looks on from one call to the next."""
        mark, now = (slot.holder, slot.token, slot.counter), self.clock.monotonic()
        return slot.holder is not None and self._watch.expired(str(slot.number), mark, now)

    def _send_leave(self, numbers: frozenset[int]) -> tuple[str, ...]:
        """Name the members that were seen closed, and no others: not who came after them [16].

        They are written to the change first, which also finds out whether it is still ours.
        """
        if "leaving" not in self.lease.change.detail:
            told = {str(s.number): [s.token, s.member_id] for s in self._closed}
            self.lease.remember(leaving=told)
        left, still_open = self._as_they_left(), self.store.gate(self.spec.group).open
        going = [slot for slot in left if slot.number in still_open]
        members = [(self._instance_of(s), s.member_id) for s in going if s.member_id]
        if members:
            why = self.leave(self.spec.group, members, reason=f"fleet {self.lease.change.plan.id}")
            if why is not None:
                raise FleetError(f"the batched leave was refused: {why}; plan again")
        self.write_gate(
            lambda gate: replace(gate, open=gate.open - numbers, leaving=gate.leaving - numbers)
        )
        self.wait(lambda: self._all_released(numbers), JOIN_LIMIT, "the members to close")
        for slot in left:
            self.store.clear(slot)
        return () if going else ("the workers had completed the leave themselves",)

    def _as_they_left(self) -> list[Slot]:
        """The slots as the change remembers them; without those that others hold since."""
        told = self.lease.change.detail.get("leaving")
        ids = told if isinstance(told, dict) else {}
        return [
            replace(slot, member_id=ids[str(n)][1])
            for n, slot in sorted(self.slots().items())
            if str(n) in ids and ids[str(n)][0] == slot.token
        ]

    def _instance_of(self, slot: Slot) -> str | None:
        """The member's instance id; what it runs says so, not what shall run next."""
        wanted = self.spec.worker is not None and self.spec.worker.membership == "static"
        static = self.crew.is_static(slot.revision, otherwise=wanted)
        return slot.instance_id() if static else None

    def _all_released(self, numbers: frozenset[int]) -> bool:
        slots = [s for n, s in self.slots().items() if n in numbers]
        held = [s for s in slots if s.holder is not None and not self.is_dead(s)]
        return not held

    def drop_holders(self) -> None:
        """Remove the workers that held the slots which left."""
        held = self.lease.change.detail.get("holders")
        names = {str(name) for name in held.values()} if isinstance(held, dict) else set()
        gone = {w.name for w in self.crew.wanted()} & names
        self.crew.remove(gone, grace=self.spec.rollout.drain_timeout)

    # --- roll -------------------------------------------------------------------------------

    def _roll(self, step: Step) -> tuple[str, ...]:
        if self.spec.worker is not None and self.spec.worker.membership == "dynamic":
            return roll_wave(self, step)
        return Handovers(self).perform(step)

    def raise_on_error(self, slot: Slot, revision: str) -> None:
        """FleetError where a slot on trial tells an error, or its holder died."""
        if slot.revision == revision and slot.error:
            raise FleetError(slot.error)
        if slot.revision == revision and slot.holder and self.is_dead(slot):
            raise FleetError(f"worker {slot.holder} died while it was the canary")

    def _raise_on_trial(self, slots: Sequence[Slot], revision: str) -> None:
        """The first error of a revision: a slot that is taken again keeps none, its report does."""
        for slot in slots:
            self.raise_on_error(slot, revision)
        for report in self.store.reports(self.spec.group):
            if report.revision == revision and report.phase == "failed" and report.error:
                raise FleetError(report.error)

    def prove(self, numbers: Sequence[int], revision: str) -> None:
        """Wait for `canary_batches` commits, or for `bake` without data and without error.

        Of several slots one has to commit, none may fail.
        """
        rollout = self.spec.rollout
        since = self.clock.monotonic()

        def proven() -> bool:
            slots = [self.slots()[n] for n in numbers]
            self._raise_on_trial(slots, revision)
            for slot in slots:
                if slot.revision != revision or slot.phase is not Phase.ACTIVE:
                    raise FleetError(
                        f"slot {slot.number} is {slot.phase} and no longer runs {revision}"
                    )
            if any(slot.batches >= rollout.canary_batches for slot in slots):
                return True
            return self.clock.monotonic() - since >= rollout.bake

        self.progress(
            f"  canary: slot(s) {_numbers(numbers)} have to commit {rollout.canary_batches} batches"
        )
        self.wait(proven, rollout.bake + 30.0, "the canary")

    def retire_all(self, revision: str) -> None:
        """Remove the standbys of other revisions."""
        free = set(self.crew.free())
        old = {w.name for w in self.crew.wanted() if w.revision != revision and w.name in free}
        self.crew.remove(sorted(old), grace=self.spec.rollout.drain_timeout)

    # --- rejoin, warm -----------------------------------------------------------------------

    def _rejoin(self, step: Step) -> tuple[str, ...]:
        number = step.slots[0]
        if "asked" not in self.lease.change.detail:
            token = self.slots()[number].token
            self.write_gate(lambda gate: replace(gate, rejoin={**gate.rejoin, number: token}))
            self.lease.remember(asked=token)
        self.wait(
            lambda: (
                number not in self.store.gate(self.spec.group).rejoin
                and self._all_active((number,))
            ),
            JOIN_LIMIT,
            f"slot {number} to rejoin",
        )
        return ()

    def _warm(self, step: Step) -> tuple[str, ...]:
        standby = self.spec.replicas.standby
        gate = self.store.gate(self.spec.group)
        unheld = gate.open - self.crew.holders().keys()
        grace = self.spec.rollout.drain_timeout
        self.crew.settle_standbys(step.revision, standby + len(unheld), grace=grace)

        def manned() -> bool:
            self.crew.raise_if_ill(step.revision)
            held = gate.open <= self.crew.holders().keys()
            return held and len(self.crew.warm(step.revision)) >= standby

        limit = self.spec.rollout.warm_timeout + self.spec.runtime.lease
        self.wait(manned, limit, f"every open slot held and {standby} warm standby(s)")
        return ()
