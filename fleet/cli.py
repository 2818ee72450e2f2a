"""The `fleet` command: its table of commands, and the text of a failure.

Problem: a command line that loads Kafka, Spark and pydantic to print its help takes seconds. A
traceback does not help a person with a broken cluster. Choice: the table below names each
command's module and one line of help; the module is imported when its command runs. Each failure
becomes one sentence on stderr and an exit code. Cost: the line of help is here, not beside the
command (a test compares both).

Exit codes: 0 done; 1 failed; 2 wrong usage or configuration, nothing was started; 3 refused;
130 interrupted. fleet.errors gives each error its code.
"""

import difflib
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from fleet import __version__
from fleet.commands.invocation import DETAILED, Invocation, config_option, verbose_option
from fleet.errors import FleetError
from fleet.extras import missing_extra
from fleet.process_exit import exit_process
from fleet.text import visible


class Lazy(NamedTuple):
    """Names a command's module, its section of the help, and its line there."""

    module: str
    section: str
    help: str
    attribute: str = ""
    """Name in the module, if it is not the command's."""


SECTIONS: Final = ("Start", "Observe", "Change", "Control", "Operate")

COMMANDS: Final[dict[str, Lazy]] = {
    "demo": Lazy("operate.demo", "Start", "Run a whole fleet on this machine, from nothing."),
    "init": Lazy("change.life", "Start", "Write a fleet.yaml from the groups of a cluster."),
    "new": Lazy("change.life", "Start", "Write a job, its test and its lines of fleet.yaml."),
    "up": Lazy("change.life", "Start", "Start what fleet.yaml declares."),
    "down": Lazy("change.life", "Start", "Stop all workers and the embedded broker."),
    "test": Lazy(
        "operate.trial", "Start", "Call a job once on real records, and commit nothing.", "trial"
    ),
    "doctor": Lazy("doctor", "Observe", "Check what Fleet needs, and name the fix."),
    "status": Lazy("groups.reading", "Observe", "Show groups: members, lag, slots, last change."),
    "rebalances": Lazy("groups.rebalances", "Observe", "List rebalances with cause and duration."),
    "logs": Lazy("groups.logs", "Observe", "Print the logs of a group's workers."),
    "ui": Lazy("ui", "Observe", "Serve a read-only page of all groups, worst first."),
    "history": Lazy("operate.history", "Observe", "Record and query the past of every group."),
    "simulate": Lazy("simulate", "Observe", "Simulate what a scenario costs a group; no broker."),
    "plan": Lazy("groups.reading", "Change", "Show the steps of a change and their expected cost."),
    "apply": Lazy("change.changing", "Change", "Carry out the plans of groups."),
    "scale": Lazy("change.changing", "Change", "Give a group N slots."),
    "roll": Lazy("change.changing", "Change", "Replace all workers with workers of the new code."),
    "drain": Lazy("change.changing", "Change", "Take slots out of a group together."),
    "pause": Lazy(
        "change.control", "Control", "Block new changes of groups until they are resumed."
    ),
    "resume": Lazy("change.control", "Control", "Lift a pause."),
    "slot": Lazy("change.control", "Control", "Reopen a quarantined slot."),
    "unmanage": Lazy(
        "change.control", "Control", "Stop managing groups; their workers keep running."
    ),
    "manage": Lazy("change.control", "Control", "Take unmanaged groups back."),
    "worker": Lazy("operate.processes", "Operate", "Run one worker in the foreground."),
    "exec": Lazy(
        "operate.processes",
        "Operate",
        "Run a program of any language in a slot of its group.",
        "execute",
    ),
    "exporter": Lazy("operate.processes", "Operate", "Serve Prometheus metrics of every group."),
    "operator": Lazy("operate.processes", "Operate", "Keep the ConsumerFleets of Kubernetes."),
    "render": Lazy("operate.rendering", "Operate", "Render alerts, a dashboard and objects."),
    "config": Lazy("operate.rendering", "Operate", "Check fleet.yaml offline; print its schema."),
    "dev": Lazy("operate.broker", "Operate", "Run the embedded Kafka for tests and demos."),
    "completion": Lazy("operate.rendering", "Operate", "Print a shell's completion script."),
    "supervise": Lazy("operate.processes", "", "Keep this machine's workers running."),
}

_NAME_WIDTH: Final = max(len(name) for name, lazy in COMMANDS.items() if lazy.section)


class LazyGroup(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Lists names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports and returns a command; None if there is no such name."""
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
        """Names the nearest command if there is no such one."""
        unknown = args and args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:  # completion prints no sentence
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names with their help, from the table alone."""
        return [
            *(
                CompletionItem(name, help=lazy.help)
                for name, lazy in COMMANDS.items()
                if lazy.section and name.startswith(incomplete)
            ),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Lists commands by section, from the table alone."""
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
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused. 'fleet COMMAND --help' has "
    "options and examples. State is kept in $FLEET_HOME (default: .fleet).",
)
@config_option
@verbose_option
@click.version_option(__version__, prog_name="fleet", message="%(prog)s %(version)s")
def cli() -> None:
    """Deploy and scale Kafka consumer groups, and see why they rebalance.

    Each change is a plan with an expected cost. Fleet carries it out and compares the cost with
    the records of the group coordinator.

    \b
    Try it:        fleet demo
    Your cluster:  fleet init --bootstrap HOST:PORT && fleet status
    """  # noqa: D301 - click wants the character itself


def run(
    arguments: Sequence[str] | None = None, *, command: click.Command = cli, name: str = "fleet"
) -> int:
    """Runs one command and returns its exit code; only what causes SystemExit escapes."""
    words = sys.argv[1:] if arguments is None else arguments
    invocation = Invocation(detailed_exit_code=DETAILED in words)  # before click refuses a word
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=name,
            standalone_mode=False,
            obj=invocation,
        )
    except click.ClickException as error:
        error.show()
        return invocation.code_of(2)
    except (click.Abort, KeyboardInterrupt):
        _say(invocation.interrupted())
        return 130
    except FleetError as error:
        if invocation.verbose:
            traceback.print_exc()
        _say(str(error))
        return invocation.code_of(error.exit_code)
    except Exception as error:
        if invocation.verbose:
            traceback.print_exc()
        wanting = missing_extra(error)
        if wanting is not None:
            _say(str(wanting))
            return wanting.exit_code
        _say(_defect(error, verbose=invocation.verbose))
        return 1
    return result if isinstance(result, int) else 0


def main() -> None:
    """Runs the `fleet` program."""
    exit_process(run())


def _say(sentence: str) -> None:
    click.echo(f"fleet: {visible(sentence)}", err=True)


def _defect(error: Exception, *, verbose: bool) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    rest = "report it with the traceback above" if verbose else "run with --verbose"
    return f"{what}; this is a defect, {rest}"
