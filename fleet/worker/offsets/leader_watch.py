"""Asks for leaders of partitions that had none when they were assigned.

Problem: where such a partition begins nobody tells, and whoever waits for that, inside the assign
callback, reads nothing of the others meanwhile. Choice: the others begin; of these the log start
is asked for once a second, without waiting for the answer. Cost: a request a second, a start up to
a second late.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from fleet.clock import Clock
from fleet.model import TopicPartition
from fleet.worker.listed_offset import listed_or_none

_EVERY: Final = 1.0
Ask = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Any]]
"""Starts to ask for log starts; futures by partition."""


class LeaderWatch:
    """Of one membership, on the consumer thread."""

    def __init__(self, ask: Ask, *, clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._due = 0.0
        self._asked: Mapping[TopicPartition, Any] = {}

    def look(self, tps: Collection[TopicPartition]) -> list[TopicPartition]:
        """Which of these have a leader, as was answered since the last look; asks again in time."""
        asked, now = self._asked, self._clock.monotonic()
        if not all(future.done() for future in asked.values()):
            return []
        self._asked = {}
        if not asked and tps and now >= self._due:
            self._due = now + _EVERY
            self._asked = self._ask(sorted(tps))
        here = asked.keys() & set(tps)
        return sorted(tp for tp in here if listed_or_none(asked[tp]) is not None)
