"""`fleet status` and `fleet plan`: what is, and what would be done. Nothing is changed."""

import time
from typing import TYPE_CHECKING

import click

from fleet.commands.invocation import SCHEMA_VERSION, Invocation, common, output_option
from fleet.commands.targets import Pair, chosen, groups_argument, one_way, select_option
from fleet.errors import FleetError
from fleet.text import plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan


@click.command(
    epilog="Examples:  fleet status  |  fleet status orders-enrichment  |  fleet status -o json"
)
@groups_argument
@select_option
@output_option
@click.option(
    "--watch",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="Look again at this interval until Ctrl-C.",
)
@common
def status(
    invocation: Invocation,
    groups: tuple[str, ...],
    *,
    select: tuple[Pair, ...],
    output: str,
    watch: float | None,
) -> None:
    """Groups: members, lag, slots, last change.

    All groups of the cluster, managed or not. With a GROUP: its partitions, slots and recent
    rebalances too. LAG is in records, BEHIND the age of the oldest committed position, REB/H the
    rebalances of the last hour, LAST CAUSE that of the last one and how long ago it was;
    SLOTS is active/open, WORKERS running+standby.
    """
    if watch and output == "json":
        raise click.UsageError("--watch is for people: leave it out with -o json")
    one_way(groups, select)
    with invocation.open() as fleet:
        names = chosen(fleet, (), select) if select else groups
        if watch:
            _watch(fleet, names, every=watch, detail=bool(groups))
        else:
            _show_once(fleet, names, output=output, detail=bool(groups))


def _show_once(fleet: "Fleet", groups: tuple[str, ...], *, output: str, detail: bool) -> None:
    from fleet.commands.answers import print_json, stdout
    from fleet.commands.groups.group_status import gather, status_answer
    from fleet.commands.groups.status_table import print_status

    snapshot, found, recent, pauses = gather(fleet, groups)
    _known(fleet, [s.group for s in found if not s.exists and not fleet.spec.fleet(s.group)])
    if output == "json":
        print_json(status_answer(snapshot, found, pauses, recent=recent, detail=detail))
        return
    now = fleet.clock.now()
    print_status(stdout(), snapshot, found, now=now, detail=detail, recent=recent)


def _watch(fleet: "Fleet", groups: tuple[str, ...], *, every: float, detail: bool) -> None:
    while True:
        click.clear()
        _show_once(fleet, groups, output="table", detail=detail)
        time.sleep(every)


def _known(fleet: "Fleet", strangers: list[str]) -> None:
    """A name that neither Kafka nor fleet.yaml knows is a mistake, not an empty answer."""
    if strangers:
        raise FleetError(
            f"cluster {fleet.spec.cluster.name} has no group {', '.join(strangers)}, and "
            f"{fleet.config} declares none; `fleet status` lists those there are"
        )


@click.command(epilog="Example:  fleet plan orders-enrichment -o json")
@groups_argument
@select_option
@output_option
@common
def plan(
    invocation: Invocation, groups: tuple[str, ...], *, select: tuple[Pair, ...], output: str
) -> None:
    """What would be done, and what it costs.

    For the groups named, or all that declare a worker or a Deployment. The price is counted in
    rebalances (completed generations, or new assignments under KIP-848) and partitions that
    change owner; `fleet apply` carries it out and compares.
    """
    from fleet.commands.answers import (
        failed_answer,
        failed_before,
        plan_answer,
        print_failed,
        print_json,
        print_plan,
        stdout,
    )

    one_way(groups, select)
    with invocation.open() as fleet:
        plans = _plans(fleet, chosen(fleet, groups, select, among=lambda f: f.is_changeable))
        before = {
            p.group: failed_before(next(iter(fleet.changes(p.group, 1)), None), p) for p in plans
        }
        if output == "json":
            answers = [
                {**plan_answer(made), "failed_before": failed_answer(before[made.group])}
                for made in plans
            ]
            print_json(
                {
                    "schema_version": SCHEMA_VERSION,
                    "cluster": fleet.spec.cluster.name,
                    "plans": answers,
                }
            )
            _possible(plans)
            return
        console = stdout()
        for made in plans:
            print_plan(console, made)
            print_failed(console, before[made.group])
        observed = len(fleet.spec.fleets) - len(plans)
        if not (groups or select) and observed:
            console.print(f"{plural(observed, 'declared group')} without a worker: observed only")
        _possible(plans)


def _possible(plans: "list[Plan]") -> None:
    """FleetError where there is not even a plan that could be held: a topic that is missing."""
    told = [sentence for plan in plans if plan.empty for sentence in plan.refusals]
    if told:
        raise FleetError("\nfleet: ".join(told))


def _plans(fleet: "Fleet", names: tuple[str, ...]) -> "list[Plan]":
    if not names:
        return []
    snapshot = fleet.snapshot(names)
    return [fleet.plan(name, snapshot=snapshot) for name in names]
