"""What the commands of benchmarks share: options, the run, the answer.

A benchmark is a module with options, a run, a result, and the command that reads the options.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchmarks.figures import BenchmarkResult
from fleet.clock import SystemClock
from fleet.commands.answers import print_json, stdout, table
from fleet.commands.invocation import SCHEMA_VERSION, verbose_option
from fleet.commands.screen import Progress
from fleet.demo.interrupts import interruptible
from fleet.system.home import fleet_home

if TYPE_CHECKING:
    from benchmarks.ground import Ground, Say

PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")


output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format; JSON is described in benchmarks/json.md.",
)
protocol_option = click.option(
    "--protocol",
    type=click.Choice([*PROTOCOLS, "all"]),
    default="all",
    show_default=True,
    help="Group protocol of the members.",
)


def number_option(
    name: str,
    default: float | None,
    help: str,  # noqa: A002 - click's word
    least: int = 0,
    most: int | None = None,
    *,
    kind: type[int | float] | None = None,
    metavar: str | None = None,
) -> Callable[..., Any]:
    """An option that is a number within these; kind: of what has no default."""
    is_float = (kind or type(default)) is float
    allowed: click.ParamType[Any] = (
        click.FloatRange(least, most) if is_float else click.IntRange(least, most)
    )
    return click.option(
        name,
        type=allowed,
        default=default,
        show_default=default is not None,
        metavar=metavar or ("SECONDS" if is_float else "N"),
        help=help,
    )


rate_option = number_option("--rate", 300, "Records per second over all partitions.", 10, 100_000)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every benchmark that `measure` runs takes: passes quick, keep and output."""
    for option in reversed(
        (
            click.option(
                "--quick", is_flag=True, help="Run a small form that only shows that it works."
            ),
            click.option("--keep", is_flag=True, help="Keep the broker's data and all logs."),
            output_option,
            verbose_option,
        )
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def running(name: str) -> "Iterator[tuple[Say, Callable[[], None]]]":
    """Yields what tells of the progress, and what is to be called before everything is ended."""
    with (
        Progress(f"bench {name}") as say,
        interruptible(lambda: say("everything is being ended; one moment")) as ending,
    ):
        yield say, ending.start


def measure(
    name: str,
    *,
    protocol: str,
    partitions: int,
    rate: int,
    keep: bool,
    output: str,
    run: "Callable[[Ground, str], BenchmarkResult]",
) -> None:
    """Run a benchmark on the protocols asked for, print the answer, exit 1 on a missed goal."""
    from benchmarks.ground import Ground  # noqa: PLC0415 - loads nearly all of Fleet

    wanted = PROTOCOLS if protocol == "all" else (protocol,)
    with (
        running(name) as (say, ending),
        Ground(
            parent=fleet_home(),
            partitions=partitions,
            rate=rate,
            clock=SystemClock(),
            say=say,
            ending=ending,
            keep=keep,
        ) as ground,
    ):
        kept = ground.home if keep else None
        results = [run(ground, each) for each in wanted]
    if output == "json":
        print_json(of_protocols(name, results, kept))
    else:
        console = stdout()
        for result in results:
            console.print(f"[bold]{result.figures()['protocol']}[/bold]")
            print_result(result)
        if kept is not None:
            console.print(f"data and logs: {kept}", markup=False, soft_wrap=True)
    click.get_current_context().exit(0 if _met(results) else 1)


def _met(results: Sequence[BenchmarkResult]) -> bool:
    return bool(results) and all(result.met for result in results)


def of_protocols(
    name: str, results: Sequence[BenchmarkResult], kept: Path | None
) -> dict[str, Any]:
    """The JSON answer of a benchmark on one protocol or more."""
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": name,
        "met": _met(results),
        "protocols": [result.as_json() for result in results],
        "home": None if kept is None else str(kept),
    }


def answer(name: str, result: BenchmarkResult) -> dict[str, Any]:
    """The JSON answer of any other."""
    return {"schema_version": SCHEMA_VERSION, "bench": name, **result.as_json()}


def tell(name: str, result: BenchmarkResult, output: str) -> None:
    """Print the answer, and exit 1 on a missed goal."""
    if output == "json":
        print_json(answer(name, result))
    else:
        print_result(result)
    click.get_current_context().exit(0 if result.met else 1)


def print_result(result: BenchmarkResult) -> None:
    """A benchmark's table, and under it its remarks and goals."""
    head, *lines = result.rows()
    shown = table(*head, right=head[result.names :])
    for line in lines:
        shown.add_row(*line)
    stdout().print(shown)
    for sentence in (*result.remarks(), *(goal.sentence() for goal in result.goals())):
        stdout().print(f"  {sentence}", markup=False, soft_wrap=True)
