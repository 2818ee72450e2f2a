"""The documentation as a site: every page is in it, every link leads somewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.system.retrying import retry
from tests.support.needs import repository


@pytest.mark.slow
def test_site(tmp_path: Path) -> None:
    """Built as `make docs` builds it, where any warning is an error; nothing is fetched by it."""

    def build() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
            cwd=repository(),
            env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,  # ends what hangs: the commands themselves wait for progress
        )
        assert done.returncode == 0, done.stderr

    retry("mkdocs build", build, on=AssertionError)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Try it on your cluster" in page, "the README is the first page"
    assert not [
        line for line in page.splitlines() if '<script src="http' in line or "@import" in line
    ]


def test_the_readme_is_short() -> None:
    """A new user reads it in a minute."""
    assert len((repository() / "README.md").read_bytes()) <= 5 * 1024
