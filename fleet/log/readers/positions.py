"""Keeps the last commit of every partition of every group in columns.

Problem: 5,000 groups with 48 partitions each are 240,000 positions, written a thousand times a
second and read all at once; a Python value for each costs 300 MB and a second to walk. Choice:
numpy columns, one row per key of the offsets topic (`key_rows` finds it); of the value only the
offset is taken, at the same place in every version (docs/contributing/protocol.md 3.3). Beside it
each row keeps what a verdict needs of the past: when it was last committed, when that last moved
forward, in what rhythm, and from where it fell back. Cost: 85 bytes a row with its key; rows of
deleted groups are used again, under another number, so the columns stay as long as they ever were.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from fleet.kafka_source.record_fields import Fields
from fleet.lag.gap import is_early, usual_gap
from fleet.lag.lag_columns import NONE, Commits
from fleet.log.records import OffsetCommit, Tombstone
from fleet.model import TopicPartition

# Keys of one group and topic differ in their last four bytes alone, the partition: what stands
# before them is kept once, with a sorted array of partitions and rows. A dictionary takes 150 bytes
# a key, and finds a row in 0.1 µs instead of 0.3.

_PARTITION: Final = Struct(">i")
"""At the end of a key (OffsetCommitKey, versions 0 and 1)."""
_SIZE: Final = _PARTITION.size
_LOW: Final = (1 << 32) - 1


class KeyRows:
    """Rows by key; a row fits in 32 bits. For one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[bytes, array[int]] = {}
        """What a key begins with → partition << 32 | row of each, in order."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """(key, row) of each, by what the keys begin with."""
        for begin, kept in self._kept.items():
            for both in kept:
                yield begin + _PARTITION.pack(both >> 32), both & _LOW

    def of(self, key: bytes | None) -> int:
        """The row of a key; NONE where it has none."""
        if key is None or (kept := self._kept.get(key[:-_SIZE])) is None:
            return NONE
        number: int = _PARTITION.unpack_from(key, len(key) - _SIZE)[0]
        if 0 <= number < len(kept):  # with all partitions from 0 on, each stands at its number
            both = kept[number]
            if both >> 32 == number:
                return both & _LOW
        at = bisect_left(kept, number << 32)
        if at < len(kept) and kept[at] >> 32 == number:
            return kept[at] & _LOW
        return NONE

    def add(self, key: bytes, row: int) -> None:
        """A key that has no row yet."""
        begin, number = _parts(key)
        kept = self._kept.setdefault(begin, array("q"))
        both = number << 32 | row
        kept.insert(bisect_left(kept, both), both)
        self._count += 1

    def drop(self, key: bytes) -> None:
        """A key that has a row."""
        begin, number = _parts(key)
        kept = self._kept[begin]
        del kept[bisect_left(kept, number << 32)]
        if not kept:
            del self._kept[begin]
        self._count -= 1


def _parts(key: bytes) -> tuple[bytes, int]:
    """What it begins with, and the partition."""
    return key[:-_SIZE], int(_PARTITION.unpack_from(key, len(key) - _SIZE)[0])


_NEWEST: Final = 4
"""Value versions of an offset commit that are known (Kafka 4.3)."""
_LEAST: Final = 10
"""Bytes up to the end of the offset."""
_FEW: Final = 8
"""Rows at once from which on numpy is quicker than one by one."""
_FIRST_ROWS: Final = 1024
_GROWTH: Final = 4
"""Full columns grow by one row for so many that are there."""


Ints = npt.NDArray[np.int64]
_Kind = TypeVar("_Kind", bound=np.generic)


class Positions:
    """Rows of (group, topic, partition). One thread writes; readers hold the same lock."""

    def __init__(self) -> None:
        self._rows = KeyRows()
        self._free: list[int] = []
        self._used = self._made = 0
        self._places: dict[str, int] = {}
        self._names: list[str] = []
        self._of_group: dict[int, int] = {}
        """Rows of each place."""
        self._vacant: dict[int, None] = {}
        """Places of groups without any: theirs again, unless another group was given it."""
        self._topics: dict[str, int] = {}
        self._long = np.empty((6, _FIRST_ROWS), dtype=np.int64)
        self._int = np.empty((3, _FIRST_ROWS), dtype=np.int32)
        self._gap = np.empty(_FIRST_ROWS, dtype=np.float64)
        self._early = np.empty(_FIRST_ROWS, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._rows)

    def commit(self, key: bytes, value: bytes | None, ms: int) -> bool:
        """Take a commit (or its tombstone) of a known key; False where the key is new here.

        A value that this cannot read also gives False: the caller decodes it and counts.
        """
        row = self._rows.of(key)
        if row == NONE:
            return False
        if value is None:
            self._drop(key, row)
            return True
        if len(value) < _LEAST or value[0] or value[1] > _NEWEST:
            return False
        self._set(row, int.from_bytes(value[2:10], "big", signed=True), ms)
        return True

    def rows(self, keys: Sequence[bytes | None]) -> Ints:
        """The row of each key; NONE where the key is new here."""
        return np.fromiter(map(self._rows.of, keys), np.int64, len(keys))

    def commit_rows(self, rows: Ints, committed: Ints, ms: Ints) -> None:
        """Take commits of known rows, in the order written."""
        if np.diff(np.sort(rows)).all():  # each of them once; np.unique loads numpy.ma
            self._set_rows(rows, committed, ms)
            return
        order = np.argsort(rows, kind="stable")
        begins = np.flatnonzero(np.diff(rows[order], prepend=-1))
        lengths = np.diff(np.append(begins, len(rows)))
        turn = np.arange(len(rows)) - np.repeat(begins, lengths)
        for number in range(int(lengths.max())):  # each row's first, then each one's second …
            chosen = order[turn == number]
            if len(chosen) < _FEW:
                for at in np.sort(order[turn >= number]).tolist():
                    self._set(int(rows[at]), int(committed[at]), int(ms[at]))
                return
            self._set_rows(rows[chosen], committed[chosen], ms[chosen])

    def _set_rows(self, rows: Ints, committed: Ints, ms: Ints) -> None:
        """`_set` of many rows, each of them once."""
        columns = self._long
        committed = np.maximum(committed, NONE)
        before, last, peak = columns[0, rows], columns[1, rows], columns[3, rows]
        columns[0, rows], columns[1, rows] = committed, ms
        forward = committed > before
        columns[2, rows[forward]] = ms[forward]
        again = forward & (last != NONE)
        self._rhythm(rows[again], np.maximum(0.0, ms[again] - last[again]))
        back = forward & (committed >= peak)
        columns[3, rows[back]] = columns[4, rows[back]] = NONE
        fell = ~forward & (committed < before) & (before > peak)
        columns[3, rows[fell]], columns[4, rows[fell]] = before[fell], ms[fell]

    def take(self, record: OffsetCommit | Tombstone, key: bytes | None = None) -> None:
        """Take a decoded commit, or the tombstone of one; other tombstones change nothing.

        `key` where the caller has it as it stands in the log (`key_of`).
        """
        tp = record.tp
        if tp is None:
            return
        key = key or key_to(record.group, tp)
        if isinstance(record, Tombstone):
            self.commit(key, None, record.timestamp_ms)
        else:
            self.put(key, record.group, tp, record.committed, record.timestamp_ms)

    def put(self, key: bytes, group: str, tp: TopicPartition, committed: int, ms: int) -> None:
        """Take a commit, wherever it is known from; any key will do that is the row's own."""
        row = self._rows.of(key)
        if row == NONE:
            row = self._free.pop() if self._free else self._next()
            self._rows.add(key, row)
            place = self._place(group)
            topic = self._topics.setdefault(tp.topic, len(self._topics))
            self._int[:, row] = place, topic, tp.partition
            self._long[:, row] = NONE
            self._long[5, row] = self._made
            self._made += 1
            self._gap[row], self._early[row] = NONE, False
            self._of_group[place] = self._of_group.get(place, 0) + 1
        self._set(row, committed, ms)

    def drop(self, groups: Collection[str]) -> None:
        """Forget all rows of these groups, as their tombstones would."""
        places = [self._places[group] for group in groups]
        theirs = np.isin(self._int[0, : self._used], places).tolist()
        for key, row in [each for each in self._rows if theirs[each[1]]]:
            self._drop(key, row)

    def last(self, key: bytes) -> int | None:
        """The committed offset of a row."""
        row = self._rows.of(key)
        return None if row == NONE else int(self._long[0, row])

    def rhythm(self, key: bytes) -> tuple[int, int, float, bool] | None:
        """Of one row: offset, its time (ms), the usual gap (ms), whether the last came early."""
        row = self._rows.of(key)
        if row == NONE:
            return None
        offset, ms = self._long[0, row], self._long[1, row]
        return int(offset), int(ms), float(self._gap[row]), bool(self._early[row])

    def keys(self) -> frozenset[bytes]:
        """Returns the keys of all rows."""
        return frozenset(key for key, _ in self._rows)

    def copy(self) -> Commits:
        """All rows as they are now."""
        used = self._used
        there = self._int[0, :used] != NONE
        ints, longs = self._int[:, :used][:, there], self._long[:, :used][:, there]
        return Commits(
            groups=tuple(self._names),
            topics=tuple(self._topics),
            **dict(zip(("group", "topic", "partition"), ints, strict=True)),
            **dict(zip(("committed", "at", "moved", "peak", "fell", "row"), longs, strict=True)),
            gap=self._gap[:used][there],
        )

    def groups(self) -> frozenset[str]:
        """Groups with at least one commit."""
        return frozenset(self._names[place] for place in self._of_group)

    def of_group(self, group: str) -> dict[TopicPartition, tuple[int, int]]:
        """Committed offset and its time (ms) per partition of one group."""
        place = self._places.get(group)
        if place is None:
            return {}
        topics = tuple(self._topics)
        found = np.flatnonzero(self._int[0, : self._used] == place)
        return {
            TopicPartition(topics[self._int[1, row]], int(self._int[2, row])): (
                int(self._long[0, row]),
                int(self._long[1, row]),
            )
            for row in found
        }

    def _set(self, row: int, committed: int, ms: int) -> None:
        columns = self._long
        before, last = columns[0, row], columns[1, row]
        committed = max(committed, NONE)  # to Kafka's own clients any negative offset is none
        columns[0, row] = committed
        columns[1, row] = ms
        if committed > before:
            columns[2, row] = ms
            if last != NONE:
                self._rhythm(row, max(0.0, float(ms - last)))
            if committed >= columns[3, row]:
                columns[3, row] = columns[4, row] = NONE
        elif committed < before and before > columns[3, row]:
            columns[3, row], columns[4, row] = before, ms

    def _rhythm(self, rows: Any, gaps: Any) -> None:
        """One more gap between commits that go forward, of a row or of many."""
        usual = self._gap[rows]
        self._early[rows] = is_early(gaps, usual)
        self._gap[rows] = usual_gap(usual, gaps)

    def _drop(self, key: bytes, row: int) -> None:
        self._rows.drop(key)
        place = int(self._int[0, row])
        self._of_group[place] -= 1
        if not self._of_group[place]:
            del self._of_group[place]
            self._vacant[place] = None
        self._int[:, row] = NONE
        self._free.append(row)

    def _place(self, group: str) -> int:
        place = self._places.get(group)
        if place is not None:
            self._vacant.pop(place, None)
            return place
        if self._vacant:
            place, _ = self._vacant.popitem()
            del self._places[self._names[place]]
            self._names[place] = group
        else:
            place = len(self._names)
            self._names.append(group)
        self._places[group] = place
        return place

    def _next(self) -> int:
        row = self._used
        if row == self._int.shape[1]:
            room = row + row // _GROWTH
            self._int, self._long = _longer(self._int, room), _longer(self._long, room)
            self._gap, self._early = _longer(self._gap, room), _longer(self._early, room)
        self._used += 1
        return row


def _longer(columns: npt.NDArray[_Kind], room: int) -> npt.NDArray[_Kind]:
    """The same with room for more rows: memory that nobody has written to is none yet."""
    longer = np.empty((*columns.shape[:-1], room), dtype=columns.dtype)
    longer[..., : columns.shape[-1]] = columns
    return longer


def committed_in(read: Fields) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Which values are commits of a version that is known, and the offset in each of them.

    The second means nothing where the first is False.
    """
    committed = np.full(len(read.offset), NONE, np.int64)
    octets = np.frombuffer(read.data, np.uint8)
    fits = read.value_size >= _LEAST
    at = read.value_at[fits]
    fits[fits] = (octets[at] == 0) & (octets[at + 1] <= _NEWEST)
    offsets = octets[read.value_at[fits][:, None] + np.arange(2, _LEAST)]
    committed[fits] = offsets.copy().view(">i8")[:, 0]
    return fits, committed


def key_of(key: bytes) -> bytes:
    """One spelling for a commit's key, whether of type 1 or of type 0 (before Kafka 0.9)."""
    return key if key[1] else b"\x00\x01" + key[2:]


def group_of(key: bytes) -> str:
    """The group of a commit's key, by `key_to`."""
    return key[4 : 4 + int.from_bytes(key[2:4], "big")].decode()


def key_to(group: str, tp: TopicPartition) -> bytes:
    """The key that the coordinator writes for a commit."""
    texts = [text.encode() for text in (group, tp.topic)]
    named = b"".join(struct.pack(">h", len(text)) + text for text in texts)
    return b"\x00\x01" + named + struct.pack(">i", tp.partition)
