"""`fleet completion`: what makes a shell complete the command at Tab."""

import click
from click.shell_completion import get_completion_class

from fleet.commands.invocation import verbose_option


@click.command(
    epilog="Examples:  source <(fleet completion bash)  |  fleet completion fish > "
    "~/.config/fish/completions/fleet.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verbose_option
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script by which a shell completes.

    Completes commands, options, and from fleet.yaml groups, slots and topics. No cluster is
    asked. Write the line of the example into ~/.bashrc or ~/.zshrc.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "fleet", "_FLEET_COMPLETE").source())
