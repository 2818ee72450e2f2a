"""What brokers are set to, where it decides what a membership change costs, or whether it can be.

Problem: an empty classic group is given to whoever joins within `group.initial.rebalance.delay.ms`
of the first. Kafka's own value is 3 s, but most examples of a single broker set 0: the first
member is assigned everything, alone. And a member whose session is out of bounds, or that is one
too many, is refused when the others have left already. Choice: a few brokers are asked for their
own, since none tells another's, and the narrowest counts. Cost: a request to each of them; needs
DescribeConfigs on the cluster, else nothing is known; brokers that are set otherwise than the
others may be missed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fleet.kafka_source.connections import Connections, NoAnswer
from fleet.model.broker_limits import UNKNOWN, BrokerLimits

_BROKER: Final = 4
"""The type of a broker among configuration resources."""
_INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
_LEAST_SESSION: Final = "group.min.session.timeout.ms"
_LONGEST_SESSION: Final = "group.max.session.timeout.ms"
_CLASSIC_SIZE: Final = "group.max.size"
_CONSUMER_SIZE: Final = "group.consumer.max.size"
_NAMES: Final = (_INITIAL_DELAY, _LEAST_SESSION, _LONGEST_SESSION, _CLASSIC_SIZE, _CONSUMER_SIZE)
_ASKED: Final = 3
"""Brokers: a cluster of a hundred need not open a hundred connections for a few figures."""
_TIMEOUT: Final = 2.0


def broker_limits(connections: Connections) -> BrokerLimits:
    """What some brokers tell of themselves; None in it: no broker may tell, or it has no such."""
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
    told = [_told(each) for each in answers if not isinstance(each, NoAnswer)]
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


def _told(answer: Any) -> dict[str, int]:
    """Name → value, of those that are numbers: another vendor's may be none."""
    found = {}
    for resource in answer.results:
        for config in resource.configs if not resource.error_code else ():
            try:
                found[str(config.name)] = int(config.value)
            except (TypeError, ValueError):
                continue
    return found
