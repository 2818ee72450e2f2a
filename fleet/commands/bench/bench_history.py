"""`fleet bench history`: what is read and decoded of `__consumer_offsets` per second."""

from typing import TYPE_CHECKING, Any

import click

from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from fleet.bench.history_bench import HistoryResult


@click.command(epilog="Example:  fleet bench history --commits 500000")
@click.option(
    "--commits",
    type=click.IntRange(10_000, 100_000_000),
    default=2_000_000,
    show_default=True,
    metavar="N",
    help="Number of offset commits on the topic.",
)
@click.option(
    "--every-commit", is_flag=True, help="Record every commit, not only the last of 10 s."
)
@output_option
@verbose_option
def history(*, commits: int, every_commit: bool, output: str) -> None:
    """Record offset commits, beside what bare consumers read.

    Commits of 2,000 groups are written to a broker of the benchmark's own. Goal: the vectorised
    decoder alone takes 2,000,000 commits/s or more on one core, of every version. Two bare Python
    consumers read the topic, as they come and with our fetch options; then `fleet history` records
    it as a tail does. Goals: 135,000 commits/s or more into tables, the broker included (three
    times Burrow's 45,000), and 0.8 times the bare consumers or more; none lost, none twice. Beside
    it what catching up after a restart takes, and the peak of memory. About two minutes.
    """
    from fleet.bench.history_bench import HistoryOptions, run
    from fleet.bench.owned_home import homes
    from fleet.clock import SystemClock
    from fleet.commands.progress import Progress
    from fleet.demo.interrupts import interruptible
    from fleet.system.home import fleet_home

    clock = SystemClock()
    options = HistoryOptions(commits=commits, every=every_commit)
    home = homes(fleet_home()) / f"history-{int(clock.now())}"
    with (
        Progress("bench history") as say,
        interruptible(lambda: say("everything is being ended; one moment")) as ending,
    ):
        result = run(options, home=home, clock=clock, say=say, ending=ending.start)
    _print(result, output)
    click.get_current_context().exit(0 if result.met else 1)


def _print(result: "HistoryResult", output: str) -> None:
    from fleet.bench.recording_bench import told
    from fleet.commands.answers import print_json, stdout, table

    if output == "json":
        print_json({"schema_version": SCHEMA_VERSION, "bench": "history", **_as_json(result)})
        return
    console = stdout()
    shown = table("", "records/s", right=("records/s",))
    for name, rate in result.decoder.items():
        shown.add_row(f"decoder alone, one core: {name}", f"{rate:,.0f}")
    for name, rate in result.bare.items():
        shown.add_row(f"two bare consumers, {name}", f"{rate:,.0f}")
    if result.recorded is not None:
        shown.add_row("into tables", f"{result.recorded.rate:,.0f}")
    console.print(shown)
    for sentence in result.recorded.sentences() if result.recorded is not None else ():
        console.print(f"  {sentence}", markup=False, soft_wrap=True)
    for name, spent in result.bare_cpu.items():
        text = f"  CPU of two bare consumers, {name}: {told(spent, result.options.commits)}"
        console.print(text, markup=False, soft_wrap=True)
    for goal, measured, met in result.goals():
        found = "not measured" if measured is None else f"{measured:,.4g}"
        if measured is not None and measured >= 1000:
            found = f"{measured:,.0f}"
        console.print(f"  {'met' if met else 'MISSED'}: {goal}: {found}", markup=False)


def _as_json(result: "HistoryResult") -> dict[str, Any]:
    return {
        "met": result.met,
        "commits": result.options.commits,
        "decoder_records_per_second": {n: round(rate) for n, rate in result.decoder.items()},
        "bare_records_per_second": {n: round(rate) for n, rate in result.bare.items()},
        "bare_cpu_seconds": {
            way: {name: round(seconds, 2) for name, seconds in spent.items()}
            for way, spent in result.bare_cpu.items()
        },
        "recorded": None if result.recorded is None else result.recorded.as_json(),
        "ratio_to_bare_consumers": None if result.ratio is None else round(result.ratio, 3),
        "goals": [
            {"goal": goal, "measured": None if value is None else round(value, 3), "met": met}
            for goal, value, met in result.goals()
        ],
    }
