"""The exporter: look on a schedule of its own, judge, and keep what the next scrape gets.

Problem: Prometheus asks when it likes, from several servers at once, and a cluster that hangs
must not hang the scrape nor read as zero. Choice: one thread looks every `exporter.every`
seconds; a complete look becomes the text of all metrics, a failed one changes nothing, so that
only the age grows. Looks and scrapes share nothing but that text. Cost: a figure is up to one
interval old.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fleet.decide.storms.storm_watch import watch_most, watch_reach
from fleet.errors import FleetError
from fleet.exporter.exporting_storms import StormFamilies
from fleet.exporter.families import Family
from fleet.exporter.metrics import Ages, rendered
from fleet.exporter.picture import Picture, SlotPicture
from fleet.exporter.picturing import picture_of
from fleet.exporter.serving import Body, Server
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.log_view import KEEP, MOST
from fleet.log.readers.offsets_topic import Unreadable
from fleet.log.readers.tail import Tail
from fleet.manager.cycle import Fleet
from fleet.manager.lag_judge import standing
from fleet.observe.watcher import GroupWatcher
from fleet.slots import Phase
from fleet.system.closing import Closing
from fleet.text import duration

Say = Callable[[str], None]
More = Callable[[Snapshot], Iterable[Family]]
"""Further families from the same look, such as storms."""
_READING: Final = 5.0
"""Seconds between readings of the log: a look reads it to its end in any case."""
_HANGING: Final = 60.0
"""Seconds beyond an interval after which a look hangs, and the exporter is not healthy."""


class Exporter(Closing):
    """One cluster's exporter: listens from the start, looks when `look` or `run` is called.

    `holds` is closed with it. Raises ConfigError where the address is taken, before anything
    else begins.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        listen: str,
        tail: Tail,
        watcher: GroupWatcher,
        say: Say,
        more: More = lambda _: (),
        holds: Sequence[Closing] = (),
    ) -> None:
        self._fleet = fleet
        self._tail, self._watcher = tail, watcher
        self._say, self._more, self._holds = say, more, holds
        self._clock = fleet.clock
        self._every = fleet.spec.exporter.every
        self._body = Body()
        self._began = self._turned = self._clock.monotonic()
        self._complete_at: float | None = None
        self._complete = self._failed = 0
        self._full = False
        self._said: set[str] = set()
        self._failure: str | None = None
        self._ages = Ages(
            fleet.spec.cluster.name, age=self.age, log_age=tail.age, looks=self._looks
        )
        self._server = Server(
            listen, self._body, ages=self._ages.rendered, healthy=self._healthy, ready=self._ready
        )
        tail.start()

    @classmethod
    def of(cls, fleet: Fleet, *, listen: str, say: Say) -> "Exporter":
        """The exporter that a fleet.yaml describes."""
        spec, client = fleet.spec, fleet.client
        tail = Tail(
            client,
            cluster=spec.cluster.name,
            clock=fleet.clock,
            groups=spec.exporter.groups.takes,
            keep=max(KEEP, watch_reach(spec)),
            most=max(MOST, 2 * watch_most(spec)),
            beat=min(_READING, spec.exporter.every),
        )
        watcher = GroupWatcher(
            cluster=spec.cluster.name,
            config=client,
            clock=fleet.clock,
            tail=tail,
            ends=fleet.ends,
        )
        storms = StormFamilies(fleet, tail)
        return cls(
            fleet,
            listen=listen,
            tail=tail,
            watcher=watcher,
            say=say,
            more=storms.families,
            holds=(storms,),
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    @property
    def failing(self) -> bool:
        """Whether the last look saw nothing."""
        return self._failure is not None

    def close(self) -> None:
        """Listen and read no more."""
        self._server.close()
        self._tail.close()
        self._watcher.close()
        for held in self._holds:
            held.close()

    def run(self, stop: threading.Event, until: Callable[[], bool] = lambda: False) -> None:
        """Look on schedule until told to stop; a look that fails is told once, not each time.

        One that fails by a defect, too: groups that are not looked at any more are worse.
        `until` is asked after each look, and ends it where it is true.
        """
        due = self._clock.monotonic()
        while not stop.is_set():
            try:
                self.look()
            except FleetError as error:
                self._failed += 1
                self._fails(str(error))
            except Exception as error:  # noqa: BLE001 - told, counted, and the age grows
                self._failed += 1
                self._fails(f"a look failed by a defect: {type(error).__name__}: {error}")
            if until():
                return
            due = max(due + self._every, self._clock.monotonic())
            stop.wait(due - self._clock.monotonic())

    def wait_for_log(self, timeout: float = 60.0, *, quiet: float = 3.0) -> None:
        """Wait until the offsets topic is read, or cannot be; after `quiet` seconds say so.

        Raises Unreachable where no broker answers then: nobody waits for the log of such a cluster.
        """
        with contextlib.suppress(Unreadable):
            if self._tail.catch_up(quiet):
                return
            why = self._tail.problem
            self._say(
                f"waiting for brokers at {self._fleet.bootstrap} and what is in the offsets topic, "
                f"up to {duration(timeout)}{f': {why}' if why else ''}"
            )
            self._fleet.topic_ids()
            self._tail.catch_up(timeout - quiet)

    def text(self) -> str:
        """What /metrics answers now."""
        return (self._ages.rendered() + self._body.get(packed=False)).decode()

    def look(self) -> Picture:
        """Look once; what was found is what /metrics answers from now on."""
        self._turned = self._clock.monotonic()
        seen = self._watcher.look()
        seen = self._watcher.read_on(seen, standing(seen))
        slots, unread = self._slots_told()
        picture = picture_of(
            seen,
            totals=self._tail.totals(),
            owners={fleet.group: fleet.owner for fleet in self._fleet.spec.fleets},
            slots=slots,
            decode_errors=self._tail.decode_errors(),
            records=self._tail.records,
            transactions=self._tail.open_transactions(),
            partitions=self._fleet.spec.exporter.partitions,
            unread=unread,
        )
        self._body.show(rendered(picture, self._more(seen)))
        # The age is that of the figures, not of the text.
        self._complete_at = self._turned
        self._complete += 1
        self._full |= not seen.partial
        blind = None if seen.from_log else self._tail.problem
        held = map(str, picture.transactions)
        self._tell({*picture.problems, *held, *filter(None, (blind,))})
        return picture

    def age(self) -> float:
        """Seconds since the last complete look began, or since the start."""
        return self._clock.monotonic() - (self._complete_at or self._began)

    def _looks(self) -> tuple[int, int]:
        return self._complete, self._failed

    def _slots_told(self) -> tuple[tuple[SlotPicture, ...], tuple[str, ...]]:
        """The slots, and why they cannot be told."""
        try:
            return tuple(self._slots()), ()
        except FleetError as error:
            return (), (f"slots and changes are not told: {error}",)

    def _slots(self) -> Iterator[SlotPicture]:
        for fleet in self._fleet.spec.fleets:
            if fleet.worker is None:
                continue
            shut = self._fleet.gate(fleet.group).quarantined
            for slot in self._fleet.slots(fleet.group):
                phase = slot.phase if slot.holder is not None else Phase.FREE
                state = "quarantined" if slot.number in shut else phase.value
                yield SlotPicture(
                    group=fleet.group, owner=fleet.owner, slot=slot.number, state=state
                )

    def _healthy(self) -> str | None:
        silent = self._clock.monotonic() - self._turned
        if silent <= self._every + _HANGING:
            return None
        return f"a look at the cluster has been hanging for {duration(silent)}"

    def _ready(self) -> str | None:
        """Not before one look saw the groups of every broker: fewer would read as deleted ones."""
        if self._full:
            return None
        return "no look at all brokers yet" if self._complete else "no complete look yet"

    def _fails(self, why: str) -> None:
        """A look that saw nothing: of what an earlier one told nothing is known."""
        if why != self._failure:
            self._say(why)
        self._failure = why

    def _tell(self, problems: set[str]) -> None:
        """What a look saw, and that it looks again."""
        if self._failure is not None:
            self._say(f"well again: {self._failure}")
        self._failure = None
        for problem in sorted(problems - self._said):
            self._say(problem)
        for problem in sorted(self._said - problems):
            self._say(f"well again: {problem}")
        self._said = problems
