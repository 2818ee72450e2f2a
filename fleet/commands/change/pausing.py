"""`fleet pause`, `resume` and `release`: a person holds all changes, lets go, or ends managing.

A pause is kept beside the slots, so everything that acts obeys it: this command, Dagster's
runs, a second shell. Workers go on working; handovers that they do among themselves (a crash,
a plain `kubectl rollout restart`) go on too.
"""

import click

from fleet.commands.completing import slot_numbers
from fleet.commands.invocation import Invocation, common, person
from fleet.commands.targets import (
    Pair,
    all_option,
    chosen,
    groups_argument,
    required,
    select_option,
)
from fleet.text import visible


@click.command(
    epilog="Examples:  fleet pause orders-enrichment --reason 'incident 4711'  |  "
    "fleet pause --select team=pay --reason freeze"
)
@groups_argument
@select_option
@all_option("Hold the changes of every group of the cluster.")
@click.option("--reason", required=True, help="Reason, shown to whoever is refused.")
@common
def pause(
    invocation: Invocation,
    groups: tuple[str, ...],
    *,
    select: tuple[Pair, ...],
    everything: bool,
    reason: str,
) -> None:
    """Hold all changes of groups, or of all.

    Workers go on; no plan is carried out until `fleet resume`. A pause of --all holds groups that
    are declared later, too.
    """
    required(groups, select, everything=everything)
    if not reason.strip():
        raise click.BadParameter("is empty: say why, for whoever is refused", param_hint="--reason")
    with invocation.open() as fleet:
        names = (None,) if everything else chosen(fleet, groups, select)
        for name in names:
            fleet.pause(name, reason=reason.strip(), by=person())
            what = f"group {name} is" if name else "all groups are"
            undo = name or "--all"
            click.echo(f"{what} paused: {reason.strip()}. Lift it with `fleet resume {undo}`.")


@click.command(
    epilog="Examples:  fleet resume orders-enrichment  |  fleet resume orders-enrichment --slot 2"
)
@groups_argument
@select_option
@all_option("Lift the pause of --all.")
@click.option(
    "--slot",
    type=int,
    metavar="N",
    shell_complete=slot_numbers,
    help="Reopen this slot of one GROUP, which a foreign holder shut.",
)
@common
def resume(
    invocation: Invocation,
    groups: tuple[str, ...],
    *,
    select: tuple[Pair, ...],
    everything: bool,
    slot: int | None,
) -> None:
    """Lift a pause, or open a slot that was shut.

    A pause of --all and a group's own are two pauses; each is lifted by its own command.
    """
    required(groups, select, everything=everything)
    if slot is not None:
        if len(groups) != 1:
            raise click.UsageError("--slot needs the GROUP whose slot it is")
        _reopen(invocation, groups[0], slot)
        return
    with invocation.open() as fleet:
        names = (None,) if everything else chosen(fleet, groups, select)
        for name in names:
            lifted = fleet.unpause(name)
            what = f"group {name}" if name else "all groups"
            click.echo(
                f"the pause of {what} is lifted" if lifted else f"{what}: there was no pause"
            )
        for held in fleet.pauses() if not everything else ():
            if held.group is None:
                said = visible(f"{held.reason} ({held.by})")
                click.echo(f"still held by the pause of all groups: {said}")


@click.command(epilog="Example:  fleet release orders-enrichment")
@groups_argument
@select_option
@common
def release(invocation: Invocation, groups: tuple[str, ...], *, select: tuple[Pair, ...]) -> None:
    """Stop managing groups; their workers go on.

    Nothing acts on them from here on: slots, takeovers and rolls are their workers' own business,
    as without a manager. `fleet resume GROUP` manages it again, `fleet down` ends its workers.
    """
    required(groups, select)
    with invocation.open() as fleet:
        for group in chosen(fleet, groups, select):
            left = fleet.release(group, by=person())
            what = "1 worker goes on" if left == 1 else f"{left} workers go on"
            click.echo(f"group {group} is not managed any more; {what}")
            click.echo(f"Manage it again with `fleet resume {group}`, or take it out of the file.")


def _reopen(invocation: Invocation, group: str, slot: int) -> None:
    with invocation.open() as fleet:
        fleet.group(group)
        shut = fleet.reopen(group, slot)
    if shut:
        click.echo(f"slot {slot} of {group} may be taken again")
    else:
        click.echo(f"slot {slot} of {group} was not shut by a foreign holder")
