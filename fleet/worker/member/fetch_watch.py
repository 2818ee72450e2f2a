"""Notices partitions of a topic made again that are not fetched, though records wait [50].

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

from fleet.clock import Clock
from fleet.model import TopicPartition
from fleet.worker.listed_offset import listed_or_none

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
        self._due = 0.0
        self._since: dict[TopicPartition, float] = {}
        self._asked: Mapping[TopicPartition, Any] = {}

    def stalled(self, silent: Callable[[], Mapping[TopicPartition, int]]) -> str | None:
        """Which partition is not fetched, in a sentence; None where that is not known of any.

        silent: see BatchReader; asked once a second at most.
        """
        now = self._clock.monotonic()
        if now < self._due:
            return None
        self._due = now + _EVERY
        at = silent()
        self._since = {tp: self._since.get(tp, now) for tp in at}
        late = [tp for tp, since in self._since.items() if now - since >= _PATIENCE]
        if not all(future.done() for future in self._asked.values()):
            return None
        answers, self._asked = self._asked, {}
        for tp in sorted(answers.keys() & set(late)):
            end = listed_or_none(answers[tp])
            if end is not None and end > at[tp]:
                return (
                    f"topic {tp.topic} was made again, and nothing of {tp} is fetched, though it "
                    f"has records from {at[tp]} to {end - 1}: joining once more with a new consumer"
                )
        if late:
            self._asked = self._ask(late)
        return None
