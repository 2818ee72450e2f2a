"""Turns Ctrl-C and SIGTERM into one exception, and into a remark during the shutdown.

Problem: an interrupted demo must leave no process behind. A second Ctrl-C must not cut off the
shutdown, and a shell's background job starts with SIGINT ignored. Choice: the demo installs its own
handlers. An interrupt raises until the shutdown starts; after that it only prints a remark.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked the demo to stop."""


@dataclass(slots=True)
class Ending:
    """Tracks whether the shutdown has started; an interrupt during it calls `remark`."""

    remark: Callable[[], None]
    begun: bool = False

    def start(self) -> None:
        """Starts the shutdown: interrupts no longer raise."""
        self.begun = True

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - its shape
        """Handles a signal: raises Interrupted, or calls `remark` during the shutdown."""
        if not self.begun:
            raise Interrupted(signal.Signals(number).name)
        self.remark()


@contextlib.contextmanager
def interruptible(remark: Callable[[], None]) -> Iterator[Ending]:
    """Raises Interrupted in the main thread on SIGINT, SIGTERM, SIGHUP, until the shutdown."""
    ending = Ending(remark)
    if threading.current_thread() is not threading.main_thread():
        yield ending  # only the main thread receives signals
        return
    before = {number: signal.signal(number, ending.handle) for number in _SIGNALS}
    try:
        yield ending
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
