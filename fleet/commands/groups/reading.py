"""`fleet status` and `fleet plan`: what is, and what would be done. Nothing is changed."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.markup import escape

from fleet.commands.answers import (
    as_answer,
    failed_answer,
    previous_failure,
    print_failed,
    print_json,
    print_plan,
    print_receipts,
    print_traceback,
    stdout,
)
from fleet.commands.groups.group_status import (
    GROUPS,
    PARTITIONS,
    SLOTS,
    GroupStatus,
    Managed,
    as_table,
    gather,
    last_cause,
    last_change,
    slot_rows,
    status_answer,
)
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    Meant,
    common,
    groups_option,
    output_option,
)
from fleet.decide.lag_status import Level
from fleet.errors import FleetError
from fleet.lag.snapshot import Snapshot
from fleet.manager.past import Recent
from fleet.text import duration, few, plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan


_MOST_FAILURES: Final = 3
_FAILURE_LINES: Final = 25


def print_status(
    console: Console,
    snapshot: Snapshot,
    groups: Sequence[GroupStatus],
    *,
    now: float,
    detail: bool,
    recent: Recent | None = None,
) -> None:
    """The cluster's groups; with `detail` each group's partitions and slots."""
    if not groups:
        console.print(f"cluster {snapshot.cluster} has no consumer groups")
    else:
        declared = any(status.managed for status in groups)  # else the columns would be empty
        console.print(as_table(GROUPS, groups, now, ours=declared))
    for status in groups:
        for pause in (status.pauses or ()) if detail else ():
            console.print(f"[yellow]paused[/yellow] by {escape(pause.by)}: {escape(pause.reason)}")
    if not detail:
        for status in groups:
            for number in sorted(status.managed.targets.quarantined) if status.managed else ():
                told = external_owner(status, number)
                console.print(f"[red]foreign owner[/red]: {escape(told)}")
        for pause in dict.fromkeys(p for status in groups for p in status.pauses or ()):
            whose = pause.group or "all groups"
            console.print(
                f"[yellow]paused[/yellow] {escape(whose)}: {escape(pause.reason)} "
                f"({escape(pause.by)})"
            )
    for status in groups:
        if status.managed is not None and status.managed.pin is not None:
            said = f"{status.group}: {status.managed.pin.sentence(now)}"
            console.print(f"[yellow]pinned[/yellow] {escape(said)}")
    if groups and recent is not None and not recent.known:
        console.print(f"[yellow]not read[/yellow]: {escape(recent.sentence)}")
    _alarms(console, groups)
    for problem in snapshot.problems:
        console.print(f"[yellow]not read[/yellow]: {escape(problem)}")
    if detail:
        for status in groups:
            _detail(console, status, now)


def _alarms(console: Console, groups: Sequence[GroupStatus]) -> None:
    """Storms, and groups that do not keep up or lack workers."""
    for status in groups:
        if status.storm is not None:
            console.print(f"[red]storm[/red] {escape(status.group)}: {escape(storm_of(status))}")
    for status in groups:
        if status.lag_status is not None and status.lag_status.level is not Level.OK:
            colour = "red" if status.lag_status.level is Level.ERR else "yellow"
            said = f"{status.group}: {status.lag_status.sentence}"
            console.print(f"[{colour}]{status.lag_status.status}[/] {escape(said)}")


def _detail(console: Console, status: GroupStatus, now: float) -> None:
    seen, managed = status.seen, status.managed
    console.print(f"\n[bold]{escape(status.group)}[/bold]: {_story(status, now)}")
    if seen and seen.partitions:
        parts = sorted(seen.partitions, key=lambda part: part.tp)
        console.print(as_table(PARTITIONS, parts, now))
    if managed and managed.slots:
        console.print()
        console.print(as_table(SLOTS, slot_rows(managed), now))
    for number in sorted(managed.targets.quarantined) if managed else ():
        console.print(f"[red]foreign owner[/red]: {escape(external_owner(status, number))}")
    if managed and managed.change:
        said = f": {escape(managed.change.sentence)}" if managed.change.sentence else ""
        console.print(f"last change {last_change(managed.change, now)}{said}")
        print_receipts(console, managed.change)
    for gap in managed.gaps if managed else ():
        console.print(f"[yellow]commits deleted[/yellow]: {escape(gap)}")
    for address in managed.spark_uis if managed else ():
        console.print(f"Spark's UI: {escape(address)}")
    if managed:
        _failures(console, managed)


def _failures(console: Console, managed: Managed) -> None:
    """What fails now; of a change that was rolled back, where nothing fails any more."""
    failures = managed.failures
    for failure in failures[:_MOST_FAILURES]:
        who = few(failure.workers)
        console.print(f"[red]fails[/red] in {escape(who)}, revision {failure.revision}:")
        print_traceback(console, failure.traceback, lines=_FAILURE_LINES)
    if len(failures) > _MOST_FAILURES:
        console.print(f"and {len(failures) - _MOST_FAILURES} more: `fleet logs GROUP`")
    change = managed.change
    if not failures and change is not None and change.traceback is not None:
        print_traceback(console, change.traceback, lines=_FAILURE_LINES)


def storm_of(status: GroupStatus) -> str:
    """The storm's sentence without the word that stands before it, and what it holds."""
    assert status.storm is not None
    held = "; its changes are held" if status.managed and status.managed.has_worker else ""
    return status.storm.sentence.removeprefix("storm ") + held


def external_owner(status: GroupStatus, number: int) -> str:
    """What is known of a slot that another process's member shut [15], and what to do."""
    group, name = status.group, f"{status.group}-{number}"
    members = status.seen.members if status.seen is not None else ()
    host = next((each.host.lstrip("/") for each in members if each.instance_id == name), "")
    who = f"another process at {host}" if host else "another process"
    return (
        f"{who} is a member as {name}, so slot {number} is shut; end that process, then "
        f"`fleet resume {group} --slot {number}`"
    )


def _story(status: GroupStatus, now: float) -> str:
    if not status.exists:
        return "declared, not on the cluster yet"
    seen = status.seen
    assert seen is not None
    parts = [f"{seen.type} group"]
    if seen.assignor:
        parts.append(f"assignor {escape(seen.assignor)}")
    if status.lag_status is not None:
        parts.append(f"lag status {status.lag_status.status}")
    if status.window is not None:
        counted = "unreadable" if status.rebalances is None else str(status.rebalances)
        parts.append(f"rebalances in the last {duration(status.window)}: {counted}")
    if status.last_rebalance is not None:
        parts.append(f"the last: {last_cause(status.last_rebalance, now)} ago")
    return ", ".join(parts)


@click.command(
    help="Groups: members, lag, slots, last change.\n\nAll groups of the cluster, managed or not. "
    "With a GROUP: its partitions, slots and recent rebalances too. The columns: "
    + "; ".join(f"{column.header} {column.about}" for column in GROUPS if column.header)
    + ".",
    epilog="Examples:  fleet status  |  fleet status orders-enrichment  |  fleet status -o json",
)
@groups_option()
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
    *,
    meant: Meant,
    output: str,
    watch: float | None,
) -> None:
    """Show what is."""
    if watch and output == "json":
        raise click.UsageError("--watch is for people: leave it out with -o json")
    with invocation.open() as fleet:
        names = meant.chosen(fleet) if meant.select else meant.named
        detail = bool(meant.named)
        while watch:
            click.clear()
            _show_once(fleet, names, output=output, detail=detail)
            time.sleep(watch)
        _show_once(fleet, names, output=output, detail=detail)


def _show_once(fleet: "Fleet", groups: tuple[str, ...], *, output: str, detail: bool) -> None:
    snapshot, found, recent, pauses = gather(fleet, groups)
    _known(fleet, [s.group for s in found if not s.exists and not fleet.spec.fleet(s.group)])
    if output == "json":
        print_json(status_answer(snapshot, found, pauses, recent=recent, detail=detail))
        return
    now = fleet.clock.now()
    print_status(stdout(), snapshot, found, now=now, detail=detail, recent=recent)


def _known(fleet: "Fleet", external_members: list[str]) -> None:
    """A name that neither Kafka nor fleet.yaml knows is a mistake, not an empty answer."""
    if external_members:
        raise FleetError(
            f"cluster {fleet.spec.cluster.name} has no group {', '.join(external_members)}, and "
            f"{fleet.config} declares none; `fleet status` lists those there are"
        )


@click.command(epilog="Example:  fleet plan orders-enrichment -o json")
@groups_option()
@output_option
@common
def plan(invocation: Invocation, *, meant: Meant, output: str) -> None:
    """What would be done, and what it costs.

    For the groups named, or all that declare a worker or a Deployment. The expected cost is counted
    in rebalances (completed generations, or new assignments under KIP-848) and partitions that
    change owner; `fleet apply` carries it out and compares.
    """
    with invocation.open() as fleet:
        names = meant.chosen(fleet, among=lambda f: f.is_changeable)
        snapshot = fleet.snapshot(names) if names else None
        plans = [fleet.plan(name, snapshot=snapshot) for name in names]
        before = {p.group: previous_failure(fleet.change(p.group), p) for p in plans}
        if output == "json":
            answers = [
                as_answer(made, previous_failure=failed_answer(before[made.group]))
                for made in plans
            ]
            cluster = fleet.spec.cluster.name
            print_json({"schema_version": SCHEMA_VERSION, "cluster": cluster, "plans": answers})
            _possible(plans)
            return
        console = stdout()
        for made in plans:
            print_plan(console, made)
            print_failed(console, before[made.group])
        observed = len(fleet.spec.fleets) - len(plans)
        if not (meant.named or meant.select) and observed:
            console.print(f"{plural(observed, 'declared group')} without a worker: observed only")
        _possible(plans)


def _possible(plans: "list[Plan]") -> None:
    """FleetError where there is not even a plan that could be held: a topic that is missing."""
    told = [sentence for plan in plans if plan.empty for sentence in plan.refusals]
    if told:
        raise FleetError("\nfleet: ".join(told))
