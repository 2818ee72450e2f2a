"""Session timeouts of KIP-848, share and streams groups, asked of the cluster.

Problem: they are no records but configuration, of the group or else of the broker, and may change.
Choice: one DescribeConfigs for all groups at once, which answers with what holds; any broker
answers, no coordinator is asked, and a group that is not there has the broker's. What was told is
kept with its time (fleet.model.sessions). Cost: 10 to 30 ms of CPU for 1,000 groups each time;
needs DescribeConfigs on the groups, else nothing is known.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fleet.clock import Clock
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.model.sessions import Session, SessionThen, SessionTimes
from fleet.system.closing import Closing

_GROUP: Final = 32
"""The type of a group among configuration resources."""
_TIMEOUT_KEY, _BEAT_KEY = "session.timeout.ms", "heartbeat.interval.ms"
_TIMEOUT: Final = 2.0
_PAUSE: Final = 30.0
"""Seconds without a question after one that nobody answered."""
_MOST: Final = 2000
"""Groups in one request."""


def sessions(
    connections: Connections, groups: Mapping[str, str], timeout: float
) -> dict[str, Session]:
    """Sessions by group, of those that may be told; `groups` are names with their protocols.

    A protocol is one of consumer, share, streams. Raises NoAnswer.
    """
    from kafka.protocol.admin import DescribeConfigsRequest  # noqa: PLC0415 - only where asked

    found: dict[str, Session] = {}
    names = sorted(groups)
    for first in range(0, len(names), _MOST):
        asked = [
            (_GROUP, name, [f"{groups[name]}.{key}" for key in (_TIMEOUT_KEY, _BEAT_KEY)])
            for name in names[first : first + _MOST]
        ]
        request = DescribeConfigsRequest(resources=asked, include_synonyms=False)
        for told in connections.ask_any(request, timeout).results:
            session = None if told.error_code else _session(told.configs)
            if session is not None:
                found[told.resource_name] = session
    return found


def _session(configs: Any) -> Session | None:
    told = {each.name.partition(".")[2]: each.value for each in configs}
    try:
        return Session(int(told[_TIMEOUT_KEY]) / 1000, int(told[_BEAT_KEY]) / 1000)
    except (KeyError, TypeError, ValueError):  # a broker that has no such setting
        return None


class AskedSessions(Closing):
    """Asks when a cause needs it, or beforehand with `ask`. Safe for several threads.

    `options` are librdkafka's, with bootstrap.servers and security.
    """

    def __init__(self, options: Mapping[str, Any], *, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._connections = Connections(options, client_id="fleet-sessions")
        self._times = SessionTimes()
        self._asked: dict[str, float] = {}
        self._rest = float("-inf")

    @contextmanager
    def connected(self) -> Iterator[Connections]:
        """The connections, for another question between two of these."""
        with self._lock:
            yield self._connections

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            self._connections.close()

    def ask(self, groups: Mapping[str, str]) -> None:
        """Ask for these groups now, all at once; nobody's answer changes nothing."""
        with self._lock:
            self._ask(groups)

    def of(self, group: str, protocol: str, at: float, *, live: bool = False) -> SessionThen | None:
        """For a member that was removed at that time; None: it cannot be said.

        Asks where that was after the last asking, or the clock was set back since; where somebody
        asks all the time (`live`), only for a group that is new.
        """
        asked = self._asked.get(group)
        if asked is None or (not live and (at > asked or asked > self._clock.now())):
            self.ask({group: protocol})
        return self._times.of(group, at)

    def _ask(self, groups: Mapping[str, str]) -> None:
        now, at = self._clock.monotonic(), self._clock.now()
        if not groups or now < self._rest:
            return
        try:
            self._times.note(at, sessions(self._connections, groups, _TIMEOUT))
        except NoAnswer:
            self._connections.close()
            self._rest = now + _PAUSE
            return
        self._asked.update(dict.fromkeys(groups, at))
