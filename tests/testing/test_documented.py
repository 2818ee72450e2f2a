"""The job and the test of docs/start/first-job.md, as a person would have them in a folder."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import repository

PAGE = repository() / "docs" / "start" / "first-job.md"
TEST_SECONDS = 240
TEST = "tests/test_totals.py"


def files_of(page: Path) -> dict[str, str]:
    """The Python blocks of a page by the file name in their first line."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == page.read_text().count("```python"), "a block names no file"
    return dict(blocks)


@pytest.mark.spark
def test_the_page_runs(tmp_path: Path) -> None:
    """A batch made by hand passes through the job, on a Spark Connect session; another test run
    of this machine may have the port that PySpark's own local server always wants.
    """
    files = files_of(PAGE)
    del files["tests/conftest.py"]  # for a job with a JVM of its own: a second start of Spark
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else has it: just as well
            taken.bind(("", 15002))
            taken.listen()
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{repository()}{os.pathsep}{tmp_path / 'jobs'}"},
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
            check=False,
        )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert "1 passed" in run.stdout
