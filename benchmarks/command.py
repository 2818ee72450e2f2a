"""What the commands of benchmarks share: options, the run, the answer.

A benchmark is a module with options, a run, a result, and the command that reads the options. The
answer is one YAML document: the result's figures by their names, then its goals.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from benchmarks.figures import BenchmarkResult
from fleet.clock import SystemClock
from fleet.commands.screen import Progress
from fleet.demo.interrupts import interruptible
from fleet.system.home import fleet_home

if TYPE_CHECKING:
    from benchmarks.ground import Ground, Say

PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")


def one_or_all(
    name: str,
    choices: Collection[str],
    help: str,  # noqa: A002 - click's word
) -> Callable[..., Any]:
    """An option for one of these or, by default, all; the parameter `asked` is a tuple."""
    return click.option(
        name,
        "asked",
        type=click.Choice([*choices, "all"]),
        default="all",
        show_default=True,
        callback=lambda _, __, asked: tuple(choices) if asked == "all" else (asked,),
        help=help,
    )


protocol_option = one_or_all("--protocol", PROTOCOLS, "Group protocol of the members.")


def number_option(
    name: str,
    default: float,
    help: str,  # noqa: A002 - click's word
    least: int = 0,
    most: int | None = None,
) -> Callable[..., Any]:
    """An option that is a number within these: seconds where its default has a point."""
    is_float = isinstance(default, float)
    allowed: click.ParamType[Any] = (
        click.FloatRange(least, most) if is_float else click.IntRange(least, most)
    )
    return click.option(
        name,
        type=allowed,
        default=default,
        show_default=True,
        metavar="SECONDS" if is_float else "N",
        help=help,
    )


rate_option = number_option("--rate", 300, "Records per second over all partitions.", 10, 100_000)
quick_option = click.option(
    "--quick", is_flag=True, help="Run a small form that only shows that it works."
)
keep_option = click.option("--keep", is_flag=True, help="Keep the broker's data and all logs.")


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
    asked: tuple[str, ...],
    partitions: int,
    rate: int,
    keep: bool,
    run: "Callable[[Ground, str], BenchmarkResult]",
) -> None:
    """Run a benchmark on each protocol or client, print the answer, exit 1 on a missed goal."""
    from benchmarks.ground import Ground  # noqa: PLC0415 - loads nearly all of Fleet

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
        results = [run(ground, each) for each in asked]
    tell(name, results, **({"home": str(ground.home)} if keep else {}))


def tell(name: str, results: Sequence[BenchmarkResult], **more: str) -> None:
    """Print the answer, and exit 1 on a missed goal."""
    answers = [each.answer() for each in results]
    print_yaml({"bench": name, **more, "results": answers})
    click.get_current_context().exit(0 if all(each.met for each in results) else 1)


def print_yaml(answer: dict[str, Any]) -> None:
    """Prints one document."""
    click.echo(yaml.safe_dump(answer, sort_keys=False, allow_unicode=True, width=100), nl=False)
