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

from fleet.act.join_window import JoinWindow
from fleet.act.lease import ChangeLease
from fleet.act.runtime import Runtime
from fleet.act.standby_pool import HeardReports, StandbyPool
from fleet.act.steps import cost, kinds
from fleet.act.steps.adopting import Adopting
from fleet.act.steps.step_memory import StopMemory
from fleet.act.steps.work import Leave, Ledger, StepWork, traceback_of
from fleet.clock import Clock
from fleet.config.spec import ConsumerWorker, GroupSpec
from fleet.errors import FleetError, LostLease, RolledBack, Unreachable
from fleet.model import Receipt, Step, Verdict
from fleet.slots import Change, ChangeState, Gate
from fleet.slots.codec import as_json
from fleet.slots.store import Store
from fleet.text import plural

Progress = Callable[[str], None]
Keep = Callable[[Store, Change, float], ChangeLease]
"""Holds a change for whoever carries it out, by a lease of so many seconds."""


def _keep(store: Store, change: Change, lease: float) -> ChangeLease:
    return ChangeLease(store, change, lease=lease)


@dataclass(kw_only=True)
class Performer:
    """Performs changes of one group."""

    spec: GroupSpec
    store: Store
    runtime: Runtime
    ledger: Ledger
    leave: Leave
    window: JoinWindow
    clock: Clock
    progress: Progress
    poll: float = 0.1
    keep: Keep = _keep
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
        with self.keep(self.store, change, self.spec.runtime.lease) as lease:
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
            receipt = self._one_step(lease, step)
            kept = as_json(lease.recall(StopMemory), known=True)
            lease.update(step=index + 1, receipts=(*lease.change.receipts, receipt), detail=kept)
            held = len(plan.steps) - index - 1
            if receipt.verdict is Verdict.DIFFERS and held:
                why = " ".join(receipt.sentences)
                raise FleetError(
                    f"step {index + 1} cost {receipt.ours} rebalances where {step.price} was "
                    f"expected: {plural(held, 'step')} not carried out. {why}".strip()
                )
        self._tidy(plan.revision)
        self.runtime.finish_removals(self.spec.group)
        differs = [r for r in lease.change.receipts if r.verdict is Verdict.DIFFERS]
        sentence = "done; the receipt differs from the plan" if differs else "done, as planned"
        return self._end(lease, ChangeState.DONE, sentence)

    def _one_step(self, lease: ChangeLease, step: Step) -> Receipt:
        work = self._work(lease)
        cost.begin(work, step)
        try:
            if self.adopting is not None:
                notes = self.adopting.perform(step, lease)
            else:
                notes = kinds.perform(work, step)
        except RolledBack as error:
            receipt = cost.receipt(work, step, (str(error),))
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
        return cost.receipt(work, step, notes)

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
        wanted = self.spec.replicas.standby if self.store.gate(self.spec.group).open else 0
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
