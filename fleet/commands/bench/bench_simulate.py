"""`fleet bench simulate`: how fast the model of Kafka's coordinator is."""

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fleet.commands.bench.measuring import print_result
from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.bench.simulate_bench import SimulateResult, TimedLoad
    from fleet.sim.scenarios.group_story import Scenario


@click.command(epilog="Example:  fleet bench simulate --members 200 --partitions 2000")
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
    from fleet.bench.simulate_bench import SimulateOptions, run
    from fleet.commands.progress import Progress
    from fleet.sim.scenarios.coordinator_load import ClassicLoad, EpochLoad
    from fleet.sim.scenarios.large_rolls import rolls

    options = SimulateOptions(events=events, members=members, partitions=partitions)
    loads: dict[str, Callable[[], TimedLoad]] = {"classic": ClassicLoad, "KIP-848": EpochLoad}
    stories = {
        name: partial(_played, scenario) for name, scenario in rolls(members, partitions).items()
    }
    with Progress("bench simulate") as say:
        result = run(options, loads, stories, say)
    _print(result, output)
    click.get_current_context().exit(0 if result.met else 1)


def _played(scenario: "Scenario") -> tuple[int, float | None]:
    from fleet.sim.scenarios.play import play

    told = play(scenario, random.Random(1))
    return told.rebalances, None if told.settled is None else told.settled / 1_000


def answer(result: "SimulateResult") -> dict[str, Any]:
    """The JSON answer (docs/json.md)."""
    return {"schema_version": SCHEMA_VERSION, "bench": "simulate", **result.as_json()}


def _print(result: "SimulateResult", output: str) -> None:
    from fleet.commands.answers import print_json

    if output == "json":
        print_json(answer(result))
    else:
        print_result(result)
