"""A worker's process: standby, holder, standby again; its threads only carry out.

What a standby may take, what a holder does next, what a renewal means and who completes a leave is
the product's own (`SlotWatcher`, `SlotLife`, `SlotLease`, `LeaveCompleter`, the store); here are
the loops around them, as `fleet.worker.slot.process` and `SlotHolder` have them.
"""

from typing import Any, Protocol

from fleet.errors import FleetError, Unreachable
from fleet.slots import Handover, Slot, WorkerReport
from fleet.slots.store import Store
from fleet.worker.events import Events
from fleet.worker.member.member_state import End
from fleet.worker.slot.leave_completion import LeaveCompleter, all_drained
from fleet.worker.slot.slot_holder import shut, without_rejoin
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from fleet.worker.slot.slot_life import HolderLook, LastAct, SlotLife
from tests.schedules.simulated_broker import GROUP, SimulatedBroker
from tests.schedules.simulated_group_side import Times
from tests.schedules.simulated_member import SimulatedMember
from tests.schedules.simulated_time import Bell, Mutex, Process
from tests.schedules.simulated_topic import SimulatedTopic, Work

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
    """One life of a worker's process."""

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
        self.tenure: Tenure | None = None
        self.store = around.store_for(process)
        self.events = Told(process)
        lease = around.lease
        self.watcher = SlotWatcher(self.store, group=GROUP, lease=lease, clock=process)
        self.leave = around.broker.leave_by(process)
        self.completer = LeaveCompleter(
            self.store,
            group=GROUP,
            static=around.static,
            lease=lease,
            leave=self.leave,
            clock=process,
            events=self.events,
        )
        self.reported = False
        """Whether what it last said of itself is stored."""
        self._counter = 0
        self._told_at = 0.0
        self._warm = warm
        process.start(self._live)

    def stop(self) -> None:
        """SIGTERM."""
        self.ending = True
        self.bell.ring()

    def report(self) -> None:
        """What it says of itself."""
        self._counter, self._told_at = self._counter + 1, self.process.monotonic()
        tenure = self.tenure
        held = tenure is not None
        report = WorkerReport(
            worker=self.name,
            group=GROUP,
            revision=self.revision,
            phase=str(tenure.member.state.told) if tenure and tenure.member else self.phase,
            slot=tenure.held.slot.number if tenure else None,
            counter=self._counter,
            http_port=None,
            since=self.since,
            joined_at=tenure.member.state.joined_at if tenure and held and tenure.member else None,
        )
        try:
            self.store.report(report)
            self.reported = True
        except Unreachable as error:
            self.reported = False
            self.events.log_rarely(str(error))

    def rest(self, longest: float = LONGEST_WAIT) -> None:
        """Until something is rung, or the next look is due."""
        self.bell.wait(min(longest, 1.4 + 1.2 * self.process.world.random.random()))

    def _live(self) -> None:
        self.report()
        self.process.sleep(self._warm)
        self.phase = "standby"
        self.report()
        ended = None
        while ended is None and not self.ending:
            ended = self._look_for_a_slot()
        if ended is None:
            self.around.ended(self, 0, "asked to end")
        else:
            self.around.ended(self, *ended)
        self.process.end()

    def _look_for_a_slot(self) -> tuple[int, str] | None:
        self.completer.see(self.watcher)
        if not self.reported:
            self.report()
        for seen in self.watcher.takeable(
            worker=self.name, revision=self.revision, since=self.since
        ):
            slot = self._take(seen, self.watcher.void.get(seen.number))
            if slot is not None:
                self.tenure = Tenure(self, slot)
                ended = self.tenure.serve(seen)
                self.tenure = None
                self.watcher.forget()
                if ended is None:
                    self.phase = "standby"
                    self.report()
                return ended
            self.watcher.forget()
            self.process.sleep(0.05)
            return None
        # As Reporter.beat: a third of the lease after the last report.
        due = self._told_at + self.around.lease / 3 - self.process.monotonic()
        if due <= 0:
            self.report()
        self.rest(self.around.lease / 3 if due <= 0 else due)
        return None

    def _take(self, seen: Slot, void: Handover | None) -> Slot | None:
        try:
            slot = self.store.take(
                seen,
                worker=self.name,
                revision=self.revision,
                spark_session=None,
                lease=self.around.lease,
                void=void,
            )
        except Unreachable as error:
            self.events.log_rarely(str(error))
            return None
        if slot is not None:
            self.events.log(f"takes slot {slot.number} (token {slot.token}, was {seen.holder})")
        return slot


class Tenure:
    """What one holder has; carries out what `SlotLife` says."""

    def __init__(self, worker: SimulatedWorker, slot: Slot) -> None:
        self.worker = worker
        self.member: SimulatedMember | None = None
        self.lost_at: float | None = None
        around, process = worker.around, worker.process
        self.held = SlotLease(
            worker.store,
            slot,
            lease=around.lease,
            fields=self._fields,
            clock=process,
            events=worker.events,
            lock=Mutex(process),
        )
        self.life = SlotLife(
            number=slot.number,
            instance_id=slot.instance_id(),
            token=slot.token,
            static=around.static,
            window=around.times.session,
        )
        self._wake = Bell(process)
        self._stopped = False
        self._told: tuple[Any, ...] = ()
        self._reported: object = None
        process.start(self._keep)

    # --- the lease's thread -----------------------------------------------------------------

    def _keep(self) -> None:
        while True:
            self._wake.wait(self.held.pause)
            if self._stopped:
                return
            if not self.held.renew():
                self.lost_at = self.worker.process.monotonic()
                self.worker.events.log(f"{self.held.lost}: stopping at once")
                self.worker.bell.ring()
                return
            self._report()

    def _report(self) -> None:
        """Where there is news: others read of it only that."""
        state = self.member.state if self.member is not None else None
        news = state and (state.told, state.joined_at)
        if news != self._reported or not self.worker.reported:
            self._reported = news
            self.worker.report()

    def _fields(self) -> dict[str, Any]:
        if self.member is None:
            return {}
        state = self.member.state
        known = {} if state.member_id is None else {"member_id": state.member_id}
        return {"phase": state.told, "batches": state.batches, "error": state.error, **known}

    # --- the holder's -------------------------------------------------------------------------

    def serve(self, seen: Slot) -> tuple[int, str] | None:
        """Until the slot is given up."""
        worker = self.worker
        if seen.member_id is not None and not worker.around.static:
            try:
                worker.leave(GROUP, [(None, seen.member_id)])
            except FleetError as error:
                worker.events.log(str(error))
        while True:
            ended = self._one_membership()
            ours = self._is_ours() if ended.how is End.FENCED else None
            now = worker.process.monotonic()
            last = self.life.ended(ended, lost=self.held.lost, ours=ours, now=now, cured=True)
            assert last is not None
            if last.again is None:
                return self._end(last)
            worker.events.log(last.again)

    def _is_ours(self) -> bool | None:
        """As SlotHolder has it."""
        while True:
            ours = self.held.confirm()
            if ours is not None:
                return ours
            if self.worker.ending:
                return None
            self.worker.process.sleep(1.0)

    def _one_membership(self) -> Any:
        worker = self.worker
        around, process = worker.around, worker.process
        slot = self.held.slot
        self.life.begins()
        member = self.member = SimulatedMember(
            process,
            around.broker,
            around.topic,
            instance=slot.instance_id() if around.static else None,
            times=around.times,
            may_join=self.held.may_join,
            changed=worker.bell.ring,
            begins=lambda who, work: around.batch_begins(worker, who, work),
        )
        member.start(min(worker.watcher.gate.open_at, process.now() + LONGEST_WAIT))
        while member.ended is None:
            self._tick(member)
            if member.ended is None:
                worker.rest()
        return member.ended

    def _tick(self, member: SimulatedMember) -> None:
        worker, state = self.worker, member.state
        if self.held.lost is None:
            told = (state.told, state.joined_at, state.member_id, min(state.batches, 10))
            if told != self._told:
                self._told = told
                self._wake.ring()
            worker.completer.see(worker.watcher)
        watcher = worker.watcher
        told = self.life.look(
            HolderLook(
                gate=watcher.gate,
                phase=state.phase,
                stored=self.held.slot.phase,
                joined_at=state.joined_at,
                all_drained=all_drained(watcher.gate, watcher.slots, watcher.dead()),
                ending=worker.ending,
                lost=self.held.lost is not None,
            )
        )
        if told is None:
            return
        if told.why is not None:
            worker.events.log(f"slot {self.held.slot.number}: draining: {told.why}")
        if not told.rejoined:
            member.become(told.life)
            return
        slot = self.held.slot.number
        try:
            worker.store.change_gate(GROUP, lambda gate: without_rejoin(gate, slot))
        except Unreachable as error:
            worker.events.log_rarely(str(error))
        watcher.forget()

    def _end(self, last: LastAct) -> tuple[int, str] | None:
        self._stopped = True
        self._wake.ring()
        worker = self.worker
        if not last.ours:
            assert last.exit is not None
            return 1, last.exit
        try:
            if last.shut:
                worker.store.change_gate(GROUP, lambda gate: shut(gate, self.held.slot.number))
            ours = self.held.release(clean=last.clean, closed=last.closed, gone=last.gone)
        except FleetError as error:  # as the product: whoever cannot give up ends
            return 1, f"slot {self.held.slot.number} could not be given up: {error}"
        if last.exit is not None:
            return 1, last.exit
        if not ours:
            return 1, f"slot {self.held.slot.number} was taken while it was drained: stopped"
        worker.watcher.released(self.held.slot, handed=last.handed)
        worker.events.log(f"released slot {self.held.slot.number}, clean {last.clean}")
        return None
