"""The `fleet` command: which commands there are, and how a failure reads.

Problem: a command line that loads Kafka, Spark and pydantic to print its help takes seconds,
and a traceback is no answer to a person with a broken cluster. Choice: the table below names
each command's module and one line of help, and a module is imported when its command runs;
every failure becomes one sentence on stderr and an exit code. Cost: the line of help stands
here, not beside the command (a test says that both agree).

Exit codes: 0 done; 1 refused or failed, with the reason; 2 wrong usage or configuration,
nothing was started; 130 interrupted.
"""

import difflib
import importlib
import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from fleet import __version__
from fleet.commands.invocation import Invocation, config_option, verbose_option
from fleet.errors import FleetError
from fleet.extras import lacking
from fleet.leaving import leave
from fleet.text import visible


class Lazy(NamedTuple):
    """Where a command is, in which section of the help, and its line there."""

    module: str
    section: str
    help: str
    attribute: str = ""
    """Where it is called other than the command."""


SECTIONS: Final = ("Start", "Look", "Change", "Hold", "Parts")

COMMANDS: Final[dict[str, Lazy]] = {
    "demo": Lazy("parts.demo", "Start", "A whole fleet on this machine, from nothing."),
    "init": Lazy(
        "change.life", "Start", "Write a fleet.yaml from the groups of a cluster, and a first job."
    ),
    "up": Lazy("change.life", "Start", "Start what fleet.yaml declares."),
    "down": Lazy("change.life", "Start", "Stop all workers, and the embedded broker."),
    "doctor": Lazy("doctor", "Look", "Check what Fleet needs, and say what to do."),
    "status": Lazy("groups.reading", "Look", "Groups: members, lag, slots, last change."),
    "test": Lazy(
        "parts.trial",
        "Start",
        "Call an entrypoint once, on real records, and commit nothing.",
        "trial",
    ),
    "rebalances": Lazy("groups.rebalances", "Look", "What rebalanced when, why, and for how long."),
    "logs": Lazy("groups.logs", "Look", "What the workers of a group write."),
    "ui": Lazy("ui", "Look", "One page of all groups, worst first; read only."),
    "plan": Lazy("groups.reading", "Look", "What would be done, and what it costs."),
    "simulate": Lazy("simulate", "Look", "What a story would cost a group; no broker."),
    "history": Lazy("parts.history", "Look", "Record every group's past as tables."),
    "apply": Lazy("change.changing", "Change", "Carry out the plans of groups."),
    "scale": Lazy("change.changing", "Change", "Give a group N slots."),
    "roll": Lazy("change.changing", "Change", "Replace all workers by workers of the new code."),
    "drain": Lazy("change.changing", "Change", "Take slots out of a group together."),
    "pause": Lazy("change.changing", "Hold", "Hold all changes of groups, or of all."),
    "resume": Lazy("change.changing", "Hold", "Lift a pause, or open a slot that was shut."),
    "release": Lazy("change.changing", "Hold", "Stop managing groups; their workers go on."),
    "completion": Lazy("parts.rendering", "Parts", "Print the script by which a shell completes."),
    "schema": Lazy("parts.rendering", "Parts", "Print the JSON schema of fleet.yaml."),
    "worker": Lazy("parts.processes", "Parts", "Run one worker in the foreground."),
    "alerts": Lazy("parts.rendering", "Parts", "Rules, routes and a dashboard for Prometheus."),
    "broker": Lazy("parts.broker", "Parts", "Run the embedded Kafka."),
    "exporter": Lazy("parts.processes", "Parts", "Prometheus metrics of every group."),
    "manifests": Lazy("parts.rendering", "Parts", "Render fleet.yaml for a cluster."),
    "supervise": Lazy("parts.processes", "", "Keep this machine's workers alive."),
}

_NAME_WIDTH: Final = max(len(name) for name, lazy in COMMANDS.items() if lazy.section)


class LazyGroup(click.Group):
    """A click group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command; None where there is no such name."""
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module = importlib.import_module(f"fleet.commands.{lazy.module}")
        command = getattr(module, lazy.attribute or cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command where there is no such one."""
        unknown = args and args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:  # a shell that completes wants no sentence
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names with their help, from the table alone."""
        return [
            *(
                CompletionItem(name, help=lazy.help)
                for name, lazy in COMMANDS.items()
                if lazy.section and name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List commands by section, from the table alone."""
        for section in SECTIONS:
            with formatter.section(section):
                formatter.write_dl(
                    [
                        (name.ljust(_NAME_WIDTH), lazy.help)
                        for name, lazy in COMMANDS.items()
                        if lazy.section == section
                    ]
                )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="'fleet COMMAND --help' has options and examples. State lives in $FLEET_HOME (.fleet).",
)
@config_option
@verbose_option
@click.version_option(__version__, prog_name="fleet", message="%(prog)s %(version)s")
def cli() -> None:
    """Change Kafka consumer fleets without stopping them.

    Every change is a plan with a stated expected cost, carried out as one membership change, and
    checked against what the group coordinator recorded.

    \b
    Try it:    fleet demo
    Your own:  fleet init --bootstrap HOST:PORT && fleet status
    """  # noqa: D301 - click wants the character itself


def run(
    arguments: Sequence[str] | None = None, *, command: click.Command = cli, name: str = "fleet"
) -> int:
    """Run one command; its exit code. Nothing but SystemExit's own cause escapes."""
    invocation = Invocation()
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=name,
            standalone_mode=False,
            obj=invocation,
        )
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        _say(invocation.interrupted())
        return 130
    except FleetError as error:
        if invocation.verbose:
            traceback.print_exc()
        _say(str(error))
        return error.exit_code
    except Exception as error:
        if invocation.verbose:
            traceback.print_exc()
        wanting = lacking(error)
        if wanting is not None:
            _say(str(wanting))
            return wanting.exit_code
        _say(_defect(error, verbose=invocation.verbose))
        return 1
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the `fleet` program."""
    leave(run())


def _say(sentence: str) -> None:
    click.echo(f"fleet: {visible(sentence)}", err=True)


def _defect(error: Exception, *, verbose: bool) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    rest = "report it with the traceback above" if verbose else "run with --verbose"
    return f"{what}; this is a defect, {rest}"
