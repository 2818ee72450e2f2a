"""Time, passed in.

Code that decides or waits takes a Clock, so that tests can warp time. Wall time stamps what
people and other machines read; monotonic time measures how long something has not changed.
"""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What a room may know about time. Seconds, as float."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """A clock that never goes back; its zero means nothing."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; negative is no wait."""
        time.sleep(max(0.0, seconds))


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to: `sleep` advances it at once."""

    at: float = 1_000_000.0

    def now(self) -> float:
        """The set wall time."""
        return self.at

    def monotonic(self) -> float:
        """The same value; only differences matter."""
        return self.at

    def sleep(self, seconds: float) -> None:
        """Advance."""
        self.at += max(0.0, seconds)
