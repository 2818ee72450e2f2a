"""The console of every command: what others named is shown, and does nothing.

Problem: Kafka allows any character in a group's id and in a client's, and whoever may join a group
chooses them; an escape sequence in one, printed as it is, moves the cursor, writes into the
clipboard or hides a line on the terminal of who looks. Rich passes these on, and takes `:key:` in
a name for an emoji. Choice: one console that shows what would act on a terminal as a replacement
character, wherever it comes from; its own colours are no text. Cost: colours that a job writes
into its log or an error are not shown as such.
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
    """A console that knows no emoji, and shows control characters instead of sending them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Any:
        """Before its width is measured."""
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Also of what was no string any more."""
        for each in super().render(renderable, options):
            shown = each.text if each.control else visible(each.text)
            yield each if shown == each.text else Segment(shown, each.style)


_QUIET_SECONDS: Final = 2.0


class Progress:
    """A callable for `progress=`; a context manager around the work.

    Every sentence goes to stderr as it comes, so that stdout stays clean; on a terminal the last
    one also stands in a live line with the seconds that passed, once 2 s have gone by.
    """

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
        seconds = time.monotonic() - self._started
        return f"{escape(self._sentence.strip())} [dim]({duration(seconds)})[/dim]"
