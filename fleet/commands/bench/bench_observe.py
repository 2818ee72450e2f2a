"""`fleet bench observe`: one look at all groups of a cluster."""

from typing import TYPE_CHECKING, Any

import click

from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from fleet.bench.observe_bench import ObserveResult


@click.command(epilog="Example:  fleet bench observe --groups 1000")
@click.option(
    "--groups",
    type=click.IntRange(10, 100_000),
    multiple=True,
    default=(1_000,),
    show_default=True,
    metavar="N",
    help="Number of groups; repeatable.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1_000),
    default=48,
    show_default=True,
    help="Number of partitions with a commit, in each group.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(2.0, 3600.0),
    default=15.0,
    show_default=True,
    help="Seconds of scraping for each number of groups.",
)
@output_option
@verbose_option
def observe(*, groups: tuple[int, ...], partitions: int, seconds: float, output: str) -> None:
    """Look at thousands of groups, beside the AdminClient's ways.

    A real `fleet exporter` looks every second at groups with 48 committed partitions each, 20 of
    them with a member, and is scraped twice a second. Goals for 1,000 groups, and in proportion
    for more: state, offsets and lag of all at most 0.5 s (p95 of its looks), /metrics at most
    0.2 s (the longest scrape); its memory at most 90 MB, and 40 MB more for each further thousand.
    Beside it: describe all, then offsets one group at a time; and the same with all calls in
    flight. About two and a half minutes.
    """
    from fleet.bench.observe_bench import ObserveOptions, run
    from fleet.bench.owned_home import homes
    from fleet.clock import SystemClock
    from fleet.commands.progress import Progress
    from fleet.demo.interrupts import interruptible
    from fleet.system.home import fleet_home

    clock = SystemClock()
    home = homes(fleet_home()) / f"observe-{int(clock.now())}"
    options = ObserveOptions(
        groups=tuple(sorted(set(groups))), partitions=partitions, seconds=seconds
    )
    with (
        Progress("bench observe") as say,
        interruptible(lambda: say("everything is being ended; one moment")) as ending,
    ):
        result = run(options, home=home, clock=clock, say=say, ending=ending.start)
    _print(result, output)
    click.get_current_context().exit(0 if result.met else 1)


def _print(result: "ObserveResult", output: str) -> None:
    from fleet.commands.answers import print_json, stdout, table

    if output == "json":
        print_json({"schema_version": SCHEMA_VERSION, "bench": "observe", **as_json(result)})
        return
    console = stdout()
    numbers = (
        "look p50",
        "p95",
        "scrape max",
        "memory",
        "members' age",
        "one by one",
        "coordinators",
    )
    shown = table("groups", *numbers, right=("groups", *numbers))
    for size in result.sizes:
        look = size.looks.p50 if size.looks else None
        shown.add_row(
            f"{size.groups:,}",
            _seconds(look),
            _seconds(size.looks.p95 if size.looks else None),
            _seconds(size.scrapes.max if size.scrapes else None),
            "-" if size.megabytes is None else f"{size.megabytes:.0f} MB",
            _seconds(size.age.p50 if size.age else None),
            _times(size.one_by_one, look),
            _times(size.in_flight, look),
        )
    console.print(shown)
    for size in result.sizes:
        console.print(
            f"  {size.groups:,} groups: CPU for each look, every 5 s: {_seconds(size.cpu)}; where"
            f" all stand still: {_seconds(size.cpu_stuck)}",
            markup=False,
            soft_wrap=True,
        )
    for goal in result.goals():
        console.print(f"  {goal.sentence()}", markup=False, soft_wrap=True)


def as_json(result: "ObserveResult") -> dict[str, Any]:
    """The rest of the JSON answer (docs/json.md)."""
    return {
        "met": result.met,
        "partitions": result.options.partitions,
        "groups_with_members": result.options.members,
        "sizes": [size.as_json() for size in result.sizes],
        "goals": [goal.as_json() for goal in result.goals()],
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _times(theirs: float | None, ours: float | None) -> str:
    """Theirs, and how many times ours it is."""
    if theirs is None or not ours:
        return "-"
    return f"{theirs:.2f} s ({theirs / ours:.0f}x)"
