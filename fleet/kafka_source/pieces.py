"""Offset ranges, and how they are cut into tasks.

Problem: a batch's ranges are as uneven as its topic, and a Spark job lasts as long as its
longest task. Choice: the ranges are laid end to end and cut into equal shares, one per core, so
that a large range is read by several tasks and small ones share a task. Cost: sizes are counted
in offsets, so a compacted stretch makes its share light; rows of one partition may come from
several tasks, in offset order within each.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from fleet.kafka_source.record_fields import Fields, Ints

LEAST: Final = 10_000
"""Offsets that a task is worth starting for: a consumer's start costs about as much time."""


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    transactions: bool | None = None
    """True: only records in transactions; False: only others; None: both."""


class LogBounds(NamedTuple):
    """A partition's log as its leader tells: first offset, readable end, end of the log."""

    first: int
    stable: int
    """Up to here the isolation level lets us read: transactions from here on may be open."""
    end: int

    def readable(self, isolation: str) -> int:
        """Up to where readers of this isolation level get records."""
        return self.stable if isolation == "read_committed" else self.end


class Piece(NamedTuple):
    """Records of one partition, in their order, and the leader epoch in which each was written."""

    topic: str
    partition: int
    records: Fields
    epochs: Ints


def shares(
    ranges: Iterable[OffsetRange], tasks: int, *, least: int = LEAST
) -> tuple[tuple[OffsetRange, ...], ...]:
    """At most `tasks` shares of about equal size that together are exactly the ranges."""
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
