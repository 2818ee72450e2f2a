"""Which classic groups are in the middle of a rebalance, asked of all brokers at once.

Problem: only the coordinator knows, and it says so only to who asks meanwhile. Choice: ListGroups
with a filter of states (KIP-518, broker 2.6): one request to each broker, answered from memory,
with the few groups that are unsettled. Cost: half a millisecond of CPU a broker each time.
"""

from typing import Final, NamedTuple

from fleet.kafka_source.connections import Connections, NoAnswer

_STATES: Final = ["PreparingRebalance", "CompletingRebalance"]
_FILTERED: Final = 4
"""The version of the request that has the filter."""


class Listed(NamedTuple):
    """Group ids that were told; `whole`: by every broker."""

    groups: frozenset[str]
    whole: bool


def unsettled(connections: Connections, timeout: float) -> Listed:
    """Groups that prepare or complete a rebalance now."""
    return _listed(connections, timeout, _STATES)


def every_group(connections: Connections, timeout: float) -> Listed:
    """All groups that may be seen. Raises NoAnswer where no broker answers."""
    connections.metadata((), timeout)
    return _listed(connections, timeout, [])


def _listed(connections: Connections, timeout: float, states: list[str]) -> Listed:
    from kafka.protocol.admin import ListGroupsRequest  # noqa: PLC0415 - only where asked

    connections.connect(timeout)
    request = ListGroupsRequest(states_filter=states, min_version=_FILTERED)
    answers = connections.ask(dict.fromkeys(connections.brokers(), request), timeout)
    told = [
        each for each in answers.values() if not isinstance(each, NoAnswer) and not each.error_code
    ]
    groups = frozenset(group.group_id for each in told for group in each.groups)
    return Listed(groups, whole=bool(told) and len(told) == len(answers))
