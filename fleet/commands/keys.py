"""Single keys from a terminal, without Return, and the terminal as it was afterwards.

Problem: a live view answers to keys, and a terminal that is left without echo is useless to
its owner. Choice: cbreak mode inside a context manager; SIGTERM and SIGHUP become SystemExit,
so that they pass through it as Ctrl-C does. Where standard input is no terminal there are no
keys. Cost: kill -9 leaves the terminal as it is (`reset` mends it).
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType, TracebackType
from typing import Any, Final

ESCAPE: Final = "escape"
ENTER: Final = "enter"
BACKSPACE: Final = "backspace"
_NAMES: Final = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x1b": ESCAPE}
_FATAL: Final = (signal.SIGTERM, signal.SIGHUP)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


class Keys:
    """Keys as they are pressed; a context manager, for the main thread."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._is_terminal = os.isatty(self._fd)
        self._before: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Keys":
        if self._is_terminal:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        for each in _FATAL:
            self._handlers[each] = signal.signal(each, _leave)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        for each, handler in self._handlers.items():
            signal.signal(each, handler)

    def pressed(self, timeout: float) -> list[str]:
        """The keys pressed within `timeout` seconds, at once where there are some.

        Keys that send several characters, such as arrows, are left out.
        """
        if not self._is_terminal:
            time.sleep(timeout)
            return []
        if not select.select([self._fd], [], [], timeout)[0]:
            return []
        text = os.read(self._fd, 64).decode("utf-8", "ignore")
        if len(text) > 1 and text.startswith("\x1b"):
            return []
        return [_NAMES.get(letter, letter) for letter in text]
