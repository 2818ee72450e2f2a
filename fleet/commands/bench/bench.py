"""`fleet bench NAME`: our figures beside the ordinary way's, from one run, and a verdict.

A benchmark is a module of fleet.bench with a wish, a run and a result; its command here only
reads options and prints. `measure` does for each protocol what all of them share.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from fleet.commands.bench.bench_history import history
from fleet.commands.bench.bench_observe import observe
from fleet.commands.bench.bench_simulate import simulate
from fleet.commands.bench.bench_start import start
from fleet.commands.bench.bench_table import rebalance_table
from fleet.commands.bench.bench_worker import worker
from fleet.commands.invocation import SCHEMA_VERSION, output_option, verbose_option

if TYPE_CHECKING:
    from pathlib import Path

    from fleet.bench.figures import Goal
    from fleet.bench.ground import Ground

PROTOCOLS: Final = ("range", "cooperative-sticky", "consumer")


class BenchResult(Protocol):
    """What a benchmark found on one protocol."""

    @property
    def protocol(self) -> str:
        """Which one."""
        ...

    @property
    def met(self) -> bool:
        """Every goal is met."""
        ...

    def goals(self) -> "tuple[Goal, ...]":
        """The goals with their figures."""
        ...

    def rows(self) -> list[tuple[str, ...]]:
        """A table: headings, then lines."""
        ...

    def remarks(self) -> list[str]:
        """Sentences under it."""
        ...

    def as_json(self) -> dict[str, Any]:
        """An element of `protocols`."""
        ...


@click.group()
def bench() -> None:
    """Measure a promise on this machine.

    Each starts a broker, a stream and workers of its own in a temporary home under $FLEET_HOME,
    prints our figures beside those of the ordinary way from the same run, and deletes the home.
    Exit code 1 where a goal stated in its help is missed.
    """


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


@bench.command()
@protocol_option
@click.option(
    "--handovers",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Number of handovers at least, in rolls of all slots.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 64),
    default=6,
    show_default=True,
    help="Number of workers to roll.",
)
@click.option(
    "--ordinary-rolls",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="Number of rolling restarts done the ordinary way.",
)
@rate_option
@click.option(
    "--max-pause",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Goal for the p95 pause in seconds (default: 0.5 + the median batch).",
)
@run_options
def roll(
    *,
    protocol: str,
    handovers: int,
    slots: int,
    ordinary_rolls: int,
    rate: int,
    max_pause: float | None,
    quick: bool,
    keep: bool,
    output: str,
) -> None:
    """Hand every slot over to new code, again and again.

    Goals: 0 rebalances over all rolls; a partition's pause at p95 at most 0.5 s + one batch; no
    record lost, none processed twice. Beside it as many dynamic members are restarted one by
    one, on the same topic and cores. Pauses run from the last commit of the old owner to the
    first of the new one, less the usual gap between commits, by the coordinator's records.
    About ten minutes per protocol.
    """
    from fleet.bench.roll_bench import RollOptions, run

    wish = RollOptions(
        handovers=2 if quick else handovers,
        slots=2 if quick else slots,
        ordinary_rolls=1 if quick else ordinary_rolls,
        max_pause=max_pause,
    )
    measure(
        "roll",
        protocol=protocol,
        partitions=2 * wish.slots,
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, wish),
    )


@bench.command()
@protocol_option
@click.option(
    "--joins",
    type=click.IntRange(2, 62),
    multiple=True,
    default=(2, 5, 10),
    show_default=True,
    metavar="K",
    help="Number of workers that join together; repeatable.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 1000),
    default=12,
    show_default=True,
    metavar="N",
    help="Number of gates for each K.",
)
@click.option(
    "--ordinary-runs",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of ordinary scale-ups for each K.",
)
@click.option(
    "--patient-runs",
    type=click.IntRange(0, 1000),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of gates for each K with members that wait for their heartbeats (3 s or 5 s).",
)
@rate_option
@click.option(
    "--max-rebalances",
    type=click.IntRange(0),
    metavar="N",
    help="Goal for the rebalances of a gate (default: 1 with range, else 2).",
)
@click.option(
    "--max-spread",
    type=click.FloatRange(0),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="Goal for the seconds between the first and the last subscribe.",
)
@click.option(
    "--max-settled",
    type=click.FloatRange(0),
    default=1.5,
    show_default=True,
    metavar="SECONDS",
    help="Goal for the seconds until a gate or a leave is settled, at p95.",
)
@click.option(
    "--max-pause",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Goal for a change's longest pause of a partition, at p95 (default: 0.8 s + one batch).",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Start new processes for every gate instead of reusing them: truer, and slower.",
)
@run_options
def gate(
    *,
    protocol: str,
    joins: tuple[int, ...],
    runs: int,
    ordinary_runs: int,
    patient_runs: int,
    rate: int,
    max_rebalances: int | None,
    max_spread: float,
    max_settled: float,
    max_pause: float | None,
    fresh: bool,
    quick: bool,
    keep: bool,
    output: str,
) -> None:
    """Let k warm workers join a live group together, and leave together.

    Goals, each over all runs: k joins cost 1 rebalance with range, at most 2 with
    cooperative-sticky and consumer; their subscribes are at most 100 ms apart; one batched
    leave of k costs 1 (cooperative-sticky: at most 2); no record lost, none processed twice; both
    are settled within 1.5 s and pause no partition for longer than 0.8 s + the median batch, at
    p95. Beside it the same with members that wait for their heartbeats, and k dynamic workers that
    join as each is ready: started at once, and in turn. 10 to 15 s a gate.
    """
    from fleet.bench.gate_bench import run
    from fleet.bench.gate_figures import BASE, GateOptions

    wish = GateOptions(
        joins=(2,) if quick else tuple(sorted(set(joins))),
        runs=1 if quick else runs,
        ordinary_runs=1 if quick else ordinary_runs,
        patient_runs=min(1, patient_runs) if quick else patient_runs,
        max_rebalances=max_rebalances,
        max_spread=max_spread,
        max_settled=max_settled,
        max_pause=max_pause,
        fresh=fresh,
    )
    measure(
        "gate",
        protocol=protocol,
        partitions=2 * (BASE + max(wish.joins)),
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, wish),
    )


@bench.command()
@protocol_option
@click.option(
    "--kills",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of workers to kill under their supervisor's eyes.",
)
@click.option(
    "--lease-kills",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of workers to kill that only their lease tells of.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Number of workers beside the standby.",
)
@rate_option
@click.option(
    "--max-seconds",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Goal for the p95.",
)
@run_options
def failover(
    *,
    protocol: str,
    kills: int,
    lease_kills: int,
    slots: int,
    rate: int,
    max_seconds: float,
    quick: bool,
    keep: bool,
    output: str,
) -> None:
    """Kill workers with -9, one after the other, with a standby there.

    Goals: what the killed worker read is processed again within 2 s at p95, by the jobs' own
    journal; no record lost. Beside it kills that only the lease tells of, as on a lost machine.
    About 20 s a kill.
    """
    from fleet.bench.failover_bench import FailoverOptions, run

    wish = FailoverOptions(
        kills=1 if quick else kills,
        lease_kills=1 if quick else lease_kills,
        slots=2 if quick else slots,
        max_seconds=max_seconds,
    )
    measure(
        "failover",
        protocol=protocol,
        partitions=2 * wish.slots,
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, wish),
    )


bench.add_command(start)
bench.add_command(worker)
bench.add_command(observe)
bench.add_command(history)
bench.add_command(simulate)
bench.add_command(rebalance_table)


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
    from fleet.commands.answers import print_json, stdout, table

    if output == "json":
        print_json(answer(name, results, kept))
        return
    console = stdout()
    for result in results:
        head, *lines = result.rows()
        console.print(f"[bold]{result.protocol}[/bold]")
        shown = table(*head, right=head[1:])
        for line in lines:
            shown.add_row(*line)
        console.print(shown)
        for sentence in (*result.remarks(), *(goal.sentence() for goal in result.goals())):
            console.print(f"  {sentence}", markup=False, soft_wrap=True)
    if kept is not None:
        console.print(f"data and logs: {kept}", markup=False, soft_wrap=True)
