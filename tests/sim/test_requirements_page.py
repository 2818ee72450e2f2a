"""docs/contributing/requirements.md: all 92 requirements once, each with tests that there are."""

import ast
import re
from functools import cache

from tests.test_repo import ROOT

PAGE = ROOT / "docs" / "contributing" / "requirements.md"
_ROW = re.compile(r"\| R(\d+) \| (.+?) \| (.+?) \| (.+?) \|")
_TEST = re.compile(r"\[`([^`]+)::([^`]+)`\]\(([^)]+)\)")


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def _rows() -> list[tuple[int, str, str, str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [_ROW.fullmatch(line) for line in lines if line.startswith("| R")]
    assert all(found), "a row has other columns"
    return [(int(row[1]), row[2], row[3], row[4]) for row in found if row]


def test_each_requirement_once() -> None:
    """R1 to R92, in order."""
    assert [number for number, *_ in _rows()] == list(range(1, 93))


def test_what_is_named_is_there() -> None:
    """Every row names tests, by the file that its link leads to."""
    for number, _, _, shown in _rows():
        named = _TEST.findall(shown)
        assert ", ".join(f"[`{f}::{n}`]({to})" for f, n, to in named) == shown, f"R{number}"
        for path, name, target in named:
            assert (PAGE.parent / target).resolve() == (ROOT / "tests" / path).resolve()
            assert name in _tests_of(path), f"R{number}: {path} has no {name}"


def test_what_is_superseded_says_by_what() -> None:
    """A KIP, or the class of Kafka's that does otherwise."""
    for number, _, today, _ in _rows():
        assert today.startswith(("Holds", "Superseded")), f"R{number}"
        if today.startswith("Superseded"):
            assert re.search(r"KIP-\d+|`[A-Z][A-Za-z]+`|`group\.", today), f"R{number}"


def test_what_tests_say_they_hold_is_there() -> None:
    """A requirement that a test's docstring begins with has that test in its row."""
    rows = {number: shown for number, _, _, shown in _rows()}
    for path in ("sim/test_seed_requirements.py", "sim/test_failover_phases.py"):
        tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            match = re.match(r"((?:R\d+(?:, )?)+)", ast.get_docstring(node) or "")
            assert match, f"{path}::{node.name} names no requirement"
            for number in re.findall(r"R(\d+)", match[1]):
                assert f"{path}::{node.name}`" in rows[int(number)], f"R{number}: {node.name}"
