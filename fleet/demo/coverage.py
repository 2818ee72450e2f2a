"""Never, once or again: the rows that a group's calls got, beside the records that there are.

Problem: whoever judges what was lost must not ask those who may have lost it, and the offsets that
calls were told say nothing of the rows that they got [34]. Choice: what the calls got is the
journal's (`fleet.demo.coverage`: the numbers that stood in the rows); what there is is read again
from the topic's beginning by librdkafka's consumer, without a group's positions. Every record has a
number that is there once, and the number says which record a row was. Cost: one pass over the
topic, about 3 µs a record, and 24 bytes of memory for each.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pyarrow import Table

from fleet.errors import FleetError, Unreachable
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.slots.codec import as_json, from_json

# The journal: before anything is done with the rows, the entrypoint appends a line per offset range
# with the numbers that stand in them. All lines of a call are one `os.write` with O_APPEND, so that
# a worker killed at any moment leaves whole lines, and a line that is there was followed by work.


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
    text = "".join(json.dumps(as_json(e), separators=(",", ":")) + "\n" for e in entries)
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
                yield from_json(JournalEntry, json.loads(line))
            except ValueError as error:
                raise FleetError(
                    f"{path}, line {number} is no journal entry: the journal is "
                    "damaged, run the demo again"
                ) from error


_GRACE: Final = 30.0
"""Seconds without a record or an end, until reading is given up."""
_LOOK: Final = 0.2
_AT_ONCE: Final = 10_000
Number = Callable[[Any], int | None]
"""The number of a record (confluent_kafka.Message); None where it has none."""


@dataclass(frozen=True, slots=True)
class Held:
    """The records of some partitions by their numbers, in two columns of equal length."""

    numbers: Any
    """Ascending (numpy)."""
    offsets: Mapping[TopicPartition, Any]
    """Partition → its records' offsets, ascending (numpy)."""
    places: Any
    """Where each number is (numpy): its partition's place in `offsets`, and its index there."""

    @classmethod
    def of(cls, records: Mapping[TopicPartition, Iterable[tuple[int, int]]]) -> "Held":
        """From partition → (offset, number) of its records, in the order of the log.

        Raises FleetError where a number is there twice: it would tell nothing.
        """
        offsets, columns, places = {}, [], []
        for place, tp in enumerate(sorted(records)):
            pairs = np.array(list(records[tp]), dtype=np.int64).reshape(-1, 2)
            offsets[tp] = pairs[:, 0]
            columns.append(pairs[:, 1])
            places.append(np.column_stack((np.full(len(pairs), place), np.arange(len(pairs)))))
        numbers = np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)
        where = np.concatenate(places) if places else np.empty((0, 2), dtype=np.int64)
        order = np.argsort(numbers, kind="stable")
        numbers, where = numbers[order], where[order]
        again = np.flatnonzero(np.diff(numbers) == 0)
        if len(again):
            raise FleetError(
                f"{len(again)} numbers, {numbers[again[0]]} first, are in the topic more than "
                "once: it was written by two producers, and nothing can be said of what was lost"
            )
        return cls(numbers, offsets, where)

    def find(self, numbers: Any) -> tuple[dict[TopicPartition, Any], Any]:
        """(partition → indices into its offsets of the records with these numbers, numbers that
        no record has); one that is asked twice is found twice.
        """
        if not len(self.numbers):
            return {}, numbers
        at = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        known = self.numbers[at] == numbers
        where = self.places[at[known]]
        found = {}
        for place, tp in enumerate(self.offsets):
            mine = where[where[:, 0] == place, 1]
            if len(mine):
                found[tp] = np.sort(mine)
        return found, numbers[~known]


def in_value(message: Any) -> int | None:
    """A value that is a number, or an object with a `seq`: what the demo's producer writes."""
    try:
        value = json.loads(message.value())
        return int(value["seq"] if isinstance(value, dict) else value)
    except (TypeError, ValueError, KeyError):
        return None


def read_topics(
    config: Mapping[str, Any], topics: Iterable[str], *, number: Number = in_value
) -> Held:
    """All committed records that these topics hold now, with a number.

    config: how a client reaches and logs in at the brokers. Raises Unreachable where they do not
    answer, FleetError where a number is there twice.
    """
    from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - loads librdkafka

    consumer = Consumer(
        {
            **config,
            "group.id": "fleet-outside-reader",  # never joined, and nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        return Held.of(_read_all(consumer, topics, number))
    except KafkaException as error:
        raise Unreachable(f"the topics could not be read: {error.args[0]}") from error
    finally:
        consumer.close()


def _read_all(
    consumer: Any, topics: Iterable[str], number: Number
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Partition → (offset, number) of all its records up to its end."""
    from confluent_kafka import KafkaError  # noqa: PLC0415 - loads librdkafka
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415

    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for topic in topics:
        told = consumer.list_topics(topic, timeout=_GRACE).topics[topic]
        found |= {TopicPartition(topic, partition): [] for partition in told.partitions}
    consumer.assign([Place(tp.topic, tp.partition, 0) for tp in found])
    unread, quiet = set(found), 0.0
    while unread:
        messages = consumer.consume(_AT_ONCE, timeout=_LOOK)
        quiet = 0.0 if messages else quiet + _LOOK
        if quiet >= _GRACE:
            raise Unreachable(f"{sorted(unread)} could not be read within {_GRACE:g} s")
        for message in messages:
            tp = TopicPartition(message.topic(), message.partition())
            error = message.error()
            if error is None:
                its = number(message)
                if its is not None and tp in unread:
                    found[tp].append((message.offset(), its))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                unread.discard(tp)
            else:
                raise Unreachable(f"{tp} could not be read: {error.str()}")
    return found


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
