"""`fleet pause`, `resume` and `release`: a person holds all changes, lets go, or ends managing.

A pause is kept beside the slots, so everything that acts obeys it: this command, Dagster's
runs, a second shell. Workers go on working; handovers that they do among themselves (a crash,
a plain `kubectl rollout restart`) go on too.
"""

import click

from fleet.commands.invocation import Invocation, common, person


def _one_target(group: str | None, everything: bool) -> None:
    if (group is None) != everything:
        raise click.UsageError("name a GROUP, or --all for every group of the cluster")


@click.command(epilog="Example:  fleet pause orders-enrichment --reason 'incident 4711'")
@click.argument("group", required=False)
@click.option("--all", "everything", is_flag=True, help="Show every group of the cluster.")
@click.option("--reason", required=True, help="Reason, shown to whoever is refused.")
@common
def pause(invocation: Invocation, group: str | None, *, everything: bool, reason: str) -> None:
    """Hold all changes of a group, or of all.

    Workers go on; no plan is carried out until `fleet resume`.
    """
    _one_target(group, everything)
    if not reason.strip():
        raise click.BadParameter("is empty: say why, for whoever is refused", param_hint="--reason")
    with invocation.open() as fleet:
        if group is not None:
            fleet.group(group)
        fleet.pause(group, reason=reason.strip(), by=person())
    what = f"group {group} is" if group else "all groups are"
    undo = group or "--all"
    click.echo(f"{what} paused: {reason.strip()}. Lift it with `fleet resume {undo}`.")


@click.command(epilog="Example:  fleet resume orders-enrichment")
@click.argument("group", required=False)
@click.option("--all", "everything", is_flag=True, help="Lift the pause of all groups.")
@click.option("--slot", type=int, help="Slot to reopen after a foreign holder shut it.")
@common
def resume(
    invocation: Invocation, group: str | None, *, everything: bool, slot: int | None
) -> None:
    """Lift a pause, or open a slot that was shut.

    A pause of --all and a group's own are two pauses; each is lifted by its own command.
    """
    _one_target(group, everything)
    if slot is not None:
        _reopen(invocation, group, slot)
        return
    with invocation.open() as fleet:
        if group is not None:
            fleet.group(group)
        lifted = fleet.unpause(group)
        left = [p for p in fleet.pauses() if p.group in (None, group)] if group else []
    what = f"group {group}" if group else "all groups"
    click.echo(f"the pause of {what} is lifted" if lifted else f"{what}: there was no pause")
    for held in left:
        click.echo(f"still held by the pause of all groups: {held.reason} ({held.by})")


@click.command(epilog="Example:  fleet release orders-enrichment")
@click.argument("group")
@common
def release(invocation: Invocation, group: str) -> None:
    """Stop managing a group; its workers go on.

    Nothing acts on it from here on: slots, takeovers and rolls are its workers' own business, as
    without a manager. `fleet resume GROUP` manages it again, `fleet down` ends its workers.
    """
    with invocation.open() as fleet:
        left = fleet.release(group, by=person())
    what = "1 worker goes on" if left == 1 else f"{left} workers go on"
    click.echo(f"group {group} is not managed any more; {what}")
    click.echo(f"Manage it again with `fleet resume {group}`, or take it out of the file.")


def _reopen(invocation: Invocation, group: str | None, slot: int) -> None:
    if group is None:
        raise click.UsageError("--slot needs the GROUP whose slot it is")
    with invocation.open() as fleet:
        fleet.group(group)
        shut = fleet.reopen(group, slot)
    if shut:
        click.echo(f"slot {slot} of {group} may be taken again")
    else:
        click.echo(f"slot {slot} of {group} was not shut by a foreign holder")
