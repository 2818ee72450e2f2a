"""The exporter: look on a schedule of its own, judge, and keep what the next scrape gets.

Problem: Prometheus asks when it likes, from several servers at once, and a cluster that hangs
must not hang the scrape nor read as zero. Choice: one thread looks every `exporter.every`
seconds; a complete look becomes the text of all metrics, a failed one changes nothing, so that
only the age grows. Looks and scrapes share nothing but that text. Cost: a figure is up to one
interval old.
"""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Final

from fleet.decide.storms.storm_watch import StormWatch, watch_most, watch_reach
from fleet.errors import FleetError
from fleet.exporter.metrics import (
    Ages,
    Family,
    Picture,
    rendered,
    sentence_of,
)
from fleet.lag.snapshot import Snapshot
from fleet.log.readers.log_view import KEEP, MOST
from fleet.log.readers.tail import Coordinators, Tail
from fleet.log.records import Unreadable
from fleet.manager.cycle import Fleet
from fleet.manager.keeping_up import standing
from fleet.model import Verdict
from fleet.observe.watcher import GroupWatcher
from fleet.slots import Change, Phase
from fleet.system.closing import Closing
from fleet.system.listening import ELSEWHERE, Listening
from fleet.text import duration

# Storms and receipts for the exporter: decided at each look, told as metrics.
#
# Problem: an alert must know at the next scrape that a group is in a storm, who makes it, and
# whether ten others have the same cause. Choice: each complete look gives the rebalances that the
# tail has read to `fleet.decide.storms.storm_watch`, together with what our own changes were to
# cost and with moves of coordinators. Nothing is stored: after a restart the tail reads the log
# again, and the same storms follow from it. Where the place that keeps changes is away, the last
# known ones excuse what they were to cost. Cost: where the log cannot be read there are no storms,
# and the families are absent rather than 0.
#
# `fleet_group_storm` is there for every group, 0 or 1, so that its absence is no fair weather.
# Cause, member and words are labels of a series beside it that exists only during the storm:
# a label that changes would end one alert and begin another, and series that come and go cost
# Prometheus nothing while there is no storm.


_CHANGES: Final = 5
"""Changes of a group that are looked at: those within a storm's reach."""
_NAMES: Final = ("cluster", "group", "owner")
REMEMBERED: Final = 86_400.0
"""Seconds for which a receipt that differs is told; the next change ends it too."""


class StormFamilies(Closing):
    """Asked with each complete look; keeps the storms between looks."""

    def __init__(self, fleet: Fleet, tail: Tail) -> None:
        self._fleet, self._tail = fleet, tail
        self._coordinators = Coordinators(fleet.client, clock=fleet.clock)
        self._watch = StormWatch()
        self._changes: dict[str, tuple[Change, ...]] = {}

    def _last_changes(self) -> dict[str, tuple[Change, ...]]:
        managed = [fleet.group for fleet in self._fleet.spec.fleets if fleet.worker is not None]
        with contextlib.suppress(FleetError):  # the exporter tells it of the slots
            self._changes = {g: self._fleet.readable_changes(g, limit=_CHANGES) for g in managed}
        return self._changes

    def close(self) -> None:
        """Let go of the connection."""
        self._coordinators.close()

    def families(self, seen: Snapshot) -> Iterable[Family]:
        """The families of storms and receipts."""
        spec, now = self._fleet.spec, seen.at
        changes = self._last_changes()
        owners = dict.fromkeys(seen.groups, "") | {
            fleet.group: fleet.owner for fleet in spec.fleets if fleet.group in seen.groups
        }
        told = receipt_families(changes.items(), cluster=spec.cluster.name, owners=owners, now=now)
        if not seen.from_log:
            return tuple(told)
        move = self._coordinators.look()
        self._watch = self._watch.look(
            spec,
            self._tail.rebalances(since=now - watch_reach(spec)),
            now=now,
            changes=changes,
            moves=() if move is None else (move,),
        )
        storms = storm_families(self._watch, cluster=spec.cluster.name, owners=owners)
        return (*told, *storms)


def storm_families(
    watch: StormWatch, *, cluster: str, owners: Mapping[str, str]
) -> Iterator[Family]:
    """`fleet_group_storm`, `fleet_cluster_storm` and what is known of them.

    `owners` names every group that is exported, with its owner ("" where none is declared).
    """
    storm = Family(
        "gauge", "fleet_group_storm", "1 while the group rebalances beyond its budget.", _NAMES
    )
    info = Family(
        "gauge",
        "fleet_group_storm_info",
        "1 for the cause and the worst member of a storm, while it lasts.",
        (*_NAMES, "cause", "member", "words"),
    )
    for group, owner in owners.items():
        found = watch.storms.get(group)
        storm.add((cluster, group, owner), float(found is not None))
        if found is not None:
            member = found.member or ""
            info.add((cluster, group, owner, found.cause, member, found.words), 1.0)
    yield storm
    yield info
    whole = Family(
        "gauge",
        "fleet_cluster_storm",
        "1 while ten or more groups are in a storm, or coordinators have moved.",
        ("cluster",),
    )
    whole.add((cluster,), float(watch.cluster is not None))
    yield whole
    told = Family(
        "gauge",
        "fleet_cluster_storm_info",
        "1 for the cause of the cluster's storm, while it lasts.",
        ("cluster", "cause", "words"),
    )
    if watch.cluster is not None:
        told.add((cluster, watch.cluster.cause, watch.cluster.words), 1.0)
    yield told


def receipt_families(
    changes: Iterable[tuple[str, Sequence[Change]]],
    *,
    cluster: str,
    owners: Mapping[str, str],
    now: float,
) -> Iterator[Family]:
    """`fleet_group_receipt_differs` of (group, its changes, latest first)."""
    differs = Family(
        "gauge",
        "fleet_group_receipt_differs",
        "1 where the last change cost another number of rebalances than its plan said.",
        _NAMES,
    )
    for group, known in changes:
        last = next(iter(known), None)
        recent = last is not None and now - (last.ended_at or now) < REMEMBERED
        found = last is not None and any(r.verdict is Verdict.DIFFERS for r in last.receipts)
        differs.add((cluster, group, owners.get(group, "")), float(recent and found))
    yield differs


# /metrics and /healthz of the exporter: bytes that are already there.
#
# A scrape never waits for the cluster: the last complete look's text is kept, plain and (from the
# first scrape that wants it) gzipped. Until there was one, only the ages and the exporter's own
# metrics are told.


KIND: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = b"/metrics /healthz /readyz\n"


class Body:
    """The text of the last complete look. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = b""
        self._packed: bytes | None = None

    def show(self, text: bytes) -> None:
        """From now on, this."""
        with self._lock:
            self._text, self._packed = text, None

    def get(self, *, packed: bool) -> bytes:
        """The text, gzipped where asked for (members of a gzip file may follow each other)."""
        with self._lock:
            text, found = self._text, self._packed
        if not packed:
            return text
        if found is None:
            found = gzip.compress(text, compresslevel=1)
            with self._lock:
                if self._text is text:
                    self._packed = found
        return found


class Server(Listening):
    """Listens until closed. Raises ConfigError where it cannot bind.

    `ages` gives the text that is made at each scrape; `healthy` and `ready` a reason why not,
    None where all is well.
    """

    def __init__(
        self,
        address: str,
        body: Body,
        *,
        ages: Callable[[], bytes],
        healthy: Callable[[], str | None],
        ready: Callable[[], str | None],
    ) -> None:
        handler = _handler(body, ages, {"/healthz": healthy, "/readyz": ready})
        super().__init__(address, handler, key="exporter.listen", remedy=ELSEWHERE)


def _handler(
    body: Body, ages: Callable[[], bytes], checks: dict[str, Callable[[], str | None]]
) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                packed = "gzip" in self.headers.get("Accept-Encoding", "")
                now = ages()
                answer = (gzip.compress(now, 1) if packed else now) + body.get(packed=packed)
                self._answer(200, answer, KIND, packed=packed)
            elif path in checks:
                reason = checks[path]()
                told = f"{reason or 'ok'}\n".encode()
                self._answer(503 if reason else 200, told, "text/plain")
            else:
                self._answer(200 if path == "/" else 404, _PAGE, "text/plain")

        def _answer(self, code: int, answer: bytes, kind: str, *, packed: bool = False) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Scrapes are no events."""

    return MetricsHandler


Say = Callable[[str], None]
_READING: Final = 5.0
"""Seconds between readings of the log: a look reads it to its end in any case."""
_HANGING: Final = 60.0
"""Seconds beyond an interval after which a look hangs, and the exporter is not healthy."""


class Exporter(Closing):
    """One cluster's exporter: listens from the start, looks when `look` or `run` is called.

    Raises ConfigError where the address is taken, before anything else begins.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        listen: str,
        tail: Tail,
        watcher: GroupWatcher,
        say: Say,
    ) -> None:
        self._fleet = fleet
        self._tail, self._watcher = tail, watcher
        self._say = say
        self._storms = StormFamilies(fleet, tail)
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
        return cls(fleet, listen=listen, tail=tail, watcher=watcher, say=say)

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
        self._storms.close()

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
        picture = Picture(
            seen=seen,
            totals=self._tail.totals(),
            owners={fleet.group: fleet.owner for fleet in self._fleet.spec.fleets},
            slots=slots,
            decode_errors=self._tail.decode_errors(),
            records=self._tail.records,
            open_transactions=tuple(self._tail.open_transactions()),
            partitions=self._fleet.spec.exporter.partitions,
            unread=unread,
        )
        self._body.show(rendered(picture, self._storms.families(seen)))
        # The age is that of the figures, not of the text.
        self._complete_at = self._turned
        self._complete += 1
        self._full |= not seen.partial
        blind = None if seen.from_log else self._tail.problem
        held = map(sentence_of, picture.transactions)
        self._tell({*picture.problems, *held, *filter(None, (blind,))})
        return picture

    def age(self) -> float:
        """Seconds since the last complete look began, or since the start."""
        return self._clock.monotonic() - (self._complete_at or self._began)

    def _looks(self) -> tuple[int, int]:
        return self._complete, self._failed

    def _slots_told(self) -> tuple[tuple[tuple[str, int, str], ...], tuple[str, ...]]:
        """The slots, and why they cannot be told."""
        try:
            return tuple(self._slots()), ()
        except FleetError as error:
            return (), (f"slots and changes are not told: {error}",)

    def _slots(self) -> Iterator[tuple[str, int, str]]:
        """Group, number, state."""
        for fleet in self._fleet.spec.fleets:
            if fleet.worker is None:
                continue
            shut = self._fleet.gate(fleet.group).quarantined
            for slot in self._fleet.slots(fleet.group):
                phase = slot.phase if slot.holder is not None else Phase.FREE
                state = "quarantined" if slot.number in shut else phase.value
                yield fleet.group, slot.number, state

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
