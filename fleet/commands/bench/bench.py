"""`fleet bench NAME`: our figures beside the ordinary way's, from one run, and a verdict."""

import click

from fleet.commands.bench.bench_failover import failover
from fleet.commands.bench.bench_gate import gate
from fleet.commands.bench.bench_history import history
from fleet.commands.bench.bench_observe import observe
from fleet.commands.bench.bench_roll import roll
from fleet.commands.bench.bench_simulate import simulate
from fleet.commands.bench.bench_start import start
from fleet.commands.bench.bench_table import rebalance_table
from fleet.commands.bench.bench_worker import worker


@click.group()
def bench() -> None:
    """Measure a promise on this machine.

    Each starts a broker, a stream and workers of its own in a temporary home under $FLEET_HOME,
    prints our figures beside those of the ordinary way from the same run, and deletes the home.
    Exit code 1 where a goal stated in its help is missed.
    """


for _command in (roll, gate, failover, start, worker, observe, history, simulate, rebalance_table):
    bench.add_command(_command)
