"""Building the trial cluster's programs: a stand-in for Go says what it was asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.system import retrying
from k8s.cluster import programs
from tests.support import fail_once
from tests.support.needs import repository

GO = """#!/bin/sh
echo "$@" >> "$HOME/asked"
for each in "$@"; do
  case $last in -o) out=$each;; esac
  last=$each
done
for n in $(seq 1 1200); do echo "k8s.io/package$n" >&2; done
[ -e "$HOME/fails" ] && { echo "# k8s.io/api" >&2; echo "api.go:1: no such thing" >&2; exit 1; }
for each in "$@"; do
  case $each in ./pause | ./dns | k8s.io/kubernetes/* | helm.sh/*)
    echo made > "$out$(basename "$each")";;
  esac
done
exit 0
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of somebody who has built nothing yet."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def asked(home: Path) -> list[list[str]]:
    """What is to be built, of each call."""
    lines = (home / "asked").read_text().splitlines()
    return [[w for w in line.split() if w in programs.BUILT.values()] for line in lines]


def test_what_is_missing_is_built_by_one_command(home: Path):
    """With progress; a second look builds nothing, and one program that is gone that one."""
    said: list[str] = []
    programs.build(said.append)
    *cluster, helm = programs.BUILT.values()
    assert asked(home) == [cluster, [helm]]
    assert said[0].startswith("building pause, kube-apiserver, ")
    assert said[1:] == 2 * ["  500 packages compiled", "  1000 packages compiled"]
    assert all((programs.folder() / name).read_text() == "made\n" for name in programs.BUILT)
    programs.build(said.append)
    (programs.folder() / "kubectl").unlink()
    programs.build(said.append)
    assert asked(home)[2:] == [[programs.BUILT["kubectl"]]]


def test_a_build_that_fails_says_why_and_leaves_what_was_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    """Go's words without the names of all packages; three attempts, the next call tries again: a
    program of older sources is none.
    """
    monkeypatch.setattr(retrying, "PAUSES", [0.0, 0.0])
    programs.build(lambda _: None)
    (programs.folder() / ".dns.sources").write_text("older")
    (home / "fails").touch()
    with pytest.raises(FleetError, match=r"go build \./dns failed") as raised:
        programs.build(lambda _: None)
    assert "no such thing" in str(raised.value)
    assert "package7" not in str(raised.value)
    assert (programs.folder() / "dns").exists()
    (home / "fails").unlink()
    programs.build(lambda _: None)
    assert asked(home)[2:] == [["./dns"]] * 4


def test_a_build_that_fails_once_is_run_again(home: Path, monkeypatch: pytest.MonkeyPatch):
    """One failure of Go's for each build of something else."""
    monkeypatch.setattr(retrying, "PAUSES", [0.0, 0.0])
    for key, value in fail_once.plant(home / "planted").items():
        monkeypatch.setenv(key, value)
    programs.build(lambda _: None)
    (programs.folder() / ".dns.sources").write_text("older")
    programs.build(lambda _: None)
    assert asked(home)[2:] == [["./dns"]]
    failures = fail_once.failed(home / "planted")
    assert [each.split()[:2] for each in failures] == [["go", "build"]] * 3


@pytest.mark.parametrize("minor", sorted(programs.VERSIONS))
def test_each_minor_version_is_built_from_modules_of_its_own(
    home: Path, monkeypatch: pytest.MonkeyPatch, minor: str
):
    """Into a folder of its own; Helm's modules are the same."""
    monkeypatch.setenv("FLEET_KUBERNETES", minor)
    programs.build(lambda _: None)
    assert programs.folder().parent.name == programs.VERSIONS[minor]
    cluster, helm = (line.split() for line in (home / "asked").read_text().splitlines())
    (modules,) = (word.partition("=")[2] for word in cluster if word.startswith("-modfile="))
    text = (Path(programs.__file__).parent / modules).read_text()
    assert f"\tk8s.io/kubernetes v{programs.VERSIONS[minor]}\n" in text
    assert f"gitVersion=v{programs.VERSIONS[minor]}" in " ".join(cluster)
    assert "-modfile=go.mod" in helm


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("FLEET_KUBERNETES", "1.20", r"FLEET_KUBERNETES=1\.20 .*; choose one of 1\.36, 1\.37"),
        ("PATH", "/", r"needs Go 1\.26 or newer on PATH"),
    ],
)
def test_what_cannot_be_built(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
):
    """One sentence: a version that is not pinned, no Go."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(FleetError, match=why):
        programs.build(lambda _: None)


def test_python_alone_is_enough(home: Path):
    """`make programs` begins while pip still installs."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "k8s.cluster", "build"],
        cwd=repository(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [each for asked_at_once in asked(home) for each in asked_at_once] == [
        *programs.BUILT.values()
    ]
