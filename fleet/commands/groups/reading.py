"""`fleet status` and `fleet plan`: what is, and what would be done. Nothing is changed."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.markup import escape

from fleet.commands.answers import print_receipts, print_traceback, table
from fleet.commands.groups.group_status import GroupStatus, Managed, error_of, how_it_fails
from fleet.commands.invocation import (
    SCHEMA_VERSION,
    Invocation,
    Pair,
    chosen,
    common,
    groups_argument,
    one_way,
    output_option,
    select_option,
)
from fleet.decide.verdicts import Level
from fleet.errors import FleetError
from fleet.lag.snapshot import Snapshot
from fleet.manager.past import Recent
from fleet.model import LagCase, PartitionState
from fleet.model.rebalances import Rebalance
from fleet.report.wording import in_table
from fleet.slots import Change, ChangeState, WorkerReport
from fleet.text import duration, few, plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet
    from fleet.model import Plan


# `fleet status` as tables of at most 100 columns for names of common length.


_MOST_FAILURES: Final = 3
_FAILURE_LINES: Final = 25
_STATE_COLOURS: Final = {"Stable": "green", "Empty": "dim", "Dead": "red"}


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
        console.print(_overview(groups, now))
    for status in groups:
        for pause in (status.pauses or ()) if detail else ():
            console.print(f"[yellow]paused[/yellow] by {escape(pause.by)}: {escape(pause.reason)}")
    if not detail:
        for status in groups:
            for number in sorted(status.managed.gate.quarantined) if status.managed else ():
                told = foreign_holder(status, number)
                console.print(f"[red]foreign holder[/red]: {escape(told)}")
        for pause in dict.fromkeys(p for status in groups for p in status.pauses or ()):
            whose = pause.group or "all groups"
            console.print(
                f"[yellow]paused[/yellow] {escape(whose)}: {escape(pause.reason)} "
                f"({escape(pause.by)})"
            )
    for status in groups:
        if status.managed is not None and status.managed.hold is not None:
            said = f"{status.group}: {status.managed.hold.sentence(now)}"
            console.print(f"[yellow]held[/yellow] {escape(said)}")
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
        if status.verdict is not None and status.verdict.level is not Level.OK:
            colour = "red" if status.verdict.level is Level.ERR else "yellow"
            said = f"{status.group}: {status.verdict.sentence}"
            console.print(f"[{colour}]{status.verdict.verdict}[/] {escape(said)}")


def _overview(groups: Sequence[GroupStatus], now: float) -> object:
    numbers = ("MEM", "LAG", "BEHIND", "REB/H")
    declared = any(status.managed for status in groups)  # else the columns would be empty
    ours = ("MODE", "SLOTS", "WORKERS", "LAST CHANGE") if declared else ()
    rows = table("GROUP", "STATE", *numbers, "LAST CAUSE", *ours, right=numbers)
    for status in groups:
        seen = status.seen
        rows.add_row(
            escape(in_table(status.group)),
            _state(status),
            str(len(seen.members)) if seen and status.exists else "-",
            _count(seen.lag if seen else None),
            duration(seen.lag_seconds if seen else None),
            _count(status.per_hour),
            last_cause(status.last_rebalance, now),
            *(_ours(status, now) if declared else ()),
        )
    return rows


def _ours(status: GroupStatus, now: float) -> tuple[str, ...]:
    managed = status.managed
    return (
        _mode(status),
        f"{managed.active}/{len(managed.gate.open)}" if managed and managed.has_worker else "-",
        _workers(managed),
        last_change(managed.change if managed else None, now),
    )


def last_cause(rebalance: Rebalance | None, now: float) -> str:
    """Cause and age of a group's last rebalance: `join 3 m`; - where there was none."""
    if rebalance is None:
        return "-"
    return f"{rebalance.cause.value} {duration(max(0.0, now - rebalance.ended_at))}"


def _detail(console: Console, status: GroupStatus, now: float) -> None:
    seen, managed = status.seen, status.managed
    console.print(f"\n[bold]{escape(status.group)}[/bold]: {_story(status, now)}")
    if seen and seen.partitions:
        console.print(_partitions(seen.partitions))
    if managed and managed.slots:
        console.print()
        console.print(_slots(managed))
    for number in sorted(managed.gate.quarantined) if managed else ():
        console.print(f"[red]foreign holder[/red]: {escape(foreign_holder(status, number))}")
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


def foreign_holder(status: GroupStatus, number: int) -> str:
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
    if status.verdict is not None:
        parts.append(f"verdict {status.verdict.verdict}")
    if status.window is not None:
        counted = "unreadable" if status.rebalances is None else str(status.rebalances)
        parts.append(f"rebalances in the last {duration(status.window)}: {counted}")
    if status.last_rebalance is not None:
        parts.append(f"the last: {last_cause(status.last_rebalance, now)} ago")
    return ", ".join(parts)


def _partitions(partitions: Sequence[PartitionState]) -> object:
    numbers = ("COMMITTED", "END", "LAG", "BEHIND")
    rows = table("PARTITION", *numbers, "OWNER", "", right=numbers)
    for part in sorted(partitions, key=lambda p: p.tp):
        rows.add_row(
            escape(in_table(str(part.tp))),
            _count(part.committed),
            _count(part.log_end),
            _count(part.lag),
            duration(part.lag_seconds),
            escape(_short(part.owner)),
            "" if part.case is LagCase.OK else part.case.value,
        )
    return rows


def _slots(managed: Managed) -> object:
    by_slot: dict[int | None, WorkerReport] = {r.slot: r for r in managed.reports}
    rows = table(
        "SLOT", "PHASE", "WORKER", "REVISION", "BATCHES", "RECORDS", "READS", "ERROR",
        right=("SLOT", "BATCHES", "RECORDS"),
    )  # fmt: skip
    for slot in managed.slots:
        shut = "" if slot.number in managed.gate.open else " (shut)"
        report = by_slot.get(slot.number)
        rows.add_row(
            str(slot.number),
            slot.phase.value + shut,
            escape(slot.holder or "-"),
            slot.revision or "-",
            _count(slot.batches),
            _count(report.records if report else None),
            (report.reading if report else None) or "-",
            escape(error_of(slot, managed) or ""),
        )
    for report in managed.without_slot:
        rows.add_row(
            "-", report.phase, escape(report.worker), report.revision, "-", "-", "-",
            escape(report.error or ""),
        )  # fmt: skip
    shown = {slot.holder for slot in managed.slots} | {r.worker for r in managed.without_slot}
    for worker in managed.failing:
        if worker.name not in shown:
            rows.add_row(
                "-", "failed", escape(worker.name), worker.revision, "-", "-", "-",
                escape(how_it_fails(worker)),
            )  # fmt: skip
    return rows


def _state(status: GroupStatus) -> str:
    if not status.exists or status.seen is None:
        return "[dim]none yet[/dim]"
    name = status.seen.state.value
    return f"[{_STATE_COLOURS.get(name, 'yellow')}]{name}[/]"


def _mode(status: GroupStatus) -> str:
    if status.managed is None:
        return "[dim]-[/dim]"
    paused = "[yellow] paused[/yellow]" if status.pauses else ""
    return status.managed.mode + paused


def _workers(managed: Managed | None) -> str:
    if managed is None or not managed.has_worker:
        return "-"
    running = sum(worker.running for worker in managed.workers)
    return f"{running - managed.standby}+{managed.standby}"


def last_change(change: Change | None, now: float) -> str:
    """State and age of a change: `done 3 m ago`, `running, step 2 of 3`."""
    if change is None:
        return "-"
    if change.state is ChangeState.RUNNING:
        steps = len(change.plan.steps)
        return f"running, step {min(change.step + 1, steps)} of {steps}"
    colour = "green" if change.state is ChangeState.DONE else "red"
    ago = duration(max(0.0, now - (change.ended_at or change.started_at)))
    return f"[{colour}]{change.state.value}[/] {ago} ago"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _short(member: str | None) -> str:
    """A member id without its random end, which nobody reads: `<name>-<uuid>`."""
    if member is None:
        return "-"
    return member[:-37] if len(member) > 40 and member[-37] == "-" else member


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
        as_answer,
        failed_answer,
        failed_before,
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
                {**as_answer(made), "failed_before": failed_answer(before[made.group])}
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
