"""Ctrl-C and SIGTERM as one exception, and none while everything is being ended.

Problem: a demo that is interrupted half-way must leave no process behind, a second Ctrl-C must
not cut off the ending of the first, and a shell's background job starts with SIGINT ignored.
Choice: our own handlers for the time of the demo; an interrupt raises until the ending has
begun, from then on it is only remarked.
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
    """Somebody asked the demo to end."""


@dataclass(slots=True)
class Ending:
    """Whether the ending has begun; `remark` is called for an interrupt during it."""

    remark: Callable[[], None]
    begun: bool = False

    def start(self) -> None:
        """From now on nothing is cut off."""
        self.begun = True

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - its shape
        """A signal has come: Interrupted, or a remark."""
        if not self.begun:
            raise Interrupted(signal.Signals(number).name)
        self.remark()


@contextlib.contextmanager
def interruptible(remark: Callable[[], None]) -> Iterator[Ending]:
    """Raise Interrupted in the main thread on SIGINT, SIGTERM and SIGHUP, until the ending."""
    ending = Ending(remark)
    if threading.current_thread() is not threading.main_thread():
        yield ending  # signals go to the main thread, whose business they are
        return
    before = {number: signal.signal(number, ending.handle) for number in _SIGNALS}
    try:
        yield ending
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
