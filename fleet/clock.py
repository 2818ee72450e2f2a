"""Clocks that callers pass in.

Code that decides or waits takes a Clock, so that tests can control time. Wall time stamps what
people and other machines read. Monotonic time measures how long something has not changed.
"""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Gives a package the time and lets it wait. All times are seconds, as float."""

    def now(self) -> float:
        """Returns the wall time in seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never go back; only differences have a meaning."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for this many seconds; a negative number is no wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Returns the wall time in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Returns the machine's monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits for this many seconds; a negative number is no wait."""
        time.sleep(max(0.0, seconds))


@dataclass(slots=True)
class ManualClock:
    """A clock for tests: `sleep` advances it at once."""

    at: float = 1_000_000.0

    def now(self) -> float:
        """Returns the wall time as set."""
        return self.at

    def monotonic(self) -> float:
        """Returns the same value as `now`; only differences have a meaning."""
        return self.at

    def sleep(self, seconds: float) -> None:
        """Advances the clock by this many seconds."""
        self.at += max(0.0, seconds)
