"""What was really processed: an append-only journal, written first in every call [34].

Problem: an idempotent sink hides that a record was processed twice, and a committed offset says
nothing of what ran. Choice: before anything else the entrypoint appends one JSON line per
offset range that it was called with; lost and twice are computed from these lines alone. One
`os.write` to a file opened with O_APPEND holds all lines of a call, so that a worker killed at
any moment leaves whole lines, and a line that is there was followed by work. Cost: one small
write per batch; no fsync, since the page cache outlives a killed process.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.errors import FleetError
from fleet.model import TopicPartition

FOLDER_VARIABLE: Final = "FLEET_JOURNAL"
"""Environment variable that names the folder of the journal; unset = no journal is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One offset range that an entrypoint was called with."""

    group: str
    tp: TopicPartition
    first: int
    last: int
    """The last offset of the range, inclusive."""
    worker: str
    attempt: int
    revision: str
    at: float
    """Wall time just before the work, seconds."""

    def as_json(self) -> dict[str, Any]:
        """The journal line's keys."""
        return {
            "group": self.group,
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "first": self.first,
            "last": self.last,
            "worker": self.worker,
            "attempt": self.attempt,
            "revision": self.revision,
            "at": self.at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Entry":
        """From a journal line; KeyError, TypeError or ValueError where it is none."""
        return cls(
            group=str(value["group"]),
            tp=TopicPartition(str(value["topic"]), int(value["partition"])),
            first=int(value["first"]),
            last=int(value["last"]),
            worker=str(value["worker"]),
            attempt=int(value["attempt"]),
            revision=str(value["revision"]),
            at=float(value["at"]),
        )


def append(folder: Path, worker: str, entries: Sequence[Entry]) -> None:
    """Append the entries to the worker's file with one write; nothing where there are none."""
    if not entries:
        return
    text = "".join(json.dumps(e.as_json(), separators=(",", ":")) + "\n" for e in entries)
    folder.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    handle = os.open(folder / f"{worker}.jsonl", flags, 0o644)
    try:
        data = text.encode()
        written = os.write(handle, data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes fitted; is the disk full?")
    finally:
        os.close(handle)


def read(folder: Path) -> tuple[Entry, ...]:
    """Every entry of every worker, by time.

    Raises FleetError naming file and line where a line is not an entry: a journal that cannot
    be read proves nothing.
    """
    return tuple(sorted(_lines(folder), key=lambda entry: entry.at))


def _lines(folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                yield Entry.from_json(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise FleetError(
                    f"{path}, line {number} is no journal entry ({error!r}): the journal is "
                    "damaged, run the demo again"
                ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """A run of offsets that was lost or processed again, and when that became visible."""

    tp: TopicPartition
    first: int
    end: int
    """The first offset after it."""
    at: float
    """Lost: when a later offset was first processed (infinite where none was). Twice: when the
    repetition was processed."""

    @property
    def records(self) -> int:
        """How many."""
        return self.end - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a group's journal says about the offsets it should have processed exactly once."""

    processed: int
    """Distinct offsets of the due ranges that were processed."""
    lost: tuple[Slip, ...]
    twice: tuple[Slip, ...]

    def lost_between(self, start: float, end: float) -> int:
        """Records whose loss became visible in [start, end); an infinite end takes the rest."""
        return sum(
            s.records for s in self.lost if start <= s.at and (s.at < end or end == float("inf"))
        )

    def twice_between(self, start: float, end: float) -> int:
        """Records processed again in [start, end); a third time counts again."""
        return sum(s.records for s in self.twice if start <= s.at < end)


def coverage(
    entries: Iterable[Entry], *, group: str, due: Mapping[TopicPartition, tuple[int, int]]
) -> Coverage:
    """Compare a group's entries with what was due: partition → (first offset, end offset).

    Offsets outside the due ranges are not judged. Entries are taken in the order of time.
    """
    mine = sorted((e for e in entries if e.group == group), key=lambda e: e.at)
    processed = 0
    lost: list[Slip] = []
    twice: list[Slip] = []
    for tp, (start, end) in sorted(due.items()):
        done = _Spans()
        seen: list[tuple[int, float]] = []  # where each entry begins, and when it was
        for entry in (e for e in mine if e.tp == tp):
            first, stop = max(entry.first, start), min(entry.last + 1, end)
            if first >= stop:
                continue
            seen.append((first, entry.at))
            twice += [Slip(tp=tp, first=a, end=b, at=entry.at) for a, b in done.add(first, stop)]
        gaps = done.gaps(start, end)
        processed += end - start - sum(b - a for a, b in gaps)
        for a, b in gaps:
            beyond = [at for first, at in seen if first >= b]
            lost.append(Slip(tp=tp, first=a, end=b, at=min(beyond, default=float("inf"))))
    return Coverage(processed=processed, lost=tuple(lost), twice=tuple(twice))


def records_between(entries: Iterable[Entry], *, group: str, start: float, end: float) -> int:
    """Records that the group was called with in [start, end), repetitions included."""
    return sum(e.last + 1 - e.first for e in entries if e.group == group and start <= e.at < end)


class _Spans:
    """A set of offsets as disjoint [first, end) spans in order."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def add(self, first: int, end: int) -> list[tuple[int, int]]:
        """Add a span; the parts of it that were there already."""
        again: list[tuple[int, int]] = []
        kept: list[tuple[int, int]] = []
        low, high = first, end
        for a, b in self._spans:
            if b < first or a > end:
                kept.append((a, b))
                continue
            if max(a, first) < min(b, end):
                again.append((max(a, first), min(b, end)))
            low, high = min(low, a), max(high, b)
        kept.append((low, high))
        self._spans = sorted(kept)
        return again

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """What of [start, end) was never added."""
        found: list[tuple[int, int]] = []
        at = start
        for a, b in self._spans:
            if a > at:
                found.append((at, min(a, end)))
            at = max(at, b)
        if at < end:
            found.append((at, end))
        return found
