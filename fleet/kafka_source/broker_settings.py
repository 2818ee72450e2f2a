"""What brokers are set to, where it decides what a membership change costs.

Problem: an empty classic group is given to whoever joins within `group.initial.rebalance.delay.ms`
of the first. Kafka's own value is 3 s, but most examples of a single broker set 0: the first
member is assigned everything, alone. Choice: a few brokers are asked for their own, since none
tells another's, and the least counts. Cost: a request to each of them; needs DescribeConfigs on the
cluster, else nothing is known; brokers that are set otherwise than the others may be missed.
"""

from typing import Any, Final

from fleet.kafka_source.connections import Connections, NoAnswer

_BROKER: Final = 4
"""The type of a broker among configuration resources."""
_INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
_ASKED: Final = 3
"""Brokers: a cluster of a hundred need not open a hundred connections for one figure."""
_TIMEOUT: Final = 2.0


def initial_delay(connections: Connections) -> float | None:
    """Seconds that a group waits for more members after its first; None: no broker may tell."""
    from kafka.protocol.admin import DescribeConfigsRequest  # noqa: PLC0415 - only where asked

    try:
        connections.connect(_TIMEOUT)
    except NoAnswer:
        return None
    requests = {
        broker: DescribeConfigsRequest(
            resources=[(_BROKER, str(broker), [_INITIAL_DELAY])], include_synonyms=False
        )
        for broker in connections.brokers()[:_ASKED]
    }
    answers = connections.ask(requests, _TIMEOUT).values()
    told = [_told(each) for each in answers if not isinstance(each, NoAnswer)]
    return min((each for each in told if each is not None), default=None)


def _told(answer: Any) -> float | None:
    for resource in answer.results:
        for config in resource.configs if not resource.error_code else ():
            try:
                return int(config.value) / 1000
            except (TypeError, ValueError):  # another vendor's
                return None
    return None
