"""Notices partitions of a topic made again that librdkafka does not fetch, though records wait.

Problem: *seen* (4.3.1, librdkafka 2.16.1): a topic that is made again begins at leader epoch 0, and
a consumer that knew a higher one of its name fetches nothing of it, wherever it is assigned or
subscribed anew; a new consumer reads it at once (tests/faults/test_plain_members.py). Choice: where
a topic is another than the one that this consumer began, nothing has come of a partition for three
seconds, and its leader tells of records behind its start, the member joins once more with a new
consumer. Cost: a static member's costs no rebalance, a dynamic one leaves and joins; those who own
nothing of the topic do nothing, and so does everybody where leaders never changed.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from fleet.clock import Clock
from fleet.model import TopicPartition
from fleet.worker.listed_offset import listed_offset
from fleet.worker.offsets.assigning import Start

_EVERY: Final = 1.0
_PATIENCE: Final = 3.0
"""Seconds: a fetch that finds nothing is answered within half a second (fetch.wait.max.ms)."""
Ask = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Any]]
"""Starts to ask where partitions end; futures by partition."""


class FetchWatch:
    """Of one consumer, on its thread."""

    def __init__(self, ask: Ask, *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._first: dict[str, str] = {}
        """The id of each topic as this consumer began it first."""
        self._again: set[str] = set()
        """Topics that are others since."""
        self._due = 0.0
        self._since: dict[TopicPartition, float] = {}
        self._asked: Mapping[TopicPartition, Any] = {}

    def began(self, start: Start) -> None:
        """A partition is read from here on."""
        known, topic = start.known_id, start.tp.topic
        if known is not None and self._first.setdefault(topic, known) != known:
            self._again.add(topic)

    def stalled(self, silent: Callable[[], Mapping[TopicPartition, int]]) -> str | None:
        """Which partition is not fetched, in a sentence; None where that is not known of any.

        silent: partitions that are to be fetched and of which nothing came since they were begun,
        with their positions; asked once a second at most, and only where a topic was made again.
        """
        now = self._clock.monotonic()
        if not self._again or now < self._due:
            return None
        self._due = now + _EVERY
        at = {tp: position for tp, position in silent().items() if tp.topic in self._again}
        self._since = {tp: self._since.get(tp, now) for tp in at}
        late = [tp for tp, since in self._since.items() if now - since >= _PATIENCE]
        if not all(future.done() for future in self._asked.values()):
            return None
        answers, self._asked = self._asked, {}
        for tp in sorted(answers.keys() & set(late)):
            end = _end(answers[tp])
            if end is not None and end > at[tp]:
                return (
                    f"topic {tp.topic} was made again, and nothing of {tp} is fetched, though it "
                    f"has records from {at[tp]} to {end - 1}: joining once more with a new consumer"
                )
        if late:
            self._asked = self._ask(late)
        return None


def _end(future: Any) -> int | None:
    try:
        return listed_offset(future)
    except KafkaException:
        return None  # no leader: then nothing can be fetched
