"""`fleet bench roll`: rollouts beside rolling restarts."""

import click

from fleet.commands.bench.measuring import measure, protocol_option, rate_option, run_options


@click.command()
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

    options = RollOptions(
        handovers=2 if quick else handovers,
        slots=2 if quick else slots,
        ordinary_rolls=1 if quick else ordinary_rolls,
        max_pause=max_pause,
    )
    measure(
        "roll",
        protocol=protocol,
        partitions=2 * options.slots,
        rate=rate,
        keep=keep,
        output=output,
        run=lambda ground, each: run(ground, each, options),
    )
