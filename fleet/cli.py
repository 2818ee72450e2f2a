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
from dataclasses import dataclass
from typing import Final

import click
from click.shell_completion import CompletionItem

from fleet import __version__
from fleet.commands.invocation import Invocation, config_option, verbose_option
from fleet.errors import FleetError
from fleet.extras import lacking
from fleet.leaving import leave
from fleet.text import visible


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is, and its line of help."""

    module: str
    attribute: str
    help: str
    section: str


SECTIONS: Final = ("Start", "Look", "Change", "Hold", "Parts")

COMMANDS: Final[dict[str, Lazy]] = {
    "demo": Lazy("parts.demo", "demo", "A whole fleet on this machine, from nothing.", "Start"),
    "init": Lazy(
        "change.life",
        "init",
        "Write a fleet.yaml from the groups of a cluster, and a first job.",
        "Start",
    ),
    "up": Lazy("change.life", "up", "Start what fleet.yaml declares.", "Start"),
    "down": Lazy("change.life", "down", "Stop all workers, and the embedded broker.", "Start"),
    "doctor": Lazy("doctor", "doctor", "Check what Fleet needs, and say what to do.", "Look"),
    "status": Lazy("groups.reading", "status", "Groups: members, lag, slots, last change.", "Look"),
    "test": Lazy(
        "parts.trial",
        "trial",
        "Call an entrypoint once, on real records, and commit nothing.",
        "Start",
    ),
    "rebalances": Lazy(
        "groups.rebalances", "rebalances", "What rebalanced when, why, and for how long.", "Look"
    ),
    "logs": Lazy("groups.logs", "logs", "What the workers of a group write.", "Look"),
    "ui": Lazy("ui", "ui", "One page of all groups, worst first; read only.", "Look"),
    "plan": Lazy("groups.reading", "plan", "What would be done, and what it costs.", "Look"),
    "simulate": Lazy("simulate", "simulate", "What a story would cost a group; no broker.", "Look"),
    "history": Lazy("parts.history", "history", "Record every group's past as tables.", "Look"),
    "apply": Lazy("change.changing", "apply", "Carry out the plans of groups.", "Change"),
    "scale": Lazy("change.changing", "scale", "Give a group N slots.", "Change"),
    "roll": Lazy(
        "change.changing", "roll", "Replace all workers by workers of the new code.", "Change"
    ),
    "drain": Lazy("change.changing", "drain", "Take slots out of a group together.", "Change"),
    "pause": Lazy("change.changing", "pause", "Hold all changes of groups, or of all.", "Hold"),
    "resume": Lazy(
        "change.changing", "resume", "Lift a pause, or open a slot that was shut.", "Hold"
    ),
    "release": Lazy(
        "change.changing", "release", "Stop managing groups; their workers go on.", "Hold"
    ),
    "completion": Lazy(
        "parts.rendering", "completion", "Print the script by which a shell completes.", "Parts"
    ),
    "schema": Lazy("parts.rendering", "schema", "Print the JSON schema of fleet.yaml.", "Parts"),
    "worker": Lazy("parts.processes", "worker", "Run one worker in the foreground.", "Parts"),
    "alerts": Lazy(
        "parts.rendering", "alerts", "Rules, routes and a dashboard for Prometheus.", "Parts"
    ),
    "broker": Lazy("parts.broker", "broker", "Run the embedded Kafka.", "Parts"),
    "exporter": Lazy("parts.processes", "exporter", "Prometheus metrics of every group.", "Parts"),
    "manifests": Lazy("parts.rendering", "manifests", "Render fleet.yaml for a cluster.", "Parts"),
    "supervise": Lazy("parts.processes", "supervise", "Keep this machine's workers alive.", ""),
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
        command = getattr(module, lazy.attribute)
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

    Every change is a plan with a stated price, carried out as one membership change, and
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
