"""One group's fleet: workers and who keeps them alive, managers, store, coordinator, topic.

A manager is the product's own `Performer` and `GroupChanges` over the simulated store; its runtime
starts workers here, and its ledger counts the generations that the coordinator's model completed.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fleet.act import change as performing
from fleet.act.change import GroupChanges
from fleet.act.lease import ChangeLease
from fleet.config.spec import GroupSpec
from fleet.errors import FleetError, LostLease, Refused
from fleet.model import GroupState, Plan
from fleet.model.rebalances import RebalanceCounts
from fleet.slots import Change, Slot, SlotTargets, WorkerProcess
from fleet.slots.backend import Key, Kind, SlotTargetsRecord, Value
from fleet.slots.store import Store
from tests.schedules.invariants import Invariants
from tests.schedules.simulated_broker import GROUP, SimulatedBroker
from tests.schedules.simulated_group_side import Times
from tests.schedules.simulated_member import SimulatedMember
from tests.schedules.simulated_time import Mutex, Process, Simulation
from tests.schedules.simulated_topic import SimulatedTopic, Work
from tests.schedules.simulated_worker import SimulatedWorker
from tests.schedules.weather import Connection, Weather, store_of
from tests.support.declared import group_spec
from tests.support.memory_slots import Memory
from tests.support.rebalances import rebalance

LEASE, SESSION, HEARTBEAT, DRAIN, MAX_POLL = 9.0, 18.0, 3.0, 3.0, 18.0
TIMES = Times(session=SESSION, heartbeat=HEARTBEAT, max_poll=MAX_POLL, drain=DRAIN)
ROLLOUT = {"drain_timeout": DRAIN, "bake": 6, "canary_batches": 1}
REST = 2.0
"""Seconds from the end of a process to its next life."""
_SPECS: dict[bool, GroupSpec] = {}


def worker_of(*, static: bool, max_poll: float) -> dict[str, Any]:
    """What is declared of a worker."""
    return {
        "assignor": "range",
        "session_timeout": SESSION,
        "max_poll_interval": max_poll,
        "heartbeat_interval": HEARTBEAT,
        "membership": "static" if static else "dynamic",
        "start_from": "latest",
    }


def spec_of(*, static: bool) -> GroupSpec:
    """As fleet.yaml would have it."""
    if static not in _SPECS:
        _SPECS[static] = group_spec(
            GROUP,
            worker=worker_of(static=static, max_poll=MAX_POLL),
            replicas={"min": 0, "max": 20, "standby": 1},
            rollout=ROLLOUT,
            runtime={"kind": "local", "lease": LEASE},
        )
    return _SPECS[static]


class Body(NamedTuple):
    """A worker as its supervisor has it."""

    worker: SimulatedWorker
    wanted: bool
    restarts: int
    born: float


class SimulatedFleet:
    """See the module."""

    replaces_workers = False

    def __init__(self, seed: int, *, static: bool, partitions: int, supervised: bool) -> None:
        self.world = world = Simulation(seed)
        self.static, self.lease, self.times = static, LEASE, TIMES
        self.supervised = supervised
        """Whether somebody sees the end of a process and says so at once."""
        self.spec = spec_of(static=static)
        self.memory = Memory()
        self.weather = Weather()
        self.broker = SimulatedBroker(world, initial_delay=0.5)
        self.topic = SimulatedTopic(partitions, rate=2.0, before=50)
        self.bodies: dict[str, Body] = {}
        self.managers: dict[str, SimulatedManager] = {}
        self.invariants = Invariants(world, self.broker, self.topic, lease=LEASE, session=SESSION)
        self.broker.accepted = self.invariants.committed
        self._supervisor = Process("supervisor", world)
        self.frozen_until = 0.0
        """The machine with all its processes."""
        self._holding: dict[int, Process] = {}
        """Slot → who took it last."""
        self._known = 0

    # --- as it is stored, for who looks on --------------------------------------------------

    def memory_slots(self) -> list[Slot]:
        """All that were ever made."""
        return [e.value for e in self.memory.objects.values() if isinstance(e.value, Slot)]

    def memory_targets(self) -> SlotTargets:
        """The slot targets."""
        entry = self.memory.objects.get(Key(GROUP, Kind.TARGETS))
        found = None if entry is None else entry.value
        return found.targets if isinstance(found, SlotTargetsRecord) else SlotTargets(group=GROUP)

    def memory_change(self) -> Change | None:
        """The last one."""
        entry = self.memory.objects.get(Key(GROUP, Kind.CHANGE))
        return entry.value if entry is not None and isinstance(entry.value, Change) else None

    def process(self, name: str) -> Process:
        """A new one, on the machine that may be frozen."""
        made = Process(name, self.world)
        made.stopped_until = self.frozen_until
        return made

    # --- what workers have around them --------------------------------------------------------

    def store_for(self, process: Process) -> Store:
        """A connection of its own, under this process' weather."""
        return store_of(Connection(self.memory, process, self.weather, self._written), process)

    def batch_begins(self, worker: SimulatedWorker, member: SimulatedMember, work: Work) -> None:
        """A batch's part is written down, and looked at."""
        tenure = worker.tenure
        self.invariants.batch_begins(
            worker.process, member, work, None if tenure is None else tenure.lost_at
        )

    def ended(self, worker: SimulatedWorker, code: int, sentence: str) -> None:
        """A process ends by itself: a supervisor starts it again where it is wanted."""
        self.world.tell(worker.name, f"ended {code}: {sentence}")
        self.invariants.process_ended(worker.process, code, sentence)
        self.world.after(0.001, lambda: self._gone(worker))

    def _gone(self, worker: SimulatedWorker) -> None:
        body = self.bodies[worker.name]
        if body.worker is not worker:
            return
        if self.supervised:
            self._supervisor.start(lambda: self._end_owners(worker.name))
        if body.wanted:
            self.world.after(REST, lambda: self._again(worker.name))

    def _end_owners(self, name: str) -> None:
        store = self.store_for(self._supervisor)
        while True:
            try:
                for slot in store.slots(GROUP):
                    if slot.owner == name and not self.bodies[name].worker.process.alive:
                        store.end_owner(slot)
                return
            except FleetError:
                self._supervisor.sleep(1.0)

    def _again(self, name: str) -> None:
        body = self.bodies[name]
        if body.wanted and not body.worker.process.alive:
            self._born(name, body.worker.revision, body.restarts + 1)

    def _born(self, name: str, revision: str, restarts: int) -> None:
        process = self.process(name)
        self.world.tell(name, f"starts, revision {revision}")
        warm = (1.0 if self.world.now else 0.1) * (0.5 + self.world.random.random())
        since = 1.0 if revision == "new" else 0.0
        worker = SimulatedWorker(process, self, revision=revision, since=since, warm=warm)
        self.bodies[name] = Body(worker, True, restarts, self.world.now)

    def crash(self, name: str) -> None:
        """Its process is gone, as by kill -9."""
        body = self.bodies[name]
        if body.worker.process.alive:
            self.world.tell(name, "is killed")
            body.worker.process.kill()
            self._gone(body.worker)

    # --- as a Runtime --------------------------------------------------------------------------

    def ensure(self) -> None:
        """It runs."""

    def start(self, group: str, revision: str, count: int) -> tuple[str, ...]:
        """More workers."""
        names = []
        for _ in range(count):
            self._known += 1
            names.append(f"w{self._known}")
            self._born(names[-1], revision, 0)
        return tuple(names)

    def remove(self, names: Sequence[str], *, grace: float) -> None:
        """SIGTERM, and SIGKILL after the grace."""
        for name in names:
            body = self.bodies.get(name)
            if body is None or not body.wanted:
                continue
            self.world.tell(name, "is asked to go")
            self.bodies[name] = body._replace(wanted=False)
            worker = body.worker
            if worker.process.alive:
                worker.process.later(0.0, worker.stop)
                self.world.after(grace + 2.0, lambda w=worker: self._kill_late(w))

    def _kill_late(self, worker: SimulatedWorker) -> None:
        if worker.process.alive:
            self.invariants.hurt(worker.process)
            self.crash(worker.name)

    def workers(self, group: str | None = None) -> tuple[WorkerProcess, ...]:
        """Those that are wanted, or live."""
        return tuple(
            WorkerProcess(
                name=name,
                group=GROUP,
                revision=body.worker.revision,
                wanted=body.wanted,
                running=body.worker.process.alive,
                restarts=0,
            )
            for name, body in self.bodies.items()
            if body.wanted or body.worker.process.alive
        )

    def published(self, group: str, revision: str) -> str | None:
        """Nothing is kept."""
        return None

    def finish_removals(self, group: str, *, failed: bool = False, given_up: bool = False) -> None:
        """Removals go on by themselves."""

    # --- what managers have around them -------------------------------------------------------

    def runtime_for(self, manager: Process, store: Any) -> Any:
        """Where it starts workers and asks them to go, as this manager sees it."""
        return self

    def store_of_manager(self, manager: Process) -> Any:
        """As a worker's."""
        return self.store_for(manager)

    # --- as a Ledger ----------------------------------------------------------------------------

    def position(self, group: str) -> int | None:
        """As many generations as were completed."""
        return len(self.broker.rounds)

    def counted(self, group: str, since: int) -> RebalanceCounts | None:
        """From there on."""
        rounds = self.broker.rounds
        made = tuple(
            rebalance(r.generation, r.at, joined=r.joined, left=r.left) for r in rounds[since:]
        )
        last = rounds[-1].generation if rounds else None
        return RebalanceCounts(group=GROUP, generations=made, replacements=0, to_generation=last)

    def state(self, group: str) -> GroupState:
        """As AdminClient has it."""
        found = self.broker.group
        return GroupState.EMPTY if found is None else GroupState(found.state.value)

    # --- what is written -------------------------------------------------------------------------

    def _written(self, before: Value | None, after: Value, process: Process) -> None:
        """Who waits for it hears of it; what must hold of it is looked at."""
        manager = self.managers.get(process.name)
        if isinstance(after, Slot):
            self._slot_written(before, after, process)
        elif isinstance(after, SlotTargetsRecord):
            old = before if isinstance(before, SlotTargetsRecord) else None
            token = None if manager is None else manager.token
            self.invariants.targets_written(old, after, process, token)
            if old is None or old.targets != after.targets:
                self._ring(lambda _: True)
        elif isinstance(before, Change) and before.actor != after.actor:
            self.invariants.changes_hands(after.token)
            former = self.managers.get(before.actor)
            if former is not None and before.token != after.token and former.active:
                self.invariants.adopted(former.process, process)

    def _slot_written(self, before: Value | None, after: Slot, process: Process) -> None:
        old = before if isinstance(before, Slot) else Slot(group=GROUP, number=after.number)
        if after.owner is not None and after.token != old.token:
            self.invariants.taken(old, after, self._holding.get(after.number))
            self._holding[after.number] = process
        self.invariants.slot_written(after.number)
        if after.owner is None or after.owner_ended:
            self._ring(lambda worker: worker.tenure is None)
        elif after.phase is not old.phase and after.phase.value in {"drained", "closed"}:
            self._ring(lambda worker: worker.tenure is not None)

    def _ring(self, chosen: Callable[[SimulatedWorker], bool]) -> None:
        for body in self.bodies.values():
            worker = body.worker
            if worker.process.alive and chosen(worker):
                worker.bell.ring(0.05 * self.world.random.random())


class _Kept(ChangeLease):
    """Renewed by a thread of its process instead of one of this machine."""

    def __init__(self, store: Store, change: Change, *, lease: float, process: Process) -> None:
        super().__init__(store, change, lease=lease)
        self._lock = Mutex(process)
        self._process = process

    def __enter__(self) -> "_Kept":
        self._process.start(self._renew)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _wait(self) -> bool:
        self._process.sleep(self._interval)
        return self._stop.is_set()


class _Window:
    """No classic group has one."""

    def restore(self) -> bool:
        """Nothing to put back."""
        return False


class SimulatedManager:
    """One actor, in a process of its own."""

    def __init__(self, fleet: SimulatedFleet, name: str) -> None:
        self.fleet, self.name = fleet, name
        self.process = fleet.process(name)
        self.store = fleet.store_of_manager(self.process)
        self.token: int | None = None
        self.active = False
        """Whether it carries a change out."""
        self.done: list[Change] = []
        fleet.managers[name] = self
        ledger: Any = fleet
        window: Any = _Window()
        self.runtime = fleet.runtime_for(self.process, self.store)
        self.performer = performing.Performer(
            spec=fleet.spec,
            store=self.store,
            runtime=self.runtime,
            ledger=ledger,
            leave=fleet.broker.leave_by(self.process),
            window=window,
            clock=self.process,
            progress=lambda line: fleet.world.tell(name, line.strip()),
            poll=0.5,
        )
        self.performer.keep = self._kept  # type: ignore[method-assign]
        self.changes = GroupChanges(
            group=GROUP,
            store=self.store,
            clock=self.process,
            lease=LEASE,
            perform=lambda change, _: self._perform(change),
        )

    def _kept(self, change: Change) -> ChangeLease:
        return _Kept(self.store, change, lease=self.fleet.spec.runtime.lease, process=self.process)

    def begin(self, plan: Plan) -> None:
        """Carry a plan out."""
        self.process.start(
            lambda: self._all(lambda: self.changes.begin(plan, actor=self.name, progress=self._say))
        )

    def resume(self, *, tries: int) -> None:
        """Pick an unfinished change up, if its actor is dead; look again later where it lives."""

        def looks() -> None:
            for _ in range(tries):
                with suppress(FleetError):
                    if self.changes.resume(actor=self.name, progress=self._say) is not None:
                        return
                self.process.sleep(3.0)

        self.process.start(looks)

    def _say(self, line: str) -> None:
        self.fleet.world.tell(self.name, line)

    def _all(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except Refused as error:
            self._say(f"is refused: {error}")
        except FleetError as error:
            self._say(f"ends: {error}")

    def _perform(self, change: Change) -> Change:
        self.token, self.active = change.token, True
        try:
            done = self.performer.perform(change)
            self.done.append(done)
            self.fleet.invariants.change_ended(done)
            return done
        except LostLease as error:
            self._say(f"lost its change: {error}")
            raise
        finally:
            self.active = False
