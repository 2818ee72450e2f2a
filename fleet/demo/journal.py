"""What was really processed: an append-only journal, written first in every call [34].

Problem: an idempotent sink hides that a record was processed twice, a committed offset says
nothing of what ran, and the offsets that a call was told say nothing of the rows that it got.
Choice: every record carries a number of its own, and before anything is done with the rows the
entrypoint appends one JSON line per offset range, with the numbers that stand in the rows; lost
and twice are computed from these numbers alone (`fleet.demo.coverage`). One `os.write` to a file
opened with O_APPEND holds all lines of a call, so that a worker killed at any moment leaves whole
lines, and a line that is there was followed by work. Cost: the numbers have to be collected, and
one small write per batch; no fsync, since the page cache outlives a killed process.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pyarrow import Table

from fleet.errors import FleetError
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext

FOLDER_VARIABLE: Final = "FLEET_JOURNAL"
"""Environment variable that names the folder of the journal; unset = no journal is kept."""


class Run(NamedTuple):
    """Numbers in equal steps: first, first + step, …; `size` of them."""

    first: int
    size: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One partition of one call of an entrypoint."""

    group: str
    tp: TopicPartition
    first: int
    """The first offset of the range that the call was told; what it got is in `rows`."""
    last: int
    """The last offset of that range, inclusive; before `first` where none was told."""
    rows: tuple[Run, ...]
    """The numbers that stood in the partition's rows."""
    worker: str
    attempt: int
    revision: str
    at: float
    """Wall time just before the work, seconds."""

    @property
    def records(self) -> int:
        """How many rows there were."""
        return sum(run.size for run in self.rows)

    def as_json(self) -> dict[str, Any]:
        """The journal line's keys."""
        return {
            "group": self.group,
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "first": self.first,
            "last": self.last,
            "rows": self.rows,
            "worker": self.worker,
            "attempt": self.attempt,
            "revision": self.revision,
            "at": self.at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "JournalEntry":
        """From a journal line; KeyError, TypeError or ValueError where it is none."""
        return cls(
            group=str(value["group"]),
            tp=TopicPartition(str(value["topic"]), int(value["partition"])),
            first=int(value["first"]),
            last=int(value["last"]),
            rows=tuple(Run(*map(int, run)) for run in value["rows"]),
            worker=str(value["worker"]),
            attempt=int(value["attempt"]),
            revision=str(value["revision"]),
            at=float(value["at"]),
        )


def runs(numbers: Any) -> tuple[Run, ...]:
    """Numbers (anything numpy takes) in ascending runs of equal steps; one that is there twice is
    in a run of step 0, or in two runs.

    A batch of a partition that is dealt every k-th number is one run, however many rows it has.
    """
    found = np.asarray(numbers, dtype=np.int64)
    if not len(found):
        return ()
    steps = np.diff(found)
    if (steps < 0).any():
        found = np.sort(found)
        steps = np.diff(found)
    # Where a step differs from the one before it, a run ends, unless it has only just begun.
    changes = np.flatnonzero(np.diff(steps)) + 1
    made: list[Run] = []
    begin = 0
    for end in (*changes.tolist(), len(steps)):
        if end > begin or end == len(steps):
            step = int(steps[begin]) if end > begin else 1
            made.append(Run(int(found[begin]), end - begin + 1, step))
            begin = end + 1
    return tuple(made)


def numbers(made: Iterable[Run]) -> Any:
    """The numbers in runs, as an array; one that is there twice is in it twice."""
    parts = [run.first + run.step * np.arange(run.size, dtype=np.int64) for run in made]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def entries_of(context: "BatchContext", rows: "Table", at: float) -> list[JournalEntry]:
    """A call's entries: one per range that it was told, and one per partition beside them.

    rows: the call's rows with their `topic`, `partition` and number `seq`. A row whose number is
    null shows nothing, so its record counts as lost.
    """
    told = {each.tp: (each.start, each.end - 1) for each in context.ranges}
    got: dict[TopicPartition, list[int]] = {}
    kept = rows.select(["topic", "partition", "seq"]).drop_null()
    # Not Table.group_by, which imports pandas, in the first batch of whoever takes over.
    for topic, partition, seq in zip(*(each.to_pylist() for each in kept.columns), strict=True):
        got.setdefault(TopicPartition(topic, partition), []).append(seq)
    return [
        JournalEntry(
            group=context.group,
            tp=tp,
            first=told.get(tp, (0, -1))[0],
            last=told.get(tp, (0, -1))[1],
            rows=runs(got.get(tp, ())),
            worker=context.worker,
            attempt=context.attempt,
            revision=context.revision,
            at=at,
        )
        for tp in sorted(told.keys() | got.keys())
    ]


def write_journal(context: "BatchContext", rows: "Table") -> None:
    """Say which rows this call got, by their `seq`, before anything is done with them.

    Where FLEET_JOURNAL says; nothing where it is unset, and of a call that only warms up.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder and not context.warm:
        append(Path(folder), context.worker, entries_of(context, rows, time.time()))


def append(folder: Path, worker: str, entries: Sequence[JournalEntry]) -> None:
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


def read(folder: Path) -> tuple[JournalEntry, ...]:
    """Every entry of every worker, by time.

    Raises FleetError naming file and line where a line is not an entry: a journal that cannot
    be read proves nothing. A last line without an end is being written, or its writer was killed
    in it: its call had done nothing yet.
    """
    return tuple(sorted(_lines(folder), key=lambda entry: entry.at))


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that is appended to, without a last one that has no end: it is being
    written, or its writer was killed in it. None where there is no file.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")  # the cut may go through a character
    return whole.decode("utf-8").splitlines()


def _lines(folder: Path) -> Iterator[JournalEntry]:
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(whole_lines(path), start=1):
            try:
                yield JournalEntry.from_json(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise FleetError(
                    f"{path}, line {number} is no journal entry ({error!r}): the journal is "
                    "damaged, run the demo again"
                ) from error
