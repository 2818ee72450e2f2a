"""A copy of the tree, a fault in it, and the tests that have to notice.

The copy is what stands in the working tree (not what is committed), without environments and
caches. Its own modules come first on every process's path, also of processes that a test starts:
an editable install points at the checkout and would be tested instead.
"""

import compileall
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants.mutant import LONGEST_TEST, Mutant

PARTS = ("fleet", "assets", "k8s", "benchmarks", "tests")
FILES = ("pyproject.toml", "requirements.lock", "Makefile", "README.md", "fleet.example.yaml")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
_WHOLE_RUN = 600.0
"""Seconds after which a run of one fault's tests is given up."""
_MARKED = "unit or broker or slow"
"""A cluster wants images of every fault's code: what takes minutes is no quick test."""
_FAILED, _PASSED, _NOTHING = 1, 0, 5


class Verdict(StrEnum):
    """What became of a planted fault."""

    KILLED = "killed"
    SURVIVED = "survived"
    JUDGED = "survived, judged"
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

    mutant: Mutant
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

    def try_out(self, mutant: Mutant) -> Outcome:
        """Plant it, run its tests, take it out again."""
        path = self.folder / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutant.planted(self.folder), encoding="utf-8")
        try:
            ran = self.run(mutant.tests)
        finally:
            path.write_text(before, encoding="utf-8")
        return Outcome(
            mutant=mutant,
            verdict=_verdict(mutant, ran),
            seconds=ran.seconds,
            by=ran.failed[0] if ran.failed else "",
            output=ran.output,
        )

    def run(self, tests: Iterable[str], *, first: bool = True) -> Ran:
        """Run tests in this copy; `first`: stop at the first that fails."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        began = time.monotonic()
        asked: Sequence[str] = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *(["-x"] if first else []),
            *("-m", _MARKED, "--timeout", f"{LONGEST_TEST:g}", "--junitxml", str(report), *tests),
        ]
        try:
            done = subprocess.run(
                asked,
                cwd=self.folder,
                env=self._environment(),
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

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
        return {**kept, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}


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


def _verdict(mutant: Mutant, ran: Ran) -> Verdict:
    if ran.code == _FAILED:
        return Verdict.KILLED
    if ran.code not in {_PASSED, _NOTHING}:
        return Verdict.BROKEN
    if not ran.passed:
        return Verdict.SKIPPED
    return Verdict.JUDGED if mutant.judged else Verdict.SURVIVED
