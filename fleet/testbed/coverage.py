"""Never, once or again: the rows that a group's calls got, beside the records that there are.

Pure. What the calls got is the journal's (`fleet.testbed.journal`: the numbers that stood in the
rows), what there is is an outside reader's (`fleet.testbed.held`); the offsets that calls were told
decide nothing, so that a reading that drops a row or gives one out twice is seen [34].
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.testbed.held import Held
from fleet.testbed.journal import JournalEntry, numbers

Due = Mapping[TopicPartition, tuple[int, int]]
"""Partition → (first offset, end offset) of what a group had to process exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """A run of records that was lost or processed again, and when that became visible."""

    tp: TopicPartition
    first: int
    end: int
    """The first offset after it."""
    at: float
    """Lost: when a later record was first processed (infinite where none was). Twice: when the
    repetition was processed."""

    @property
    def records(self) -> int:
        """How many."""
        return self.end - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a group's journal says about the records it should have processed exactly once."""

    processed: int
    """Distinct due records that were processed."""
    lost: tuple[Slip, ...]
    twice: tuple[Slip, ...]

    @property
    def lost_and_twice(self) -> tuple[int, int]:
        """(records never processed, records processed again; a third time counts again)."""
        return sum(s.records for s in self.lost), sum(s.records for s in self.twice)

    def lost_between(self, start: float, end: float) -> int:
        """Records whose loss became visible in [start, end); an infinite end takes the rest."""
        return sum(
            s.records for s in self.lost if start <= s.at and (s.at < end or end == float("inf"))
        )

    def twice_between(self, start: float, end: float) -> int:
        """Records processed again in [start, end); a third time counts again."""
        return sum(s.records for s in self.twice if start <= s.at < end)


def coverage(entries: Iterable[JournalEntry], *, group: str, due: Due, held: Held) -> Coverage:
    """Compare the rows that a group's calls got with the records that its topics hold.

    Records outside the due ranges are not judged. Entries are taken in the order of time; `held`
    is read after the journal. Raises FleetError where a row has a number that no record has.
    """
    mine = sorted((e for e in entries if e.group == group), key=lambda e: e.at)
    parts = {
        tp: _Covered(tp, offsets=held.offsets.get(tp, _NONE), due=due[tp]) for tp in sorted(due)
    }
    for entry in mine:
        found, strange = held.find(numbers(entry.rows))
        if len(strange):
            raise FleetError(
                f"worker {entry.worker} got {len(strange)} rows of {entry.tp} with numbers that no "
                f"record has, {strange[0]} first: they were not read from the topic as it is now"
            )
        for tp, indices in found.items():
            if tp in parts:
                parts[tp].add(indices, entry.at)
    return Coverage(
        processed=sum(part.processed for part in parts.values()),
        lost=tuple(slip for part in parts.values() for slip in part.lost()),
        twice=tuple(slip for part in parts.values() for slip in part.twice),
    )


def records_between(
    entries: Iterable[JournalEntry], *, group: str, start: float, end: float
) -> int:
    """Rows that the group was called with in [start, end), repetitions included."""
    return sum(e.records for e in entries if e.group == group and start <= e.at < end)


_NONE: Any = np.empty(0, dtype=np.int64)


class _Covered:
    """One partition's due records: how often each was processed so far."""

    def __init__(self, tp: TopicPartition, *, offsets: Any, due: tuple[int, int]) -> None:
        self._tp = tp
        self._first, end = np.searchsorted(offsets, due)
        self._offsets = offsets[self._first : end]
        self._times = np.zeros(len(self._offsets), dtype=np.int64)
        self._seen: list[tuple[int, float]] = []
        """(the last record, when) of each call that got some."""
        self.twice: list[Slip] = []

    def add(self, indices: Any, at: float) -> None:
        """A call got these records (ascending, one that it got twice is there twice)."""
        mine = indices - self._first
        mine = mine[(mine >= 0) & (mine < len(self._offsets))]
        if not len(mine):
            return
        self._seen.append((int(mine[-1]), at))
        which, count = np.unique(mine, return_counts=True)
        again = count - (self._times[which] == 0)
        self._times[which] += count
        while (again > 0).any():  # each repetition of a record is one of its own
            self.twice += self._slips(which[again > 0], at)
            again = again - 1

    @property
    def processed(self) -> int:
        """How many of them were."""
        return int((self._times > 0).sum())

    def lost(self) -> list[Slip]:
        """Those that no call got."""
        made = []
        for slip in self._slips(np.flatnonzero(self._times == 0), float("inf")):
            index = int(np.searchsorted(self._offsets, slip.first))
            beyond = [at for last, at in self._seen if last > index]
            made.append(
                Slip(tp=slip.tp, first=slip.first, end=slip.end, at=min(beyond, default=slip.at))
            )
        return made

    def _slips(self, which: Any, at: float) -> list[Slip]:
        """Ascending records as runs of consecutive offsets."""
        offsets = self._offsets[which]
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        return [
            Slip(tp=self._tp, first=int(run[0]), end=int(run[-1]) + 1, at=at)
            for run in np.split(offsets, cuts)
            if len(run)
        ]
