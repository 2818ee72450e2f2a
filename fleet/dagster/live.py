"""Keeps clusters open in the code server, and the sensors' states between ticks.

Problem: a tick that opens its cluster asks every coordinator: 2 s of CPU each 15 s at 5,000 groups.
Choice: the process keeps one live cluster for each resource, and all ticks use it. It is opened
again if fleet.yaml changed or a tick failed, and closed if no tick has used it for ten minutes.
Cost: memory of the code server (`fleet.manager.live_cluster`).
"""

import atexit
import contextlib
import math
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from zlib import crc32

from fleet.dagster.dead_runs import GroupChange, StartedRun
from fleet.dagster.resources import FleetResource
from fleet.errors import FleetError, Unreachable

if TYPE_CHECKING:
    from fleet.clock import Clock
    from fleet.decide.decision_log import KeptDecision
    from fleet.manager.cycle import Fleet
    from fleet.slots.store import Store

INTERVAL_SECONDS: Final = 15
"""Seconds between two ticks of a sensor."""
IDLE_SECONDS: Final = 600.0
_TRIES: Final = 4
_CLOSE_SECONDS: Final = 60.0
"""Seconds until a replaced cluster is closed: another tick may still use it."""


class Live:
    """One open cluster, and what the ticks of its sensors remember."""

    def __init__(self, resource: FleetResource) -> None:
        from fleet.manager.live_cluster import LiveCluster  # noqa: PLC0415  imports Kafka

        with ExitStack() as stack:
            fleet = self.fleet = stack.enter_context(resource.open())
            selected = fleet.spec.dagster.groups.takes
            declared = {each.group for each in fleet.spec.fleets}
            self.file = _file_mark(fleet)
            self.cluster = stack.enter_context(
                LiveCluster(
                    fleet,
                    groups=lambda group: group in declared or selected(group),
                    beat=float(INTERVAL_SECONDS),
                )
            )
            self._stack = stack.pop_all()
        atexit.register(self.close)  # before the connections' own, which must not meet the tail
        self._closing = threading.Lock()
        self.lock = threading.Lock()
        """Held by a tick of a sensor: a person may test a sensor beside the daemon."""
        self.failures = 0
        """Ticks in a row that did not end well."""
        self._idle: threading.Timer | None = None
        self._mark = f"{crc32(repr(resource).encode()):08x}"
        """Tells apart the states of resources that share a store."""
        self._keepers: dict[str, StateKeeper[Any]] = {}
        self.changes: dict[str, GroupChange] = {}
        """The last change of each declared group, by group id."""
        self.decisions: dict[str, KeptDecision] = {}
        """The last kept decision of each group, by group id."""
        self.decisions_at = -math.inf
        """Monotonic time at which they were read."""
        self.runs: Mapping[str, StartedRun] = {}
        """STARTED runs, by run id."""
        self.discovered: frozenset[str] | None = None
        """Undeclared groups whose partitions are in Dagster; None: not compared yet."""
        self._problems: frozenset[str] = frozenset()

    def keeper(
        self,
        name: str,
        decode: "Callable[[Mapping[str, Any]], S | None]",
        encode: "Callable[[S], dict[str, Any]]",
    ) -> "StateKeeper[S]":
        """Returns the keeper of the sensor of this name."""
        store, clock = self.fleet.store, self.fleet.clock
        made = StateKeeper(f"dagster-{name}-{self._mark}", store, clock, decode, encode)
        return self._keepers.setdefault(name, made)

    def new_problems(self, problems: Collection[str]) -> list[str]:
        """Returns the problems that the tick before did not have."""
        new = [each for each in problems if each not in self._problems]
        self._problems = frozenset(problems)
        return new

    def close_after(self, seconds: float, close: Callable[[], None]) -> None:
        """Closes it after this time, unless it is called again before."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = threading.Timer(seconds, close)
        self._idle.daemon = True
        self._idle.start()

    def close(self) -> None:
        """Closes all connections."""
        if self._idle is not None:
            self._idle.cancel()
        with self._closing:  # the end of the process waits for the timer's thread
            for keeper in self._keepers.values():
                keeper.put()
            self._keepers.clear()
            self._stack.close()
        atexit.unregister(self.close)


def _file_mark(fleet: "Fleet") -> object:
    """Returns what differs after fleet.yaml was written, without reading it."""
    try:
        found = fleet.config.stat()
    except OSError:
        return None  # opening it names the error
    return found.st_mtime_ns, found.st_size, found.st_ino


_OPEN: dict[str, Live] = {}
_LOCK = threading.Lock()


@contextmanager
def live_cluster(resource: FleetResource) -> Iterator[Live]:
    """Yields the resource's open cluster.

    The next tick opens it anew after an error in the body. A cluster that does not answer stays
    open for `_TRIES` ticks, because reading its log again would cost it more.
    """
    key = repr(resource)
    with _LOCK:
        live = _OPEN.get(key)
        if live is not None and live.file != _file_mark(live.fleet):
            _forget(key, live)
            live = None
        if live is None:
            live = _OPEN[key] = Live(resource)
        live.close_after(IDLE_SECONDS, partial(_expire, key, live))
    live.failures += 1
    try:
        yield live
    except Unreachable:
        if live.failures >= _TRIES:
            _expire(key, live, wait=_CLOSE_SECONDS)
        raise
    except BaseException:
        _expire(key, live, wait=_CLOSE_SECONDS)
        raise
    live.failures = 0


def _forget(key: str, live: Live, *, wait: float = _CLOSE_SECONDS) -> None:
    if _OPEN.get(key) is live:
        del _OPEN[key]
        live.close_after(wait, live.close)


def _expire(key: str, live: Live, *, wait: float = 0.0) -> None:
    with _LOCK:
        _forget(key, live, wait=wait)


def close_all() -> None:
    """Closes every open cluster at once, for tests."""
    with _LOCK:
        for key, live in list(_OPEN.items()):
            del _OPEN[key]
            live.close()


# A sensor's state lies beside the slots, and its cursor is a token of it.
#
# Problem: Dagster stores the cursor with each tick, 5,760 a day: 93 kB at 5,000 groups are 0.5 GB.
# Choice: the process keeps the states after the last two ticks. The cursor names one of them: a
# token of this process, and a number. If Dagster lost a tick's result, the next tick starts from
# the state before it. A changed state is stored once a minute at most, and when the process ends.
# If a stored state is newer than the cursor, or of another process, the sensor starts without one
# and reports everything again. Cost: after a code server was killed, the events of the last minute
# are stored twice.


S = TypeVar("S")
STORE_SECONDS: Final = 60.0
_NO_GROUP: Final = ""


@dataclass
class StateKeeper(Generic[S]):
    """Keeps the state of one sensor."""

    name: str
    store: "Store"
    clock: "Clock"
    decode: Callable[[Mapping[str, Any]], S | None]
    """Returns the state from its JSON; None if it is of another version."""
    encode: Callable[[S], dict[str, Any]]
    _known: list[tuple[str, S]] = field(default_factory=list)
    """Cursors with their states: the last two."""
    _token: str = field(default_factory=partial(secrets.token_hex, 4))
    _number: int = 0
    _stored: str | None = None
    """Cursor of the stored state."""
    _stored_at: float = float("-inf")

    def load(self, cursor: str | None) -> S | None:
        """Returns the state of a cursor; None without one."""
        for known, state in self._known:
            if known == cursor:
                return state
        token, _, number = (cursor or "").partition(".")
        stored = self.store.manager_state(_NO_GROUP, self.name) if number.isdigit() else None
        if cursor is None or stored is None or stored.get("token") != token:
            return None
        newest = stored.get("number")
        if not isinstance(newest, int) or newest > int(number):
            return None
        found = self.decode(stored)
        if found is not None:
            self._known = [(cursor, found)]
            self._stored = cursor
        return found

    def keep(self, state: S) -> str:
        """Keeps the state after a tick; returns the next cursor."""
        if not self._known or self._known[-1][1] is not state:
            self._number += 1
            self._known = [*self._known[-1:], (f"{self._token}.{self._number}", state)]
        if self.clock.monotonic() - self._stored_at >= STORE_SECONDS:
            self.put()
        return self._known[-1][0]

    def put(self) -> None:
        """Stores the last state, unless it is stored; if that fails, again in a minute."""
        if not self._known or self._known[-1][0] == self._stored:
            return
        cursor, state = self._known[-1]
        self._stored_at = self.clock.monotonic()
        with contextlib.suppress(FleetError):
            value = {"token": self._token, "number": self._number, **self.encode(state)}
            self.store.put_manager_state(_NO_GROUP, self.name, value)
            self._stored = cursor
