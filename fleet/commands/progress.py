"""Progress of a change, on stderr: live on a terminal, plain lines in a pipe.

Problem: a roll takes minutes, and an answer on stdout must stay clean for `-o json` and for
pipes. Choice: every sentence of the performer goes to stderr as it comes; on a terminal the
last one also stands in a live line with the seconds that passed, once 2 s have gone by.
"""

import contextlib
import threading
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.status import Status

from fleet.commands.screen import Screen
from fleet.text import duration

_QUIET_SECONDS: Final = 2.0


class Progress:
    """A callable for `progress=`; a context manager around the work."""

    def __init__(self, beginning: str, *, console: Console | None = None) -> None:
        self._console = console or Screen(stderr=True)
        self._sentence = beginning
        self._started = time.monotonic()
        self._status: Status | None = None
        self._done = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if self._console.is_terminal:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._ticker is not None:
            self._ticker.join()

    def __call__(self, sentence: str) -> None:
        """Say what was done, or what is waited for."""
        self._sentence = sentence
        with contextlib.suppress(OSError, ValueError):  # nobody reads, no room: the work goes on
            self._console.print(f"  {sentence}", markup=False, soft_wrap=True)

    def _tick(self) -> None:
        if self._done.wait(_QUIET_SECONDS):
            return
        with (
            contextlib.suppress(OSError, ValueError),
            self._console.status(self._line(), refresh_per_second=4) as status,
        ):
            while not self._done.wait(0.5):
                status.update(self._line())

    def _line(self) -> str:
        from rich.markup import escape

        seconds = time.monotonic() - self._started
        return f"{escape(self._sentence.strip())} [dim]({duration(seconds)})[/dim]"
