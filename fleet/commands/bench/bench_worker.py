"""`fleet bench worker`: one worker beside Spark's own Kafka source."""

from typing import TYPE_CHECKING, Any

import click

from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from fleet.bench.worker_bench import WorkerResult


@click.command(epilog="Example:  fleet bench worker --alone")
@click.option("--alone", is_flag=True, help="Do without Structured Streaming, and install nothing.")
@click.option(
    "--executors",
    type=click.IntRange(0, 64),
    default=0,
    metavar="N",
    help="Number of executors of a standalone cluster, a core each, that do both sides' work; "
    "0: threads of Spark's driver.",
)
@click.option(
    "--backlog",
    type=click.IntRange(10_000, 100_000_000),
    default=2_000_000,
    show_default=True,
    metavar="N",
    help="Number of records that wait.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(10.0, 3600.0),
    default=40.0,
    show_default=True,
    help="Length of the steady stream of 2,000 records/s; the first 20 s do not count.",
)
@output_option
@verbose_option
def worker(*, alone: bool, executors: int, backlog: int, seconds: float, output: str) -> None:
    """Read a backlog and a stream, beside Structured Streaming.

    One worker with default settings and Spark's own Kafka source run the same job on the same
    topic and cores, one after the other, both warm. Goals: a backlog of JSON records at twice its
    records per second or more, and at 1.25 times those of the best tuned one beside it; under
    2,000 records/s the age of the oldest record when its batch is done at most 0.15 s at p50, 0.4 s
    at p95, and below a third of its. With executors the goal is 1.1 times the records per second
    of the best tuned one. CPU of a record is that of all processes, the broker's too.
    Spark 4.2.0, the last with a connector, is installed under ~/.cache/fleet the first time
    (450 MB). About seven minutes.
    """
    if alone and executors:
        raise click.UsageError("--executors N compares with Structured Streaming: omit --alone")
    from fleet.bench.worker_bench import WorkerOptions, run
    from fleet.clock import SystemClock
    from fleet.commands.progress import Progress
    from fleet.demo.interrupts import interruptible
    from fleet.system.home import cache_home, fleet_home

    clock = SystemClock()
    options = WorkerOptions(backlog=backlog, seconds=seconds, alone=alone, executors=executors)
    with (
        Progress("bench worker") as say,
        interruptible(lambda: say("everything is being ended; one moment")) as ending,
    ):
        result = run(
            options,
            parent=fleet_home(),
            cache=cache_home(),
            clock=clock,
            say=say,
            ending=ending.start,
        )
    _print(result, output)
    click.get_current_context().exit(0 if result.met else 1)


def answer(result: "WorkerResult") -> dict[str, Any]:
    """The JSON answer (docs/json.md)."""
    return {"schema_version": SCHEMA_VERSION, "bench": "worker", **result.as_json()}


def _print(result: "WorkerResult", output: str) -> None:
    from fleet.bench.worker_bench import OURS
    from fleet.commands.answers import print_json, stdout, table

    if output == "json":
        print_json(answer(result))
        return
    console = stdout()
    right = ("records/s", "fleet's ratio", "CPU, µs a record", "age p50", "p95")
    shown = table("", *right, right=right)
    for name, rate in result.rate.items():
        ours = name == OURS
        shown.add_row(
            "Fleet's worker" if ours else f"Structured Streaming, {name}",
            f"{rate:,.0f}",
            "" if ours else f"{result.rate[OURS] / rate:.2f}",
            f"{result.cpu[name]:.2f}",
            f"{result.age[name].p50:.2f} s",
            f"{result.age[name].p95:.2f} s",
        )
    console.print(shown)
    for goal in result.goals():
        console.print(f"  {goal.sentence()}", markup=False, soft_wrap=True)
