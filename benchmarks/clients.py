"""`make bench-clients`: programs that Fleet did not write, held by slots, beside ordinary starts.

Problem: "any consumer" must hold for clients that share no code. Choice: Kafka's console consumer
(Java), franz-go (Go) and confluent-kafka (Python) on one topic. First Fleet runs each by
`worker.command`, and the last one with `warm` too. Then the same program runs as a Deployment would
run it: without an instance id, a roll starts a new process, waits until it is a member, and ends an
old one. All are counted from the coordinator's records [33, 27]. Cost: ten minutes per client, most
of it waiting for sessions.

Goals: a roll and a kill -9 of the program cost 0 rebalances, three slots more at most 2, three
fewer 1.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import click

from benchmarks.client_programs import CLIENTS
from benchmarks.command import keep_option, measure, one_or_all, quick_option, rate_option
from benchmarks.figures import BenchmarkResult, Goal
from benchmarks.ground import TOPIC, Ground
from fleet.demo.measure import await_settled
from fleet.model.rebalances import RebalanceCounts
from fleet.slots import Phase, Slot
from fleet.system.processes import WORKER, ProcessId, alive, carrying, end, environment, spawn

WARM: Final = ("confluent-kafka",)
"""Clients whose program may start before it has a slot."""
PARTITIONS: Final = 12
SLOTS: Final = 3
MORE: Final = 3
GOALS: Final = {"roll": 0, "+3": 2, "-3": 1, "kill -9": 0}
"""Action → the most rebalances that it may cost under Fleet."""
_AFTER: Final = 6.0
"""Seconds for the first commits after an action."""
_LONGEST: Final = 120.0
_ENDS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one action cost."""

    way: str
    action: str
    rebalances: int
    downtime: float
    """Partition-seconds."""
    longest: float
    """The longest downtime of a partition, seconds."""

    @classmethod
    def of(cls, way: str, action: str, found: RebalanceCounts) -> "Cost":
        """Returns the cost of a stretch of the records."""
        times = (*found.every_downtime, *found.open_downtimes.values())
        return cls(
            way=way,
            action=action,
            rebalances=found.rebalances,
            downtime=sum(times),
            longest=max(times, default=0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResult(BenchmarkResult):
    """One client, both ways."""

    client: str
    costs: tuple[Cost, ...]

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        found = {(each.way, each.action): each.rebalances for each in self.costs}
        return tuple(
            Goal(f"{way}: rebalances of {action}", most, found.get((way, action)))
            for way in _managed_ways(self.client)
            for action, most in GOALS.items()
        )


@dataclass(slots=True, kw_only=True)
class Costs:
    """Measures the actions of one way."""

    ground: Ground
    group: str
    way: str
    found: list[Cost] = field(default_factory=list)

    @contextlib.contextmanager
    def of(self, action: str) -> Iterator[None]:
        """Measures the block, until the group is settled and has committed again."""
        with self.ground.measured(self.group) as counted:
            yield
            await_settled(self.ground.fleet, self.group, clock=self.ground.clock)
            self.ground.clock.sleep(_AFTER)
        self.found.append(Cost.of(self.way, action, counted[0]))
        self.ground.say(f"{self.group} {action}: {self.found[-1].rebalances} rebalances")


def run(ground: Ground, client: str) -> ClientResult:
    """All ways for one client. Raises FleetError where a change does not end well."""
    managed = (cost for way in _managed_ways(client) for cost in _managed(ground, client, way))
    return ClientResult(client=client, costs=(*managed, *_ordinary(ground, client)))


def _managed_ways(client: str) -> tuple[str, ...]:
    return ("fleet", "warm") if client in WARM else ("fleet",)


def _managed(ground: Ground, client: str, way: str) -> list[Cost]:
    group = f"{client}-{way}"
    command = CLIENTS[client]("{bootstrap}", group, TOPIC)
    declared: dict[str, Any] = {
        "protocol": "range",
        "slots": SLOTS,
        "replicas": {"min": 0, "max": SLOTS + MORE, "standby": 1},
        "rollout": {"bake": "5s", "canary_batches": 1},
    }
    bootstrap = ground.fleet.bootstrap
    command = [bootstrap if word == "{bootstrap}" else word for word in command]
    worker = {"command": command, "warm": way == "warm"}
    costs = Costs(ground=ground, group=group, way=way)
    ground.declare(group, **declared, worker=worker)
    ground.start_group(group)
    ground.apply(group)
    ground.steady(group)
    ground.declare(group, **declared, worker={**worker, "max_poll_interval": "299s"})
    with costs.of("roll"):
        ground.apply(group)
    with costs.of("+3"):
        ground.apply(group, wanted=SLOTS + MORE)
    with costs.of("-3"):
        ground.apply(group, wanted=SLOTS)
    with costs.of("kill -9"):
        _kill(ground, group)
    ground.apply(group, wanted=0)
    ground.dismiss(group)
    return costs.found


def _kill(ground: Ground, group: str) -> None:
    def first() -> Slot:
        return next(slot for slot in ground.fleet.slots(group) if slot.number == 0)

    before = first()
    workers = ground.worker_pids(group)
    for process in carrying(WORKER, str(before.owner)):  # a warm one has no GROUP_INSTANCE_ID
        if process.pid not in workers:
            os.kill(process.pid, signal.SIGKILL)

    def taken() -> bool:
        now = first()
        return now.token > before.token and now.phase is Phase.ACTIVE

    ground.wait(taken, _LONGEST, "slot 0 to have a new owner")


def _ordinary(ground: Ground, client: str) -> list[Cost]:
    group = f"{client}-ordinary"
    argv = CLIENTS[client](ground.fleet.bootstrap, group, TOPIC, static=False)
    ground.start_group(group)
    started: list[ProcessId] = []

    def start(count: int) -> None:
        log = ground.log(group)
        env = environment(ground.home, part="client")
        started.extend(spawn(argv, log=log, env=env) for _ in range(count))
        ground.wait(lambda: _members(ground, group) >= len(started), _LONGEST, f"{group} to join")

    def stop(some: list[ProcessId]) -> None:
        for process in some:
            started.remove(process)
            os.kill(process.pid, signal.SIGTERM)
        ground.wait(lambda: not any(map(alive, some)), _ENDS, f"{group} to end")

    costs = Costs(ground=ground, group=group, way="ordinary")
    try:
        start(SLOTS)
        await_settled(ground.fleet, group, clock=ground.clock)
        ground.clock.sleep(2 * _AFTER)
        with costs.of("roll"):
            for old in tuple(started):
                start(1)
                await_settled(ground.fleet, group, clock=ground.clock)
                stop([old])
                await_settled(ground.fleet, group, clock=ground.clock)
        with costs.of("+3"):
            start(MORE)
        with costs.of("-3"):
            stop(started[-MORE:])
        with costs.of("kill -9"):
            os.kill(started.pop(0).pid, signal.SIGKILL)
            start(1)
            most = len(started)
            ground.wait(lambda: _members(ground, group) <= most, _LONGEST, "its session to end")
    finally:
        for process in started:
            end(process, grace=5.0)
    return costs.found


def _members(ground: Ground, group: str) -> int:
    seen = ground.fleet.snapshot([group]).groups.get(group)
    return 0 if seen is None else len(seen.members)


@click.command()
@one_or_all("--client", CLIENTS, "Consumer to measure.")
@rate_option
@quick_option
@keep_option
def clients(*, asked: tuple[str, ...], rate: int, quick: bool, keep: bool) -> None:
    """Measure programs in slots beside ordinary starts of them.

    Goals: a roll and a kill -9 cost 0 rebalances, three slots more at most 2, three fewer 1.
    """
    measure(
        "clients",
        asked=WARM if quick else asked,
        partitions=PARTITIONS,
        rate=rate,
        keep=keep,
        run=run,
    )
