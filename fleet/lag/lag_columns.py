"""Holds the last commit of every partition of every group in columns of equal length.

Problem: 5,000 groups with 48 partitions are 240,000 offsets; a Python value for each costs 300 MB
and a second to iterate. Choice: numpy columns, with each group and topic name stored once. Cost:
values of one group must be made from the columns (`fleet.lag.snapshot`).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.model import TopicPartition

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

NONE: Final = -1
"""No such offset or time."""
_PORTION: Final = 1 << 14


def portions(size: int) -> Iterator[slice]:
    """All rows of so many, some at once: what is needed on the way is as long as a portion."""
    for first in range(0, size, _PORTION):
        yield slice(first, first + _PORTION)


@dataclass(frozen=True, slots=True, eq=False)
class Commits:
    """Rows at one moment, in no order. Times in ms.

    `group` and `topic` are places in `groups` and `topics`.
    """

    groups: tuple[str, ...]
    topics: tuple[str, ...]
    group: Ints
    topic: Ints
    partition: Ints
    committed: Longs
    """NONE: the group has the partition, and never committed it."""
    at: Longs
    """Of the last commit record."""
    moved: Longs
    """Of the last commit that went forward; the first one seen counts as one."""
    peak: Longs
    """Where it stood before it went back, until it is there again; NONE otherwise."""
    fell: Longs
    """When it went back; NONE otherwise."""
    gap: Floats
    """Usual time between commits that go forward, ms; NONE before there were two."""
    row: Longs
    """What tells a partition of a group apart from look to look; never given to another."""

    def __len__(self) -> int:
        return len(self.group)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, TopicPartition, int | None]]) -> "Commits":
        """Offsets alone, from (group, partition, committed); all times are NONE."""
        groups: dict[str, int] = {}
        topics: dict[str, int] = {}
        found = [
            (
                groups.setdefault(group, len(groups)),
                topics.setdefault(tp.topic, len(topics)),
                tp.partition,
                NONE if committed is None else committed,
            )
            for group, tp, committed in rows
        ]
        columns = np.array(found, dtype=np.int64).reshape(len(found), 4).T
        unknown = np.full(len(found), NONE, dtype=np.int64)
        return cls(
            tuple(groups),
            tuple(topics),
            group=columns[0].astype(np.int32),
            topic=columns[1].astype(np.int32),
            partition=columns[2].astype(np.int32),
            committed=columns[3],
            at=unknown,
            moved=unknown,
            peak=unknown,
            fell=unknown,
            gap=unknown.astype(np.float64),
            row=np.arange(len(found), dtype=np.int64),
        )

    def where(self, rows: Rows | Longs | slice) -> "Commits":
        """Returns only these rows."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self)[2:]}
        return Commits(self.groups, self.topics, **columns)

    def plus(self, other: "Commits") -> "Commits":
        """These rows and those of another reader, which may name groups and topics in its order."""
        if not len(other):
            return self
        groups = dict.fromkeys((*self.groups, *other.groups))
        topics = dict.fromkeys((*self.topics, *other.topics))
        place = {name: number for number, name in enumerate(groups)}
        at = {name: number for number, name in enumerate(topics)}
        theirs = {f.name: getattr(other, f.name) for f in fields(other)[2:]}
        theirs["group"] = np.array([place[each] for each in other.groups])[other.group]
        theirs["topic"] = np.array([at[each] for each in other.topics])[other.topic]
        columns = {
            name: np.concatenate([getattr(self, name), column.astype(getattr(self, name).dtype)])
            for name, column in theirs.items()
        }
        return Commits(tuple(groups), tuple(topics), **columns)

    def of_groups(self, groups: Iterable[str]) -> Rows:
        """Which rows are of these groups."""
        wanted = frozenset(groups)
        there = np.array([group in wanted for group in self.groups], dtype=np.bool_)
        return there[self.group] if len(there) else np.zeros(0, dtype=np.bool_)

    def of_topics(self) -> Longs:
        """For each row one number of its group (upper half) and topic."""
        pairs: Longs = self.group.astype(np.int64) << 32 | self.topic
        return pairs

    def partitions(self) -> tuple[list[TopicPartition], Longs]:
        """The different partitions, and for each row which one it is."""
        both = self.topic.astype(np.int64) << 32 | self.partition.astype(np.int64)
        different, inverse = np.unique(both, return_inverse=True)
        names = self.topics
        tps = [TopicPartition(names[each >> 32], each & 0xFFFFFFFF) for each in different.tolist()]
        return tps, inverse

    def places_in(self, other: "Commits") -> Longs:
        """For each row the one of the same group and partition in another; NONE where none is."""
        if not len(other):
            return np.full(len(self), NONE, dtype=np.int64)
        theirs = _keys(other, np.arange(len(other.groups)), np.arange(len(other.topics)), other)
        groups = {name: place for place, name in enumerate(other.groups)}
        topics = {name: place for place, name in enumerate(other.topics)}
        mine = _keys(
            self,
            np.array([groups.get(name, NONE) for name in self.groups], dtype=np.int64),
            np.array([topics.get(name, NONE) for name in self.topics], dtype=np.int64),
            other,
        )
        order = np.argsort(theirs)
        found = order[np.minimum(np.searchsorted(theirs[order], mine), len(order) - 1)]
        return np.where((theirs[found] == mine) & (mine != NONE), found, NONE).astype(np.int64)


def _keys(commits: Commits, groups: Longs, topics: Longs, scale: Commits) -> Longs:
    """One number for each row, by names as `scale` numbers them; NONE where it lacks one."""
    if not len(commits):
        return np.zeros(0, dtype=np.int64)
    group, topic = groups[commits.group], topics[commits.topic]
    key = (group * len(scale.topics) + topic) << 32 | commits.partition.astype(np.int64)
    return np.where((group == NONE) | (topic == NONE), np.int64(NONE), key)


# One look a minute is kept, for five minutes, by the rows' own numbers, which no other partition is
# ever given: one that was not there then did not grow, nor one of whose age only a bound was known.
# An age of a day is up to 4 ms off, one of a year a second: float32.

_WINDOW: Final = 300.0
"""Seconds over which a growing age is told."""
_APART: Final = 60.0


class Growth:
    """Asked at each look; for one thread."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Longs, NDArray[np.float32]]] = deque()

    def update(self, rows: Longs, ages: Floats, known: Floats, at: float) -> tuple[Floats, float]:
        """(by how much each row's age grew, over how many seconds); NaN: not known.

        ages: at least; known: the same, NaN where that is only a bound. at: seconds of a clock
        that nobody sets.
        """
        gained = np.full(len(ages), np.nan)
        while self._kept and at - self._kept[0][0] > _WINDOW:
            self._kept.popleft()
        over = 0.0
        if self._kept:
            since, places, then = self._kept[0]
            over = at - since
            place = np.searchsorted(places, rows)
            there = place < len(places)
            there[there] = places[place[there]] == rows[there]
            gained[there] = ages[there] - then[place[there]]
        if not self._kept or at - self._kept[-1][0] >= _APART:
            order = np.argsort(rows)
            places = rows[order]
            if self._kept and np.array_equal(places, self._kept[-1][1]):
                places = self._kept[-1][1]
            self._kept.append((at, places, known[order].astype(np.float32)))
        return gained, over
