"""Carries a plan out under the group's lease, one membership change at a time.

Problem: a step is several writes to several places, and its actor may die between any two.
Choice: the start of counting and the slot owners are written to the change before anything moves.
Each step does only what is missing (`fleet.act.steps`) and ends with its receipt. A receipt that
differs blocks the next steps. Cost: an actor that takes a change over repeats the current step from
its beginning, and finds most of it done.
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

# Beginning, continuing and ending changes. The row of a running change is the group's lease.
# Another actor may adopt a silent actor's change after one lease; a live actor's refuses all
# others. An abort withdraws requests; slots that are already closed still leave [21].


Progress = Callable[[str], None]
Perform = Callable[[Change, Progress], Change]
PauseCheck = Callable[[], str]
"""Returns the message of the group's pause; empty if there is none."""
LEASE_POLL = 0.2
"""Seconds between two reads of another actor's lease."""
_BLIND: Final = 3
"""Leases without a write after which an actor reports it; a lock or upgrade ends sooner."""


def _never() -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class GroupChanges:
    """Begins, continues and aborts the changes of one group."""

    group: str
    store: Store
    clock: Clock
    lease: float
    """Seconds of silence after which an actor is dead."""
    perform: Perform

    def running(self) -> Change | None:
        """Returns the unfinished change of any actor."""
        change = self.store.change(self.group)
        return change if change is not None and change.state is ChangeState.RUNNING else None

    def is_actor_alive(self) -> bool:
        """Tells whether an actor changes the group now; takes up to one lease.

        Raises Unreachable if no write has succeeded for three leases, since it cannot tell then
        [38].
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
                raise self._cannot_tell(change, watch.blind)
            self.clock.sleep(LEASE_POLL)

    def begin(self, plan: Plan, *, actor: str, progress: Progress) -> Change:
        """Carries a plan out; raises Refused if it may not, or if another change runs."""
        if plan.refusals:
            raise Refused(" ".join(plan.refusals))
        change = self.store.begin_change(
            plan, actor=actor, started_at=self.clock.now(), lease=self.lease
        )
        if change is None:
            raise Refused(self._busy())
        sign(self.store, change)
        return self.perform(change, progress)

    def resume(
        self, *, actor: str, progress: Progress, pause_check: PauseCheck = _never
    ) -> Change | None:
        """Continues a dead actor's unfinished change; None if there is none.

        Raises Refused if its actor is alive or the group is paused, since a change from before an
        incident must not continue in it; also if the pause begins during the wait for the lease.
        """
        left = self.running()
        if left is None:
            return None
        self._refuse_if_paused(left, pause_check)
        progress(f"{left.actor} left a change of {self.group}; checking whether it still runs")
        adopted = self._adopt(actor, pause_check)
        if adopted is None:
            return None
        progress(f"continuing plan {adopted.plan.id} at step {adopted.step + 1}")
        return self.perform(adopted, progress)

    def abort(self, *, actor: str) -> Change | None:
        """Ends a dead actor's unfinished change at its current step and withdraws its requests."""
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

    def _refuse_if_paused(self, left: Change, pause_check: PauseCheck) -> None:
        if pause := pause_check():
            raise Refused(
                f"{left.actor} left a change of group {self.group} unfinished, and {pause}. Run "
                f"`fleet apply {self.group} --abort` to end the change at its current step"
            )

    def _adopt(self, actor: str, pause_check: PauseCheck = _never) -> Change | None:
        if self.running() is None:
            return None
        if self.is_actor_alive():
            raise Refused(self._busy())
        seen = self.running()
        if seen is None:
            return None
        self._refuse_if_paused(seen, pause_check)
        adopted = self.store.adopt(seen, actor=actor, lease=self.lease)
        if adopted is None:
            raise Refused(self._busy())
        sign(self.store, adopted)
        return adopted

    def _take_back(self, adopted: Change) -> None:
        """Withdraws the change's requests, except leaves whose slots are already closed."""

        def kept(targets: SlotTargets) -> SlotTargets | None:
            slots = self.store.slots(self.group)
            closed = {slot.number for slot in slots if slot.phase is Phase.CLOSED}
            after = replace(targets.without_requests(), leaving=targets.leaving & closed)
            return None if after == targets else after

        self.store.change_targets(self.group, kept, by=adopted)

    def _cannot_tell(self, change: Change, seconds: float) -> Unreachable:
        why = self.store.writes.refusal or "a write takes too long, or what is read may be old"
        return Unreachable(
            f"cannot tell whether {change.actor} is still changing group {self.group}: no write to "
            f"the store has succeeded for {seconds:.0f} s ({why}); fix the store and retry"
        )

    def _busy(self) -> str:
        change = self.store.change(self.group)
        who = change.actor if change else "another actor"
        return (
            f"{who} is changing group {self.group}; wait for its end, which `fleet status "
            f"{self.group}` shows, then retry"
        )


# The module of each kind of step.


StepFunction = Callable[[StepWork, Step], tuple[str, ...]]


def perform_step(work: StepWork, step: Step) -> tuple[str, ...]:
    """Performs what is missing of a step; returns sentences for its receipt."""
    # By the plan's revision, since fleet.yaml may have changed. A roll of static members that
    # continued as a rolling batch would remove every slot.
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
    """Performs the changes of one group."""

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
    """Set for an external group, whose Deployment is scaled; it has no slots."""
    _lease: ChangeLease | None = field(default=None, init=False)
    _heard: HeardReports = field(init=False)

    def __post_init__(self) -> None:
        self._heard = HeardReports(lease=self.spec.runtime.lease, clock=self.clock)
        self.progress = _suppress_errors(self.progress)

    def perform(self, change: Change) -> Change:
        """Performs the change from its current step to its end, and returns it.

        Raises LostLease if another actor took over; any other interruption leaves the change
        RUNNING for the next actor.
        """
        with self.keep(change) as lease:
            self._lease = lease
            try:
                return self._all_steps(lease)
            except LostLease:
                raise
            except RolledBack as error:
                self.window.restore()
                return self._end(lease, ChangeState.ROLLED_BACK, self._with_remaining(str(error)))
            except FleetError as error:
                self.window.restore()
                return self._end(lease, ChangeState.FAILED, self._with_remaining(str(error)))

    def keep(self, change: Change) -> ChangeLease:
        """Keeps the lease of the change."""
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
            left = len(plan.steps) - index - 1
            if receipt.result is ReceiptResult.DIFFERS and left:
                why = " ".join(receipt.sentences)
                raise FleetError(
                    f"step {index + 1} cost {receipt.rebalances} rebalances, expected "
                    f"{step.expected_cost}, "
                    f"so Fleet did not carry out {plural(left, 'more step')}. {why}".strip()
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

    def _with_remaining(self, sentence: str) -> str:
        """Adds to a failure what the runtime could not finish."""
        try:
            self.runtime.finish_removals(self.spec.group, failed=True)
        except LostLease:
            raise
        except FleetError as error:
            return f"{sentence}; {error}"
        return sentence

    def _end(self, lease: ChangeLease, state: ChangeState, sentence: str) -> Change:
        self.progress(f"{state}: {sentence}")
        if state is not ChangeState.DONE:
            self._take_back(lease)
        return lease.update(state=state, sentence=sentence, ended_at=self.clock.now())

    def _take_back(self, lease: ChangeLease) -> None:
        """Withdraws requests at the end of a plan: a pin would reserve a slot for a revision that
        no longer runs, and keep workers from serving their group [22].
        """
        if self.adopting is not None:
            return

        def without(targets: SlotTargets) -> SlotTargets | None:
            kept = targets.without_requests()
            return None if kept == targets else kept

        self.store.change_targets(self.spec.group, without, by=lease.change)


def _suppress_errors(progress: Progress) -> Progress:
    """Ignores errors of progress output: a full disk must not end a change [40]."""

    def tell(sentence: str) -> None:
        with contextlib.suppress(Exception):
            progress(sentence)

    return tell
