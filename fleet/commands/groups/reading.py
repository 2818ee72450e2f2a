"""`fleet status` and `fleet plan`: what is, and what would be done. Nothing is changed."""

import time
from typing import TYPE_CHECKING

import click

from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, output_option
from fleet.errors import FleetError
from fleet.text import plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan


@click.command(
    epilog="Examples:  fleet status  |  fleet status orders-enrichment  |  fleet status -o json"
)
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@output_option
@click.option(
    "--watch",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="Look again at this interval until Ctrl-C.",
)
@common
def status(
    invocation: Invocation, groups: tuple[str, ...], *, output: str, watch: float | None
) -> None:
    """Groups: members, lag, slots, last change.

    All groups of the cluster, managed or not. With a GROUP: its partitions, slots and recent
    rebalances too. LAG is in records, BEHIND the age of the oldest committed position, REB/H the
    rebalances of the last hour, LAST CAUSE that of the last one and how long ago it was;
    SLOTS is active/open, WORKERS running+standby.
    """
    if watch and output == "json":
        raise click.UsageError("--watch is for people: leave it out with -o json")
    with invocation.open() as fleet:
        if watch:
            _watch(fleet, groups, every=watch)
        else:
            _show_once(fleet, groups, output=output)


def _show_once(fleet: "Fleet", groups: tuple[str, ...], *, output: str) -> None:
    from fleet.commands.answers import print_json, stdout
    from fleet.commands.groups.group_status import gather, status_answer
    from fleet.commands.groups.status_table import print_status

    snapshot, found, recent = gather(fleet, groups)
    _known(fleet, [status.group for status in found if not status.exists and not status.managed])
    if output == "json":
        print_json(
            status_answer(snapshot, found, fleet.pauses(), recent=recent, detail=bool(groups))
        )
        return
    now = fleet.clock.now()
    print_status(stdout(), snapshot, found, now=now, detail=bool(groups), recent=recent)


def _watch(fleet: "Fleet", groups: tuple[str, ...], *, every: float) -> None:
    while True:
        click.clear()
        _show_once(fleet, groups, output="table")
        time.sleep(every)


def _known(fleet: "Fleet", strangers: list[str]) -> None:
    """A name that neither Kafka nor fleet.yaml knows is a mistake, not an empty answer."""
    if strangers:
        raise FleetError(
            f"cluster {fleet.spec.cluster.name} has no group {', '.join(strangers)}, and "
            f"{fleet.config} declares none; `fleet status` lists those there are"
        )


@click.command(epilog="Example:  fleet plan orders-enrichment -o json")
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@output_option
@common
def plan(invocation: Invocation, groups: tuple[str, ...], *, output: str) -> None:
    """What would be done, and what it costs.

    For the groups named, or all that declare a worker. The price is counted in rebalances
    (completed generations, or new assignments under KIP-848) and partitions that change
    owner; `fleet apply` carries it out and compares.
    """
    from fleet.commands.answers import plan_answer, print_json, print_plan, stdout

    with invocation.open() as fleet:
        plans = _plans(fleet, groups)
        if output == "json":
            answers = [plan_answer(made) for made in plans]
            print_json(
                {
                    "schema_version": SCHEMA_VERSION,
                    "cluster": fleet.spec.cluster.name,
                    "plans": answers,
                }
            )
            return
        console = stdout()
        for made in plans:
            print_plan(console, made)
        observed = len(fleet.spec.fleets) - len(plans)
        if not groups and observed:
            console.print(f"{plural(observed, 'declared group')} without a worker: observed only")


def _plans(fleet: "Fleet", groups: tuple[str, ...]) -> "list[Plan]":
    names = groups or tuple(f.group for f in fleet.spec.fleets if f.is_changeable)
    for name in names:
        fleet.group(name)
    if not names:
        return []
    snapshot = fleet.snapshot(names)
    return [fleet.plan(name, snapshot=snapshot) for name in names]
