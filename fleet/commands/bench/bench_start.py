"""`fleet bench start`: what a worker's start costs, by part."""

from typing import TYPE_CHECKING, Any

import click

from fleet.commands.bench.measuring import print_result
from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from fleet.bench.start_bench import StartResult


@click.command(epilog="Example:  fleet bench start --starts 10")
@click.option(
    "--starts",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of workers to start.",
)
@click.option(
    "--max-cpu",
    type=click.FloatRange(0),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Goal for the CPU seconds of a start, at p50.",
)
@click.option(
    "--max-memory",
    type=click.FloatRange(0),
    default=74.0,
    show_default=True,
    metavar="MB",
    help="Goal for the memory of a standby (PSS), at p50.",
)
@output_option
@verbose_option
def start(*, starts: int, max_cpu: float, max_memory: float, output: str) -> None:
    """Start workers until they are warm standbys.

    Goals: CPU from the start of the process to a warm standby at most 0.5 s, a standby's memory
    (PSS) at most 74 MB, both at p50, of workers that their supervisor forks. Beside them those
    that start as a program, as in a pod, the memory of a worker with a slot, what each part of a
    start costs, and what is loaded only when it is first used. The Spark server is shared and
    warm. A minute and a half.
    """
    from fleet.bench.ground import Ground
    from fleet.bench.start_bench import StartOptions, run
    from fleet.clock import SystemClock
    from fleet.commands.progress import Progress
    from fleet.demo.interrupts import interruptible
    from fleet.system.home import fleet_home

    options = StartOptions(starts=starts, max_cpu=max_cpu, max_memory=max_memory)
    with (
        Progress("bench start") as say,
        interruptible(lambda: say("everything is being ended; one moment")) as ending,
        Ground(
            parent=fleet_home(),
            partitions=2,
            rate=100,
            clock=SystemClock(),
            say=say,
            ending=ending.start,
        ) as ground,
    ):
        result = run(ground, options)
    _print(result, output)
    click.get_current_context().exit(0 if result.met else 1)


def answer(result: "StartResult") -> dict[str, Any]:
    """The JSON answer (docs/json.md)."""
    return {"schema_version": SCHEMA_VERSION, "bench": "start", **result.as_json()}


def _print(result: "StartResult", output: str) -> None:
    from fleet.commands.answers import print_json

    if output == "json":
        print_json(answer(result))
    else:
        print_result(result, names=2)
