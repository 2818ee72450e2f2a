"""`fleet bench failover`: kills that somebody sees beside those that only a lease tells of."""

import click

from fleet.commands.bench.measuring import measure, protocol_option, rate_option, run_options


@click.command()
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

    options = FailoverOptions(
        kills=1 if quick else kills,
        lease_kills=1 if quick else lease_kills,
        slots=2 if quick else slots,
        max_seconds=max_seconds,
    )
    measure(
        "failover",
        protocol=protocol,
        partitions=2 * options.slots,
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, options),
    )
