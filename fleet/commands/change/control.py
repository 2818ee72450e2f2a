"""`fleet pause`, `resume`, `slot reopen`, `unmanage` and `manage`: who may change a group.

Problem: during an incident no process may change a group. Choice: a pause is stored
beside the slots, so `fleet apply`, a Dagster run and a second shell obey it. An unmanaged group has
a pause with a reason of its own, which only `fleet manage` lifts. Cost: workers still hand slots
to each other during a pause.
"""

import click

from fleet.commands.invocation import (
    Invocation,
    Meant,
    agree,
    changing_options,
    common,
    group_argument,
    groups_option,
    person,
    slot_numbers,
)
from fleet.slots import UNMANAGED
from fleet.text import plural, visible


@click.command(
    epilog="Examples:  fleet pause orders-enrichment --reason 'incident 4711'  |  "
    "fleet pause --select team=pay --reason freeze"
)
@groups_option(must=True, all_means="Pause every group of the cluster, later ones too.")
@click.option(
    "--reason", required=True, metavar="REASON", help="Reason, shown with each refused change."
)
@changing_options
@common
def pause(invocation: Invocation, *, meant: Meant, reason: str, dry_run: bool, yes: bool) -> None:
    """Block new changes of groups until they are resumed.

    The workers keep running, and hand slots to each other. No plan is carried out until
    `fleet resume`.
    """
    reason = reason.strip()
    if not reason:
        raise click.BadParameter("is empty: give the reason of the pause", param_hint="--reason")
    if reason == UNMANAGED:
        raise click.BadParameter(
            "'unmanaged' marks unmanaged groups: use `fleet unmanage`", param_hint="--reason"
        )
    with invocation.open() as fleet:
        names = (None,) if meant.everything else meant.chosen(fleet)
        actions = [f"pause {_group(name)}: {reason}" for name in names]
        if not agree(actions, yes=yes, dry_run=dry_run):
            return
        for name in names:
            fleet.pause(name, reason=reason, by=person())
            verb = "is" if name else "are"
            click.echo(
                f"{_group(name)} {verb} paused: {visible(reason)}; "
                f"`fleet resume {name or '--all'}` lifts it"
            )


@click.command(epilog="Examples:  fleet resume orders-enrichment  |  fleet resume --all")
@groups_option(must=True, all_means="Lift the pause of --all; groups keep their own.")
@changing_options
@common
def resume(invocation: Invocation, *, meant: Meant, dry_run: bool, yes: bool) -> None:
    """Lift a pause.

    A pause of --all and a group's own are two pauses. Each is lifted by its own command.
    """
    with invocation.open() as fleet:
        names = (None,) if meant.everything else meant.chosen(fleet)
        actions = [f"lift the pause of {_group(name)}" for name in names]
        if not agree(actions, yes=yes, dry_run=dry_run):
            return
        for name in names:
            lifted = fleet.unpause(name)
            click.echo(
                f"the pause of {_group(name)} is lifted"
                if lifted
                else f"{_group(name)}: there was no pause"
            )
        for other in fleet.pauses() if not meant.everything else ():
            if other.group is None:
                why = visible(f"{other.reason} ({other.by})")
                click.echo(f"still paused with all groups: {why}; `fleet resume --all` lifts it")


def _group(name: str | None) -> str:
    return f"group {name}" if name else "all groups"


@click.group()
def slot() -> None:
    """Reopen a quarantined slot.

    Fleet quarantines a slot when a process that is not a worker joins with the slot's instance id.
    `fleet status` names that process.
    """


@slot.command(epilog="Example:  fleet slot reopen orders-enrichment 2")
@group_argument
@click.argument("n", type=click.IntRange(min=0), metavar="N", shell_complete=slot_numbers)
@changing_options
@common
def reopen(invocation: Invocation, group: str, n: int, *, dry_run: bool, yes: bool) -> None:
    """Let workers take a quarantined slot again.

    Stop the other process first. Otherwise the slot is quarantined again.
    """
    with invocation.open() as fleet:
        fleet.group(group)
        if not agree([f"reopen slot {n} of group {group}"], yes=yes, dry_run=dry_run):
            return
        reopened = fleet.reopen(group, n)
    click.echo(
        f"slot {n} of group {group} is open again"
        if reopened
        else f"slot {n} of group {group} is not quarantined"
    )


@click.command(epilog="Example:  fleet unmanage orders-enrichment")
@groups_option(must=True)
@changing_options
@common
def unmanage(invocation: Invocation, *, meant: Meant, dry_run: bool, yes: bool) -> None:
    """Stop managing groups; their workers keep running.

    No manager changes them until `fleet manage`. The workers still fail over and hand slots to
    each other. `fleet down` stops them.
    """
    with invocation.open() as fleet:
        names = meant.chosen(fleet)
        actions = [f"stop managing group {group}; its workers keep running" for group in names]
        if not agree(actions, yes=yes, dry_run=dry_run):
            return
        for group in names:
            left = fleet.unmanage(group, by=person())
            keep = "keeps" if left == 1 else "keep"
            click.echo(
                f"group {group} is unmanaged; {plural(left, 'worker')} {keep} running; "
                f"`fleet manage {group}` takes it back"
            )


@click.command(epilog="Example:  fleet manage orders-enrichment")
@groups_option(must=True)
@changing_options
@common
def manage(invocation: Invocation, *, meant: Meant, dry_run: bool, yes: bool) -> None:
    """Take unmanaged groups back.

    From then on their plans are carried out again, as their `mode` says.
    """
    with invocation.open() as fleet:
        names = meant.chosen(fleet)
        if not agree([f"manage group {group} again" for group in names], yes=yes, dry_run=dry_run):
            return
        for group in names:
            click.echo(
                f"group {group} is managed again"
                if fleet.manage(group)
                else f"group {group} is managed already"
            )
