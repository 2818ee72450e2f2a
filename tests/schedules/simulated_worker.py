"""A worker's process: standby, owner, standby again.

All of it is the product's own (`SlotWatcher`, `SlotOwner`, `SlotLease`, `LeaveCompleter`, the
store), on simulated time: here is the loop of a standby, as `fleet.worker.slot.process` has it, and
what stands in for threads, the consumer, Spark and the status page.
"""

from types import SimpleNamespace
from typing import Any, Protocol

from fleet.config.spec import GroupSpec
from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Slot, WorkerReport
from fleet.slots.store import Store
from fleet.worker.events import Events, WorkerContext
from fleet.worker.member.member_state import MemberState
from fleet.worker.slot.leave_completion import Failover, LeaveCompleter
from fleet.worker.slot.reporting import Canary
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from fleet.worker.slot.slot_owner import SlotOwner
from tests.schedules.simulated_broker import GROUP, SimulatedBroker
from tests.schedules.simulated_group_side import Times
from tests.schedules.simulated_member import SimulatedMember
from tests.schedules.simulated_time import Bell, Mutex, Process
from tests.schedules.simulated_topic import SimulatedTopic, Work
from tests.support.declared import settings_of

LONGEST_WAIT = 30.0


class Told(Events):
    """What a process says goes into the story."""

    def __init__(self, process: Process) -> None:
        super().__init__(worker=process.name, clock=process, environ={})
        self._process = process

    def log(self, sentence: str) -> None:
        """One line."""
        self._process.world.tell(self._process.name, sentence)

    def log_rarely(self, sentence: str, *, every: float = 30.0, key: str | None = None) -> None:
        """The same."""
        if self._process.world.story is not None:
            super().log_rarely(sentence, every=every, key=key)


class Surroundings(Protocol):
    """What a worker has around it, and who looks on."""

    spec: GroupSpec
    broker: SimulatedBroker
    topic: SimulatedTopic
    static: bool
    lease: float
    times: Times

    def store_for(self, process: Process) -> Store:
        """A connection of its own."""
        ...

    def batch_begins(self, worker: "SimulatedWorker", member: SimulatedMember, work: Work) -> None:
        """The entrypoint is called."""
        ...

    def ended(self, worker: "SimulatedWorker", code: int, sentence: str) -> None:
        """Its process ends by itself."""
        ...


class SimulatedWorker:
    """One life of a worker's process; to its owner it is `stop` and `reporter` as well."""

    def __init__(
        self, process: Process, around: Surroundings, *, revision: str, since: float, warm: float
    ) -> None:
        self.process, self.around = process, around
        self.name = process.name
        self.revision = revision
        self.since = since
        self.bell = Bell(process)
        self.ending = False
        self.phase = "starting"
        self.tenure: SimulatedOwner | None = None
        self.store = around.store_for(process)
        self.events = Told(process)
        self.context = WorkerContext(
            settings=settings_of(around.spec, revision=revision),
            name=self.name,
            clock=process,
            events=self.events,
            stop=self,  # type: ignore[arg-type]
        )
        self.canary = Canary(self.context)
        lease = around.lease
        self.watcher = SlotWatcher(self.store, group=GROUP, lease=lease, clock=process)
        self.leave = around.broker.leave_by(process)
        self.completer = LeaveCompleter(self.context, self.store, leave=self.leave)
        self.reported = False
        """Whether what it last said of itself is stored."""
        self._serving: tuple[int, MemberState] | None = None
        """Slot and state of its member."""
        self._news: object = None
        self._counter = 0
        self._told_at = 0.0
        self._warm = warm
        process.start(self._live)

    def stop(self) -> None:
        """SIGTERM."""
        self.ending = True
        self.bell.ring()

    # --- as its owner's Event ----------------------------------------------------------------

    def is_set(self) -> bool:
        """Whether it is to end."""
        return self.ending

    def wait(self, seconds: float) -> bool:
        """The same, so much later."""
        if not self.ending:
            self.process.sleep(seconds)
        return self.ending

    # --- as its owner's Reporter --------------------------------------------------------------

    def member(self, slot: int, state: MemberState) -> None:
        """A membership begins."""
        self._serving = slot, state

    def membership_ended(self) -> None:
        """It is over."""
        self._serving = None

    def on_renewed(self) -> None:
        """Where there is news: others read of it only that."""
        state = self._serving and self._serving[1]
        news = state and (state.reported_phase, state.joined_at)
        if news != self._news or not self.reported:
            self._news = news
            self.report()

    def failed(self, sentence: str) -> None:
        """It ends soon."""

    def report(self) -> None:
        """What it says of itself."""
        self._counter, self._told_at = self._counter + 1, self.process.monotonic()
        slot, state = self._serving or (None, None)
        report = WorkerReport(
            worker=self.name,
            group=GROUP,
            revision=self.revision,
            phase=self.phase if state is None else str(state.reported_phase),
            slot=slot,
            counter=self._counter,
            http_port=None,
            since=self.since,
            joined_at=None if state is None else state.joined_at,
        )
        try:
            self.store.report(report)
            self.reported = True
        except Unreachable as error:
            self.reported = False
            self.events.log_rarely(str(error))

    # --- its life -----------------------------------------------------------------------------

    def rest(self, longest: float = LONGEST_WAIT) -> None:
        """Until something is rung, or the next look is due."""
        self.bell.wait(min(longest, 1.4 + 1.2 * self.process.world.random.random()))

    def _live(self) -> None:
        self.report()
        self.process.sleep(self._warm)
        self.phase = "standby"
        self.report()
        ended: tuple[int, str] | None = None
        try:
            while ended is None and not self.ending:
                ended = self._look_for_a_slot()
        except FleetError as error:  # as the product: whoever cannot give a slot up ends
            ended = 1, f"its slot could not be given up: {error}"
        self.around.ended(self, *(ended or (0, "asked to end")))
        self.process.end()

    def _look_for_a_slot(self) -> tuple[int, str] | None:
        self.completer.check(self.watcher)
        if not self.reported:
            self.report()
        found = self.watcher.takeable_slots(
            worker=self.name, revision=self.revision, since=self.since
        )
        for seen in found[:1]:
            owner = SimulatedOwner(self, seen, self.watcher.void.get(seen.number))
            if not owner.take():
                self.watcher.forget()
                self.process.sleep(0.05)
                return None
            self.tenure = owner
            ended = owner.serve()
            self.tenure = None
            if ended is None:
                self.phase = "standby"
                self.report()
            return ended
        # As Reporter.beat: a third of the lease after the last report.
        due = self._told_at + self.around.lease / 3 - self.process.monotonic()
        if due <= 0:
            self.report()
        self.rest(self.around.lease / 3 if due <= 0 else due)
        return None


class SimulatedLease(SlotLease):
    """Its thread is one of a simulated process."""

    lost_at: float | None = None

    def __init__(self, worker: SimulatedWorker, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, lock=Mutex(worker.process))
        self._worker = worker
        self._wake = Bell(worker.process)  # type: ignore[assignment]

    def start(self) -> None:
        """As a thread of the process."""
        self._worker.process.start(self._renew_on)

    def _confirm(self) -> bool | None:
        ours = super()._confirm()
        if ours is False and self.lost_at is None:
            self.lost_at = self._worker.process.monotonic()
            self._events.log(f"{self.lost}: stopping at once")
            self._worker.bell.ring()
        return ours


class SimulatedOwner(SlotOwner):
    """Over a member, and without Spark."""

    def __init__(self, worker: SimulatedWorker, seen: Slot, void: Handover | None) -> None:
        self._worker = worker
        context = worker.context
        spark: Any = SimpleNamespace(session_id=None, watch=lambda: None)
        super().__init__(
            context,
            seen,
            void,
            watcher=worker.watcher,
            completer=worker.completer,
            failover=Failover(context, leave=worker.leave),
            runner=spark,
            reporter=worker,  # type: ignore[arg-type]
        )
        nobody: Any = SimpleNamespace(step=lambda *_: None, end=lambda: None)
        self._orphans = nobody

    @property
    def lost_at(self) -> float | None:
        """When it heard that its slot is somebody else's."""
        return self._lease.lost_at  # type: ignore[attr-defined]

    @property
    def member(self) -> SimulatedMember | None:
        """While it is one."""
        return self._membership  # type: ignore[return-value]

    def _new_lease(self, slot: Slot) -> SlotLease:
        context = self._context
        return SimulatedLease(
            self._worker,
            self._store,
            slot,
            lease=context.lease,
            fields=self._fields,
            clock=self._clock,
            events=self._events,
            after=self._worker.on_renewed,
        )

    def _new_membership(self, open_at: float) -> Any:
        worker, around = self._worker, self._worker.around
        return SimulatedMember(
            worker.process,
            around.broker,
            around.topic,
            instance=self._lease.slot.instance_id() if around.static else None,
            times=around.times,
            open_at=open_at,
            may_join=self._lease.may_join,
            changed=worker.bell.ring,
            rest=worker.rest,
            begins=lambda who, work: around.batch_begins(worker, who, work),
        )
