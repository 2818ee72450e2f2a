"""The console of every command: escape sequences in names are shown, not executed.

Problem: Kafka allows any character in group ids and client ids, and any client may choose them. An
escape sequence in one moves the cursor, writes to the clipboard or hides a line. Rich passes it to
the terminal, and reads `:key:` in a name as an emoji. Choice: one console replaces control
characters in all text; its own colours are styles, not text. Cost: colours in a job's log are lost.
"""

import contextlib
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.status import Status

from fleet.text import duration, visible


class Screen(Console):
    """Prints without emoji, and shows control characters instead of sending them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Any:
        """Replaces control characters before the width is measured."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Replaces control characters also in text that is no longer a string."""
        for each in super().render(renderable, options):
            shown = each.text if each.control else visible(each.text)
            yield each if shown == each.text else Segment(shown, each.style)


_QUIET_SECONDS: Final = 2.0


class Progress:
    """Prints progress on stderr: a callable for `progress=`, and a context manager.

    After 2 s a terminal also shows the last sentence in a live line, with the seconds so far.
    """

    def __init__(self, first: str, *, console: Console | None = None) -> None:
        self._console = console or Screen(stderr=True)
        self._sentence = first
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
        """Prints what was done, or what it waits for."""
        self._sentence = sentence
        with contextlib.suppress(OSError, ValueError):  # no reader, full disk: the work continues
            self._console.print(f"  {sentence}", markup=False, soft_wrap=True)

    def show(self, sentence: str) -> None:
        """Changes only the live line."""
        self._sentence = sentence

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
        seconds = time.monotonic() - self._started
        return f"{escape(self._sentence.strip())} [dim]({duration(seconds)})[/dim]"
