"""How many records the next batch may have, by what the ones before took.

Problem: a batch that takes longer than `batch.max_seconds` should have fewer records, so that who
waits for it (a handover, an end) waits no longer than that. But a batch also takes time whatever
is in it, and on a busy Spark more than `max_seconds`: then fewer records are no quicker, each
batch makes the next one smaller, and a backlog grows for good (seen: 60 records each 6 s where
1,000 were allowed, six workers, 300 records a second to do). Choice: fewer records in proportion;
where half of them saves less than half of what it should, the time belongs to the batch: the
bound is what it was, and for a while only a batch that takes three times as long lowers it. Cost:
on such a Spark batches last longer than `max_seconds`, and every so often some are made smaller
in vain.
"""

from typing import Final

_ENOUGH: Final = 0.5
"""Part of a batch's records by which it is judged whether fewer are quicker: times vary."""
_GIVEN: Final = 3.0
"""Times what a batch takes whatever is in it: from there on it is made smaller."""
_ROOM: Final = 1.5
"""Times the same: up to there it is made larger,"""
_MOST: Final = 6
"""and at most to so many times what it should take."""
_BELIEVED: Final = 16
"""Batches too slow after which it is tried again whether smaller ones are quicker."""
_STEP: Final = 9 / 8
"""Growth of a bound whose full batches just take as long as they may."""


class BatchBound:
    """The bound of one way of reading; `first` records, never more than `most`.

    target: seconds that a batch should take. growth: times a bound at most from one to the next.
    """

    def __init__(self, first: int, *, most: int, target: float, growth: int) -> None:
        self.records = first
        self._most = most
        self._target = target
        self._growth = growth
        self._lowered: tuple[int, float] | None = None
        """Records and seconds of the batch with which lowering began."""
        self._least = 0.0
        """Seconds that a batch seems to take whatever is in it; 0 where they are no matter."""
        self._believed = 0
        """For how many more batches that are too slow."""

    def took(self, records: int, seconds: float) -> None:
        """A batch of so many records has been done."""
        self._learn(records, seconds)
        if records > 1 and seconds > max(self._target, _GIVEN * self._least):
            self._lowered = self._lowered or (records, seconds)
            fewer = int(records * self._target / seconds)
            self.records = max(1, min(self.records, fewer))
        elif records >= self.records and seconds <= self._longest:
            aim = self._longest if self._least else self._target / 2
            more = self.records * min(self._growth, max(_STEP, aim / max(seconds, 0.001)))
            self.records = min(self._most, max(self.records + 1, int(more)))

    def raise_to(self, records: int) -> None:
        """Another way of reading has shown that so many are no matter."""
        self.records = max(self.records, records)

    @property
    def _longest(self) -> float:
        """Seconds of a full batch up to which the bound grows."""
        return max(self._target, min(_ROOM * self._least, _MOST * self._target))

    def _learn(self, records: int, seconds: float) -> None:
        """Whether fewer records were quicker, once there are few enough to tell."""
        if seconds <= self._target:
            self._lowered, self._least = None, 0.0
        elif self._lowered is not None and records <= self._lowered[0] * _ENOUGH:
            before, took = self._lowered
            self._lowered = None
            if seconds > took * (1 + records / before) / 2:
                self._least, self._believed = seconds, _BELIEVED
                self.raise_to(before)
        elif self._least:
            self._believed -= 1
            self._least *= self._believed > 0
