"""`fleet demo`: runs the scenario of fleet.demo; needs no fleet.yaml."""

import click

from fleet.commands.invocation import verbose_option
from fleet.extras import need


@click.command(epilog="Example:  fleet demo --exit --no-dagster")
@click.option("--exit", "exit_after", is_flag=True, help="Stop everything after the table.")
@click.option(
    "--dagster/--no-dagster", default=True, show_default=True, help="Start Dagster's web UI."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of Dagster's web UI (default: a free one).",
)
@click.option(
    "--assignor",
    type=click.Choice(["cooperative-sticky", "range"]),
    help="Assignor of both groups (default: $FLEET_DEMO_ASSIGNOR, else cooperative-sticky).",
)
@verbose_option
def demo(*, exit_after: bool, dagster: bool, port: int | None, assignor: str | None) -> None:
    """Run a whole fleet on this machine, from nothing.

    Starts a real broker, a steady stream and PySpark workers. The policy adds workers, new code
    rolls out, and the policy removes workers. Then the same workers of a second group restart as
    an ordinary Deployment does it. A table shows what the coordinator recorded of each.

    Takes two to four minutes and 4 GB of memory. The first start fetches Kafka (45 MB). State is
    kept in $FLEET_HOME (default: .fleet). Exit code 1 if a guarantee was broken.
    """
    need("pyspark", "pyarrow", *(["dagster", "dagster_webserver"] if dagster else []))
    from fleet.demo.scenario import run_demo
    from fleet.system.home import fleet_home

    code = run_demo(
        home=fleet_home(), exit_after=exit_after, dagster=dagster, port=port, assignor=assignor
    )
    click.get_current_context().exit(code)
