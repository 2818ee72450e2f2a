"""What every command knows of its invocation: the file, the caller, the change in hand.

Problem: options such as `--config` belong before and after the command's name, and the one
place that prints a failure (fleet.cli) runs when click's context is gone. Choice: one mutable
object per invocation, made by fleet.cli and filled by the options' callbacks.
"""

import functools
import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from fleet.errors import ConfigError, FleetError

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet

Output = Literal["table", "json"]
AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

SCHEMA_VERSION: Final = 1
"""Of every JSON answer; raised when a key goes or changes its meaning (docs/json.md)."""


@dataclass(slots=True)
class Invocation:
    """One run of the `fleet` command."""

    config: Path | None = None
    verbose: bool = False
    changing: str | None = None
    """The group whose change is being carried out now."""

    def path(self) -> Path:
        """The specification's path: the option, $FLEET_CONFIG, or fleet.yaml here."""
        return self.config or Path(os.environ.get("FLEET_CONFIG") or "fleet.yaml")

    def existing_path(self) -> Path:
        """The same where the file is there. Raises ConfigError naming `fleet init`."""
        path = self.path()
        if not path.is_file():
            raise ConfigError(
                f"there is no {path}: write one with `fleet init --bootstrap HOST:PORT`, name "
                "yours with --config or $FLEET_CONFIG, or try `fleet demo`"
            )
        return path

    def open(self, *, start_broker: bool = False) -> "Fleet":
        """The fleet of this invocation's file. Raises ConfigError, Unreachable."""
        path = self.existing_path()
        from fleet.manager.cycle import Fleet

        return Fleet.open(path, start_broker=start_broker)

    def refusal(self) -> FleetError | None:
        """Why the file cannot be opened as it is now, with those that it names."""
        try:
            self.open().close()
        except FleetError as error:
            return error
        return None

    def interrupted(self) -> str:
        """What a person has to know after Ctrl-C."""
        if self.changing is None:
            return "interrupted"
        return (
            f"interrupted; the change of {self.changing} stays where it is and nothing of it is "
            f"done twice: go on with `fleet apply {self.changing} --resume`, or give it up with "
            "`--abort`"
        )


def actor() -> str:
    """Who acts: user, machine and process, so that two shells are two actors."""
    return f"{_user()}@{socket.gethostname()}:{os.getpid()}"


def person() -> str:
    """Who pauses: user and machine."""
    return f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without a name
        return str(os.getuid())


def _set_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).config = value


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).verbose = True


def config_option(command: AnyCommand) -> AnyCommand:
    """`--config`, before or after the command's name."""
    return click.option(
        "--config",
        "-c",
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=_set_config,
        metavar="FILE",
        help="Path of fleet.yaml (default: $FLEET_CONFIG, or fleet.yaml in this folder).",
    )(command)


def verbose_option(command: AnyCommand) -> AnyCommand:
    """`--verbose`, before or after the command's name."""
    return click.option(
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_set_verbose,
        help="Show the traceback of an error.",
    )(command)


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that reads fleet.yaml; passes the Invocation first."""

    @config_option
    @verbose_option
    @click.pass_context
    @functools.wraps(command)
    def with_invocation(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        return command(ctx.ensure_object(Invocation), *args, **kwargs)

    return with_invocation


def output_option(command: AnyCommand) -> AnyCommand:
    """`-o table|json`."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format; JSON is described in docs/json.md.",
    )(command)


def dry_run_option(command: AnyCommand) -> AnyCommand:
    """`--dry-run`."""
    return click.option("--dry-run", is_flag=True, help="Print the plan without carrying it out.")(
        command
    )
