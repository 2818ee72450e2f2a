"""`fleet top`: all groups, live. Looks are taken on a thread, so that keys answer at once."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from fleet.commands.invocation import Invocation, common, output_option
from fleet.errors import FleetError
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.commands.groups.top_frame import Frame
    from fleet.lag.snapshot import Snapshot
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet
    from fleet.manager.recent import Recent

_KEYS_EVERY: Final = 0.2
_FIRST: Final = 10.0
"""Seconds that a single frame waits for the offsets topic to be read."""
_APART: Final = 1.0
"""Seconds between the two looks of a single frame: rates need two."""
_GOODBYE: Final = 3.0


@click.command(epilog="Examples:  fleet top  |  fleet top --sort lag  |  fleet top --once -o json")
@click.option("--interval", type=click.FloatRange(min=0.5, max=3600.0), default=2.0,
              show_default=True, metavar="SECONDS", help="Seconds between two looks.")  # fmt: skip
@click.option(
    "--sort",
    type=click.Choice(["worst", "lag", "behind", "rebalances", "rate", "name"]),
    default="worst",
    show_default=True,
    help="Order of the rows; worst: storms, then seconds behind, then rebalances.",
)
@click.option(
    "--filter",
    "pattern",
    default="",
    metavar="TEXT",
    help="Show only groups whose name contains this text.",
)
@click.option("--once", is_flag=True, help="Print one frame and exit (default in a pipe).")
@output_option
@common
def top(
    invocation: Invocation, *, interval: float, sort: str, pattern: str, once: bool, output: str
) -> None:
    """Groups as they are now, worst first; a live view.

    Keys: q quits, s sorts by the next column, / filters. LAG is in records, BEHIND the age of
    the oldest committed position, IN/S and OUT/S records a second produced and consumed, REB/H
    rebalances of the last hour. While a broker does not answer, its last figures stay, and a
    line says so.
    """
    from fleet.commands.answers import print_json, stdout
    from fleet.commands.groups.top_frame import Frame, answer, drawn

    with invocation.open() as fleet:
        frame = Frame(
            cluster=fleet.spec.cluster.name,
            at=None,
            now=fleet.clock.now(),
            rows=(),
            notices=(),
            source="",
            sort=sort,
            pattern=pattern,
        )
        console = stdout()
        if output == "json" or once or not console.is_terminal:
            shown = _once(fleet, frame)
            if output == "json":
                print_json(answer(shown))
            else:
                console.print(drawn(shown))
            return
        _live(fleet, frame, every=interval)


def _once(fleet: "Fleet", frame: "Frame") -> "Frame":
    """Two looks, so that rates are known. Raises Unreachable."""
    with Looks(fleet) as looks:
        looks.before = fleet.snapshot()
        began = fleet.clock.monotonic()
        looks.wait(_FIRST)
        fleet.clock.sleep(max(0.0, _APART - (fleet.clock.monotonic() - began)))
        return looks.look(frame)


def _live(fleet: "Fleet", frame: "Frame", *, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from fleet.commands.groups.top_frame import after, drawn
    from fleet.commands.keys import Keys

    console = Console(highlight=False)
    with (
        Keys() as keys,
        Looks(fleet, every=every) as looks,
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        while True:
            frame = looks.latest(frame)
            screen.update(drawn(frame, height=console.height), refresh=True)
            for key in keys.pressed(_KEYS_EVERY):
                following = after(frame, key)
                if following is None:
                    return
                frame = following


class Looks:
    """Looks at the cluster again and again, and remembers the last that went well."""

    def __init__(self, fleet: "Fleet", *, every: float | None = None) -> None:
        from fleet.commands.groups.stormy_times import StormLooks

        self._fleet = fleet
        self._every = every
        self._watch = StormLooks(fleet.spec)
        self._tail: Tail | None = None
        self._why = ""
        """Why there is no tail."""
        self.before: Snapshot | None = None
        """The last snapshot, for rates."""
        self._lock = threading.Lock()
        self._seen: Frame | None = None
        self._notices: tuple[str, ...] = ()
        self._defect: Exception | None = None
        """What ended the looks, to be raised where it is told."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Looks":
        if self._every is not None:
            self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_GOODBYE)
        if self._tail is not None:
            self._tail.close()

    def latest(self, frame: "Frame") -> "Frame":
        """The same view with what was last seen."""
        with self._lock:
            seen, notices = self._seen, self._notices
        if self._defect is not None:
            raise self._defect
        now = self._fleet.clock.now()
        if seen is None:
            return replace(frame, now=now, notices=notices)
        return replace(
            frame, now=now, at=seen.at, rows=seen.rows, source=seen.source,
            notices=(*notices, *seen.notices),
        )  # fmt: skip

    def wait(self, patience: float) -> None:
        """Until the offsets topic is read, or for so many seconds."""
        tail = self._reader()
        try:
            if tail is not None:
                tail.catch_up(patience)
        except FleetError as error:
            self._why = str(error)

    def look(self, frame: "Frame") -> "Frame":
        """One look. Raises Unreachable."""
        from fleet.commands.groups.top_frame import rows_of

        snapshot = self._fleet.snapshot()
        tail = self._reader()
        recent = self._recent(tail)
        storms, numbers = {}, {}
        if tail is not None:
            declared = [fleet.group for fleet in self._fleet.spec.fleets]
            storms = self._watch.look(
                tail.rebalances(),
                now=self._fleet.clock.now(),
                changes={group: self._fleet.changes(group) for group in declared},
            )
            numbers = {group: number for group, (_, number, _) in tail.summaries().items()}
        before, self.before = self.before, snapshot
        return replace(
            frame,
            at=snapshot.at,
            now=self._fleet.clock.now(),
            rows=rows_of(snapshot, recent, before=before, generations=numbers, storms=storms),
            notices=_notices(snapshot, recent),
            source=recent.sentence,
        )

    def _run(self) -> None:
        try:
            self._look_on()
        except Exception as error:  # noqa: BLE001 - raised again by `latest`, on the main thread
            self._defect = error

    def _look_on(self) -> None:
        """A failure is told at once; what was seen before stays on the screen."""
        from fleet.commands.groups.top_frame import Frame

        empty = Frame(cluster=self._fleet.spec.cluster.name, at=None, now=0.0, rows=(), notices=(),
                      source="", sort="worst", pattern="")  # fmt: skip
        while not self._stop.is_set():
            try:
                seen = self.look(empty)
            except FleetError as error:
                with self._lock:
                    self._notices = (str(error),)
            else:
                with self._lock:
                    self._seen, self._notices = seen, ()
            self._stop.wait(self._every)

    def _reader(self) -> "Tail | None":
        """The live view of the offsets topic; None where it may not be read."""
        from fleet.manager.past import tail_of
        from fleet.manager.recent import DAY, beginning

        if self._tail is None:
            try:
                self._tail = tail_of(self._fleet, since=beginning(self._fleet), keep=DAY)
            except FleetError as error:
                self._why = str(error)
        return self._tail

    def _recent(self, tail: "Tail | None") -> "Recent":
        from fleet.manager.recent import DAY, Recent, recent_from

        if tail is None:
            return Recent(kind="none", sentence=self._why)
        now, age = self._fleet.clock.now(), tail.age()
        if age is None:
            why = tail.problem or f"__consumer_offsets: {tail.records:,} records read so far"
            return Recent(kind="none", sentence=why)
        found = tail.rebalances(since=now - DAY)
        told = "rebalances from __consumer_offsets"
        if age > 2 * max(self._every or 0.0, 2.0):
            told += f", as of {duration(age)} ago"
        return recent_from(found, kind="log", sentence=told, now=now)


def _notices(snapshot: "Snapshot", recent: "Recent") -> tuple[str, ...]:
    unknown = () if recent.known else (f"rebalances are not known: {recent.sentence}",)
    return (*snapshot.problems[:3], *unknown)
