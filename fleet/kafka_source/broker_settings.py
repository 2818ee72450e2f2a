"""Reads broker settings that decide the cost, or the success, of a membership change.

Problem: an empty classic group is assigned to the members that join within
`group.initial.rebalance.delay.ms` of the first. Kafka's default is 3 s, but many examples of a
single broker set 0: then the first member gets every partition. A member whose session is out of
bounds, or that is one too many, is refused after the others have left. Choice: a few brokers are
asked for their own settings, because no broker knows another's, and the narrowest counts. Cost: a
request to each of them, and DescribeConfigs on the cluster. Brokers with other settings may be
missed.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from fleet.clock import Clock
from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.model import UNKNOWN, BrokerLimits
from fleet.model.sessions import Session, SessionAtRemoval, SessionTimes
from fleet.system.closing import Closing

# Session timeouts of KIP-848, share and streams groups are configuration and may change. Any broker
# answers one DescribeConfigs for all groups (10 to 30 ms of CPU for 1,000). It needs
# DescribeConfigs on the groups; for a missing group the answer is the broker's own value.


_GROUP: Final = 32
"""The config resource type of a group."""
_TIMEOUT_KEY, _BEAT_KEY = "session.timeout.ms", "heartbeat.interval.ms"
_TIMEOUT: Final = 2.0
_PAUSE: Final = 30.0
"""Seconds without a request after one that no broker answered."""
_MOST: Final = 2000
"""Number of groups in one request."""


def sessions(
    connections: Connections, groups: Mapping[str, str], timeout: float
) -> dict[str, Session]:
    """Returns the sessions of the groups that this login may read; `groups` are names with
    protocols.

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


class SessionQueries(Closing):
    """Asks for sessions when a cause needs one, or in advance with `ask`. Thread-safe.

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
    def open_connections(self) -> Iterator[Connections]:
        """Yields the connections, for another request between two of these."""
        with self._lock:
            yield self._connections

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            self._connections.close()

    def ask(self, groups: Mapping[str, str]) -> None:
        """Asks for these groups now, in one request; a missing answer changes nothing."""
        with self._lock:
            self._ask(groups)

    def of(
        self, group: str, protocol: str, at: float, *, live: bool = False
    ) -> SessionAtRemoval | None:
        """Returns what was in force for a member removed at that time; None if it is not known.

        Asks if that was after the last answer, or if the clock was set back since. If the caller
        asks all the time (`live`), it asks only for new groups.
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


# ListGroups with a filter of states finds the classic groups in a rebalance (KIP-518, broker 2.6):
# one request to each broker, half a millisecond of CPU.


_STATES: Final = ["PreparingRebalance", "CompletingRebalance"]
_FILTERED: Final = 4
"""The version of the request that has the filter."""


class GroupList(NamedTuple):
    """Group ids that brokers listed. `whole`: every broker answered."""

    groups: frozenset[str]
    whole: bool


def list_rebalancing_groups(connections: Connections, timeout: float) -> GroupList:
    """Returns the groups that prepare or complete a rebalance now."""
    return _listed(connections, timeout, _STATES)


def list_groups(connections: Connections, timeout: float) -> GroupList:
    """Returns all groups that this login may see. Raises NoAnswer if no broker answers."""
    connections.metadata((), timeout)
    return _listed(connections, timeout, [])


def _listed(connections: Connections, timeout: float, states: list[str]) -> GroupList:
    from kafka.protocol.admin import ListGroupsRequest  # noqa: PLC0415 - only where asked

    connections.connect(timeout)
    request = ListGroupsRequest(states_filter=states, min_version=_FILTERED)
    answers = connections.ask(dict.fromkeys(connections.brokers(), request), timeout)
    told = [
        each for each in answers.values() if not isinstance(each, NoAnswer) and not each.error_code
    ]
    groups = frozenset(group.group_id for each in told for group in each.groups)
    return GroupList(groups, whole=bool(told) and len(told) == len(answers))


_BROKER: Final = 4
"""The config resource type of a broker."""
_INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
_LEAST_SESSION: Final = "group.min.session.timeout.ms"
_LONGEST_SESSION: Final = "group.max.session.timeout.ms"
_CLASSIC_SIZE: Final = "group.max.size"
_CONSUMER_SIZE: Final = "group.consumer.max.size"
_NAMES: Final = (_INITIAL_DELAY, _LEAST_SESSION, _LONGEST_SESSION, _CLASSIC_SIZE, _CONSUMER_SIZE)
_ASKED: Final = 3
"""Number of brokers asked: a large cluster need not open a connection to each of them."""


def broker_limits(connections: Connections) -> BrokerLimits:
    """Returns the limits of some brokers; None in it: not allowed to read, or no such setting."""
    from kafka.protocol.admin import DescribeConfigsRequest  # noqa: PLC0415 - only where asked

    try:
        connections.connect(_TIMEOUT)
    except NoAnswer:
        return UNKNOWN
    requests = {
        broker: DescribeConfigsRequest(
            resources=[(_BROKER, str(broker), list(_NAMES))], include_synonyms=False
        )
        for broker in connections.brokers()[:_ASKED]
    }
    answers = connections.ask(requests, _TIMEOUT).values()
    told = [_settings_of(each) for each in answers if not isinstance(each, NoAnswer)]
    return BrokerLimits(
        initial_delay=_seconds(_narrowest(told, _INITIAL_DELAY, min)),
        least_session=_seconds(_narrowest(told, _LEAST_SESSION, max)),
        longest_session=_seconds(_narrowest(told, _LONGEST_SESSION, min)),
        classic_members=_narrowest(told, _CLASSIC_SIZE, min),
        consumer_members=_narrowest(told, _CONSUMER_SIZE, min),
    )


def _narrowest(
    told: Iterable[Mapping[str, int]], name: str, of: Callable[[list[int]], int]
) -> int | None:
    found = [each[name] for each in told if name in each]
    return of(found) if found else None


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _settings_of(answer: Any) -> dict[str, int]:
    """Returns name → value of numeric settings; another vendor's may be no number."""
    found = {}
    for resource in answer.results:
        for config in resource.configs if not resource.error_code else ():
            try:
                found[str(config.name)] = int(config.value)
            except (TypeError, ValueError):
                continue
    return found
