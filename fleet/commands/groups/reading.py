"""`fleet status` and `fleet plan`: show groups, and the changes that would be made."""

import time
from collections.abc import Sequence
from functools import partial
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
    with_problems,
)
from fleet.commands.invocation import (
    DETAILED,
    SCHEMA_VERSION,
    Invocation,
    Meant,
    common,
    groups_option,
    output_option,
)
from fleet.decide.lag_status import Level
from fleet.errors import FleetError, Refused
from fleet.lag.snapshot import Snapshot
from fleet.manager.decisions import explain as explain_decision
from fleet.manager.past import Recent
from fleet.slots import Pause
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
    """Prints the cluster's groups; with `detail` each group's partitions and slots."""
    if not groups and not snapshot.groups:
        console.print(f"cluster {snapshot.cluster} has no consumer groups")
    if groups:
        declared = any(status.managed for status in groups)  # without one, columns are empty
        console.print(as_table(GROUPS, groups, now, ours=declared))
    for status in groups:
        for number in sorted(status.managed.targets.quarantined) if status.managed else ():
            console.print(f"[red]external owner[/red]: {escape(external_owner(status, number))}")
    for pause in dict.fromkeys(p for status in groups for p in status.pauses or ()):
        console.print(_pause_line(pause))
    for status in groups:
        if status.managed is not None and status.managed.pin is not None:
            sentence = f"{status.group}: {status.managed.pin.sentence(now)}"
            console.print(f"[yellow]pinned[/yellow] {escape(sentence)}")
    if groups and recent is not None and not recent.known:
        console.print(f"[yellow]not read[/yellow]: {escape(recent.sentence)}")
    _alarms(console, groups, detail=detail)
    for problem in snapshot.problems:
        console.print(f"[yellow]not read[/yellow]: {escape(problem)}")
    if detail:
        for status in groups:
            _detail(console, status, now)


def _pause_line(pause: Pause) -> str:
    if pause.is_unmanaged:
        lift = f"`fleet manage {pause.group}` takes it back"
        return f"[yellow]unmanaged[/yellow] {escape(f'{pause.group}: by {pause.by}; {lift}')}"
    whose = pause.group or "all groups"
    return f"[yellow]paused[/yellow] {escape(f'{whose}: {pause.reason} ({pause.by})')}"


def _alarms(console: Console, groups: Sequence[GroupStatus], *, detail: bool) -> None:
    """Prints storms, groups that fall behind or lack workers, and changes that failed."""
    for status in groups:
        if status.storm is not None:
            console.print(f"[red]storm[/red] {escape(status.group)}: {escape(storm_of(status))}")
    for status in groups:
        if status.lag_status is not None and status.lag_status.level is not Level.OK:
            colour = "red" if status.lag_status.level is Level.ERR else "yellow"
            sentence = f"{status.group}: {status.lag_status.sentence}"
            console.print(f"[{colour}]{status.lag_status.status}[/] {escape(sentence)}")
    for status in () if detail else groups:
        failed = status.managed.failed_change if status.managed is not None else None
        if failed is not None:
            sentence = f"{status.group}: {failed.sentence}"
            console.print(f"[red]last change {failed.state}[/red] {escape(sentence)}")


def _detail(console: Console, status: GroupStatus, now: float) -> None:
    seen, managed = status.seen, status.managed
    console.print(f"\n[bold]{escape(status.group)}[/bold]: {_summary(status, now)}")
    if seen and seen.partitions:
        parts = sorted(seen.partitions, key=lambda part: part.tp)
        console.print(as_table(PARTITIONS, parts, now))
    if managed and managed.slots:
        console.print()
        console.print(as_table(SLOTS, slot_rows(managed), now))
    if managed and managed.change:
        sentence = f": {escape(managed.change.sentence)}" if managed.change.sentence else ""
        console.print(f"last change {last_change(managed.change, now)}{sentence}")
        print_receipts(console, managed.change)
    for gap in managed.gaps if managed else ():
        console.print(f"[yellow]commits deleted[/yellow]: {escape(gap)}")
    for address in managed.spark_uis if managed else ():
        console.print(f"Spark's UI: {escape(address)}")
    if managed:
        _failures(console, managed)


def _failures(console: Console, managed: Managed) -> None:
    """Prints what fails now, or else why the last change was rolled back."""
    failures = managed.failures
    for failure in failures[:_MOST_FAILURES]:
        who = few(failure.workers)
        console.print(f"[red]failing[/red] in {escape(who)}, revision {failure.revision}:")
        print_traceback(console, failure.traceback, lines=_FAILURE_LINES)
    if len(failures) > _MOST_FAILURES:
        more = len(failures) - _MOST_FAILURES
        console.print(f"and {more} more: `fleet logs GROUP` prints them")
    change = managed.change
    if not failures and change is not None and change.traceback is not None:
        print_traceback(console, change.traceback, lines=_FAILURE_LINES)


def storm_of(status: GroupStatus) -> str:
    """Returns the storm's sentence without its first word, and whether it blocks changes."""
    assert status.storm is not None
    blocks = "; it blocks changes" if status.managed and status.managed.has_worker else ""
    return status.storm.sentence.removeprefix("storm ") + blocks


def external_owner(status: GroupStatus, number: int) -> str:
    """Returns which external member quarantined a slot [15], and what to do."""
    group, name = status.group, f"{status.group}-{number}"
    members = status.seen.members if status.seen is not None else ()
    host = next((each.host.lstrip("/") for each in members if each.instance_id == name), "")
    who = f"another process at {host}" if host else "another process"
    return (
        f"{who} is a member with the instance id {name}, so slot {number} is quarantined; stop "
        f"that process, then run `fleet slot reopen {group} {number}`"
    )


def _summary(status: GroupStatus, now: float) -> str:
    if not status.exists:
        return "declared, does not exist yet"
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
    help="Show groups: members, lag, slots, last change.\n\nShows all groups of the cluster, "
    "managed or not. With GROUP, shows its partitions, slots and recent rebalances too.\n\n\b\n"
    "Columns:\n"
    + "\n".join(f"  {column.header:12} {column.about}" for column in GROUPS if column.header),
    epilog="Examples:  fleet status  |  fleet status orders-enrichment  |  fleet status --problems",
)
@groups_option()
@click.option(
    "--problems",
    is_flag=True,
    help="Show only groups with a storm, a bad lag status, a quarantined slot or a failed change.",
)
@output_option
@click.option(
    "--watch",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    help="Show again every SECONDS until Ctrl-C.",
)
@common
def status(
    invocation: Invocation,
    *,
    meant: Meant,
    problems: bool,
    output: str,
    watch: float | None,
) -> None:
    """Shows groups."""
    if watch and output == "json":
        raise click.UsageError("--watch takes no -o json: leave one of them out")
    with invocation.open() as fleet:
        names = meant.chosen(fleet) if meant.select else meant.named
        detail = bool(meant.named)
        show = partial(_show_once, fleet, names, output=output, detail=detail, problems=problems)
        while watch:
            click.clear()
            show()
            time.sleep(watch)
        show()


def _show_once(
    fleet: "Fleet", groups: tuple[str, ...], *, output: str, detail: bool, problems: bool
) -> None:
    snapshot, found, recent, pauses = gather(fleet, groups)
    _known(fleet, [s.group for s in found if not s.exists and not fleet.spec.fleet(s.group)])
    count = len(found)
    if problems:
        found = with_problems(found)
    if output == "json":
        print_json(status_answer(snapshot, found, pauses, recent=recent, detail=detail))
        return
    now = fleet.clock.now()
    if problems:
        click.echo(f"{plural(len(found), 'group')} of {count:,} with a problem, worst first")
    print_status(stdout(), snapshot, found, now=now, detail=detail, recent=recent)


def _known(fleet: "Fleet", unknown: list[str]) -> None:
    """Raises FleetError for names that neither Kafka nor fleet.yaml knows."""
    if unknown:
        raise FleetError(
            f"neither cluster {fleet.spec.cluster.name} nor {fleet.config} has a group "
            f"{', '.join(unknown)}; `fleet status` lists the groups"
        )


@click.command(epilog="Example:  fleet plan orders-enrichment -o json")
@groups_option()
@click.option(
    DETAILED,
    is_flag=True,
    help="Exit with 0 if there is nothing to do, 1 on an error, 2 if there are changes.",
)
@click.option(
    "--explain", is_flag=True, help="Show the figures and alternatives behind a policy's decision."
)
@output_option
@common
def plan(
    invocation: Invocation, *, meant: Meant, detailed_exitcode: bool, explain: bool, output: str
) -> int:
    """Show the steps of a change and their expected cost.

    Plans the named groups, or all groups that declare a worker or a Deployment. The cost is the
    number of rebalances (completed generations, or new assignments under KIP-848), of partitions
    that move, and their downtime. `fleet apply` carries the plan out and compares.

    The exit code is 3 if a group has no plan because it is refused.
    """
    if explain and output == "json":
        raise click.UsageError("--explain takes no -o json: leave one of them out")
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
            return _exit_code(plans, detailed=detailed_exitcode)
        console = stdout()
        for made in plans:
            print_plan(console, made)
            print_failed(console, before[made.group])
            decided = fleet.decided.get(made.group) if explain else None
            for line in explain_decision(decided) if decided else ():
                console.print(f"  {line}", markup=False, highlight=False)
        observed = len(fleet.spec.fleets) - len(plans)
        if not (meant.named or meant.select) and observed:
            console.print(f"{plural(observed, 'declared group')} without a worker: observed only")
        return _exit_code(plans, detailed=detailed_exitcode)


def _exit_code(plans: "list[Plan]", *, detailed: bool) -> int:
    """Returns 2 for changes if `detailed`, else 0. Raises Refused if a plan has only refusals."""
    refused = [sentence for plan in plans if plan.empty for sentence in plan.refusals]
    if refused:
        raise Refused("\nfleet: ".join(refused))
    return 2 if detailed and any(plan.steps for plan in plans) else 0
