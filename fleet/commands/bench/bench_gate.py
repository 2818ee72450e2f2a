"""`fleet bench gate`: joins and leaves together beside those as they come."""

import click

from fleet.commands.bench.measuring import measure, protocol_option, rate_option, run_options


@click.command()
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

    options = GateOptions(
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
        partitions=2 * (BASE + max(options.joins)),
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, options),
    )
