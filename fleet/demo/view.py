"""What a person sees while the demo runs: sentences, and on a terminal a picture that moves.

Problem: a fleet that changes without a stop looks like nothing happens. Choice: what was done
is a sentence with its second; on a terminal a table of groups and slots stands below and is
drawn anew twice a second; in a pipe the same state is a sentence every few seconds. A thread
looks at the cluster, and a look that fails is left out; one that fails by a defect says so, in
one line: the view never stops the demo.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fleet.clock import Clock
from fleet.errors import FleetError

_LOOK_SECONDS: Final = 1.0
_TOLD_SECONDS: Final = 10.0
_WIDTH: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """One slot as a row."""

    number: int
    holder: str
    phase: str
    revision: str
    partitions: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group as a person sees it."""

    group: str
    state: str
    members: int
    standbys: int
    lag: int | None
    rebalances: int | None
    """Recorded since the step in hand began."""
    slots: tuple[SlotView, ...]

    def sentence(self) -> str:
        """The group in one line."""
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        return (
            f"{self.group}: {self.state}, {self.members} members, {self.standbys} standby, "
            f"{lag} records waiting"
        )


def _console() -> Console:
    """Standard output; a pipe has no width of its own and gets what the tables need."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


Look = Callable[[], Sequence[GroupView]]


class Show:
    """Tells what happens. A context manager; `say` may be called from any thread."""

    def __init__(self, *, clock: Clock, console: Console | None = None) -> None:
        self._console = console or _console()
        self._clock = clock
        self._began = clock.monotonic()
        self._chapter = ""
        self._last = ""
        self._pictures: Sequence[GroupView] = ()
        self._live: Live | None = None
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> "Show":
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=2,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.rest()

    def rest(self) -> None:
        """Draw no more; sentences and tables still come."""
        self.unwatch()
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def chapter(self, title: str) -> None:
        """Begin a part of the story."""
        self._chapter = title
        self._print(Text(f"\n{self._second()} {title}", style="bold"))

    def say(self, sentence: str) -> None:
        """Tell what was done."""
        self._last = sentence
        self._print(Text(f"{self._second()}   {sentence.strip()}"))

    def table(self, table: RenderableType) -> None:
        """Show a result."""
        self._print(table)

    def watch(self, look: Look) -> None:
        """Look at the cluster every second from now on, in a thread."""
        self.unwatch()
        self._stop = threading.Event()  # of this watch: an earlier look may outlast its own
        self._watcher = threading.Thread(
            target=self._look, args=(look, self._stop), name="view", daemon=True
        )
        self._watcher.start()

    def unwatch(self) -> None:
        """Stop looking; returns when the last look is over."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(timeout=15.0)
            self._watcher = None
        self._pictures = ()

    def _look(self, look: Look, stop: threading.Event) -> None:
        told, defects = self._clock.monotonic(), set[str]()
        while not stop.wait(_LOOK_SECONDS):
            try:
                pictures = look()
            except FleetError:
                continue
            except Exception as error:  # noqa: BLE001 - this thread alone would end of it
                if (defect := _in_one_line(error)) not in defects:
                    defects.add(defect)
                    self.say(f"the view could not look: {defect}; this is a defect, report it")
                continue
            if stop.is_set():
                return
            self._pictures = pictures
            if self._live is None and self._clock.monotonic() - told >= _TOLD_SECONDS:
                told = self._clock.monotonic()
                for picture in self._pictures:
                    if picture.members:
                        self._print(Text(f"{self._second()}   ({picture.sentence()})"))

    def _second(self) -> str:
        return f"[{self._clock.monotonic() - self._began:4.0f} s]"

    def _print(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=isinstance(what, Text))

    def _render(self) -> RenderableType:
        head = Text.assemble(
            "\n", (self._chapter, "bold"), f"  {self._second()}  ", (self._last, "dim")
        )
        return Group(head, *(_drawn(picture) for picture in self._pictures if picture.slots))


def _in_one_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _drawn(picture: GroupView) -> RenderableType:
    counted = (
        "" if picture.rebalances is None else f", {picture.rebalances} rebalances in this step"
    )
    drawn = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("slot", "partitions", "phase", "code", "holder", "batches"):
        drawn.add_column(name, justify="right" if name in {"slot", "batches"} else "left")
    for slot in picture.slots:
        drawn.add_row(
            str(slot.number),
            "■" * slot.partitions,
            slot.phase,
            slot.revision[:6],
            slot.holder,
            str(slot.batches),
        )
    return Group(Text(picture.sentence() + counted), drawn)
