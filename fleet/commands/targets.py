"""Which groups a command is for: the same arguments and one rule for all of them.

A command that can be for many takes `[GROUP]...` or `--select KEY=VALUE`. Without either, one that
looks or starts is for all groups, and one that changes wants `--all`, so that nothing is changed
by a name that was left out.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleet.commands.completing import group_names
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from fleet.config.spec import FleetSpec, GroupSpec
    from fleet.manager.cycle import Fleet

AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])
Pair = tuple[str, str]


class Label(click.ParamType[Pair]):
    """`KEY=VALUE`: a label of fleet.yaml, or the owner."""

    name = "label"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pair:
        """Key and value."""
        key, equals, wanted = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE, such as owner=team-orders", param, ctx)
        return key, wanted


group_argument = click.argument("group", shell_complete=group_names)
groups_argument = click.argument(
    "groups", nargs=-1, metavar="[GROUP]...", shell_complete=group_names
)


def all_option(text: str) -> Callable[[AnyCommand], AnyCommand]:
    """`--all`, with what it means for this command."""
    return click.option("--all", "everything", is_flag=True, help=text)


def select_option(command: AnyCommand) -> AnyCommand:
    """`--select KEY=VALUE`."""
    return click.option(
        "--select",
        type=Label(),
        metavar="KEY=VALUE",
        multiple=True,
        help="Declared groups with this label or owner; repeatable, all must hold.",
    )(command)


def one_way(groups: Sequence[str], select: Sequence[Pair], *, everything: bool = False) -> None:
    """UsageError where groups are named in two ways."""
    if sum((bool(groups), bool(select), everything)) > 1:
        raise click.UsageError("GROUP, --select and --all are three ways: take one of them")


def required(
    groups: Sequence[str], select: Sequence[Pair], *, everything: bool | None = None
) -> None:
    """UsageError where groups are named in no way or in two; everything None: there is no --all."""
    one_way(groups, select, everything=bool(everything))
    if not (groups or select or everything):
        ways = "" if everything is None else ", or --all"
        raise click.UsageError(f"name one GROUP or more, or --select KEY=VALUE{ways}")


def chosen(
    fleet: "Fleet",
    groups: Sequence[str],
    select: Sequence[Pair] = (),
    *,
    among: "Callable[[GroupSpec], bool]" = lambda _: True,
) -> tuple[str, ...]:
    """The declared groups that are meant: those named, else those of `among` with the labels.

    ConfigError for a name that fleet.yaml does not declare, and for labels that no group has.
    """
    if groups:
        return tuple(dict.fromkeys(fleet.group(name).group for name in groups))
    labelled = [spec for spec in fleet.spec.fleets if all(_has(spec, pair) for pair in select)]
    if select and not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in select)
        keys = ", ".join(sorted({"owner", *(key for f in fleet.spec.fleets for key in f.labels)}))
        raise ConfigError(f"{fleet.config} declares no group with {wanted}; keys there are: {keys}")
    return tuple(spec.group for spec in labelled if among(spec))


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
