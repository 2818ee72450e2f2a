"""Carries a plan out under the group's lease, one membership change at a time.

Problem: a step is several writes to several places, and its actor may die between any two.
Choice: every step is written as "make it so" over observed slots, so that performing it again
does only what is missing; where counting starts, and who held which slot, is written to the
change before anything moves. After each step the group must be settled [25] before the
receipt is read from the coordinator's records; a receipt that differs holds what follows.
Cost: about heartbeat + 2 s of waiting per step.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from fleet.act.adopting import Adopting
from fleet.act.crew import Crew
from fleet.act.join_window import JoinWindow
from fleet.act.kafka import GroupAdmin, LeavingMember
from fleet.act.lease import ChangeLease
from fleet.act.runtime import Runtime
from fleet.act.steps import StepWork
from fleet.clock import Clock
from fleet.counted import Counted
from fleet.errors import FleetError, LostLease, RolledBack, Unreachable
from fleet.model import GroupState, Plan, Receipt, Step, StepKind, Verdict
from fleet.slots import Change, ChangeState, Gate, SlotStore
from fleet.spec import CONSUMER_HEARTBEAT, ClassicWorker, ConsumerWorker, GroupSpec

Progress = Callable[[str], None]
"""Workers write the gate as well."""


class Ledger(Protocol):
    """What the coordinator recorded, read for receipts."""

    def position(self, group: str) -> int | None:
        """Where the group's records end now; None where they cannot be read."""
        ...

    def counted(self, group: str, since: int) -> Counted | None:
        """What was recorded from `since` to now; None where it cannot be read."""
        ...

    def state(self, group: str) -> GroupState:
        """The group's state now."""
        ...


class Judge(Protocol):
    """Compares what was recorded with what the plan expected (`fleet.decide.receipts.judge`)."""

    def __call__(
        self,
        *,
        plan: Plan,
        step_index: int,
        counted: Counted | None,
        our_instances: frozenset[str],
        started_at: float,
        ended_at: float,
        extra: tuple[str, ...] = (),
    ) -> Receipt:
        """The receipt of one step."""
        ...


class Leaver(Protocol):
    """Sends the batched LeaveGroup."""

    def leave(
        self, group: str, members: Sequence[tuple[str | None, str]], *, reason: str
    ) -> str | None:
        """One request naming (instance id, member id) of all; None = all gone, else why not.

        A dynamic member's instance id is None.
        """
        ...


class BatchedLeave:
    """A Leaver by kafka-python's admin client."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    def leave(
        self, group: str, members: Sequence[tuple[str | None, str]], *, reason: str
    ) -> str | None:
        """See Leaver.leave."""
        leaving = [LeavingMember(instance_id=i, member_id=m) for i, m in members]
        try:
            return self._admin.leave(group, leaving, reason=reason).refusal
        except FleetError as error:
            return str(error)


@dataclass(kw_only=True)
class Performer:
    """Performs changes of one group."""

    spec: GroupSpec
    store: SlotStore
    runtime: Runtime
    ledger: Ledger
    leaver: Leaver
    window: JoinWindow
    judge: Judge
    clock: Clock
    progress: Progress
    poll: float = 0.1
    adopting: Adopting | None = None
    """Set where the group is other people's: its Deployment is scaled, there are no slots."""
    _lease: ChangeLease | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.progress = _whatever_comes_of_it(self.progress)

    def perform(self, change: Change) -> Change:
        """Carry the change to its end from the step it stands at.

        Returns the ended change. Raises LostLease where another actor took over; any other
        interruption leaves the change RUNNING, to be picked up by the next actor.
        """
        with ChangeLease(self.store, change, lease=self.spec.runtime.lease) as lease:
            self._lease = lease
            try:
                return self._all_steps(lease)
            except LostLease:
                raise
            except RolledBack as error:
                self.window.restore()
                return self._end(lease, ChangeState.ROLLED_BACK, self._rested(str(error)))
            except FleetError as error:
                self.window.restore()
                return self._end(lease, ChangeState.FAILED, self._rested(str(error)))

    def _all_steps(self, lease: ChangeLease) -> Change:
        plan = lease.change.plan
        while lease.change.step < len(plan.steps):
            index = lease.change.step
            step = plan.steps[index]
            self.progress(f"step {index + 1} of {len(plan.steps)}: {step.sentence}")
            receipt = self._one_step(lease, step, index)
            lease.update(step=index + 1, receipts=(*lease.change.receipts, receipt), detail={})
            held = len(plan.steps) - index - 1
            if receipt.verdict is Verdict.DIFFERS and held:
                why = " ".join(receipt.sentences)
                raise FleetError(
                    f"step {index + 1} cost {receipt.ours} rebalances where {step.price} was "
                    f"expected, so {held} more step(s) are held. {why}".strip()
                )
        self._tidy(plan.revision)
        self.runtime.rest(self.spec.group)
        differs = [r for r in lease.change.receipts if r.verdict is Verdict.DIFFERS]
        sentence = "done; the receipt differs from the plan" if differs else "done, as planned"
        return self._end(lease, ChangeState.DONE, sentence)

    def _one_step(self, lease: ChangeLease, step: Step, index: int) -> Receipt:
        if "started_at" not in lease.change.detail:
            lease.remember(
                started_at=self.clock.now(),
                position=self.ledger.position(self.spec.group),
                members=sorted(self._member_ids(step)),
            )
        if self.adopting is not None:
            return self._receipt(lease, step, index, self.adopting.perform(step, lease))
        consumer = isinstance(self.spec.worker, ConsumerWorker)
        work = StepWork(
            spec=self.spec,
            store=self.store,
            crew=Crew(self.runtime, self.store, self.spec.group, say=self.progress),
            leave=self.leaver.leave,
            lease=lease,
            wait=self._wait,
            settle=lambda: self._settle(self._since(lease)),
            clock=self.clock,
            progress=self.progress,
            window=self.window if consumer else None,
        )
        notes: tuple[str, ...] = ()
        try:
            notes = work.perform(step)
        except RolledBack as error:
            receipt = self._receipt(lease, step, index, (str(error),))
            lease.update(receipts=(*lease.change.receipts, receipt))
            raise
        return self._receipt(lease, step, index, notes)

    def _receipt(
        self, lease: ChangeLease, step: Step, index: int, notes: tuple[str, ...]
    ) -> Receipt:
        started = float(str(lease.change.detail["started_at"]))
        since = self._since(lease)
        ended = self.clock.now()
        if step.kind is not StepKind.WARM:
            self._settle(since)
        counted = None if since is None else self.ledger.counted(self.spec.group, since)
        receipt = self.judge(
            plan=lease.change.plan,
            step_index=index,
            counted=counted,
            our_instances=self._ours(lease, step),
            started_at=started,
            ended_at=ended,
            extra=notes,
        )
        self.progress(
            f"  recorded {receipt.ours} rebalance(s) where {step.price} expected, "
            f"{receipt.moved} partition(s) moved: {receipt.verdict}"
        )
        return receipt

    @staticmethod
    def _since(lease: ChangeLease) -> int | None:
        """Where counting began for the step in hand; None where the records cannot be read."""
        position = lease.change.detail.get("position")
        return int(str(position)) if position is not None else None

    def _ours(self, lease: ChangeLease, step: Step) -> frozenset[str]:
        """Who of the recorded members is ours: instance ids, and for dynamic members member ids.

        A dynamic member has another id each time, so those from before the step count as well.
        """
        names = {f"{self.spec.group}-{n}" for n in step.slots} | self._member_ids(step)
        before = lease.change.detail.get("members")
        return frozenset(names | set(before if isinstance(before, list) else ()))

    def _member_ids(self, step: Step) -> set[str]:
        slots = self.store.slots(self.spec.group)
        return {s.member_id for s in slots if s.number in step.slots and s.member_id}

    def _settle(self, since: int | None) -> None:
        """Wait for Stable (or Empty) with no new generation for heartbeat + 2 s [25].

        A KIP-848 group is Stable when its group epoch, its assignment epoch and every member's
        epoch are one; two heartbeat intervals, since each member hears and answers in its own.
        """
        worker = self.spec.worker
        if isinstance(worker, ClassicWorker):
            quiet = worker.heartbeat_interval + 2.0
        else:
            quiet = 2 * CONSUMER_HEARTBEAT
        seen: object = None
        since_when = self.clock.monotonic()

        def settled() -> bool:
            nonlocal seen, since_when
            try:
                counted = None if since is None else self.ledger.counted(self.spec.group, since)
                state = self.ledger.state(self.spec.group)
            except Unreachable:  # a broker that is away: look again, within the limit
                seen, since_when = None, self.clock.monotonic()
                return False
            calm = state in {GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD}
            mark = (state, counted.to_generation if counted else None)
            if mark != seen or not calm:
                seen, since_when = mark, self.clock.monotonic()
            return calm and self.clock.monotonic() - since_when >= quiet

        limit = quiet + self.spec.rollout.drain_timeout + 60.0
        self._wait(settled, limit, f"group {self.spec.group} to settle", poll=0.5)

    def _tidy(self, revision: str) -> None:
        if self.adopting is not None:
            return
        crew = Crew(self.runtime, self.store, self.spec.group, say=self.progress)
        wanted = self.spec.replicas.standby if self.store.gate(self.spec.group).open else 0
        grace = self.spec.rollout.drain_timeout
        crew.settle_standbys(revision, wanted, grace=grace, least=0)

    def _wait(
        self, predicate: Callable[[], bool], timeout: float, what: str, poll: float | None = None
    ) -> None:
        end = self.clock.monotonic() + timeout
        looked = 0.0
        while not predicate():
            now = self.clock.monotonic()
            if self._lease is not None:
                self._lease.check()
            if now > end:
                raise FleetError(f"waited {timeout:.0f} s for {what}, in vain")
            if now - looked > 2.0:
                looked = now
                self.runtime.ensure()
            self.clock.sleep(poll or self.poll)

    def _rested(self, sentence: str) -> str:
        """Why the change did not go well, and what its runtime could not do to its end either."""
        try:
            self.runtime.rest(self.spec.group, failed=True)
            held = self.runtime.held(self.spec.group)
        except LostLease:
            raise
        except FleetError as error:
            return f"{sentence}; {error}"
        return sentence if held is None else f"{sentence}; {held}"

    def _end(self, lease: ChangeLease, state: ChangeState, sentence: str) -> Change:
        self.progress(f"{state}: {sentence}")
        if state is not ChangeState.DONE:
            self._take_back(lease)
        return lease.update(state=state, sentence=sentence, ended_at=self.clock.now())

    def _take_back(self, lease: ChangeLease) -> None:
        """What was asked ends with its plan, however that ended: a pin would keep a slot for a
        revision that nobody runs any more, and the workers from looking after their group [22].
        """
        if self.adopting is not None:
            return

        def without(gate: Gate) -> Gate | None:
            kept = replace(gate, handover={}, rejoin={})
            return None if kept == gate else kept

        self.store.change_gate(self.spec.group, without, by=lease.change)


def _whatever_comes_of_it(progress: Progress) -> Progress:
    """Says it, and goes on where it cannot be said: a full disk ends no change [40]."""

    def tell(sentence: str) -> None:
        with contextlib.suppress(Exception):
            progress(sentence)

    return tell
