"""Sentences and words of pages, help texts and messages, as the style guide counts them.

Problem: "plain" is a matter of taste, and a page gets longer with every change. Choice: what can be
counted is counted: words of a sentence, replaced terms, the size of a page. Code, tables and
headings are no sentences; code counts for the size of a page where that would be too short.
Cost: a rule of thumb splits sentences, so an abbreviation before a capital letter ends one.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import click

from fleet import errors
from fleet.cli import COMMANDS, cli
from fleet.config.spec import FleetSpec
from tests.reference.pages import keys
from tests.support.needs import repository

FOLDERS: Final = ("start", "concepts", "how-to", "troubleshoot", "reference")
"""Folders of docs that users read."""
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"^ *```.*?^ *```[ ]*$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) +")
_WORD: Final = re.compile(r"\S*[^\W_]\S*")
_END: Final = re.compile(r"(?<=[.!?:])[)\"*]*\s+(?=[\"*(\[]*[A-Z\d])")
"""Where the next sentence begins; a colon before a capital letter ends one, too."""


@dataclass(frozen=True)
class Sentence:
    """One sentence; place: where it stands, for people."""

    place: str
    text: str

    @property
    def words(self) -> int:
        """Counts its words; a code span is one."""
        return len(_WORD.findall(self.text))

    def __str__(self) -> str:
        return f"{self.place}: {self.words} words: {self.text}"


@cache
def user_pages() -> dict[str, str]:
    """Name below docs → text without comments."""
    docs = repository() / "docs"
    paths = [path for folder in FOLDERS for path in sorted((docs / folder).rglob("*.md"))]
    return {
        str(path.relative_to(docs)): _COMMENT.sub("", path.read_text("utf-8")) for path in paths
    }


def size_of(text: str) -> int:
    """Words of a page, those in its tables and code included."""
    return len(_WORD.findall(_LINK.sub(r"\1", text)))


def without_blocks(text: str) -> str:
    """A page without blocks of code."""
    return _FENCE.sub("", text)


def without_code(text: str) -> str:
    """A page without blocks and spans of code, and without addresses."""
    return _LINK.sub(r"\1", _CODE.sub("", without_blocks(text)))


@cache
def page_sentences() -> tuple[Sentence, ...]:
    """Sentences of all user pages, without tables and headings."""
    return tuple(
        each for name, text in user_pages().items() for each in _of_page(name, without_blocks(text))
    )


def _of_page(name: str, text: str) -> Iterator[Sentence]:
    for paragraph in _paragraphs(text):
        yield from sentences(name, paragraph)


def _paragraphs(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*map(str.strip, text.splitlines()), ""]:
        item = _ITEM.match(line)
        if not line or item or line.startswith(("|", "#")):
            yield " ".join(lines)
            lines = [line[item.end() :]] if item else []
        else:
            lines.append(line)


def sentences(place: str, text: str) -> Iterator[Sentence]:
    """Splits a paragraph; code spans become one word each."""
    plain = " ".join(_LINK.sub(r"\1", _CODE.sub("Code", text)).split())
    for part in _END.split(plain):
        if _WORD.search(part):
            yield Sentence(place, part)


@dataclass(frozen=True)
class Help:
    """Help of a command, an option or a key. kind: command | option | key."""

    kind: str
    place: str
    text: str
    metavar: str = ""


@cache
def helps() -> tuple[Help, ...]:
    """Help of each command and option, and the description of each key."""
    found = list(_commands())
    found += [Help("key", key, text, kind) for key, kind, _, _, text in keys(FleetSpec, "")]
    return tuple(found)


def _commands() -> Iterator[Help]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield from _command(f"fleet {name}", command)


def _command(path: str, command: click.Command) -> Iterator[Help]:
    paragraphs = (command.help or "").split("\n\n")
    text = "\n\n".join(each for each in paragraphs if "\b" not in each)  # no table
    yield Help("command", path, text)
    for option in command.params:
        text = getattr(option, "help", None)
        if text and not getattr(option, "hidden", False):
            name = max(option.opts, key=len)
            metavar = option.make_metavar(click.Context(command))
            yield Help("option", f"{path} {name}", text, metavar)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(f"{path} {name}", inner)


@cache
def messages() -> tuple[Sentence, ...]:
    """Sentences of the errors that Fleet raises for users; each {value} is one word."""
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    raised = re.compile(rf"raise (?:{'|'.join(names)})\(")
    room = repository() / "fleet"
    return tuple(
        each
        for path in sorted(room.rglob("*.py"))
        if raised.search(text := path.read_text("utf-8"))
        for place, told in _raised(path.relative_to(room.parent), text, names)
        for part in told.split("; ")
        for each in sentences(place, part)
    )


def _raised(path: Path, text: str, names: set[str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        called, given = node.exc.func, node.exc.args
        if isinstance(called, ast.Name) and called.id in names and given:
            yield f"{path}:{node.lineno}", _text(given[0])


def _text(node: ast.expr) -> str:
    """A message as far as it stands in the code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "Value"
