"""What commands of benchmarks on live groups share: options, the run of each protocol, the answer.

A benchmark is a module of fleet.bench with options, a run and a result; its command only reads
options and prints.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from pathlib import Path

    from fleet.bench.figures import Goal
    from fleet.bench.ground import Ground

PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")


class Shown(Protocol):
    """What people are told of a benchmark."""

    def goals(self) -> "tuple[Goal, ...]":
        """The goals with their figures."""
        ...

    def rows(self) -> list[tuple[str, ...]]:
        """A table: headings, then lines."""
        ...

    def remarks(self) -> list[str]:
        """Sentences under it."""
        ...


class BenchResult(Shown, Protocol):
    """What a benchmark found on one protocol."""

    @property
    def protocol(self) -> str:
        """Which one."""
        ...

    @property
    def met(self) -> bool:
        """Every goal is met."""
        ...

    def as_json(self) -> dict[str, Any]:
        """An element of `protocols`."""
        ...


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


def measure(
    name: str,
    *,
    protocol: str,
    partitions: int,
    rate: int,
    keep: bool,
    output: str,
    run: "Callable[[Ground, str], BenchResult]",
) -> None:
    """Run a benchmark on the protocols asked for, print the answer, exit 1 on a missed goal."""
    from fleet.bench.ground import Ground
    from fleet.clock import SystemClock
    from fleet.commands.progress import Progress
    from fleet.demo.interrupts import interruptible
    from fleet.system.home import fleet_home

    wanted = PROTOCOLS if protocol == "all" else (protocol,)
    results: list[BenchResult] = []
    kept: Path | None = None
    with (
        Progress(f"bench {name}") as say,
        interruptible(lambda: say("everything is being ended; one moment")) as ending,
        Ground(
            parent=fleet_home(),
            partitions=partitions,
            rate=rate,
            clock=SystemClock(),
            say=say,
            ending=ending.start,
            keep=keep,
        ) as ground,
    ):
        kept = ground.home if keep else None
        results += [run(ground, each) for each in wanted]
    _print(name, results, kept, output=output)
    click.get_current_context().exit(0 if _met(results) else 1)


def _met(results: Sequence[BenchResult]) -> bool:
    return bool(results) and all(result.met for result in results)


def answer(name: str, results: Sequence[BenchResult], kept: "Path | None") -> dict[str, Any]:
    """The JSON answer (docs/json.md)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": name,
        "met": _met(results),
        "protocols": [result.as_json() for result in results],
        "home": None if kept is None else str(kept),
    }


def _print(name: str, results: Sequence[BenchResult], kept: "Path | None", *, output: str) -> None:
    from fleet.commands.answers import print_json, stdout

    if output == "json":
        print_json(answer(name, results, kept))
        return
    console = stdout()
    for result in results:
        console.print(f"[bold]{result.protocol}[/bold]")
        print_result(result)
    if kept is not None:
        console.print(f"data and logs: {kept}", markup=False, soft_wrap=True)


def print_result(result: Shown, *, names: int = 1) -> None:
    """A benchmark's table, remarks and goals. names: how many columns hold no figures."""
    from fleet.commands.answers import stdout, table

    console = stdout()
    head, *lines = result.rows()
    shown = table(*head, right=head[names:])
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    for sentence in (*result.remarks(), *(goal.sentence() for goal in result.goals())):
        console.print(f"  {sentence}", markup=False, soft_wrap=True)
