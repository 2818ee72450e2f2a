"""Carries a plan out under the group's lease, one membership change at a time.

Problem: a step is several writes to several places, and its actor may die between any two.
Choice: where counting starts, and who held which slot, is written to the change before anything
moves; each step does only what is missing (`fleet.act.steps`), and is closed by its receipt; a
receipt that differs holds what follows. Cost: an actor that takes a change over performs the step
in hand once more from its beginning, and finds most of it done.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from fleet.act.kafka import JoinWindow
from fleet.act.lease import ChangeLease, sign
from fleet.act.runtime import Runtime
from fleet.act.standby_pool import HeardReports, StandbyPool
from fleet.act.steps import handover, leave_slots, membership, receipts, rolling_batch
from fleet.act.steps.adopting import Adopting
from fleet.act.steps.work import Leave, StepWork, StopMemory, traceback_of
from fleet.clock import Clock
from fleet.config.spec import ConsumerWorker, GroupSpec
from fleet.errors import FleetError, LostLease, Refused, RolledBack, Unreachable
from fleet.model import Plan, Receipt, ReceiptResult, Step, StepKind
from fleet.observe.ledger import CoordinatorLedger
from fleet.slots import Change, ChangeState, Phase, SlotTargets
from fleet.slots.codec import as_json
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.text import plural

# Beginning, picking up and ending changes. The row of a running change is the group's lease: a
# silent actor's change is adopted after one lease, a living actor's refuses every other. Aborting
# takes back what was asked; slots already closed for a leave only go on to leave [21].


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
        watch = LeaseWatch.for_group(
            self.store, group=self.group, lease=self.lease, clock=self.clock
        )
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
            if watch.is_expired(self.group, mark, now, lease=change.lease):
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
        """What was asked is asked no more; a slot that its owner has closed for a leave stays."""

        def kept(targets: SlotTargets) -> SlotTargets | None:
            slots = self.store.slots(self.group)
            closed = {slot.number for slot in slots if slot.phase is Phase.CLOSED}
            after = replace(targets, leaving=targets.leaving & closed, handover={}, rejoin={})
            return None if after == targets else after

        self.store.change_targets(self.group, kept, by=adopted)

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


# Which module performs which kind of step.


StepFunction = Callable[[StepWork, Step], tuple[str, ...]]


def perform_step(work: StepWork, step: Step) -> tuple[str, ...]:
    """Do what is missing of the step; sentences for its receipt."""
    # Of the plan's revision: fleet.yaml may say something else since, and a roll of static members
    # carried on as a rolling batch would take out every slot.
    worker = work.spec.worker
    wanted = worker is None or worker.membership == "static"
    dynamic = not work.pool.is_static(step.revision, otherwise=wanted)
    stopped = work.lease.recall(StopMemory).stopped is not None
    kinds: dict[StepKind, StepFunction] = {
        StepKind.OPEN: membership.reopen if stopped else membership.open_slots,
        StepKind.LEAVE: leave_slots.leave_slots,
        StepKind.STOP_ALL: membership.stop_all,
        StepKind.ROLL: rolling_batch.perform if dynamic else handover.perform,
        StepKind.REJOIN: membership.force_rejoin,
        StepKind.WARM: membership.warm_standbys,
    }
    return kinds[step.kind](work, step)


@dataclass(kw_only=True)
class Performer:
    """Performs changes of one group."""

    spec: GroupSpec
    store: Store
    runtime: Runtime
    ledger: CoordinatorLedger
    leave: Leave
    window: JoinWindow
    clock: Clock
    progress: Progress
    poll: float = 0.1
    adopting: Adopting | None = None
    """Set where the group is other people's: its Deployment is scaled, there are no slots."""
    _lease: ChangeLease | None = field(default=None, init=False)
    _heard: HeardReports = field(init=False)

    def __post_init__(self) -> None:
        self._heard = HeardReports(lease=self.spec.runtime.lease, clock=self.clock)
        self.progress = _whatever_comes_of_it(self.progress)

    def perform(self, change: Change) -> Change:
        """Carry the change to its end from the step it stands at.

        Returns the ended change. Raises LostLease where another actor took over; any other
        interruption leaves the change RUNNING, to be picked up by the next actor.
        """
        with self.keep(change) as lease:
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

    def keep(self, change: Change) -> ChangeLease:
        """Hold the change by its lease."""
        return ChangeLease(self.store, change, lease=self.spec.runtime.lease)

    def _all_steps(self, lease: ChangeLease) -> Change:
        plan = lease.change.plan
        while lease.change.step < len(plan.steps):
            index = lease.change.step
            step = plan.steps[index]
            self.progress(f"step {index + 1} of {len(plan.steps)}: {step.sentence}")
            receipt = self._one_step(lease, step)
            kept = as_json(lease.recall(StopMemory), known=True)
            lease.update(step=index + 1, receipts=(*lease.change.receipts, receipt), detail=kept)
            held = len(plan.steps) - index - 1
            if receipt.result is ReceiptResult.DIFFERS and held:
                why = " ".join(receipt.sentences)
                raise FleetError(
                    f"step {index + 1} cost {receipt.rebalances} rebalances where "
                    f"{step.expected_cost} was expected: "
                    f"{plural(held, 'step')} not carried out. {why}".strip()
                )
        self._tidy(plan.revision)
        self.runtime.finish_removals(self.spec.group)
        differs = [r for r in lease.change.receipts if r.result is ReceiptResult.DIFFERS]
        sentence = "done; the receipt differs from the plan" if differs else "done, as planned"
        return self._end(lease, ChangeState.DONE, sentence)

    def _one_step(self, lease: ChangeLease, step: Step) -> Receipt:
        work = self._work(lease)
        receipts.begin(work, step)
        try:
            if self.adopting is not None:
                notes = self.adopting.perform(step, lease)
            else:
                notes = perform_step(work, step)
        except RolledBack as error:
            receipt = receipts.receipt(work, step, (str(error),))
            lease.update(receipts=(*lease.change.receipts, receipt))
            raise
        except LostLease:
            raise
        except FleetError:
            if lease.change.traceback is None and self.adopting is None:
                with contextlib.suppress(Unreachable):  # a worker that was never warm reports it
                    reports = self.store.reports(self.spec.group)
                    lease.update(traceback=traceback_of(reports, step.revision))
            raise
        return receipts.receipt(work, step, notes)

    def _work(self, lease: ChangeLease) -> StepWork:
        consumer = isinstance(self.spec.worker, ConsumerWorker)
        return StepWork(
            spec=self.spec,
            store=self.store,
            pool=self._pool(),
            leave=self.leave,
            lease=lease,
            wait=self._wait,
            ledger=self.ledger,
            clock=self.clock,
            progress=self.progress,
            window=self.window if consumer else None,
        )

    def _pool(self) -> StandbyPool:
        return StandbyPool(
            self.runtime, self.store, self.spec.group, heard=self._heard, say=self.progress
        )

    def _tidy(self, revision: str) -> None:
        if self.adopting is not None:
            return
        wanted = self.spec.replicas.standby if self.store.targets(self.spec.group).open else 0
        grace = self.spec.rollout.drain_timeout
        self._pool().settle_standbys(revision, wanted, grace=grace, least=0)

    def _wait(
        self, predicate: Callable[[], bool], timeout: float, what: str, poll: float | None = None
    ) -> None:
        end = self.clock.monotonic() + timeout
        looked = 0.0
        while not predicate():
            now = self._heard.awake()
            if self._lease is not None:
                self._lease.check()
            if now > end:
                raise FleetError(f"timed out after {timeout:.0f} s waiting for {what}")
            if now - looked > 2.0:
                looked = now
                self.runtime.ensure()
            self.clock.sleep(poll or self.poll)

    def _rested(self, sentence: str) -> str:
        """Why the change did not go well, and what its runtime could not do to its end either."""
        try:
            self.runtime.finish_removals(self.spec.group, failed=True)
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

        def without(targets: SlotTargets) -> SlotTargets | None:
            kept = replace(targets, handover={}, rejoin={})
            return None if kept == targets else kept

        self.store.change_targets(self.spec.group, without, by=lease.change)


def _whatever_comes_of_it(progress: Progress) -> Progress:
    """Says it, and goes on where it cannot be said: a full disk ends no change [40]."""

    def tell(sentence: str) -> None:
        with contextlib.suppress(Exception):
            progress(sentence)

    return tell
