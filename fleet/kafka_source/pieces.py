"""Offset ranges, and how they are divided among tasks.

Problem: a batch's ranges are as uneven as its topic, and a Spark job lasts as long as its longest
task. Choice: the ranges are laid end to end and cut into equal shares, one per core. So several
tasks read a large range, and small ones share a task. Cost: sizes are counted in offsets, so a
compacted range makes its share small. Rows of one partition may come from several tasks, in offset
order within each.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from fleet.kafka_source.record_fields import Fields, Ints

LEAST: Final = 10_000
"""Offsets for which a task is worth starting: a consumer's start costs about as much time."""


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    transactions: bool | None = None
    """True: only records in transactions; False: only others; None: both."""


class LogBounds(NamedTuple):
    """A partition's log as its leader reports it: first offset, readable end, end of the log."""

    first: int
    stable: int
    """The first offset that may be in an open transaction."""
    end: int

    def readable(self, isolation: str) -> int:
        """Returns the end of what this isolation level can read."""
        return self.stable if isolation == "read_committed" else self.end


class Piece(NamedTuple):
    """Records of one partition in order, and the leader epoch in which each was written."""

    topic: str
    partition: int
    records: Fields
    epochs: Ints


def shares(
    ranges: Iterable[OffsetRange], tasks: int, *, least: int = LEAST
) -> tuple[tuple[OffsetRange, ...], ...]:
    """Returns at most `tasks` shares of about equal size that together are exactly the ranges."""
    given = [each for each in ranges if each.end > each.start]
    total = sum(each.end - each.start for each in given)
    if not total:
        return ()
    size = max(least, -(-total // max(1, tasks)))
    made: list[tuple[OffsetRange, ...]] = []
    share: list[OffsetRange] = []
    room = size
    for each in given:
        start = each.start
        while start < each.end:
            end = min(each.end, start + room)
            share.append(each._replace(start=start, end=end))
            room -= end - start
            start = end
            if room == 0:
                made.append(tuple(share))
                share, room = [], size
    if share:
        made.append(tuple(share))
    return tuple(made)
