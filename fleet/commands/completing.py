"""What a shell offers at Tab: groups, slots and topics, as fleet.yaml has them.

Problem: a shell waits for the answer, and shows what is wrong in the middle of the command line.
Choice: only the file is read, by YAML alone and without judging it; no cluster is asked, and
whatever fails offers nothing. Cost: groups that nobody declared are not offered, nor names that
come from the environment; slots are those up to `replicas.max`.
"""

from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from fleet.commands.invocation import Invocation

_MOST_SLOTS: Final = 200


def group_names(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
    """Declared groups that are not named yet."""
    there = ctx.params.get("groups") or ()
    names = [str(each["group"]) for each in _fleets(ctx)[1]]
    return _offered([name for name in names if name not in there], incomplete)


def slot_numbers(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
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


def topic_ranges(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[CompletionItem]:
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
