"""Tests leave the folder in which they run without a home: the next demo finds none.

Problem: without FLEET_HOME everything opens `.fleet` in the current folder, the clone's, and a demo
refuses the home of another fleet. Choice: a run that leaves a database there where there was none
fails, and names it. Cost: the test that did it is not named; a file called `.fleet` finds it.
"""

from pathlib import Path

import pytest

from fleet.system.home import fleet_home


class CleanClone:
    """A pytest plugin of the process that began the session. home: where nothing may appear."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home or fleet_home({})
        self._before = self._databases()
        self.left: list[str] = []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The run fails, whatever its tests came to."""
        self.left = sorted(self._databases() - self._before)
        if self.left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Why it failed."""
        if self.left:
            terminalreporter.section("a test has opened the clone's own home", red=True)
            terminalreporter.line(
                f"{self._home} has {', '.join(self.left)} now: run with a file in its place, and "
                "the test that names no FLEET_HOME fails"
            )

    def _databases(self) -> set[str]:
        return {each.name for each in self._home.glob("*.db")}
