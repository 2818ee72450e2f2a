"""What every command knows of its invocation: the file, the caller, the change in hand.

Problem: options such as `--config` belong before and after the command's name, and the one
place that prints a failure (fleet.cli) runs when click's context is gone. Choice: one mutable
object per invocation, made by fleet.cli and filled by the options' callbacks.
"""

import functools
import getpass
import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from fleet.errors import ConfigError, FleetError, Refused

if TYPE_CHECKING:
    from fleet.act.runtime import Runtime
    from fleet.config.spec import FleetSpec, GroupSpec
    from fleet.manager.cycle import Fleet


Output = Literal["table", "json"]
AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])

SCHEMA_VERSION: Final = 1
"""Of every JSON answer; raised when a key goes or changes its meaning (docs/reference/json.md)."""


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

    def spec(self) -> "FleetSpec":
        """What the file says. Raises ConfigError."""
        from fleet.config.load import load

        return load(self.existing_path(), os.environ)

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


def runtime_of(spec: "FleetSpec") -> "Runtime":
    """The runtime of a file, without the cluster."""
    from fleet.clock import SystemClock
    from fleet.system.home import fleet_home
    from fleet.system.runtimes import runtime_kind

    kind = runtime_kind(spec.runtime.kind)
    opened: Runtime = kind.open(spec, home=fleet_home(), environ=os.environ, clock=SystemClock())
    return opened


def confirmed(question: str) -> None:
    """Ask. Raises Refused."""
    if not click.confirm(question):
        raise Refused("not confirmed, so nothing was done")


def until_told() -> threading.Event:
    """Set by SIGTERM and by Ctrl-C: what is in hand is finished, then everything is closed."""
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
"""Both stand before or after the command's name."""


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that reads fleet.yaml; passes the Invocation first."""

    @config_option
    @verbose_option
    @click.pass_context
    @functools.wraps(command)
    def with_invocation(ctx: click.Context, *args: Any, **kwargs: Any) -> Any:
        return command(ctx.ensure_object(Invocation), *args, **kwargs)

    return with_invocation


def output_as(
    *kinds: str, json_is: str = "one document (documentation: reference/json)"
) -> Callable[[AnyCommand], AnyCommand]:
    """`-o KIND`, the first where nothing is said."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(kinds),
        default=kinds[0],
        show_default=True,
        help=f"Output format; JSON is {json_is}.",
    )


output_option = output_as("table", "json")


def _listen(_ctx: click.Context, _: click.Parameter, address: str | None) -> str | None:
    if address is not None and not re.fullmatch(r"\S*:\d{1,5}", address):
        raise click.UsageError("--listen wants HOST:PORT, such as 0.0.0.0:9308; port 0 is free")
    return address


def listen_option(what: str, key: str, usual: int) -> Callable[[AnyCommand], AnyCommand]:
    """`--listen HOST:PORT`; `key` is that of fleet.yaml."""
    return click.option(
        "--listen",
        metavar="HOST:PORT",
        callback=_listen,
        help=f"Address to serve {what} on (default: {key} of fleet.yaml, 127.0.0.1:{usual}).",
    )


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the plan without carrying it out."
)


# What a shell offers at Tab: a shell waits for it, and shows what is wrong in the middle of the
# command line. So only the file is read, by YAML alone, and whatever fails offers nothing. Cost:
# groups that nobody declared are not offered, nor names that come from the environment.


_MOST_SLOTS: Final = 200


def group_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Declared groups that are not named yet."""
    there = ctx.params.get("groups") or ()
    names = [str(each["group"]) for each in _fleets(ctx)[1]]
    return _offered([name for name in names if name not in there], incomplete)


def slot_numbers(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Slots that the named group may have."""
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
    """The named group's topics, each as the beginning of T:P:A-B."""
    topics = [
        f"{topic}:"
        for each in _fleets(ctx)[1]
        if each["group"] == _named(ctx) and isinstance(each.get("topics"), list)
        for topic in each["topics"]
        if not str(topic).startswith("^")
    ]
    return _offered(topics, incomplete)


def _named(ctx: click.Context) -> str | None:
    """The first GROUP. Behind an option that waits for its value, click left it in `args`."""
    groups = ctx.params.get("groups") or ctx.args
    return ctx.params.get("group") or next(iter(groups), None)


def _offered(words: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _fleets(ctx: click.Context) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`defaults` and the fleets of the file as they are written; nothing where it has none."""
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


# Which groups a command is for: the same arguments and one rule for all of them.
#
# Without `[GROUP]...` and `--select`, a command that looks or starts is for all groups, and one
# that changes wants `--all`, so that nothing is changed by a name that was left out.


Pair = tuple[str, str]


class KeyValue(click.ParamType[Pair]):
    """`KEY=VALUE`."""

    name = "pair"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pair:
        """Key and value."""
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
    """The groups that a command was told."""

    named: tuple[str, ...]
    select: tuple[Pair, ...]
    everything: bool = False

    def chosen(
        self, fleet: "Fleet", *, among: "Callable[[GroupSpec], bool]" = lambda _: True
    ) -> tuple[str, ...]:
        """The declared groups: those named, else those of `among` with the labels.

        ConfigError for a name that fleet.yaml does not declare, and for labels that no group has.
        """
        if self.named:
            return tuple(dict.fromkeys(fleet.group(name).group for name in self.named))
        fleets, select = fleet.spec.fleets, self.select
        labelled = [spec for spec in fleets if all(_has(spec, pair) for pair in select)]
        if select and not labelled:
            wanted = ", ".join(f"{key}={value}" for key, value in select)
            keys = ", ".join(sorted({"owner", *(key for f in fleets for key in f.labels)}))
            raise ConfigError(
                f"{fleet.config} declares no group with {wanted}; keys there are: {keys}"
            )
        return tuple(spec.group for spec in labelled if among(spec))


def groups_option(
    *, must: bool = False, all_means: str | None = None
) -> Callable[[AnyCommand], AnyCommand]:
    """`[GROUP]...`, `--select`, and `--all` where it means something, as `meant`.

    UsageError where groups are told in two ways, or in none where one `must` be.
    """

    def made(command: AnyCommand) -> Any:
        @functools.wraps(command)
        def with_groups(
            *args: Any, groups: Any, select: Any, everything: bool = False, **options: Any
        ) -> Any:
            told = sum((bool(groups), bool(select), everything))
            if told > 1:
                raise click.UsageError("GROUP, --select and --all are three ways: take one of them")
            if must and not told:
                ways = "" if all_means is None else ", or --all"
                raise click.UsageError(f"name one GROUP or more, or --select KEY=VALUE{ways}")
            return command(*args, meant=Meant(groups, select, everything), **options)

        found: Any = with_groups
        if all_means is not None:
            found = click.option("--all", "everything", is_flag=True, help=all_means)(found)
        select_option = click.option(
            "--select",
            type=KeyValue("owner=team-orders"),
            metavar="KEY=VALUE",
            multiple=True,
            help="Declared groups with this label or owner; repeatable, all must hold.",
        )
        return groups_argument(select_option(found))

    return made


def with_worker(spec: "FleetSpec", group: str, config: Path) -> "GroupSpec":
    """What is declared of a group; ConfigError where it has no worker."""
    found = spec.fleet(group)
    if found is None or found.worker is None:
        known = ", ".join(f.group for f in spec.fleets if f.worker is not None) or "none"
        raise ConfigError(
            f"{config} declares no worker of a group {group!r}; those with one: {known}"
        )
    return found


def acting(fleet: "Fleet") -> "Callable[[GroupSpec], bool]":
    """Whether a group has mode: act."""
    return lambda spec: fleet.spec.mode_of(spec) == "act"


def _has(spec: "GroupSpec", pair: Pair) -> bool:
    key, value = pair
    return (spec.labels | ({"owner": spec.owner} if spec.owner else {})).get(key) == value
