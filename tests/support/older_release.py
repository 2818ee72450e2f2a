"""Code of an older release, taken from the history of this repository.

A folder of it goes on PYTHONPATH. It brings distribution metadata of its own: without them its
manager would find today's runtimes, by today's names, through the entry points of this checkout.
"""

import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.support.needs import repository

METADATA = "fleet_for_kafka-0.0.dist-info"


def git(*words: str) -> str:
    """What git says of this repository."""
    asked = ["git", "-C", str(repository()), *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def commit_of(*log: str, parent: bool = False) -> str:
    """The earliest commit that `git log` with these words finds, or the one before it.

    Skips the test where this clone has no such history.
    """
    try:
        found = git("log", "--format=%h", *log).splitlines()
        made = git("rev-parse", "--short", f"{found[-1]}^") if parent and found else None
        commit = made or (found[-1] if found else "")
        changed = commit and git("diff", "--stat", commit, "HEAD", "--", "fleet", "k8s")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no history here: {error}")
    if not changed:
        pytest.skip("the history here has no older release")
    return commit


def extract(commit: str, folder: Path) -> Path:
    """Its files in this folder, ready for PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = folder.with_suffix(".tar")
    git("archive", "--output", str(packed), commit)
    with tarfile.open(packed) as tar:
        tar.extractall(folder, filter="data")
    packed.unlink()
    name_entry_points(folder)
    return folder


def name_entry_points(folder: Path) -> None:
    """Metadata as if it were installed."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    made = folder / METADATA
    made.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.0\n"
    (made / "METADATA").write_text(about)
    lines = [
        line
        for group, named in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in named.items()))
    ]
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")
