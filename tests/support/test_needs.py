"""A need that is not met skips with the reason, or fails where it is required."""

import os
import subprocess
import sys

import pytest

from tests import conftest
from tests.support.needs import repository, required


def run(**environ: str) -> subprocess.CompletedProcess[str]:
    """One broker test on a machine whose Java is gone."""
    chosen = ("tests/broker/test_broker.py", "-k", "test_topics_are_not_made_by_accident")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *chosen],
        cwd=repository(),
        env={**os.environ, "JAVA_HOME": "no-such-folder", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_unmet_need_skips_and_says_so() -> None:
    """The reason and what to do stand in the summary."""
    done = run(FLEET_REQUIRE="")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "could not run here" in done.stdout
    assert "make deps" in done.stdout


def test_unmet_need_fails_where_it_is_required() -> None:
    """CI cannot pass by skipping."""
    done = run(FLEET_REQUIRE="spark,broker")
    assert done.returncode == 1
    assert "broker is required by FLEET_REQUIRE" in done.stdout


def test_required_names_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name would require nothing: no test runs."""
    assert required({"FLEET_REQUIRE": " broker, ,spark"}) == {"broker", "spark"}
    with pytest.raises(ValueError, match="brokr"):
        required({"FLEET_REQUIRE": "brokr"})
    monkeypatch.setenv("FLEET_REQUIRE", "brokr")
    with pytest.raises(pytest.UsageError, match="brokr"):
        conftest.pytest_configure(None)
