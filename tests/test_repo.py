"""What the repository itself promises: a clean lock, one installer, references that lead on."""

import ast
import io
import os
import re
import shutil
import subprocess
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.support import needs, scheduling
from tests.support.needs import repository

ROOT = repository()
CONTRIBUTING = ROOT / "docs" / "contributing"
SHOWN = ("fleet", "assets", "k8s")
"""Rooms whose strings may reach a user."""
_RULES = re.compile(r"(?<![\w\])`])\[([1-9]\d?(?:(?:,\s*|\u2013)[1-9]\d?)*)\]")
"""[2], [16, 17], [38\u201340]; not what indexes something, nor a class of characters."""
_SECTIONS = re.compile(r"protocol\.md((?:[\s,;(]+(?:and |to )?(?:R\d+|\d\.\d{1,2})\b)+)")
_STRAY = re.compile(r"\bDESIGN\b|(?<!contributing/)\b(?:rules|protocol)\.md")
"""Documents that are not here, or pages of docs/contributing without their folder."""
_NAMED = re.compile(r"\bDESIGN\b|\b(?:rules|protocol)\.md|\b[Rr]ules? \d")
_ANY = re.compile(r"(?<![\w\])`])\[[1-9]|\.md|DESIGN|[Rr]ule")
"""What every citation has in it."""
_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def _locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins), [pin for pin in pins if len(pin) != 2]
    return {_name(name): version for name, version in pins}


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_lock_has_no_addresses() -> None:
    """Where packages come from is the machine's configuration, not ours."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"://|^\s*-|@|file:", text, re.MULTILINE)


def test_lock_pins_every_dependency() -> None:
    """What pyproject.toml asks for is in the lock, at the exact version where it names one."""
    project = _project()["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    locked = _locked()
    for requirement in wanted:
        if _name(requirement) == project["name"]:
            continue  # extras of extras
        assert _name(requirement) in locked, requirement
        exact = re.search(r"==([\w.]+)$", requirement)
        if exact:
            assert locked[_name(requirement)] == exact[1], requirement


def test_dagster_reads_the_workspace_file() -> None:
    """A [tool.dagster] or [tool.dg] block would make Dagster ignore workspace.yaml."""
    assert not {"dagster", "dg"} & set(_project()["tool"])


def test_only_deps_installs_system_packages() -> None:
    """No other target of the Makefile changes the machine."""
    recipes = re.split(r"^(?=[.a-z$][^\n=]*:)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    installing = [recipe for recipe in recipes if re.search(r"apt-get[^:]*install -y", recipe)]
    assert [recipe.split(":")[0] for recipe in installing] == ["deps"]


def test_ci_requires_what_it_can() -> None:
    """CI stops at the first failure and may not pass by skipping."""
    path = ROOT / ".ci" / "run"
    text = path.read_text(encoding="utf-8")
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in text
    wanted = re.findall(r"^FLEET_REQUIRE=(\S+) make (\S+)", text, flags=re.MULTILINE)
    required = {target: set(listed.split(",")) for listed, target in wanted}
    assert required == {"test": set(needs.PROBES), "test-demo": {"broker", "spark"}}


def test_whatever_needs_the_machine_alone_is_in_the_folder_that_is_run() -> None:
    """`make test` leaves it out, and `make test-demo` collects one folder."""
    marked = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.al" + "one" in path.read_text("utf-8")
    ]
    assert [path.parent.name for path in marked] == ["demo"]
    assert "-m alone tests/demo " in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_long_form_is_run_by_a_target() -> None:
    """By `make bench`, `faults` or `conformance`: what nobody runs is broken before long."""
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    run = {"tests/benchmarks", "tests/faults", "tests/conformance"}
    for name in ("faults", "conformance"):
        found = re.search(rf"^{name}: {name} = ((?:.*\\\n)*.*)$", made, flags=re.MULTILINE)
        assert found is not None, name
        run |= set(found[1].replace("\\", " ").split())
    assert not [path for path in run if not (ROOT / path).exists()]
    long = re.compile(r"pytest\.mark\.long|FLEET_LONG|tests\.support\.sampling")
    left = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent.name not in {"tests", "support"} and long.search(path.read_text("utf-8"))
        and not any((ROOT / each) in (path, *path.parents) for each in run)
    ]  # fmt: skip
    assert not left


def test_no_paths_of_a_machine() -> None:
    """Tracked text names no folder of whoever wrote it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    private = re.compile(r"/(?:wo" + r"rk|ro" + r"ot|tmp/w)/")
    wrong = []
    for name in filter(None, listed.split("\0")):
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            continue
        wrong += [
            f"{name}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if private.search(line)
        ]
    assert not wrong, wrong


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_make_refuses_an_old_python(tmp_path) -> None:
    """The message names the version needed and how to name another interpreter."""
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.lock").touch()
    (tmp_path / "pyproject.toml").touch()
    done = subprocess.run(
        ["make", f"PYTHON={old}", "test"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Fleet needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert not (tmp_path / ".venv").exists()


@cache
def _constants(path: Path) -> tuple[tuple[tuple[int, str], ...], tuple[tuple[int, str], ...]]:
    """Strings that stand alone (docstrings), and all others, each with its line.

    Nothing of files that cite nothing anywhere: to parse them is what takes time.
    """
    text = path.read_text(encoding="utf-8")
    if not _ANY.search(text):
        return (), ()
    alone: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                alone.append((node.lineno, node.value.value))
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            others.append((node.lineno, node.value))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(text))
    return tuple(alone), tuple(others)


def _comments(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    if not re.search(r"#.*(?:\[\d|\.md|DESIGN)", text):
        return []  # most files: splitting into tokens takes longer still
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT]


def _prose(path: Path) -> list[tuple[int, str]]:
    """A page's lines without code, blank where there was a block, as one text."""
    text = path.read_text(encoding="utf-8")
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    return [(1, re.sub(r"`[^`\n]*`", "``", text))]


def _code() -> Iterator[tuple[str, Path]]:
    for room in (*SHOWN, "tests"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield room, path


def _pages() -> list[Path]:
    return [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def _written() -> Iterator[tuple[Path, int, str]]:
    """All that is written for a reader: comments and docstrings of code, pages without code."""
    for _, path in _code():
        for line, text in (*_constants(path)[0], *_comments(path)):
            yield path, line, text
    for path in _pages():
        for line, text in _prose(path):
            yield path, line, text


def _wrong(found: Callable[[Path, str], Iterator[tuple[int, str]]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, at)}: {what}"
        for path, line, text in _written()
        for at, what in found(path, text)
    ]


def _headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _cited(numbers: str) -> Iterator[int]:
    """Every n of `2`, `16, 17` and of a range."""
    for part in numbers.split(","):
        first, _, last = part.partition("\u2013")
        yield from range(int(first), int(last or first) + 1)


def test_cited_rules_are_there() -> None:
    """[n] in a comment, a docstring or a page is a heading of docs/contributing/rules.md."""
    there = {int(h.split(".")[0]) for h in _headings(CONTRIBUTING / "rules.md") if h[0].isdigit()}

    def missing(path: Path, text: str) -> Iterator[tuple[int, str]]:
        for match in _RULES.finditer(text):
            if set(_cited(match[1])) - there:
                yield match.start(), f"{match[0]}: docs/contributing/rules.md has no such rule"

    assert not (wrong := _wrong(missing)), wrong


def test_cited_sections_are_there() -> None:
    """`docs/contributing/protocol.md x.y` names a heading of that page, R n one of its items."""
    page = CONTRIBUTING / "protocol.md"
    there = {h.split()[0] for h in _headings(page)}
    there |= set(re.findall(r"^- (R\d+):", page.read_text(encoding="utf-8"), flags=re.MULTILINE))

    def missing(path: Path, text: str) -> Iterator[tuple[int, str]]:
        for match in _SECTIONS.finditer(text):
            lacking = set(re.findall(r"R\d+|\d\.\d+", match[1])) - there
            if lacking:
                yield match.start(), f"protocol.md {sorted(lacking)}: no such section"

    assert not (wrong := _wrong(missing)), wrong


def test_no_document_is_cited_that_is_not_here() -> None:
    """Nobody but whoever wrote it could follow such a reference."""

    def stray(path: Path, text: str) -> Iterator[tuple[int, str]]:
        if path.parent != CONTRIBUTING:
            yield from ((match.start(), match[0]) for match in _STRAY.finditer(text))

    assert not (wrong := _wrong(stray)), wrong


def test_links_lead_to_files_and_headings() -> None:
    """Every relative link of the README and of docs."""
    wrong = []
    for page in _pages():
        for match in _LINK.finditer(_prose(page)[0][1]):
            name, _, part = match[1].partition("#")
            if re.match(r"[a-z]+:", name):
                continue
            to = (page.parent / name).resolve() if name else page
            if not to.exists():
                wrong.append(f"{page.relative_to(ROOT)}: {match[1]}")
            elif part and part not in map(_slug, _headings(to)):
                wrong.append(f"{page.relative_to(ROOT)}: {match[1]} (no such heading)")
    assert not wrong, wrong


def test_messages_cite_nothing() -> None:
    """A message says the reason itself: its reader has no rules at hand."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for room, path in _code()
        if room in SHOWN
        for line, text in (*_constants(path)[1], *_help(path))
        if _RULES.search(text) or _NAMED.search(text)
    ]
    assert not wrong, wrong


def _help(path: Path) -> tuple[tuple[int, str], ...]:
    """The module's docstring, where it is what --help prints."""
    printed = "description=__doc__" in path.read_text(encoding="utf-8")
    return _constants(path)[0][:1] if printed else ()


def test_the_order_of_test_files_names_what_is_there() -> None:
    """A file that moved takes its line with it."""
    named = {*scheduling._TOGETHER, *scheduling._LONG}
    assert [name for name in named if not (ROOT / name).exists()] == []
