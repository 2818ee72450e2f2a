"""`make bench-simulate`: events a second of the coordinator's models, and a whole large roll.

Problem: a plan waits for its price, so the model's speed bounds what may be asked of it. Choice:
CPU seconds of this one process, so that others on the machine do not count: the models of Kafka's
coordinators alone under a healthy group's requests, and whole stories with members, messages and
timers. A roll restarts a quarter of the members at a time, which is how a Kubernetes Deployment
rolls by default, and with Fleet hands over a quarter of the slots at a time. Cost: a roll one by
one has a hundred times the events; its time is not measured here. Kafka's own code beside it:
`make conformance` (tests/conformance/test_speed.py).
"""

import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import click

from benchmarks.command import output_option, print_result, running, tell
from benchmarks.figures import Goal, Judged
from fleet.commands.invocation import verbose_option
from fleet.sim.scenarios.coordinator_load import ClassicLoad, EpochLoad
from fleet.sim.scenarios.group_story import Scenario
from fleet.sim.scenarios.large_rolls import rolls
from fleet.sim.scenarios.play import play

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
    min_rate: float = GOAL_RATE
    max_seconds: float = GOAL_SECONDS


class TimedLoad(Protocol):
    """Events that a model is given; what they are is the caller's."""

    events: int

    def live(self) -> None:
        """Some more."""


class Rolled(NamedTuple):
    """A whole roll."""

    name: str
    cpu_seconds: float
    rebalances: int
    settled: float | None
    """Simulated seconds from its beginning; None: not within a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateResult(Judged):
    """Events per CPU second by model; rolls; MB that the process took at most."""

    options: SimulateOptions
    rates: Mapping[str, float]
    rolls: Sequence[Rolled]
    memory: float

    def goals(self) -> tuple[Goal, ...]:
        """What is held against the figures."""
        rates = (
            Goal(
                what=f"events/s, {name}", limit=self.options.min_rate, measured=rate, at_least=True
            )
            for name, rate in self.rates.items()
        )
        rolls = (
            Goal(
                what=f"CPU seconds of a roll, {each.name}",
                limit=self.options.max_seconds,
                measured=each.cpu_seconds if each.settled is not None else None,
            )
            for each in self.rolls
        )
        return (*rates, *rolls)

    def figures(self) -> dict[str, Any]:
        """See Judged."""
        return {
            "met": self.met,
            "events_per_second": {name: round(rate) for name, rate in self.rates.items()},
            "members": self.options.members,
            "partitions": self.options.partitions,
            "rolls": [
                {
                    "roll": each.name,
                    "cpu_seconds": round(each.cpu_seconds, 3),
                    "rebalances": each.rebalances,
                    "settled_seconds": each.settled,
                }
                for each in self.rolls
            ],
            "peak_mb": round(self.memory, 1),
        }

    def rows(self) -> list[tuple[str, ...]]:
        """For people: a heading, then lines."""
        return [
            ("", "CPU", "REBALANCES", "SETTLED"),
            *((name, f"{rate:,.0f} events/s", "", "") for name, rate in self.rates.items()),
            *(
                (
                    each.name,
                    f"{each.cpu_seconds:.2f} s",
                    str(each.rebalances),
                    "-" if each.settled is None else f"{each.settled:.1f} s",
                )
                for each in self.rolls
            ),
        ]

    def remarks(self) -> list[str]:
        """What the table has no column for."""
        options = self.options
        return [
            f"rolls of {options.members:,} members with {options.partitions:,} partitions",
            f"memory of the process at most: {self.memory:.0f} MB",
        ]


def run(
    options: SimulateOptions,
    loads: Mapping[str, Callable[[], TimedLoad]],
    stories: Mapping[str, Callable[[], tuple[int, float | None]]],
    say: Callable[[str], None],
) -> SimulateResult:
    """All of it, in this process. A story tells (rebalances, simulated seconds to settle)."""
    rates = {}
    for name, load in loads.items():
        say(f"events of {name} groups")
        rates[name] = max(_rate(load, options.events) for _ in range(_TRIES))
    found = []
    for name, story in stories.items():
        say(f"a roll: {name}")
        began = time.process_time()
        rebalances, settled = story()
        found.append(Rolled(name, time.process_time() - began, rebalances, settled))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return SimulateResult(options=options, rates=rates, rolls=found, memory=peak)


def _rate(load: Callable[[], TimedLoad], events: int) -> float:
    loaded = load()
    began = time.process_time()
    while loaded.events < events:
        loaded.live()
    return loaded.events / (time.process_time() - began)


@click.command(epilog="Example:  make bench-simulate ARGS='--members 200 --partitions 2000'")
@click.option(
    "--events",
    type=click.IntRange(1_000, 100_000_000),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Number of events of each model, three times.",
)
@click.option(
    "--members",
    type=click.IntRange(4, 10_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Number of members to roll.",
)
@click.option(
    "--partitions",
    type=click.IntRange(4, 100_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Number of partitions they share.",
)
@output_option
@verbose_option
def simulate(*, events: int, members: int, partitions: int, output: str) -> None:
    """Simulate groups as fast as one core can; no broker.

    Goals: 100,000 events/s or more of the coordinator's models alone, requests and timers of a
    healthy group of 20 members; a roll of all members, a quarter at a time, in 3 s of CPU at
    most, the ordinary way and with Fleet's handovers. Beside them the peak of memory. Half a
    minute.
    """
    options = SimulateOptions(events=events, members=members, partitions=partitions)
    loads: dict[str, Callable[[], TimedLoad]] = {"classic": ClassicLoad, "KIP-848": EpochLoad}
    stories = {
        name: partial(_played, scenario) for name, scenario in rolls(members, partitions).items()
    }
    with running("simulate") as (say, _):
        result = run(options, loads, stories, say)
    tell("simulate", result, output, print_result)


def _played(scenario: Scenario) -> tuple[int, float | None]:
    told = play(scenario, random.Random(1))
    return told.rebalances, None if told.settled is None else told.settled / 1_000
