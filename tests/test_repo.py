"""What the repository itself promises: a clean lock, one installer, no machine's paths."""

import os
import re
import shutil
import subprocess
import tomllib
from itertools import chain

import pytest

from tests.support.needs import repository

ROOT = repository()


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
    assert "FLEET_REQUIRE=broker,spark,browser make test" in text


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
