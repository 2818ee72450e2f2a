"""`fleet supervise` (hidden): the process that keeps this machine's workers alive.

`fleet up` starts it in the background; by hand it is for service units of one's own.
"""

import click

from fleet.commands.invocation import Invocation, common


@click.command(hidden=True)
@common
def supervise(invocation: Invocation) -> None:
    """Keep this machine's workers alive.

    Runs in the foreground until SIGTERM, after which the workers go on; a second one beside a
    running one ends at once.
    """
    invocation.existing_path()
    from fleet.act.local.supervisor import main
    from fleet.system.home import fleet_home

    click.get_current_context().exit(main(["--home", str(fleet_home())]))
