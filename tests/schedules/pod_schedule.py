"""A schedule on a cluster: the same faults, and those that only pods have; then an apply at peace.

The fleet is started by a manager, as it is there. What faults left is finished by the next
manager, and an apply after it has to end with just the pods that are wanted.
"""

import random
from dataclasses import replace

from fleet.errors import FleetError
from fleet.model import Plan, Step, StepKind
from fleet.slots import SlotTargets
from tests.schedules.schedule import EXACT, KINDS, OPENED, Fault, Played, Schedule, drawn
from tests.schedules.simulated_broker import GROUP
from tests.schedules.simulated_fleet import HEARTBEAT, SimulatedManager
from tests.schedules.simulated_pods import SimulatedPods
from tests.support.plans import TWO, plan_of, step_of

OF_PODS = ("evicted", "no room", "no controllers", "misnoted", "pod deleted", "abort")
BAD = ("ends early", "never starts", "fails in a batch")
"""What workers of a new revision may do."""
_LASTS = {"no room": (4.0, 16.0), "no controllers": (2.0, 20.0)}
_LONGER = 2.5
"""Times the seconds that a change takes where no pods have to come and go."""


def pods_drawn(seed: int, *, most: int = 4) -> Schedule:
    """The schedule of a seed: half of its faults are of pods."""
    found = drawn(
        seed, most=most, kinds=tuple(k for k in KINDS if k != "manager stops at the slot targets")
    )
    rng = random.Random(seed + 77)
    longer = rng.uniform(1.0, _LONGER)
    if not found.static and rng.random() < 0.4:
        found = replace(found, change="roll", count=0)
    faults = [replace(f, at=OPENED + max(0.0, f.at - OPENED) * longer) for f in found.faults]
    more = [_fault(rng, found.workers) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if not found.faults and rng.random() < EXACT:
        more = []
    if found.change == "roll" and rng.random() < 0.3:  # given up, the Deployment goes on to it
        more = [f for f in more if f.kind != "abort"]
        more.append(Fault(OPENED - 0.5, rng.choice(BAD)))
    both = sorted((*faults[: 1 if more else 2], *more), key=lambda f: f.at)
    return replace(found, faults=tuple(both), supervised=True)


def _fault(rng: random.Random, workers: int) -> Fault:
    kind = rng.choice(OF_PODS)
    lasts = rng.uniform(*_LASTS.get(kind, (0.0, 0.0)))
    at = OPENED + rng.uniform(0.0, 12.0 * _LONGER)
    return Fault(round(at, 3), kind, rng.randrange(workers), round(lasts, 3))


class PodsPlayed(Played):
    """See `Played`."""

    fleet: SimulatedPods

    def _made(self) -> SimulatedPods:
        s = self.schedule
        random.seed(s.seed)
        return SimulatedPods(s.seed, static=s.static, partitions=s.partitions)

    def _play(self) -> None:
        schedule, world = self.schedule, self.world
        self._shall = "old", frozenset(range(schedule.workers))
        self._begin()
        began = world.now - OPENED + 1.0
        if world.broken:
            return
        world.after(1.0, self._second)
        over = 18.0
        for fault in schedule.faults:
            world.at(began + fault.at, lambda f=fault: self._goes_wrong(f))
            over = max(over, fault.at - OPENED + abs(fault.lasts))
        self._over_at = world.now + over
        world.run(self._over_at)
        if schedule.faults:
            self._mend()
            world.run(world.now + 2 * HEARTBEAT)
        self._settle()
        if world.broken is None:
            self._apply()

    def _begin(self) -> None:
        """The first opening: not what is tried here."""
        fleet, world, workers = self.fleet, self.world, self.schedule.workers
        opener = SimulatedManager(fleet, "opener")

        def opens() -> None:
            fleet.publish(opener.runtime, "old")
            opener.runtime.start(GROUP, "old", workers + 1)
            opener.process.sleep(4.0)
            targets = SlotTargets(
                group=GROUP, open=frozenset(range(workers)), open_at=opener.process.now() + 1.0
            )
            opener.store.write_targets(targets)

        self._planned += 1
        opener.process.start(opens)
        until = world.now + 60.0

        def started() -> bool:
            return bool(fleet.memory_targets().open) and self._rests()

        while not started() and world.now < until and world.broken is None:
            world.run(world.now + 0.5)
        if not started():
            world.violated("the fleet does not start")

    def _manages(self, name: str, plan: Plan) -> SimulatedManager:
        manager = SimulatedManager(self.fleet, name)

        def begins() -> None:
            try:
                self.fleet.publish(manager.runtime, plan.revision)
            except FleetError as error:
                self.world.tell(name, f"cannot publish: {error}")
                return
            manager.begin(plan)

        manager.process.start(begins)
        return manager

    def _change(self, name: str, step: Step, kind: str) -> None:
        s = self.schedule
        count = {"up": s.count, "down": -s.count}.get(s.change, 0)
        shall = frozenset(range(s.workers + count))
        if (
            kind == "roll" and not s.static
        ):  # a rolling batch: others join beside those that leave then
            step = step_of(StepKind.ROLL, range(2 * s.workers), "new", TWO)
            shall = frozenset(range(s.workers, 2 * s.workers))
        self._shall = step.revision, shall
        self._planned += step.expected_cost.rebalances_max
        self._manages(name, plan_of(step, id=kind, revision=step.revision))

    def _changing(self) -> bool:
        change = self.fleet.memory_change()
        return change is not None and change.state.value == "running"

    def _goes_wrong(self, fault: Fault) -> None:
        if fault.kind in BAD:
            self.fleet.bad = fault.kind
            self.fleet.invariants.goes_back = not self.schedule.static
            self._allowed += 6
            return
        if fault.kind not in OF_PODS:
            super()._goes_wrong(fault)
            return
        fleet, world = self.fleet, self.world
        controllers = fleet.controllers
        name = self._worker(fault.who)
        world.tell("fault", f"{fault.kind} {name} for {fault.lasts:.1f} s")
        self._allowed += 4 if fault.kind in {"evicted", "pod deleted"} else 1
        if self._changing():
            self._allowed += 3 + self.schedule.count
        match fault.kind:
            case "evicted" | "pod deleted" if name:
                fleet.invariants.hurt(fleet.bodies[name].worker.process, until=world.now + 1)
                fleet.delete(name, drained=fault.kind == "evicted")
            case "no room":
                controllers.quota = len(fleet.pods()) + world.random.randint(0, 1)
                world.after(fault.lasts, self._room_again)
            case "no controllers":
                controllers.away_until = world.now + fault.lasts
            case "misnoted":
                controllers.misnote()
            case "abort":
                self._abort()

    def _room_again(self) -> None:
        """Just given up, a pod may come all the same: its ReplicaSet then has one too many."""
        self.fleet.controllers.quota = 1000
        self.fleet.excused_until = self.world.now + 10.0

    def _abort(self) -> None:
        """Its actor is killed, and a person gives the change up."""
        for manager in self.fleet.managers.values():
            if manager.active and manager.process.alive:
                self.world.tell(manager.name, "is killed")
                manager.active = False
                manager.process.kill()
                person = SimulatedManager(self.fleet, f"a{len(self.fleet.managers)}")
                person.active = True
                person.process.start(lambda who=person: self._aborts(who))
                return

    def _aborts(self, person: SimulatedManager) -> None:
        for _ in range(6):
            try:
                done = person.changes.abort(actor=person.name)
                if done is not None:
                    self.world.tell(person.name, "aborted")
                self.fleet.let_go = True  # where a slot runs the new template, that goes on
                person.runtime.finish_removals(GROUP, given_up=True)
                self.world.tell(person.name, "let go")
                break
            except FleetError as error:
                self.world.tell(person.name, f"abort: {error}")
                person.process.sleep(3.0)
        person.active = False

    def _mend(self) -> None:
        super()._mend()
        if self.fleet.controllers.quota < 1000:
            self._room_again()
        self.fleet.controllers.away_until = 0.0

    def _settle(self) -> None:
        """A change that was given up leaves slots that nobody has: the next apply sees to them."""
        if not self.fleet.let_go:
            super()._settle()
            return
        until = self.world.now + 120.0
        while self.world.now < until and any(
            m.active and m.process.alive for m in self.fleet.managers.values()
        ):
            self.world.run(self.world.now + 3.0)

    def _next_step(self) -> Step:
        """What is missing of what was wanted; what was rolled back is not wanted any more."""
        fleet = self.fleet
        targets, last = fleet.memory_targets(), fleet.memory_change()
        revision, wanted = self._shall
        if revision == "new" and (last is None or last.state.value != "done"):
            back = fleet.bad or (last is not None and last.state.value == "rolled back")
            if back or (not self.schedule.static and targets.open.isdisjoint(wanted)):
                revision, wanted = self._shall = "old", frozenset(range(self.schedule.workers))
        runs = {str(s.revision).partition("~")[0] for s in fleet.memory_slots() if s.owner}
        if wanted - targets.open:
            return step_of(StepKind.OPEN, sorted(wanted), revision)
        if targets.open - wanted:
            return step_of(StepKind.LEAVE, sorted(targets.open - wanted), revision)
        if runs != {revision}:
            return step_of(StepKind.ROLL, sorted(wanted), revision)
        return step_of(StepKind.WARM, (), revision)

    def _apply(self) -> None:
        """What was wanted, once more, with nothing wrong: as the next tick does."""
        fleet, world = self.fleet, self.world
        if fleet.let_go:  # who applies while its controller still acts by itself may try again
            world.run(world.now + 60.0)
        step = self._next_step()
        revision, slots = self._shall
        self._manages("last", plan_of(step, id="last", revision=revision))
        until = world.now + 240.0
        world.run(world.now + 2.0)
        while world.now < until and world.broken is None and not self._rests():
            world.run(world.now + 1.0)
        if world.broken is not None:
            return
        change = fleet.memory_change()
        if change is None or change.plan.id != "last" or change.state.value != "done":
            world.violated(f"K3: the last apply ended so: {change and change.sentence}")
            return
        world.run(world.now + 8.0)  # two probes
        fleet.check_pods(revision, len(slots) + 1)
