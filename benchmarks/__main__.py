"""`python -m benchmarks NAME`: our figures beside the ordinary way's, and a verdict."""

import click

from benchmarks.failover import failover
from benchmarks.gate import gate
from benchmarks.history import history
from benchmarks.observe import observe
from benchmarks.rebalance_table import rebalance_table
from benchmarks.roll import roll
from benchmarks.simulate import simulate
from benchmarks.start import start
from benchmarks.worker import worker
from fleet.cli import run
from fleet.leaving import leave


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def benchmarks() -> None:
    """Measure a promise of Fleet on this machine.

    Each starts a broker, a stream and workers of its own in a temporary home under $FLEET_HOME,
    prints our figures beside those of the ordinary way from the same run, and deletes the home.
    Exit code 1 where a goal stated in its help is missed.
    """


for _command in (roll, gate, failover, start, worker, observe, history, simulate, rebalance_table):
    benchmarks.add_command(_command)

if __name__ == "__main__":
    leave(run(command=benchmarks, name="python -m benchmarks"))
