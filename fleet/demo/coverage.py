"""Counts lost and duplicated records: compares the rows that calls got with the topic's records.

Problem: a worker that lost a record cannot prove it, and a call's offset range says nothing of the
rows that it got [34]. Choice: the entrypoint journals the numbers in its rows. Librdkafka's
consumer reads the topic again from its start, without a group's offsets. Every record has a unique
number, which identifies the record of a row. Cost: one pass over the topic, about 3 µs and 24 bytes
of memory a record.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pyarrow import Table

from fleet.errors import FleetError, Unreachable
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.slots.codec import as_json, from_json

# The journal: before it processes the rows, the entrypoint appends a line per offset range with the
# numbers of its rows. All lines of a call are one `os.write` with O_APPEND, so that a worker killed
# at any moment leaves whole lines. Work follows each line.


FOLDER_VARIABLE: Final = "FLEET_JOURNAL"
"""Environment variable that names the folder of the journal; without it there is no journal."""


class Run(NamedTuple):
    """`size` numbers in equal steps: first, first + step, …"""

    first: int
    size: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One partition of one call of an entrypoint."""

    group: str
    tp: TopicPartition
    first: int
    """First offset of the call's range; `rows` holds what the call got."""
    last: int
    """Last offset of that range, inclusive; before `first` if the call had no range."""
    rows: tuple[Run, ...]
    """The numbers in the partition's rows."""
    worker: str
    attempt: int
    revision: str
    at: float
    """Wall time just before the work, seconds."""

    @property
    def records(self) -> int:
        """Returns the number of rows."""
        return sum(run.size for run in self.rows)


def runs(numbers: Any) -> tuple[Run, ...]:
    """Packs numbers (anything numpy takes) into ascending runs of equal steps.

    A repeated number is in a run of step 0, or in two runs. A batch of a partition that gets every
    k-th number is one run.
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
    """Unpacks runs into an array of numbers; keeps repeated ones."""
    parts = [run.first + run.step * np.arange(run.size, dtype=np.int64) for run in made]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def entries_of(context: "BatchContext", rows: "Table", at: float) -> list[JournalEntry]:
    """Returns a call's entries: one per offset range, and one per other partition in its rows.

    rows: the call's rows with their `topic`, `partition` and number `seq`. A null number identifies
    no record, so its record counts as lost.
    """
    ranges = {each.tp: (each.start, each.end - 1) for each in context.ranges}
    got: dict[TopicPartition, list[int]] = {}
    kept = rows.select(["topic", "partition", "seq"]).drop_null()
    # Not Table.group_by, which imports pandas: that would slow the first batch after a handover.
    for topic, partition, seq in zip(*(each.to_pylist() for each in kept.columns), strict=True):
        got.setdefault(TopicPartition(topic, partition), []).append(seq)
    return [
        JournalEntry(
            group=context.group,
            tp=tp,
            first=ranges.get(tp, (0, -1))[0],
            last=ranges.get(tp, (0, -1))[1],
            rows=runs(got.get(tp, ())),
            worker=context.worker,
            attempt=context.attempt,
            revision=context.revision,
            at=at,
        )
        for tp in sorted(ranges.keys() | got.keys())
    ]


def write_journal(context: "BatchContext", rows: "Table") -> None:
    """Journals the numbers (`seq`) of this call's rows before the call processes them.

    Writes to the folder FLEET_JOURNAL; nothing if it is unset or the call only warms up.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder and not context.warm:
        append(Path(folder), context.worker, entries_of(context, rows, time.time()))


def append(folder: Path, worker: str, entries: Sequence[JournalEntry]) -> None:
    """Appends the entries to the worker's file with one write; none if there are none."""
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
            raise OSError(f"wrote only {written} of {len(data)} bytes; check for a full disk")
    finally:
        os.close(handle)


def read(folder: Path) -> tuple[JournalEntry, ...]:
    """Reads every entry of every worker, by time.

    Raises FleetError with file and line if a line is not an entry: a damaged journal proves
    nothing. Ignores a last line without an end: its worker is still writing it, or was killed
    before the call did anything.
    """
    return tuple(sorted(_lines(folder), key=lambda entry: entry.at))


def whole_lines(path: Path) -> list[str]:
    """Reads the complete lines of a file that is appended to; none if there is no file."""
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
                    f"{path}, line {number} is not a journal entry: the journal is damaged; "
                    "run the demo again"
                ) from error


_GRACE: Final = 30.0
"""Seconds without a record or an end after which reading fails."""
_LOOK: Final = 0.2
_AT_ONCE: Final = 10_000
Number = Callable[[Any], int | None]
"""Returns the number of a record (confluent_kafka.Message); None if it has none."""


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """The records of some partitions, by partition and offset; the columns are numpy's."""

    partitions: tuple[TopicPartition, ...]
    place: Any
    """Place of each record's partition in `partitions`."""
    offset: Any
    numbers: Any
    """Ascending."""
    order: Any
    """The record of each of `numbers`."""

    @classmethod
    def of(cls, records: Mapping[TopicPartition, Iterable[tuple[int, int]]]) -> "TopicRecords":
        """Indexes partition → (offset, number) of its records, in the order of the log.

        Raises FleetError if a number is repeated: it would identify no record.
        """
        tps = tuple(sorted(records))
        parts = [np.array(list(records[tp]), dtype=np.int64).reshape(-1, 2) for tp in tps]
        place = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        offset, number = np.concatenate([*parts, np.empty((0, 2), dtype=np.int64)]).T
        order = np.argsort(number, kind="stable")
        numbers = number[order]
        again = np.flatnonzero(np.diff(numbers) == 0)
        if len(again):
            raise FleetError(
                f"{len(again)} numbers are in the topic more than once, {numbers[again[0]]} first: "
                "two producers wrote it, so losses cannot be counted; use a new topic"
            )
        return cls(tps, place, offset, numbers, order)

    def find(self, numbers: Any) -> tuple[Any, Any]:
        """Returns the records with these numbers, ascending, and unknown numbers.

        A repeated number gives a repeated record.
        """
        if not len(self.numbers):
            return self.order, numbers
        at = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        known = self.numbers[at] == numbers
        return np.sort(self.order[at[known]]), numbers[~known]

    def within(self, due: "Due") -> Any:
        """Tells of each record whether it is due."""
        bounds = np.array([due.get(tp, (0, 0)) for tp in self.partitions], dtype=np.int64)
        first, end = bounds.reshape(-1, 2)[self.place].T
        return (first <= self.offset) & (self.offset < end)

    def runs(self, which: Any) -> Iterator[Any]:
        """Splits ascending records into runs of consecutive offsets of one partition."""
        parted = (np.diff(self.offset[which]) != 1) | (np.diff(self.place[which]) != 0)
        return (run for run in np.split(which, np.flatnonzero(parted) + 1) if len(run))


def number_in_value(message: Any) -> int | None:
    """Reads the number of a record: its value is a number, or a JSON object with a `seq`."""
    try:
        value = json.loads(message.value())
        return int(value["seq"] if isinstance(value, dict) else value)
    except (TypeError, ValueError, KeyError):
        return None


def read_topics(
    config: Mapping[str, Any], topics: Collection[str], *, number: Number = number_in_value
) -> TopicRecords:
    """Reads all committed records of these topics that have a number.

    config: the client's connection and login. Raises Unreachable if the brokers do not answer,
    FleetError if a number is repeated.
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
        return TopicRecords.of(_read_all(consumer, topics, number))
    except KafkaException as error:
        named = ", ".join(topics)
        raise Unreachable(f"topics {named} cannot be read: {error.args[0]}") from error
    finally:
        consumer.close()


def _read_all(
    consumer: Any, topics: Iterable[str], number: Number
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Reads partition → (offset, number) of all its records up to its end."""
    from confluent_kafka import KafkaError  # noqa: PLC0415 - loads librdkafka
    from confluent_kafka import TopicPartition as Place  # noqa: PLC0415

    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for topic in topics:
        known = consumer.list_topics(topic, timeout=_GRACE).topics[topic]
        found |= {TopicPartition(topic, partition): [] for partition in known.partitions}
    consumer.assign([Place(tp.topic, tp.partition, 0) for tp in found])
    unread, quiet = set(found), 0.0
    while unread:
        messages = consumer.consume(_AT_ONCE, timeout=_LOOK)
        quiet = 0.0 if messages else quiet + _LOOK
        if quiet >= _GRACE:
            left = ", ".join(map(str, sorted(unread)))
            raise Unreachable(f"no record of {left} arrived for {_GRACE:g} s; see the broker's log")
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
                raise Unreachable(f"{tp} cannot be read: {error.str()}")
    return found


Due = Mapping[TopicPartition, tuple[int, int]]
"""Partition → (first offset, end offset) that a group had to process exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """A run of records that was lost or processed again, and when that showed."""

    tp: TopicPartition
    first: int
    end: int
    """The first offset after it."""
    at: float
    """When a later record was first processed (lost; infinite if none was), or when the records
    were processed again (duplicates)."""

    @property
    def records(self) -> int:
        """Returns the number of records."""
        return self.end - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a group's journal shows of the records that it had to process exactly once."""

    processed: int
    """Distinct due records that the group processed."""
    lost: tuple[Discrepancy, ...]
    duplicates: tuple[Discrepancy, ...]

    @property
    def lost_and_duplicates(self) -> tuple[int, int]:
        """Returns (lost, duplicates); each further processing is one more duplicate."""
        return sum(s.records for s in self.lost), sum(s.records for s in self.duplicates)

    def lost_between(self, start: float, end: float) -> int:
        """Counts the records whose loss showed in [start, end); an infinite end takes the rest."""
        return sum(
            s.records for s in self.lost if start <= s.at and (s.at < end or end == float("inf"))
        )

    def duplicates_between(self, start: float, end: float) -> int:
        """Counts the records processed again in [start, end)."""
        return sum(s.records for s in self.duplicates if start <= s.at < end)


def coverage(
    entries: Iterable[JournalEntry], *, group: str, due: Due, topic_records: TopicRecords
) -> Coverage:
    """Compares the rows that a group's calls got with the records of its topics.

    Ignores records outside the due ranges. `topic_records` must be read after the journal. Raises
    FleetError if a row has a number that no record has.
    """
    held, wanted = topic_records, topic_records.within(due)
    times = np.zeros(len(wanted), dtype=np.int64)
    seen: list[tuple[int, float]] = []  # last record of each partition of a call, and its time
    duplicates: list[Discrepancy] = []

    def slip(run: Any, at: float) -> Discrepancy:
        tp = held.partitions[held.place[run[0]]]
        first, last = held.offset[run[[0, -1]]].tolist()
        return Discrepancy(tp=tp, first=first, end=last + 1, at=at)

    for entry in sorted((e for e in entries if e.group == group), key=lambda e: e.at):
        found, strange = held.find(numbers(entry.rows))
        if len(strange):
            raise FleetError(
                f"worker {entry.worker} got {len(strange)} rows of {entry.tp} that are not in the "
                f"topic, number {strange[0]} first: the topic was recreated or written again"
            )
        which, count = np.unique(found[wanted[found]], return_counts=True)
        lasts = which[np.flatnonzero(np.diff(held.place[which], append=-1))]
        seen += [(last, entry.at) for last in lasts.tolist()]
        again = count - (times[which] == 0)
        times[which] += count
        while (again > 0).any():  # each repetition of a record counts
            duplicates += [slip(run, entry.at) for run in held.runs(which[again > 0])]
            again = again - 1

    def lost(run: Any) -> Discrepancy:
        place = held.place[run[0]]
        beyond = [at for last, at in seen if last > run[0] and held.place[last] == place]
        return slip(run, min(beyond, default=float("inf")))

    return Coverage(
        processed=int((times > 0).sum()),
        lost=tuple(lost(run) for run in held.runs(np.flatnonzero(wanted & (times == 0)))),
        duplicates=tuple(duplicates),
    )


def records_between(
    entries: Iterable[JournalEntry], *, group: str, start: float, end: float
) -> int:
    """Counts the rows that the group's calls got in [start, end), with repetitions."""
    return sum(e.records for e in entries if e.group == group and start <= e.at < end)
