"""Who chooses a session's folder, and who ends what is in it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.session_home import SessionHome

HOME = SessionHome("FLEET_TEST_OF_HOMES", "fleet-of-homes")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEET_TEST_OF_HOMES", "FLEET_TEST_OF_HOMES_OWNER"):
        monkeypatch.setenv(name, "")  # so that whatever is set is undone
        monkeypatch.delenv(name)


def test_whoever_begins_chooses_and_ends() -> None:
    chosen = HOME.begin()
    assert chosen is not None
    assert HOME.path == HOME.own() == chosen
    assert HOME.chosen()
    assert HOME.begin() is None  # and never again


def test_what_a_killed_session_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a living session's, and nothing that merely has a name like it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, living, other = (
        tmp_path / f"fleet-of-homes-{each}" for each in (ended.pid, os.getppid(), "notes")
    )
    for each in (left, living, other):
        each.mkdir()
        (each / "log").touch()
    HOME.begin()
    assert not left.exists()
    assert living.exists()
    assert other.exists()


def test_a_process_that_inherits_it_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = HOME.begin()
    monkeypatch.setenv("FLEET_TEST_OF_HOMES_OWNER", str(os.getppid()))
    assert HOME.path == chosen
    assert HOME.own() is None
    assert HOME.chosen()  # it ends with the session, by the one that chose it


def test_a_developers_own_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_TEST_OF_HOMES", "/somewhere")
    assert HOME.begin() is None
    assert str(HOME.path) == "/somewhere"
    assert HOME.own() is None
    assert not HOME.chosen()
