"""Looks at all groups, again and again: what `fleet ui` shows.

Problem: a broker that is away holds a look for ten seconds, and a page has to answer at once and
to go on showing what was last seen. Choice: looks are taken on a thread; the last that
went well stays, and beside it stands since when they fail, and why. One view of the offsets topic
is read along, so that rebalances and storms cost no look of their own. Cost: a figure is as old as
the look that it is from.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from fleet.clock import Clock
from fleet.decide.storms.assessment import Storm
from fleet.decide.storms.storm_watch import StormWatch
from fleet.errors import FleetError
from fleet.lag.snapshot import Snapshot
from fleet.manager.past import DAY, Recent, beginning, recent_from, tail_of
from fleet.slots import Change, Pause
from fleet.system.closing import Closing
from fleet.text import duration

if TYPE_CHECKING:
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet

_GOODBYE: Final = 3.0
_OLD: Final = 30.0
"""Seconds after which what was read of the offsets topic tells nothing of now."""
_CHANGES: Final = 20
"""Changes of a group that are known: they excuse its rebalances in a timeline of the last day."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All groups at one moment, and their last day."""

    snapshot: Snapshot
    before: Snapshot | None
    """The look before it, for rates."""
    recent: Recent
    storms: Mapping[str, Storm] = field(default_factory=dict)
    generations: Mapping[str, int | None] = field(default_factory=dict)
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    """Of declared groups, latest first; the last known ones where they cannot be read."""
    pauses: tuple[Pause, ...] | None = ()
    """None where nothing that Fleet itself keeps could be read."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What is wrong with the view itself."""
        unknown = f"rebalances are not known: {self.recent.sentence}"
        return (*self.snapshot.problems[:3], *(() if self.recent.known else (unknown,)))


class Looks(Closing):
    """Looks at one cluster, from one thread."""

    def __init__(self, fleet: "Fleet", *, apart: float = 0.0) -> None:
        self._fleet = fleet
        self._apart = apart
        self._watch = StormWatch()
        self._before: Snapshot | None = None
        self._changes: dict[str, tuple[Change, ...]] = {}
        self._why = ""
        """Why there is no tail."""
        self.tail: Tail | None = None
        """The live view of the offsets topic; None where it may not be read."""
        self.reaches: float | None = None
        """Since when that is read; None: from its beginning."""

    def close(self) -> None:
        """Read no more."""
        if self.tail is not None:
            self.tail.close()

    def look(self) -> Look:
        """Look once. Raises Unreachable."""
        snapshot = self._fleet.snapshot()
        self._read()
        pauses, problem = self._fleet.pauses_told()
        if problem is None:
            declared = [fleet.group for fleet in self._fleet.spec.fleets]
            self._changes = changes_now(self._fleet.changes, declared, self._changes)
        else:
            snapshot = replace(snapshot, problems=(problem, *snapshot.problems))
        before, self._before = self._before, snapshot
        changes = self._changes
        look = Look(
            snapshot=snapshot,
            before=before,
            recent=self._recent(),
            changes=changes,
            pauses=pauses,
        )
        if self.tail is None or not look.recent.known:
            return look
        now, spec = self._fleet.clock.now(), self._fleet.spec
        self._watch = self._watch.look(spec, self.tail.rebalances(), now=now, changes=changes)
        return replace(
            look,
            storms=self._watch.storms,
            generations={group: told.generation for group, told in self.tail.summaries().items()},
        )

    def _read(self) -> None:
        """Begin to read the offsets topic, where that has not begun."""
        if self.tail is None:
            try:
                self.reaches = beginning(self._fleet)
                names = self._fleet.topic_ids()
                self.tail = tail_of(self._fleet, since=self.reaches, keep=DAY, names=names)
            except FleetError as error:
                self._why = str(error)

    def _recent(self) -> Recent:
        tail = self.tail
        if tail is None:
            return Recent(kind="none", sentence=self._why)
        now, age = self._fleet.clock.now(), tail.age()
        if age is None or age > _OLD:
            read = f"__consumer_offsets: {tail.records:,} records read so far"
            late = read if age is None else f"__consumer_offsets was read {duration(age)} ago"
            return Recent(kind="none", sentence=tail.problem or late)
        found = tail.rebalances(since=now - DAY)
        told = "rebalances from __consumer_offsets"
        if age > 2 * max(self._apart, 2.0):
            told += f", as of {duration(age)} ago"
        return recent_from(found, kind="log", sentence=told, now=now)


def changes_now(
    read: Callable[[str, int], tuple[Change, ...]],
    groups: Iterable[str],
    before: Mapping[str, tuple[Change, ...]],
) -> dict[str, tuple[Change, ...]]:
    """The changes of each group, latest first, by `read(group, limit)`.

    What ended before the last one stays as it was: it is read again only where the last one is
    another than in `before`.
    """
    found = {}
    for group in groups:
        known = before.get(group)
        same = known is not None and read(group, 1) == known[:1]
        found[group] = known if known is not None and same else read(group, _CHANGES)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Generic[T]):
    """What a repetition has come to."""

    value: T | None = None
    """The last that went well; None: none did yet."""
    problem: str | None = None
    """Why the one after it failed; None: it did not."""
    since: float | None = None
    """Wall time of the first failure in a row."""


class Repeated(Closing, Generic[T]):
    """Takes a value every so many seconds on a thread of its own, until closed.

    `rest`: so many seconds of rest at least for each second that a taking took. `idle`: after so
    many seconds in which nobody asked for the latest it waits until somebody does.
    """

    def __init__(
        self,
        take: Callable[[], T],
        *,
        every: float,
        clock: Clock,
        rest: float = 0.0,
        idle: float | None = None,
    ) -> None:
        self._take, self._every, self._clock = take, every, clock
        self._rest, self._idle = rest, idle
        self._asked_at = clock.monotonic()
        self._latest: Latest[T] = Latest()
        self._defect: Exception | None = None
        """What ended it, to be raised where it is told."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Take no more."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_GOODBYE)

    def latest(self) -> Latest[T]:
        """What there is. Raises what ended the taking, where that was a defect."""
        if self._defect is not None:
            raise self._defect
        self._asked_at = self._clock.monotonic()
        self._wake.set()
        return self._latest

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = self._clock.monotonic()
                self._once()
                took = self._clock.monotonic() - began
                self._stop.wait(max(self._every, self._rest * took))
                self._wake.clear()
                silent = self._clock.monotonic() - self._asked_at
                if self._idle is not None and silent > self._idle and not self._stop.is_set():
                    self._wake.wait()
        except Exception as error:  # noqa: BLE001 - raised again by `latest`
            self._defect = error

    def _once(self) -> None:
        """A failure is told at once; what was seen before stays."""
        try:
            self._latest = Latest(value=self._take())
        except FleetError as error:
            since = self._latest.since
            self._latest = Latest(
                value=self._latest.value,
                problem=str(error),
                since=self._clock.now() if since is None else since,
            )
