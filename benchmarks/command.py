"""What the commands of benchmarks share: options, the run, the answer.

A benchmark is a module with options, a run, a result, and the command that reads the options.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from benchmarks.figures import Goal
from fleet.clock import SystemClock
from fleet.commands.answers import print_json, stdout, table
from fleet.commands.invocation import SCHEMA_VERSION, verbose_option
from fleet.commands.screen import Progress
from fleet.demo.interrupts import interruptible
from fleet.system.home import fleet_home

if TYPE_CHECKING:
    from benchmarks.ground import Ground, Say

PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")


class Found(Protocol):
    """What a benchmark found."""

    @property
    def met(self) -> bool:
        """Every goal is met."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Its figures (benchmarks/json.md)."""
        ...


AnyFound = TypeVar("AnyFound", bound=Found)


class Shown(Found, Protocol):
    """A result that people read as a table."""

    def goals(self) -> tuple[Goal, ...]:
        """The goals with their figures."""
        ...

    def rows(self) -> list[tuple[str, ...]]:
        """A table: headings, then lines."""
        ...

    def remarks(self) -> list[str]:
        """Sentences under it."""
        ...


class OfProtocol(Shown, Protocol):
    """What a benchmark found on one protocol."""

    @property
    def protocol(self) -> str:
        """Which one."""
        ...


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
rate_option = click.option(
    "--rate",
    type=click.IntRange(10, 100_000),
    default=300,
    show_default=True,
    metavar="N",
    help="Records per second over all partitions.",
)


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
    run: "Callable[[Ground, str], OfProtocol]",
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
            console.print(f"[bold]{result.protocol}[/bold]")
            print_result(result)
        if kept is not None:
            console.print(f"data and logs: {kept}", markup=False, soft_wrap=True)
    click.get_current_context().exit(0 if _met(results) else 1)


def _met(results: Sequence[Found]) -> bool:
    return bool(results) and all(result.met for result in results)


def of_protocols(name: str, results: Sequence[Found], kept: Path | None) -> dict[str, Any]:
    """The JSON answer of a benchmark on one protocol or more."""
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": name,
        "met": _met(results),
        "protocols": [result.as_json() for result in results],
        "home": None if kept is None else str(kept),
    }


def answer(name: str, result: Found) -> dict[str, Any]:
    """The JSON answer of any other."""
    return {"schema_version": SCHEMA_VERSION, "bench": name, **result.as_json()}


def tell(name: str, result: AnyFound, output: str, print_it: Callable[[AnyFound], None]) -> None:
    """Print the answer, and exit 1 on a missed goal."""
    if output == "json":
        print_json(answer(name, result))
    else:
        print_it(result)
    click.get_current_context().exit(0 if result.met else 1)


def print_result(result: Shown, *, names: int = 1) -> None:
    """A benchmark's table, remarks and goals. names: how many columns hold no figures."""
    head, *lines = result.rows()
    shown = table(*head, right=head[names:])
    for line in lines:
        shown.add_row(*line)
    stdout().print(shown)
    say_under((*result.remarks(), *(goal.sentence() for goal in result.goals())))


def say_under(sentences: Sequence[str]) -> None:
    """Print sentences under a table."""
    for sentence in sentences:
        stdout().print(f"  {sentence}", markup=False, soft_wrap=True)
