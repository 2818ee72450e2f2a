"""One look at the cluster for all who watch.

Problem: ten people who open the page during an incident must not make ten times the requests to a
cluster that is in trouble, and a page that nobody looks at must make none. Choice: one thread
looks, as long as somebody asked within `IDLE` seconds, and rests four times as long as a look
takes; what it saw is kept as one value, from which every answer is made. Nothing is written, to
Kafka or to the store. Cost: who comes after a silence sees the last look, with its age, until
the next one is done.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fleet.commands.groups.group_status import GroupStatus, statuses
from fleet.commands.groups.looks import Latest, Look, Looks, Repeated
from fleet.commands.page.answers import live_rows, overview
from fleet.config.acls import OFFSETS
from fleet.config.spec import FleetSpec
from fleet.manager.past import Past, Source
from fleet.slots import Pause
from fleet.system.closing import Closing
from fleet.ui.busy import BusyTimes, Load, load_of

if TYPE_CHECKING:
    from fleet.log.readers.tail import Tail
    from fleet.manager.cycle import Fleet

IDLE: Final = 30.0
_REST: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watched:
    """All groups as they were at one moment."""

    spec: FleetSpec
    look: Look
    live: tuple[dict[str, Any], ...]
    """What is live of each group, worst first (`live_rows`)."""
    statuses: Mapping[str, GroupStatus]
    """By group, in order of name."""
    pauses: tuple[Pause, ...] | None
    """None where nothing that Fleet itself keeps can be read."""
    loads: Mapping[str, Load]
    past: Past | None
    """Of the last day, and it goes on; None where it is not known."""
    overview: bytes = b"{}"
    """The answer about all groups: what takes longest of an answer is done once a look."""

    def encoded(self) -> "Watched":
        """With its overview."""
        return replace(self, overview=json.dumps(overview(self), separators=(",", ":")).encode())


class Watch(Closing):
    """Looks at one cluster while somebody watches."""

    def __init__(self, fleet: "Fleet", *, every: float) -> None:
        self._fleet = fleet
        self._looks = Looks(fleet, apart=every)
        self._times = BusyTimes()
        self._repeated = Repeated(self._take, every=every, clock=fleet.clock, rest=_REST, idle=IDLE)

    def start(self) -> None:
        """Begin to look."""
        self._repeated.start()

    def latest(self) -> Latest[Watched]:
        """What was seen last, at once."""
        return self._repeated.latest()

    def close(self) -> None:
        """Look no more."""
        self._repeated.close()
        self._looks.close()

    def _take(self) -> Watched:
        fleet, look, tail = self._fleet, self._looks.look(), self._looks.tail
        if tail is not None and look.recent.known:
            past = replace(look.recent, commits=tail.commits(), reaches=self._looks.reaches)
            look = replace(look, recent=past)
        storm, pauses = look.storms.get, look.pauses
        found = statuses(fleet, look.snapshot, look.recent, storm=storm, pauses=pauses)
        at = fleet.clock.monotonic()
        reports = (each for status in found if status.managed for each in status.managed.reports)
        self._times.look(reports, at=at)
        made = Watched(
            spec=fleet.spec,
            look=look,
            live=live_rows(look),
            statuses={status.group: status for status in found},
            pauses=pauses,
            loads={status.group: self._load(status) for status in found},
            past=None if tail is None or not look.recent.known else _past(tail, fleet.clock.now()),
        )
        return made.encoded()

    def _load(self, status: GroupStatus) -> Load:
        slots = status.managed.slots if status.managed else ()
        held = {slot.number: slot.holder for slot in slots if slot.holder is not None}
        return load_of(status.seen, held=held, times=self._times, verdict=status.verdict)


def _past(tail: "Tail", now: float) -> Past:
    kept = tail.rebalances()
    reaches = kept[0].ended_at if kept else None
    as_of = now - (tail.age() or 0.0)
    return Past(rows=tail, source=Source(kind="log", place=OFFSETS, reaches=reaches, as_of=as_of))
