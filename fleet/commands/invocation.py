"""What all commands share: the invocation, common options, questions, groups, completion.

Problem: options such as `--config` belong before and after the command's name. The one place that
prints a failure (fleet.cli) runs after click's context has ended. Choice: fleet.cli creates
one mutable object per invocation, and the options' callbacks fill it. Cost: it is passed to every
command.
"""

import functools
import getpass
import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from fleet.errors import ConfigError, FleetError, Refused
from fleet.text import visible

if TYPE_CHECKING:
    from fleet.act.runtime import Runtime
    from fleet.config.spec import FleetSpec, GroupSpec
    from fleet.manager.cycle import Fleet


Output = Literal["table", "json"]
AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

SCHEMA_VERSION: Final = 1
"""Version of every JSON answer; a removed key or a new meaning raises it
(docs/reference/json.md).
"""


DETAILED: Final = "--detailed-exitcode"
"""Option of `fleet plan`."""


@dataclass(slots=True)
class Invocation:
    """Holds the state of one run of the `fleet` command."""

    config: Path | None = None
    verbose: bool = False
    changing: str | None = None
    """Group whose change is being carried out now."""
    detailed_exit_code: bool = False
    """2 means changes, so wrong usage and configuration exit with 1."""

    def path(self) -> Path:
        """Returns the path of fleet.yaml: the option, $FLEET_CONFIG, or fleet.yaml here."""
        return self.config or Path(os.environ.get("FLEET_CONFIG") or "fleet.yaml")

    def existing_path(self) -> Path:
        """Returns the path. Raises ConfigError, which names `fleet init`, if there is no file."""
        path = self.path()
        if not path.is_file():
            raise ConfigError(
                f"there is no {path}: write one with `fleet init --bootstrap HOST:PORT`, or, "
                "without a cluster, with `fleet dev broker start` and `fleet init`; or name "
                "another with --config or $FLEET_CONFIG"
            )
        return path

    def spec(self) -> "FleetSpec":
        """Reads the file. Raises ConfigError."""
        from fleet.config.load import load

        return load(self.existing_path(), os.environ)

    def open(self, *, start_broker: bool = False) -> "Fleet":
        """Opens the fleet of this invocation's file. Raises ConfigError, Unreachable."""
        path = self.existing_path()
        from fleet.manager.cycle import Fleet

        return Fleet.open(path, start_broker=start_broker)

    def refusal(self) -> FleetError | None:
        """Returns why the file, or a file that it names, cannot be opened now; None if it can."""
        try:
            self.open().close()
        except FleetError as error:
            return error
        return None

    def interrupted(self) -> str:
        """Returns the sentence after Ctrl-C."""
        if self.changing is None:
            return "interrupted"
        return (
            f"interrupted; the change of {self.changing} is unfinished: "
            f"`fleet apply {self.changing} --continue` finishes it, `--abort` aborts it"
        )

    def code_of(self, code: int) -> int:
        """Returns the exit code of an error."""
        return 1 if self.detailed_exit_code and code == 2 else code


def actor() -> str:
    """Names who acts: user, machine and process, so that two shells are two actors."""
    return f"{_user()}@{socket.gethostname()}:{os.getpid()}"


def person() -> str:
    """Names the user and the machine."""
    return f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without a name
        return str(os.getuid())


def runtime_of(spec: "FleetSpec") -> "Runtime":
    """Opens the runtime of a file, without the cluster."""
    from fleet.clock import SystemClock
    from fleet.system.home import fleet_home
    from fleet.system.runtimes import runtime_kind

    kind = runtime_kind(spec.runtime.kind)
    opened: Runtime = kind.open(spec, home=fleet_home(), environ=os.environ, clock=SystemClock())
    return opened


def confirm(question: str, *, yes: bool) -> None:
    """Asks on a terminal, unless `yes`. Raises Refused if the answer is no."""
    if asks(yes=yes) and not click.confirm(question, err=True):
        raise Refused("not confirmed; nothing was changed")


def asks(*, yes: bool) -> bool:
    """Tells whether `confirm` would ask."""
    return not yes and sys.stdin.isatty()


def agree(actions: Iterable[str], *, yes: bool, dry_run: bool) -> bool:
    """Shows the actions if it asks or `dry_run`, and asks on a terminal; False for a dry run.

    Raises Refused if the answer is no.
    """
    if dry_run or asks(yes=yes):
        for action in actions:
            click.echo(f"{'would' if dry_run else 'will'} {visible(action)}")
    if not dry_run:
        confirm("Continue?", yes=yes)
    return not dry_run


def stop_on_signals() -> threading.Event:
    """Returns an event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _set_config(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).config = value


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).verbose = True


config_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path, dir_okay=False),
    expose_value=False,
    callback=_set_config,
    metavar="FILE",
    help="Path of fleet.yaml (default: $FLEET_CONFIG, or fleet.yaml in this folder).",
)
verbose_option = click.option(
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_set_verbose,
    help="Show the traceback of an error.",
)
"""Both are allowed before and after the command's name."""


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of every command that reads fleet.yaml; passes the Invocation first."""

    @config_option
    @verbose_option
    @click.pass_context
    @functools.wraps(command)
    def with_invocation(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        return command(ctx.ensure_object(Invocation), *args, **kwargs)

    return with_invocation


def output_as(*kinds: str, json_is: str = "") -> Callable[[AnyCommand], AnyCommand]:
    """Adds `-o FORMAT`; the first kind is the default."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(kinds),
        default=kinds[0],
        show_default=True,
        metavar="FORMAT",
        help=f"Output format: {', '.join(kinds[:-1])} or {kinds[-1]}{json_is}.",
    )


output_option = output_as("table", "json")


def _listen(_ctx: click.Context, _: click.Parameter, address: str | None) -> str | None:
    if address is not None and not re.fullmatch(r"\S*:\d{1,5}", address):
        raise click.UsageError(f"--listen {address} is no HOST:PORT, such as 0.0.0.0:9308")
    return address


def listen_option(what: str, key: str, usual: int) -> Callable[[AnyCommand], AnyCommand]:
    """Adds `--listen HOST:PORT`; `key` is its key in fleet.yaml."""
    return click.option(
        "--listen",
        metavar="HOST:PORT",
        callback=_listen,
        help=f"Address that serves {what} (default: {key} of fleet.yaml, 127.0.0.1:{usual}).",
    )


_yes_option = click.option("--yes", "-y", is_flag=True, help="Skip the confirmation on a terminal.")
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)


def changing_options(command: AnyCommand) -> AnyCommand:
    """Adds `--dry-run` and `--yes` to a command that changes something."""
    return _dry_run_option(_yes_option(command))


# What a shell completes. The shell waits for it, and shows errors in the middle of the command
# line. So only fleet.yaml is read, as plain YAML, and a failure completes nothing. Cost: groups
# that fleet.yaml does not declare, and names from the environment, are not completed.


_MOST_SLOTS: Final = 200


def group_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes declared groups that are not named yet."""
    there = ctx.params.get("groups") or ()
    names = [str(each["group"]) for each in _fleets(ctx)[1]]
    return _offered([name for name in names if name not in there], incomplete)


def slot_numbers(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes slots that the named group may have."""
    defaults, fleets = _fleets(ctx)
    named = _named(ctx)
    there = ctx.params.get("slots") or ()
    for each in fleets:
        if each["group"] == named:
            replicas = {**_mapping(defaults.get("replicas")), **_mapping(each.get("replicas"))}
            most = replicas.get("max")
            numbers = range(min(most, _MOST_SLOTS) if isinstance(most, int) else 0)
            return _offered([str(n) for n in numbers if n not in there], incomplete)
    return []


def topic_ranges(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the named group's topics, each as the beginning of TOPIC:PARTITION:FIRST-LAST."""
    topics = [
        f"{topic}:"
        for each in _fleets(ctx)[1]
        if each["group"] == _named(ctx) and isinstance(each.get("topics"), list)
        for topic in each["topics"]
        if not str(topic).startswith("^")
    ]
    return _offered(topics, incomplete)


def _named(ctx: click.Context) -> str | None:
    """Returns the first GROUP; before an option's value, click has left it in `args`."""
    groups = ctx.params.get("groups") or ctx.args
    return ctx.params.get("group") or next(iter(groups), None)


def _offered(words: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _fleets(ctx: click.Context) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns `defaults` and the fleets of the file as they are written."""
    tree = _mapping(_read(ctx.ensure_object(Invocation).path()))
    fleets = tree.get("fleets")
    found = [_mapping(each) for each in fleets] if isinstance(fleets, list) else []
    return _mapping(tree.get("defaults")), [
        each for each in found if "group" in each and "${" not in str(each["group"])
    ]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 - a safe one, in C
    except (OSError, ValueError, yaml.YAMLError):
        return None


# Which groups a command is for: the same arguments and one rule for all commands.
#
# Without `[GROUP]...` and `--select`, a command that shows or starts is for all groups. A command
# that changes needs `--all`, so a forgotten name changes nothing.


Pair = tuple[str, str]


class KeyValue(click.ParamType[Pair]):
    """Reads an option written as `KEY=VALUE`."""

    name = "pair"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pair:
        """Returns key and value."""
        key, equals, wanted = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE, such as {self._example}", param, ctx)
        return key, wanted


group_argument = click.argument("group", shell_complete=group_names)
groups_argument = click.argument(
    "groups", nargs=-1, metavar="[GROUP]...", shell_complete=group_names
)


@dataclass(frozen=True, slots=True)
class Meant:
    """Holds the groups that the arguments name."""

    named: tuple[str, ...]
    select: tuple[Pair, ...]
    everything: bool = False

    def words(self) -> str:
        """Returns the arguments, as a shell reads them."""
        pairs = [word for key, value in self.select for word in ("--select", f"{key}={value}")]
        return shlex.join([*self.named, *pairs, *["--all"] * self.everything])

    def chosen(
        self, fleet: "Fleet", *, among: "Callable[[GroupSpec], bool]" = lambda _: True
    ) -> tuple[str, ...]:
        """Returns the declared groups: those named, else those of `among` with the labels.

        Raises ConfigError for a name that fleet.yaml does not declare, and for labels that no
        group has.
        """
        if self.named:
            return tuple(dict.fromkeys(fleet.group(name).group for name in self.named))
        fleets, select = fleet.spec.fleets, self.select
        labelled = [spec for spec in fleets if all(_has(spec, pair) for pair in select)]
        if select and not labelled:
            wanted = ", ".join(f"{key}={value}" for key, value in select)
            keys = ", ".join(sorted({"owner", *(key for f in fleets for key in f.labels)}))
            raise ConfigError(
                f"{fleet.config} declares no group with {wanted}; its keys are: {keys}"
            )
        return tuple(spec.group for spec in labelled if among(spec))


def groups_option(
    *, must: bool = False, all_means: str | None = None
) -> Callable[[AnyCommand], AnyCommand]:
    """Adds `[GROUP]...`, `--select`, and `--all` if `all_means` is its help, as `meant`.

    Raises UsageError for groups named in two ways, and in none if they `must` be named.
    """

    def made(command: AnyCommand) -> Any:
        @functools.wraps(command)
        def with_groups(
            *args: Any, groups: Any, select: Any, everything: bool = False, **options: Any
        ) -> Any:
            ways_used = sum((bool(groups), bool(select), everything))
            if ways_used > 1:
                raise click.UsageError("give only one of GROUP, --select and --all")
            if must and not ways_used:
                ways = "" if all_means is None else ", or --all"
                raise click.UsageError(f"name at least one GROUP, or give --select KEY=VALUE{ways}")
            return command(*args, meant=Meant(groups, select, everything), **options)

        found: Any = with_groups
        if all_means is not None:
            found = click.option("--all", "everything", is_flag=True, help=all_means)(found)
        select_option = click.option(
            "--select",
            type=KeyValue("owner=team-orders"),
            metavar="KEY=VALUE",
            multiple=True,
            help="Take declared groups with this label or owner; repeatable, all must match.",
        )
        return groups_argument(select_option(found))

    return made


def with_worker(spec: "FleetSpec", group: str, config: Path) -> "GroupSpec":
    """Returns what fleet.yaml declares of a group. Raises ConfigError if it has no worker."""
    found = spec.fleet(group)
    if found is None or found.worker is None:
        known = ", ".join(f.group for f in spec.fleets if f.worker is not None) or "none"
        raise ConfigError(
            f"{config} declares no worker of group {group!r}; groups with a worker: {known}"
        )
    return found


def is_acting(fleet: "Fleet") -> "Callable[[GroupSpec], bool]":
    """Returns a test whether a group has mode: act."""
    return lambda spec: fleet.spec.mode_of(spec) == "act"


def _has(spec: "GroupSpec", pair: Pair) -> bool:
    key, value = pair
    return (spec.labels | ({"owner": spec.owner} if spec.owner else {})).get(key) == value
