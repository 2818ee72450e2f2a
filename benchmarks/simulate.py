"""`make bench-simulate`: events a second of the coordinator's models, and a whole large roll.

Problem: a plan waits for its expected cost, so the model's speed bounds what may be asked of it.
Choice: CPU seconds of this one process, so that others on the machine do not count: the models of
Kafka's coordinators alone under a healthy group's requests, and whole stories with members,
messages and timers. A roll restarts a quarter of the members at a time, which is how a Kubernetes
Deployment rolls by default, and with Fleet hands over a quarter of the slots at a time. Cost: a
roll one by one has a hundred times the events; its time is not measured here. Kafka's own code
beside it: `make conformance` (tests/conformance/test_speed.py).

Events differ: a join of many members costs a thousand heartbeats. So a load is what a group lives
on: a round of twenty members, then twenty heartbeats of each and a commit with every fourth; under
KIP-848 twenty that join, reconcile, beat forty times and leave. An event is a request that is
answered or a timer that goes off. Other mixes have other figures; larger groups too.
"""

import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import click

from benchmarks.command import number_option, running, tell
from benchmarks.figures import BenchmarkResult, Goal
from fleet.sim.coordinator.classic_coordinator import ClassicCoordinator, CoordinatorStep
from fleet.sim.coordinator.consumer_coordinator import ConsumerCoordinator, topic_id_bytes
from fleet.sim.coordinator.consumer_shard import TopicFacts
from fleet.sim.coordinator.requests import (
    Client,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
    SyncGroupAssignment,
    SyncGroupRequest,
    TopicPartitions,
)
from fleet.sim.scenarios.group_scenario import Scenario, ScenarioEvent
from fleet.sim.scenarios.play import play

MEMBERS: Final = 20
_GROUP: Final = "loaded"
_CLIENT: Final = Client("c", "h")
_SUBSCRIPTION: Final = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
_RANGE: Final = (JoinGroupProtocol("range", _SUBSCRIPTION),)
_TOPIC_ID: Final = "bG9hZGVkLXRvcGljLWlkIQ"
_BEAT_MS: Final = 3_000
_EPOCH_BEAT_MS: Final = 5_000


class ClassicLoad:
    """A classic group in its life; `events` counts."""

    def __init__(self) -> None:
        self.coordinator = ClassicCoordinator(f"{n:032x}" for n in count())
        self.events = 0
        self._tickets = count()
        self.members = [self._new() for _ in range(MEMBERS)]

    def _asked(self, request: object) -> CoordinatorStep:
        self.events += 1
        return self.coordinator.request(next(self._tickets), request, _CLIENT)  # type: ignore[arg-type]

    def _later(self) -> CoordinatorStep:
        step = self.coordinator.advance(_BEAT_MS)
        self.events += len(step.fired)
        return step

    def _new(self) -> str:
        (answer,) = self._asked(JoinGroupRequest(_GROUP, protocols=_RANGE)).answers.values()
        return str(answer.member_id)

    def live(self) -> None:
        """A round, and a minute after it."""
        told: dict[int, Any] = {}
        for member in self.members:
            told |= self._asked(JoinGroupRequest(_GROUP, member, None, _RANGE)).answers
        while len(told) < MEMBERS:
            told |= self._later().answers
        answer = next(iter(told.values()))
        generation, leader = answer.generation_id, answer.leader
        self.members.sort(key=lambda member: member != leader)  # who rejoins first makes a round
        share = tuple(SyncGroupAssignment(member, b"12345678") for member in self.members)
        for member in self.members:
            given = share if member == leader else ()
            self._asked(SyncGroupRequest(_GROUP, generation, member, None, assignments=given))
        for beat in range(20):
            self._later()
            for member in self.members:
                self._asked(HeartbeatRequest(_GROUP, generation, member))
                if beat % 4 == 0:
                    offsets = (OffsetCommitTopic("t", (OffsetCommitPartition(0, beat),)),)
                    self._asked(OffsetCommitRequest(_GROUP, generation, member, None, offsets))


class EpochLoad:
    """A KIP-848 group in its life; `events` counts."""

    def __init__(self) -> None:
        self.coordinator = ConsumerCoordinator()
        topic = TopicFacts(topic_id_bytes(_TOPIC_ID), "t", 10 * MEMBERS)
        self.coordinator.set_topics((topic,))
        self.events = 0
        self._names: Iterator[str] = (f"m{n}" for n in count())
        self._epochs: dict[str, int] = {}

    def _beat(
        self, member: str, owned: tuple[TopicPartitions, ...] | None = None
    ) -> ConsumerGroupHeartbeatResponse:
        asked = ConsumerGroupHeartbeatRequest(
            _GROUP, member, self._epochs.get(member, 0), topic_partitions=owned
        )
        if member not in self._epochs:
            asked = asked._replace(
                rebalance_timeout_ms=60_000, subscribed_topic_names=("t",), topic_partitions=()
            )
        self.events += 1
        answer = self.coordinator.heartbeat(asked, _CLIENT)
        self._epochs[member] = answer.member_epoch
        return answer

    def live(self) -> None:
        """All join, settle, beat and leave: more than three minutes."""
        members = [next(self._names) for _ in range(MEMBERS)]
        for member in members:
            self._beat(member)
        for _ in range(40):
            self.events += sum(
                1 for _ in self.coordinator.advance(self.coordinator.now + _EPOCH_BEAT_MS)
            )
            for member in members:
                answer = self._beat(member)
                if answer.assignment is not None:
                    self._beat(member, answer.assignment.topic_partitions)
        for member in members:
            self._epochs[member] = -1
            self._beat(member)


LOADS: Final[Mapping[str, type[ClassicLoad | EpochLoad]]] = {
    "classic": ClassicLoad,
    "KIP-848": EpochLoad,
}


_ROLLING_BATCHES: Final = 4


def rolls(members: int, partitions: int) -> dict[str, Scenario]:
    """Rolls a quarter of the members after the other, as the baseline and with Fleet."""
    quarter = -(-members // _ROLLING_BATCHES)

    def story(gap: int, away: int, *, static: bool) -> Scenario:
        rolling_batches = tuple(
            ScenarioEvent(
                60_000 + gap * n, "restart", first, away, together=min(quarter, members - first)
            )
            for n, first in enumerate(range(0, members, quarter))
        )
        return Scenario(members, static, partitions, events=rolling_batches)

    fleet = story(2_000, 50, static=True)
    return {
        "range, baseline": story(30_000, 5_000, static=False),
        "range, with Fleet": fleet._replace(session_timeout=180_000),
        "KIP-848, baseline": story(30_000, 5_000, static=False).by("consumer"),
        "KIP-848, with Fleet": fleet.by("consumer"),
    }


GOAL_RATE: Final = 100_000
GOAL_SECONDS: Final = 3.0
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """How much is measured, and the goals."""

    events: int = 100_000
    """Of each model, three times; the best counts, since what disturbs it is not the model's."""
    members: int = 1_000
    partitions: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCost:
    """The cost of simulating a whole roll."""

    name: str
    cpu_seconds: float
    rebalances: int
    settled: float | None
    """Simulated seconds from its beginning; None: not within a day."""


@dataclass(frozen=True, kw_only=True)
class SimulateResult(BenchmarkResult):
    """Events per CPU second by model; rolls; MB that the process took at most."""

    members: int
    partitions: int
    rates: Mapping[str, float]
    rolls: Sequence[RollCost]
    memory: float

    def goals(self) -> tuple[Goal, ...]:
        """Returns the goals of the benchmark."""
        rates = (
            Goal(f"events/s, {name}", GOAL_RATE, rate, at_least=True)
            for name, rate in self.rates.items()
        )
        rolls = (
            Goal(
                f"CPU seconds of a roll, {each.name}",
                GOAL_SECONDS,
                each.cpu_seconds if each.settled is not None else None,
            )
            for each in self.rolls
        )
        return (*rates, *rolls)


def run(options: SimulateOptions, say: Callable[[str], None]) -> SimulateResult:
    """All of it, in this process."""
    rates = {}
    for name, load in LOADS.items():
        say(f"events of {name} groups")
        rates[name] = max(_rate(load, options.events) for _ in range(_TRIES))
    found = []
    for name, story in rolls(options.members, options.partitions).items():
        say(f"a roll: {name}")
        began = time.process_time()
        told = play(story, random.Random(1))
        spent = time.process_time() - began
        settled = None if told.settled is None else told.settled / 1_000
        found.append(
            RollCost(name=name, cpu_seconds=spent, rebalances=told.rebalances, settled=settled)
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return SimulateResult(
        members=options.members,
        partitions=options.partitions,
        rates=rates,
        rolls=found,
        memory=peak,
    )


def _rate(load: type[ClassicLoad | EpochLoad], events: int) -> float:
    loaded = load()
    began = time.process_time()
    while loaded.events < events:
        loaded.live()
    return loaded.events / (time.process_time() - began)


@click.command(epilog="Example:  make bench-simulate ARGS='--members 200 --partitions 2000'")
@number_option(
    "--events", 100_000, "Number of events of each model, three times.", 1_000, 100_000_000
)
@number_option("--members", 1_000, "Number of members to roll.", 4, 10_000)
@number_option("--partitions", 10_000, "Number of partitions they share.", 4, 100_000)
def simulate(**wanted: int) -> None:
    """Simulate groups as fast as one core can; no broker.

    Goals: 100,000 events/s or more of the coordinator's models alone, requests and timers of a
    healthy group of 20 members; a roll of all members, a quarter at a time, in 3 s of CPU at
    most, as the baseline and with Fleet's handovers. Beside them the peak of memory. Half a
    minute.
    """
    with running("simulate") as (say, _):
        result = run(SimulateOptions(**wanted), say)
    tell("simulate", [result])
