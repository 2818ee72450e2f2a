"""`fleet bench NAME`: our figures beside the ordinary way's, from one run, and a verdict."""

import click

from fleet.commands.bench_worker import worker


@click.group()
def bench() -> None:
    """Measure a promise on this machine.

    Each starts a broker, a stream and workers of its own in a temporary home under $FLEET_HOME,
    prints our figures beside those of the ordinary way from the same run, and deletes the home.
    Exit code 1 where a goal stated in its help is missed.
    """


bench.add_command(worker)
