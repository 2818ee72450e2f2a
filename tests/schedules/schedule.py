"""A schedule: a fleet, a change, faults; drawn by seed, played, shrunk, told.

Times are seconds. The group is opened first (its own change); what happens then, and when, is all
in the schedule, so that a part of it can be taken out and the rest be played again.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from fleet.model import Step, StepKind
from fleet.slots import SlotTargets
from tests.schedules.simulated_broker import GROUP
from tests.schedules.simulated_fleet import (
    DRAIN,
    HEARTBEAT,
    LEASE,
    SESSION,
    SimulatedFleet,
    SimulatedManager,
)
from tests.schedules.simulated_time import Process
from tests.schedules.weather import Sky
from tests.support.plans import FREE, ONE, plan_of, step_of

OPENED = 5.0
"""When the first change is over, if nothing comes between."""
CHANGED = 21.0
"""When the second one is, about."""
EXACT = 0.5
"""Share of the schedules without faults, in which everything costs what was planned."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, when, for whom, for how long."""

    at: float
    kind: str
    who: int = 0
    """A worker, by its number; managers have none."""
    lasts: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """See the module."""

    seed: int
    workers: int
    static: bool
    partitions: int
    change: str
    """none, up, down, roll, rejoin, stop."""
    count: int
    """Slots that it opens or closes."""
    supervised: bool
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        kind = "static" if self.static else "dynamic"
        told = "".join(
            f"\n  {f.at:6.1f} s  {f.kind} (worker {f.who}, {f.lasts:.1f} s)" for f in self.faults
        )
        return (
            f"seed {self.seed}: {self.workers} {kind} workers, {self.partitions} partitions, "
            f"change {self.change} {self.count}, "
            f"{'' if self.supervised else 'not '}supervised{told}"
        )


STORE = ("store away", "store slow", "store read only")
ONE_WORKER = ("crash", "pause", "cut off", "clock", "own store away", "own store read only", "term")
MANAGER = (
    "manager crash",
    "manager pause",
    "manager stops at the slot targets",
    "rival",
    "manager store away",
)
KINDS = (*STORE, *ONE_WORKER, *ONE_WORKER, *MANAGER, *MANAGER, "freeze", "coordinator", "freeze")


def drawn(seed: int, *, most: int = 12, kinds: tuple[str, ...] = KINDS) -> Schedule:
    """The schedule of a seed; most: workers. kinds: of faults; of managers' alone there is always
    one, and always a change.
    """
    managers = set(kinds) <= set(MANAGER)
    rng = random.Random(seed * 2654435761 % 2**31)
    workers = min(most, rng.choice((3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 5, 6, 8, 12)))
    static = rng.random() < 0.75
    changes = ("none", "up", "down", "roll", "roll", "rejoin") if static else ("none", "up", "down")
    changes = changes[1:] if managers else changes
    change = rng.choice(changes)
    most_count = {"up": 3, "down": workers - 1, "rejoin": 1}.get(change, 0)
    count = rng.randint(1, most_count) if most_count else 0
    faults: tuple[Fault, ...] = ()
    if rng.random() >= EXACT * 0.5 or managers:
        several = range(rng.choice((1, 1, 2, 3)))
        faults = tuple(sorted((_fault(rng, workers, kinds) for _ in several), key=_when))
    return Schedule(
        seed=seed,
        workers=workers,
        static=static,
        partitions=workers + rng.randint(0, 3),
        change=change,
        count=count,
        supervised=rng.random() < 0.5,
        faults=faults,
    )


def _when(fault: Fault) -> float:
    return fault.at


def _fault(rng: random.Random, workers: int, kinds: tuple[str, ...]) -> Fault:
    kind = rng.choice(kinds)
    lasts = {
        "store away": (2.0, 16.0),
        "store slow": (3.0, 12.0),
        "store read only": (LEASE + 1.0, 15.0),
        "pause": (1.0, 28.0),
        "cut off": (2.0, 28.0),
        "own store away": (4.0, 18.0),
        "own store read only": (4.0, 18.0),
        "freeze": (4.0, SESSION - 6.0),
        "coordinator": (0.2, 6.0),
        "manager pause": (2.0, 20.0),
        "manager stops at the slot targets": (LEASE + 2.0, LEASE + 12.0),
        "manager store away": (2.0, 16.0),
        "clock": (-20.0, 20.0),
    }.get(kind, (0.0, 0.0))
    late = OPENED + 6.0 if kind in MANAGER else CHANGED - 4.0
    at = rng.uniform(OPENED - 1.0 if kind not in MANAGER else OPENED, late)
    return Fault(round(at, 3), kind, rng.randrange(workers), round(rng.uniform(*lasts), 3))


class Played:
    """One schedule on its way; `broken` is what did not hold."""

    def __init__(self, schedule: Schedule, *, told: bool = False) -> None:
        self.schedule = schedule
        self.fleet = fleet = self._made()
        self.world = fleet.world
        if told:
            self.world.story = []
        self._planned = 0
        self._allowed = 0
        """Generations that faults explain."""
        self._over_at = CHANGED if schedule.change != "none" else OPENED + 4.0
        self._play()
        self.world.end()

    @property
    def broken(self) -> str | None:
        """What did not hold."""
        return self.world.broken

    def _made(self) -> SimulatedFleet:
        schedule = self.schedule
        return SimulatedFleet(
            schedule.seed,
            static=schedule.static,
            partitions=schedule.partitions,
            supervised=schedule.supervised,
        )

    def _play(self) -> None:
        schedule, fleet, world = self.schedule, self.fleet, self.world
        fleet.start(GROUP, "old", schedule.workers + 1)
        world.at(0.3, self._open)
        world.at(OPENED, self._second)
        for fault in schedule.faults:
            world.at(fault.at, lambda f=fault: self._goes_wrong(f))
            self._over_at = max(self._over_at, fault.at + abs(fault.lasts))
        world.run(self._over_at)
        if schedule.faults:
            self._mend()
            world.run(self._over_at + 2 * HEARTBEAT)
        self._settle()

    def _open(self) -> None:
        """The first opening: not what is tried here."""
        opener = Process("opener", self.world)
        store = self.fleet.store_for(opener)
        targets = SlotTargets(
            group=GROUP, open=frozenset(range(self.schedule.workers)), open_at=opener.now() + 0.4
        )
        self._planned += 1
        opener.start(lambda: store.write_targets(targets))

    def _settle(self) -> None:
        """Until nothing is under way, with an end to grace period; then what holds at rest."""
        fleet, world = self.fleet, self.world
        grace = world.now + 150.0
        while world.now < grace and world.broken is None and not self._rests():
            if not any(m.process.alive and m.active for m in fleet.managers.values()):
                self._pick_up()
            world.run(world.now + 3.0)
        if world.broken is not None:
            return
        invariants = fleet.invariants
        slots = {s.number: s for s in fleet.memory_slots()}
        living = {n for n, b in fleet.bodies.items() if b.worker.process.alive}
        invariants.ended(fleet.memory_change(), fleet.memory_targets())
        invariants.at_rest(slots, fleet.memory_targets().open, living)
        invariants.budget(self._planned, self._allowed)
        if not self.schedule.faults:
            invariants.as_planned()

    def _rests(self) -> bool:
        fleet = self.fleet
        if any(m.process.alive and m.active for m in fleet.managers.values()):
            return False
        targets, change = fleet.memory_targets(), fleet.memory_change()
        slots = {s.number: s for s in fleet.memory_slots()}
        ready = all(n in slots and slots[n].phase.value == "active" for n in targets.open)
        living = all(
            slots[n].owner in fleet.bodies
            and fleet.bodies[str(slots[n].owner)].worker.process.alive
            for n in targets.open
            if n in slots
        )
        running = change is not None and change.state.value == "running"
        owned = not targets.open or all(
            fleet.broker.owner(p) is not None
            and fleet.topic.end(p, self.world.now) - fleet.topic.committed.get(p, 0) <= 60
            for p in range(fleet.topic.partitions)
        )
        return ready and living and owned and not running

    # --- changes --------------------------------------------------------------------------------

    def _change(self, name: str, step: Step, kind: str) -> None:
        plan = plan_of(step, id=kind, revision=step.revision)
        self._planned += step.expected_cost.rebalances_max
        SimulatedManager(self.fleet, name).begin(plan)

    def _second(self) -> None:
        s = self.schedule
        numbers = range(s.workers)
        match s.change:
            case "up":
                step = step_of(StepKind.OPEN, range(s.workers + s.count), "old", ONE)
            case "down":
                step = step_of(StepKind.LEAVE, list(numbers)[-s.count :], "old", ONE)
            case "roll":
                step = step_of(StepKind.ROLL, numbers, "new", FREE)
            case "rejoin":
                step = step_of(StepKind.REJOIN, (s.seed % s.workers,), "old", ONE)
            case _:
                return
        self._change("m2", step, s.change)

    def _pick_up(self) -> None:
        """A later cycle of some manager, where a change was left."""
        change = self.fleet.memory_change()
        if change is not None and change.state.value == "running":
            name = f"m{len(self.fleet.managers) + 1}"
            SimulatedManager(self.fleet, name).resume(tries=3)
            self.fleet.managers[name].active = True  # until it has looked
            self.world.after(LEASE + 4.0, lambda: self._looked(name))

    def _looked(self, name: str) -> None:
        manager = self.fleet.managers[name]
        manager.active = manager.token is not None and not manager.done

    # --- faults ---------------------------------------------------------------------------------

    def _worker(self, number: int) -> str:
        names = [n for n, b in self.fleet.bodies.items() if b.worker.process.alive]
        return names[number % len(names)] if names else ""

    def _changing(self) -> bool:
        """Whether members come or go by a plan now, or did a moment ago."""
        change = self.fleet.memory_change()
        return self.world.now < OPENED or (change is not None and change.state.value == "running")

    def _goes_wrong(self, fault: Fault) -> None:
        world, fleet = self.world, self.fleet
        name = self._worker(fault.who)
        world.tell(
            "fault",
            f"{fault.kind} {name if fault.kind in ONE_WORKER else ''} for {fault.lasts:.1f} s",
        )
        if self._changing():
            self._allowed += 3 + self.schedule.count
        if fault.kind in (*STORE, "freeze"):
            # A dead owner is found one lease after it is over: its session may be, too.
            self._allowed += 2 * (len(self.schedule.faults) > 1)
        if fault.kind in STORE:
            fleet.weather.all = _SKIES[fault.kind]
            world.after(fault.lasts, lambda: setattr(fleet.weather, "all", Sky.FAIR))
        elif fault.kind in ONE_WORKER:
            if name:
                self._one(fault, name)
        elif fault.kind in MANAGER:
            self._manager(fault)
        elif fault.kind == "freeze":
            for process in [b.worker.process for b in fleet.bodies.values()]:
                process.stop(fault.lasts)
            for manager in fleet.managers.values():
                manager.process.stop(fault.lasts)
            fleet.frozen_until = world.now + fault.lasts
        elif fault.kind == "coordinator":
            fleet.invariants.moved_at = world.now + fault.lasts
            fleet.broker.move(fault.lasts)

    def _one(self, fault: Fault, name: str) -> None:
        world, fleet = self.world, self.fleet
        process, until = fleet.bodies[name].worker.process, world.now + fault.lasts
        long = fault.lasts > SESSION - 2 * HEARTBEAT
        match fault.kind:
            case "crash":
                self._allowed += 0 if self.schedule.static else 2
                fleet.crash(name)
            case "pause":
                fleet.invariants.hurt(process, until=until)
                self._allowed += 2 if long or not self.schedule.static else 0
                process.stop(fault.lasts)
            case "cut off":
                fleet.invariants.hurt(process, until=until)
                self._allowed += 2 if long else 0
                fleet.broker.cut[name] = until
            case "clock":
                process.wall_offset += fault.lasts
                self._allowed += self.schedule.count
            case "term":
                fleet.invariants.hurt(process)
                self._allowed += 0 if self.schedule.static else 2
                world.tell(name, "gets SIGTERM")
                process.later(0.0, fleet.bodies[name].worker.stop)
            case _:
                fleet.invariants.hurt(process, until=until + DRAIN)
                # Evicted for its slot's new owner, a dynamic member joins anew until it is told.
                self._allowed += 0 if self.schedule.static else 4
                fleet.weather.of[name] = _SKIES[fault.kind.removeprefix("own ")]
                world.after(fault.lasts, lambda: fleet.weather.of.pop(name, None))

    def _manager(self, fault: Fault) -> None:
        fleet, world = self.fleet, self.world
        active = [m for m in fleet.managers.values() if m.active and m.process.alive]
        rival = f"r{len(fleet.managers)}"
        for manager in active:
            process = manager.process
            match fault.kind:
                case "manager crash":
                    world.tell(manager.name, "is killed")
                    manager.active = False
                    process.kill()
                case "manager pause":
                    fleet.invariants.hurt(process, until=world.now + fault.lasts)
                    process.stop(fault.lasts)
                case "manager stops at the slot targets":
                    process.stops_at_targets = fault.lasts
                case "manager store away":
                    fleet.invariants.hurt(process, until=world.now + fault.lasts + 1.0)
                    fleet.weather.of[manager.name] = Sky.AWAY
                    name = manager.name
                    world.after(fault.lasts, lambda n=name: fleet.weather.of.pop(n, None))
        if active:
            world.after(1.0, lambda: SimulatedManager(fleet, rival).resume(tries=4))

    def _mend(self) -> None:
        """Nothing is wrong any more."""
        self.fleet.weather.all = Sky.FAIR
        self.fleet.weather.of.clear()
        self.fleet.broker.cut.clear()


_SKIES = {"store away": Sky.AWAY, "store slow": Sky.SLOW, "store read only": Sky.READ_ONLY}


def shrunk(schedule: Schedule, breaks: Callable[[Schedule], bool]) -> Schedule:
    """The least of it that still breaks: fewer faults, workers, partitions; no change."""
    found = True
    while found:
        found = False
        for smaller in _smaller(schedule):
            if breaks(smaller):
                schedule, found = smaller, True
                break
    return schedule


def _smaller(s: Schedule) -> Iterator[Schedule]:
    for index in range(len(s.faults)):
        yield replace(s, faults=s.faults[:index] + s.faults[index + 1 :])
    if s.change != "none":
        yield replace(s, change="none", count=0)
    for workers in {3, s.workers // 2, s.workers - 1}:
        if 3 <= workers < s.workers and s.count < workers:
            yield replace(s, workers=workers, partitions=workers)
    if s.count > 1:
        yield replace(s, count=1)
    if not s.supervised:
        yield replace(s, supervised=True)


def told(schedule: Schedule, *, most: int = 150, play: type[Played] = Played) -> str:
    """What did not hold, and the timeline that led there."""
    played = play(schedule, told=True)
    story = played.world.story or []
    lines = [f"{at:8.3f} s  {who:<12} {what}" for at, who, what in story][-most:]
    return "\n".join([f"{played.broken}", str(schedule), *lines])


def first_broken(
    seeds: range, *, most: int = 12, kinds: tuple[str, ...] = KINDS
) -> Schedule | None:
    """The first of these seeds whose schedule breaks something, shrunk."""
    return first_of(drawn(seed, most=most, kinds=kinds) for seed in seeds)


def first_of(schedules: Iterable[Schedule], *, play: type[Played] = Played) -> Schedule | None:
    """The first that breaks something, shrunk."""
    for schedule in schedules:
        if play(schedule).broken is not None:
            return shrunk(schedule, lambda s: play(s).broken is not None)
    return None
