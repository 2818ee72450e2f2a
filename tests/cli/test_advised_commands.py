"""Commands that messages tell people to run: each exists, and takes what it is told to be given."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import fleet
from fleet import cli

_COMMAND = re.compile(r"`fleet ([a-z][^`]*)`")


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every string of a module that is no docstring, with 1 for what is filled in."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= set(map(id, node.values))
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values
            )
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield str(node.value)


def _advised() -> list[str]:
    found: set[str] = set()
    for file in Path(fleet.__file__).parent.rglob("*.py"):
        for text in _texts(ast.parse(file.read_text(encoding="utf-8"))):
            found |= set(_COMMAND.findall(text))
    return sorted(found)


@pytest.mark.parametrize("advised", _advised())
def test_what_is_advised_can_be_run(advised: str) -> None:
    """A bare name names the command; with anything behind it, click takes all of it."""
    words = [re.sub(r"^[A-Z]+$", "1", word) for word in advised.split()]
    context: click.Context = click.Context(cli.cli, **cli.cli.context_settings)
    command: click.Command = cli.cli
    while words and isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no `fleet {advised}`"
        command, words = found, words[1:]
    if words:
        command.make_context(command.name, words, parent=context)
