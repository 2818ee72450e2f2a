"""A fault, planted by syntax node in a copy of the tree, and the tests that have to notice it.

The copy is what stands in the working tree (not what is committed), without environments and
caches. Its own modules come first on every process's path, also of processes that a test starts:
an editable install points at the checkout and would be tested instead.
"""

import ast
import compileall
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

LONGEST_TEST = 60.0
"""Seconds that one test of the table may take: a fault that only longer ones find goes unseen."""
PARTS = ("fleet", "assets", "k8s", "benchmarks", "tests")
FILES = ("pyproject.toml", "requirements.lock", "Makefile", "README.md", "fleet.example.yaml")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
_WHOLE_RUN = 600.0
"""Seconds after which a run of one fault's tests is given up."""
_MARKED = "unit or broker or slow"
"""A cluster wants images of every fault's code: what takes minutes is no quick test."""
_FAILED, _PASSED, _NOTHING = 1, 0, 5


class Stale(ValueError):
    """The table names a node that its function does not hold exactly once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A defect that somebody could make; see `tests/mutants/table.py`."""

    name: str
    where: str
    """`module:Class.method` below `fleet`; nothing behind the colon: the whole module."""
    told: str
    """Test files or single tests below `tests`, with blanks between them."""
    old: str
    new: str

    @property
    def file(self) -> str:
        """The module's file, from the root of the repository."""
        return f"fleet/{self.where.partition(':')[0].replace('.', '/')}.py"

    @property
    def tests(self) -> tuple[str, ...]:
        """What has to fail, as pytest names it."""
        return tuple(f"tests/{each}" for each in self.told.split())

    def planted(self, root: Path) -> str:
        """The module's code with the fault in it. Raises Stale."""
        path = root / self.file
        if not path.is_file():
            raise Stale(f"{self.name}: {self.file} is not there; {_ADVICE}")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owner: ast.AST | None = tree
        for name in filter(None, self.where.partition(":")[2].split(".")):
            owner = owner and _named(owner, name)
        if owner is None:
            raise Stale(f"{self.name}: {self.where} is not there; {_ADVICE}")
        change = _Change(self.old, self.new)
        change.visit(owner)
        if change.count != 1:
            found = f"there {change.count} times" if change.count else "not there"
            raise Stale(f"{self.name}: its node is {found} in {self.where}; {_ADVICE}:\n{self.old}")
        return ast.unparse(ast.fix_missing_locations(tree))


_ADVICE = (
    "the code has changed: plant the same fault in what stands there now (tests/mutants/table.py),"
    " in a larger node where it is not alone, or take the fault out where the rule is no more"
)


def _named(owner: ast.AST, name: str) -> ast.AST | None:
    found = (each for each in ast.walk(owner) if each is not owner)
    return next((each for each in found if getattr(each, "name", None) == name), None)


class _Change(ast.NodeTransformer):
    """Replaces a node, told by its `ast.unparse`, and counts how often."""

    def __init__(self, old: str, new: str) -> None:
        self.count = 0
        both = [_expression(old), _expression(new)]
        self._kind: type[ast.AST] = ast.stmt if None in both else ast.expr
        if None in both:
            both = [ast.parse(old).body[0], ast.parse(new).body[0]]
        self._old, self._new = both
        self._text = ast.unparse(self._old)  # type: ignore[arg-type]

    def visit(self, node: ast.AST) -> Any:
        same = isinstance(node, self._kind) and type(node) is type(self._old)
        if same and ast.unparse(node) == self._text:
            self.count += 1
            return self._new
        return self.generic_visit(node)


@cache
def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


class Verdict(StrEnum):
    """What became of a planted fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    SKIPPED = "not run"
    """None of its tests could run here."""
    BROKEN = "broken"
    """Its tests could not even be collected: no fault that somebody could make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of tests."""

    code: int
    seconds: float
    passed: int = 0
    failed: tuple[str, ...] = ()
    longest: tuple[float, str] = (0.0, "")
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fault and what its tests said."""

    fault: Fault
    verdict: Verdict
    seconds: float
    by: str = ""
    """The first test that failed."""
    output: str = field(default="", repr=False)


class Copy:
    """One copy of the tree, for one fault at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            shutil.copytree(root / part, folder / part, ignore=_LEFT_OUT)
        for name in filter(lambda each: (root / each).exists(), FILES):
            shutil.copy(root / name, folder / name)
        # A fault is planted within the second in which the last one went: only the text tells.
        compileall.compile_dir(
            folder, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH, workers=1
        )

    def try_out(self, fault: Fault) -> Outcome:
        """Plant it, run its tests, take it out again."""
        path = self.folder / fault.file
        before = path.read_text(encoding="utf-8")
        path.write_text(fault.planted(self.folder), encoding="utf-8")
        try:
            ran = self.run(fault.tests)
        finally:
            path.write_text(before, encoding="utf-8")
        return Outcome(
            fault=fault,
            verdict=_verdict(ran),
            seconds=ran.seconds,
            by=ran.failed[0] if ran.failed else "",
            output=ran.output,
        )

    def run(self, tests: Iterable[str], *, first: bool = True) -> Ran:
        """Run tests in this copy; `first`: stop at the first that fails."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        asked = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *(["-x"] if first else []),
            *("-m", _MARKED, "--timeout", f"{LONGEST_TEST:g}", "--junitxml", str(report), *tests),
        ]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
        try:
            done = subprocess.run(
                asked,
                cwd=self.folder,
                env={**kept, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_WHOLE_RUN,
                check=False,
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, output = _FAILED, f"no end within {_WHOLE_RUN:g} s"
        return _read(report, code, time.monotonic() - began, output)


def _read(report: Path, code: int, seconds: float, output: str) -> Ran:
    if not report.exists():
        return Ran(code=code, seconds=seconds, output=output)
    passed, failed, longest = 0, [], (0.0, "")
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        longest = max(longest, (float(case.get("time") or 0.0), name))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is None:
            passed += 1
    return Ran(
        code=code,
        seconds=seconds,
        passed=passed,
        failed=tuple(failed),
        longest=longest,
        output=output,
    )


def _verdict(ran: Ran) -> Verdict:
    if ran.code == _FAILED:
        return Verdict.KILLED
    if ran.code not in {_PASSED, _NOTHING}:
        return Verdict.BROKEN
    return Verdict.SURVIVED if ran.passed else Verdict.SKIPPED
