"""Rewriting of test files, shared by the processes of one run.

Problem: pytest rewrites the assertions of each test file once for a checkout, and where four
processes collect side by side all of them rewrite the same file at the same time: half of what
collecting costs on a fresh clone. Choice: before it collects, each process imports the files from
a quarter further on; what another one has rewritten by then it finds in `__pycache__`. Cost: a
file that cannot be imported is tried twice, here in silence.
"""

import contextlib
import importlib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def import_ahead(config: pytest.Config) -> None:
    """Import all test files, from this process's own place on; nothing where only some are run."""
    own = getattr(config, "workerinput", None)
    if own is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    for path in begun_at(files, int(own["workerid"].removeprefix("gw")), own["workercount"]):
        with contextlib.suppress(Exception):  # collecting tells it
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def begun_at(files: Sequence[Path], process: int, processes: int) -> list[Path]:
    """The same files, beginning where this process does."""
    first = len(files) * process // processes
    return [*files[first:], *files[:first]]
