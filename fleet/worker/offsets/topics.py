"""Notices topics that were deleted and made again under the same name while we read them.

A topic that was made again may have fewer partitions: librdkafka's cooperative-sticky assignor
goes on giving those to the members that had them (seen with 2.16.1, through every rebalance in
which these stay), so the description tells which there are.

Problem: Kafka's consumers go by names. *Seen* (4.3.1, librdkafka 2.16.1): after a topic was
deleted and made again between two metadata refreshes no rebalance comes; a commit that was on
its way is accepted for the new topic; and where that is the longer one, the member reads on at
its old position without an error: everything before it is never read. Choice: topic ids are
asked for at every metadata refresh, and at once after an error that may mean it, without
waiting for the answer; a topic with another id than the one that was begun is begun anew.
Cost: one small DescribeTopics per member and refresh.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.clock import Clock
from fleet.config.topic_patterns import is_pattern, matches
from fleet.worker.events import Events

_TIMEOUT: Final = 5.0
_SOON: Final = 1.0
Ask = Callable[[Collection[str]], Mapping[str, Any]]
"""Starts one DescribeTopics; topic → future of its description."""


def id_of(description: Any) -> str:
    """A topic's id as Java writes it: librdkafka's is not URL-safe, and ids become file names."""
    return str(description.topic_id).replace("+", "-").replace("/", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTopic:
    """What brokers tell of a topic: its id, and the numbers of its partitions."""

    id: str
    partitions: frozenset[int]


class TopicWatch:
    """Looks at one membership's topics, on the consumer thread."""

    def __init__(self, ask: Ask, *, every: float, clock: Clock) -> None:
        self._ask = ask
        self._every = every
        self._clock = clock
        self._asked_at = clock.monotonic()
        self._due = self._asked_at + every
        self._asked: Mapping[str, Any] = {}

    def soon(self) -> None:
        """Something looks as if a topic were gone: ask at the next look, at most once a second."""
        self._due = min(self._due, self._asked_at + _SOON)

    def look(self, topics: Collection[str]) -> dict[str, DescribedTopic]:
        """The topics of which an answer came since the last look; asks again where it is time."""
        arrived = {topic: each for topic, each in self._asked.items() if each.done()}
        if arrived:
            self._asked = {t: each for t, each in self._asked.items() if t not in arrived}
        now = self._clock.monotonic()
        if not self._asked and topics and now >= self._due:
            self._asked_at, self._due = now, now + self._every
            self._asked = self._ask(sorted(topics))
        found = {}
        for topic, each in arrived.items():
            error = each.exception()
            if error is None:
                told = each.result()
                numbers = frozenset(part.id for part in told.partitions)
                found[topic] = DescribedTopic(id=id_of(told), partitions=numbers)
            elif not isinstance(error, KafkaException):
                raise error
        return found


def look_around(consumer: Any, topics: Sequence[str], events: Events) -> str | None:
    """Make the connections that a join needs: brokers, metadata, the coordinator [19].

    The cluster's id; None where the brokers do not tell it. Raises KafkaException where one of
    them does not answer within 5 s; a topic that is not there (yet) is only told.
    """
    known: list[str] = []
    cluster: str | None = None
    for topic in topics:
        if is_pattern(topic):
            there = consumer.list_topics(timeout=_TIMEOUT)
            cluster = there.cluster_id or cluster
            matching = [name for name in there.topics if matches(topic, name)]
            known += matching[:1]
            if not matching:
                events.log_rarely(f"no topic matches {topic} yet; waiting for one")
            continue
        there = consumer.list_topics(topic, timeout=_TIMEOUT)
        cluster = there.cluster_id or cluster
        told = there.topics[topic]
        if told.error is None:
            known.append(topic)
        else:
            events.log_rarely(f"topic {topic}: {told.error.str()}; waiting for it")
    if known:  # an OffsetFetch is what finds the coordinator
        consumer.committed([KafkaPartition(known[0], 0)], _TIMEOUT)
    return cluster
