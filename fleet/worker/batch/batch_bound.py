"""How many records the next batch may have, by what the ones before took.

Problem: a batch that takes longer than `batch.max_seconds` should have fewer records, so that who
waits for it (a handover, an end) waits no longer than that. But a batch also takes time whatever
is in it, and on a busy Spark more than `max_seconds`: then fewer records are no quicker, each
batch makes the next one smaller, and a backlog grows for good (seen: 60 records each 6 s where
1,000 were allowed, six workers, 300 records a second to do). Choice: a line through the last
batches says which part of their time does not come from records; where all had about as many, none
does. The next batch has as many records as `max_seconds` leaves room for, but no fewer than take as
long as the rest of it. Cost: on such a Spark batches last longer than `max_seconds`, and every so
often one is made smaller in vain, since times vary.
"""

from typing import Final

_KEPT: Final = 0.85
"""Weight of a batch beside the next one."""
_VARIED: Final = 0.15
"""Standard deviation of the numbers of records from which on a line is drawn, as part of their
mean."""


class BatchBound:
    """The bound of one way of reading; `first` records, never more than `most`.

    target: seconds that a batch should take. growth: the next batch has at most so many times the
    records of the last one.
    """

    def __init__(self, first: int, *, most: int, target: float, growth: int) -> None:
        self.records = first
        self._most = most
        self._target = target
        self._growth = growth
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        """Weighted sums over the last batches, x: records, y: seconds."""

    def took(self, records: int, seconds: float) -> None:
        """A batch of so many records has been done."""
        seconds = max(seconds, 0.001)
        self._remember(records, seconds)
        whatever = seconds * self._whatever()
        room, theirs = max(self._target - whatever, whatever), seconds - whatever
        # A line through few batches may be wrong: by it alone a batch is at most doubled.
        more = min(self._growth, max(2.0, self._target / seconds))
        fits = records * min(more, room / theirs if theirs else more)
        if seconds > self._target and records > 1:
            self.records = max(1, min(self.records, int(fits)))
        if records >= self.records:
            self.records = min(self._most, max(self.records, int(fits)))

    def raise_to(self, records: int) -> None:
        """Another way of reading has shown that so many are no matter."""
        self.records = max(self.records, records)

    def _remember(self, records: int, seconds: float) -> None:
        self._weight = self._weight * _KEPT + 1
        self._x = self._x * _KEPT + records
        self._y = self._y * _KEPT + seconds
        self._xx = self._xx * _KEPT + records * records
        self._xy = self._xy * _KEPT + records * seconds

    def _whatever(self) -> float:
        """Part of the seconds of the last batches that they took whatever was in them."""
        mean, took = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean * mean
        if variance <= (_VARIED * mean) ** 2:
            return 0.0
        each = (self._xy / self._weight - mean * took) / variance
        return min(1.0, max(0.0, 1 - each * mean / took))
