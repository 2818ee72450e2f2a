"""Inline reading: what the member consumes becomes a bounded Arrow table.

Problem: a batch must be bounded in records, bytes and waiting, must repeat its predecessor's cut
after a failover [4], and must cost little per record in Python. Choice: messages are kept as they
come, per partition, and turned into columns once, when the batch closes. (Two million attribute
calls a second are faster than any cleverer way here.) Ranges cover all offsets: a range starts
where the last ended and ends at the position, so gaps of compaction and transaction markers are
inside. Cost: a batch in memory, at most 64 MiB of values beside librdkafka's prefetch.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError

from fleet.clock import Clock
from fleet.kafka_source.columns import ReportField, batch_of, no_rows, to_stderr
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange

# How many records the next batch may have. If a busy Spark takes more than `max_seconds` for any
# batch, fewer records are no faster, and a backlog grows for ever (seen: 60 records each 6 s, with
# 1,000 allowed and 300 a second to process). A line through the last batches shows which part of
# their time does not depend on records. The rest of `max_seconds`, and at least as much, is for the
# records.


_KEPT: Final = 0.85
"""Weight of a batch relative to the next one."""
_VARIED: Final = 0.15
"""Standard deviation of the numbers of records, as a fraction of their mean, from which a line is
fitted."""


class BatchBound:
    """The size limit of one reading mode; `first` records, never more than `most`.

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

    def record_duration(self, records: int, seconds: float) -> None:
        """Records how long a batch of so many records took."""
        seconds = max(seconds, 0.001)
        self._remember(records, seconds)
        whatever = seconds * self._whatever()
        room, theirs = max(self._target - whatever, whatever), seconds - whatever
        # A line through few batches may be wrong: it may at most double a batch.
        more = min(self._growth, max(2.0, self._target / seconds))
        fits = records * min(more, room / theirs if theirs else more)
        if seconds > self._target and records > 1:
            self.records = max(1, min(self.records, int(fits)))
        if records >= self.records:
            self.records = min(self._most, max(self.records, int(fits)))

    def raise_to(self, records: int) -> None:
        """Raises the limit, because another reading mode has shown that so many are possible."""
        self.records = max(self.records, records)

    def _remember(self, records: int, seconds: float) -> None:
        self._weight = self._weight * _KEPT + 1
        self._x = self._x * _KEPT + records
        self._y = self._y * _KEPT + seconds
        self._xx = self._xx * _KEPT + records * records
        self._xy = self._xy * _KEPT + records * seconds

    def _whatever(self) -> float:
        """Returns the seconds of the last batches that do not depend on their records."""
        mean, took = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean * mean
        if variance <= (_VARIED * mean) ** 2:
            return 0.0
        each = (self._xy / self._weight - mean * took) / variance
        return min(1.0, max(0.0, 1 - each * mean / took))


MAX_BYTES: Final = 64 << 20
"""Bytes of values that close a batch."""
MOST_BYTES: Final = 96 << 20
"""Most bytes of values of one batch with several records. librdkafka hands over all that it
unpacked, and Spark Connect takes 128 MiB in one call."""
STREAM: Final = 500
"""Records a second from which on a batch begins whenever Spark is idle. It takes 0.05-0.09 s and as
much of a core, so that a record of such a stream costs less than 0.2 ms."""
ONE_TASK: Final = 2_000
"""Most records that Spark gets as one partition. Rows in one partition are grouped and joined
without an exchange, which takes a third of such a batch's time."""
ONE_TASK_BYTES: Final = 512 << 10
"""Bytes of their values; Spark warns of a task that is larger than 1,000 KiB."""
LAST: Final = 2.0
"""Multiple of max_wait: what a last batch before a revocation may take. It spares its own records a
wait of up to max_wait and one more batch, and costs the group's other records what it takes."""
QUICK: Final = 0.25
"""Seconds: at most so many records as take this long go as one partition. If each row takes long (a
function of the user's asks a server for it), several tasks are worth their cost."""


@dataclass(kw_only=True)
class Prepared(ABC):
    """A closed batch: its ranges, and the records as a DataFrame when asked."""

    ranges: tuple[BatchRange, ...]
    """One range per partition, each with start < end."""

    @property
    @abstractmethod
    def records(self) -> int:
        """Returns the number of records (an estimate if the reading mode does not know)."""

    @abstractmethod
    def frame(self, spark: Any) -> Any:
        """Returns the records as a DataFrame with the columns of Spark's Kafka source."""

    @abstractmethod
    def _of(self, ranges: tuple[BatchRange, ...]) -> "Prepared":
        """Returns the records of these ranges, which are within its own."""

    def gathered(self, seconds: float) -> bool:  # noqa: ARG002 - most need not wait
        """Whether `frame` need not wait; waits at most so long for that."""
        return True

    def only(self, tps: Iterable[TopicPartition]) -> "Prepared":
        """Returns the same batch with just these partitions."""
        kept = frozenset(tps)
        return self._of(tuple(each for each in self.ranges if each.tp in kept))

    def part(self, tp: TopicPartition, start: int, end: int) -> "Prepared":
        """Returns the records of [start, end) of one partition; that range is within its own."""
        (whole,) = (each for each in self.ranges if each.tp == tp)
        return self._of((replace(whole, start=start, end=end),))

    def holds_records(self, spark: Any) -> bool:
        """Whether it has a record at all: offsets may be markers, or compacted."""
        return bool(self.frame(spark).limit(1).count())

    def rows(self, spark: Any) -> pa.Table:
        """Returns the records themselves; called only for a part of very few."""
        return self.frame(spark).toArrow()


@dataclass(kw_only=True)
class InlineBatch(Prepared):
    """A closed batch with its records, per partition."""

    tables: Mapping[TopicPartition, pa.Table]
    one_task: bool = False
    """Whether the DataFrame has one partition; else as many as Spark has cores."""

    @property
    def records(self) -> int:
        """Returns the number of records."""
        return sum(table.num_rows for table in self.tables.values())

    def table(self) -> pa.Table:
        """Returns all records; per partition in offset order."""
        tables = [self.tables[each.tp] for each in self.ranges if each.tp in self.tables]
        return pa.concat_tables(tables) if tables else no_rows()

    def frame(self, spark: Any) -> Any:
        """Returns the records as a DataFrame."""
        from fleet.worker.batch.spark_link import frame_of  # noqa: PLC0415 - pyspark only when it runs

        return frame_of(spark, self.table(), one_task=self.one_task)

    def _of(self, ranges: tuple[BatchRange, ...]) -> "InlineBatch":
        tables = {each.tp: self.tables[each.tp] for each in ranges if each.tp in self.tables}
        for each in ranges:
            if each not in self.ranges and each.tp in tables:
                table = tables[each.tp]
                first, after = table["offset"].to_numpy().searchsorted([each.start, each.end])
                # A copy: PySpark's conversion takes no slice whose bitmap begins inside a byte.
                tables[each.tp] = table.take(pa.array(range(first, after), pa.int64()))
        return replace(self, ranges=ranges, tables=tables)

    def holds_records(self, spark: Any) -> bool:  # noqa: ARG002 - it has them here
        """Whether it has a record at all."""
        return self.records > 0

    def rows(self, spark: Any) -> pa.Table:  # noqa: ARG002 - it has them here
        """Returns the records themselves."""
        return self.table()


@dataclass(slots=True, kw_only=True)
class Part:
    """One assigned partition, and where its next batch begins."""

    tp: TopicPartition
    topic_id: str
    start: int
    """The next offset that is in no batch."""
    replay_to: int | None
    """Where its next batch has to end [4]."""

    def __post_init__(self) -> None:
        if self.replay_to is not None and self.replay_to <= self.start:
            self.replay_to = None

    def end_at(self, end: int) -> None:
        """Sets the end of its log: if that is before the plan (an unclean election), nothing more
        is repeated.
        """
        if self.replay_to is not None and end < self.replay_to:
            self.replay_to = end if end > self.start else None

    def cut(self, end: int) -> BatchRange:
        """Returns its range of a batch, up to `end`; the next one begins there."""
        made = BatchRange(
            topic=self.tp.topic,
            topic_id=self.topic_id,
            partition=self.tp.partition,
            start=self.start,
            end=end,
        )
        self.start, self.replay_to = end, None
        return made


@dataclass(slots=True, kw_only=True)
class _InlinePart(Part):
    """A partition with its records that are in no batch yet."""

    begun: int
    position: int
    messages: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    end_seen: bool = False
    fresh: bool = True
    """In no batch yet since it was assigned."""

    @property
    def is_heard(self) -> bool:
        """Whether its records come, or it has none."""
        return bool(self.messages) or self.end_seen

    @property
    def silent(self) -> bool:
        """Whether nothing came since it was begun."""
        return self.position == self.begun and not self.end_seen


class InlineReading:
    """Messages of a real Consumer in, closed batches out. Messages need offset() and len()."""

    def __init__(
        self,
        *,
        limit: int,
        max_wait: float,
        max_seconds: float,
        clock: Clock,
        max_bytes: int = MAX_BYTES,
        tell: ReportField | None = None,
    ) -> None:
        self._bound = BatchBound(limit, most=limit, target=max_seconds, growth=2)
        self._quick = BatchBound(ONE_TASK, most=ONE_TASK, target=QUICK, growth=2)
        self._clock = clock
        self._tell = tell or to_stderr()
        self.limit = limit
        self.one_task = ONE_TASK
        """Most records of a batch that is one task of Spark's."""
        self.max_wait = max_wait
        self.max_bytes = max_bytes
        self._parts: dict[TopicPartition, _InlinePart] = {}
        self._bytes = 0
        self._count = 0
        self._last_at = -math.inf
        """Monotonic time at which the last batch closed, or has ended."""
        self._last_took = (math.inf, 0)
        """Seconds of the last batch, and its records; no end of seconds while there was none."""
        self._fresh_since: float | None = None
        """Since when records wait for partitions just assigned that were not heard of yet."""

    def add_partition(
        self, tp: TopicPartition, *, topic_id: str, start: int, replay_to: int | None
    ) -> None:
        """See AdaptiveReader.add_partition."""
        self.drop([tp])
        self._parts[tp] = _InlinePart(
            tp=tp,
            topic_id=topic_id,
            start=start,
            replay_to=replay_to,
            begun=start,
            position=start,
        )

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """See AdaptiveReader.drop."""
        for tp in tps:
            part = self._parts.pop(tp, None)
            if part is not None:
                self._count -= len(part.messages)
                self._bytes -= sum(map(len, part.messages))

    def add(self, tp: TopicPartition, messages: Sequence[Any]) -> None:
        """Adds records of one partition in offset order; unassigned partitions are ignored."""
        part = self._parts.get(tp)
        if part is None:
            return
        offsets = [m.offset() for m in messages]
        known = bisect_left(offsets, part.position)  # a fetch after a pause may repeat some
        if known:
            messages, offsets = messages[known:], offsets[known:]
        if not messages:
            return
        part.messages.extend(messages)
        part.offsets.extend(offsets)
        part.position = offsets[-1] + 1
        self._count += len(messages)
        self._bytes += sum(map(len, messages))

    def end_at(self, tp: TopicPartition, position: int) -> None:
        """Records that the partition was read to its end: past markers and compacted records."""
        part = self._parts.get(tp)
        if part is None:
            return
        part.end_seen = True
        part.position = max(part.position, position)
        part.end_at(position)

    @property
    def full(self) -> bool:
        """Whether the open batch may take no more."""
        return self._count >= self.limit or self._bytes >= self.max_bytes

    @property
    def first(self) -> bool:
        """Whether its records would be the first batch since partitions were assigned."""
        return self._count > 0 and any(part.fresh for part in self._parts.values())

    @property
    def room(self) -> int:
        """Returns how many records may be requested at once, so that one poll stays bounded in
        bytes.
        """
        mean = self._bytes / self._count if self._count else 2048.0
        by_bytes = int((self.max_bytes - self._bytes) / max(1.0, mean))
        return max(1, min(self.limit - self._count, by_bytes, 10_000))

    def to_pause(self) -> frozenset[TopicPartition]:
        """See AdaptiveReader.to_pause."""
        replaying = self._replaying()
        if replaying:
            waiting = {tp for tp, part in replaying.items() if not _complete(part)}
            return frozenset(self._parts.keys() - waiting)
        return frozenset(self._parts) if self.full else frozenset()

    def close(self, now: float, *, busy: bool = False) -> InlineBatch | None:
        """See AdaptiveReader.close."""
        replaying = self._replaying()
        if replaying:
            if not all(_complete(part) for part in replaying.values()):
                return None
            return self._cut(replaying, now)
        if self._count == 0:
            return None
        if not self.full and (busy or not self._worth_it(now)):
            return None
        return self._cut(self._parts, now)

    def _worth_it(self, now: float) -> bool:
        """Whether to start a batch on an idle Spark.

        At once for as much as a stream brings; else `max_wait` after the last batch ended, for any
        trickle. If it counted from the batch's begin, members with longer batches would never leave
        a shared Spark idle, and a new owner would wait behind all of them. After an assignment the
        pause goes on until the first commit. So nothing is waited for once every partition was
        heard of; else a later one would have to wait a batch more.
        """
        if self.first:
            since = self._fresh_since = now if self._fresh_since is None else self._fresh_since
            parts = self._parts.values()
            return all(part.is_heard for part in parts) or now - since >= self.max_wait
        return self._count >= STREAM * self.max_wait or now - self._last_at >= self.max_wait

    def rest(self, now: float) -> None:
        """See AdaptiveReader.rest: the last batch has ended, or other members go first."""
        self._last_at = now

    def close_soon(self) -> bool:
        """See AdaptiveReader.close_soon: assumes the last batch's duration for as many records."""
        seconds, records = self._last_took
        quick = seconds * max(1.0, self._count / max(1, records)) <= LAST * self.max_wait
        if hurried := self._count > 0 and not self.full and quick:
            self._last_at = -math.inf
        return hurried

    def gaps(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """See AdaptiveReader.gaps."""
        moved = {}
        for tp, part in self._parts.items():
            waiting = bool(part.messages) or part.replay_to is not None
            if part.end_seen and not waiting and part.position > part.start:
                moved[tp] = (part.start, part.position)
                part.start = part.position
        return moved

    def seen_all_ends(self) -> bool:
        """See AdaptiveReader.seen_all_ends."""
        return all(part.end_seen for part in self._parts.values())

    def silent(self) -> Mapping[TopicPartition, int]:
        """Returns partitions of which nothing came since they were begun, with their positions."""
        return {tp: part.position for tp, part in self._parts.items() if part.silent}

    def parts(self) -> tuple[Part, ...]:
        """Returns all assigned partitions."""
        return tuple(self._parts.values())

    def positions(self) -> Mapping[TopicPartition, int]:
        """Returns the next offset to read of each."""
        return {tp: part.position for tp, part in self._parts.items()}

    def take(self, consumer: Any, *, timeout: float) -> tuple[Any, ...]:
        """See AdaptiveReader.take."""
        messages = consumer.consume(self.room if not self.full else 1, timeout)
        if not messages:
            return ()
        errors: list[Any] = []
        records: dict[tuple[str, int], list[Any]] = {}
        for message in messages:
            error = message.error()
            if error is None:
                records.setdefault((message.topic(), message.partition()), []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                self._flush(records)
                tp = TopicPartition(message.topic(), message.partition())
                self.end_at(tp, message.offset())
            else:
                errors.append((error, _tp_of(message), message.offset()))
        self._flush(records)
        return tuple(errors)

    def _flush(self, records: dict[tuple[str, int], list[Any]]) -> None:
        for (topic, partition), messages in records.items():
            self.add(TopicPartition(topic, partition), messages)
        records.clear()

    def record_duration(self, batch: Prepared, seconds: float) -> None:
        """See AdaptiveReader.record_duration."""
        self.rest(self._clock.monotonic())
        self._last_took = (seconds, batch.records)
        for bound in (self._bound, self._quick):
            bound.record_duration(batch.records, seconds)
        self.limit, self.one_task = self._bound.records, self._quick.records

    def _replaying(self) -> dict[TopicPartition, _InlinePart]:
        return {tp: part for tp, part in self._parts.items() if part.replay_to is not None}

    def _cut(self, parts: Mapping[TopicPartition, _InlinePart], now: float) -> InlineBatch:
        ranges, tables = [], {}
        records, size_of_values = 0, 0
        too_many = self._bytes > MOST_BYTES
        for tp, part in sorted(parts.items()):
            end = part.position if part.replay_to is None else part.replay_to
            if too_many and part.replay_to is None:
                end = _end_within(part, self.max_bytes - size_of_values, least=int(not records))
            if end <= part.start:
                continue
            ranges.append(part.cut(end))
            size = bisect_left(part.offsets, end)
            taken = part.messages[:size]
            if taken:
                batch = batch_of(tp.topic, tp.partition, taken, self._tell)
                tables[tp] = pa.Table.from_batches([batch])
            del part.messages[:size], part.offsets[:size]
            records += size
            size_of_values += sum(map(len, taken))
        for part in parts.values():
            part.fresh = False
        self._count -= records
        self._bytes -= size_of_values
        self._last_at, self._fresh_since = now, None
        return InlineBatch(
            ranges=tuple(ranges),
            tables=tables,
            one_task=records <= self.one_task and size_of_values <= ONE_TASK_BYTES,
        )


def _end_within(part: _InlinePart, room: int, *, least: int) -> int:
    """Returns where a partition's part of a batch ends: `room` bytes, or `least` records."""
    for at, message in enumerate(part.messages):
        room -= len(message)
        if room < 0 and at >= least:
            return part.offsets[at] if at else part.start
    return part.position


def _complete(part: _InlinePart) -> bool:
    return part.replay_to is not None and part.position >= part.replay_to


def _tp_of(message: Any) -> TopicPartition | None:
    topic = message.topic()
    return None if topic is None else TopicPartition(topic, message.partition())
