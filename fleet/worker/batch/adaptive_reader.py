"""Chooses the reading mode [8]; on the thread that owns the Consumer [1].

Problem: a small batch is fastest inline (0.1-0.25 s; ranges need 0.6 s). A backlog is fastest by
ranges: three times the records per second, and on a cluster every executor reads. Choice: the lag
decides. Ranges are used from three times `batch.inline` (150,000 by default), inline again once no
more than `batch.inline` waits. A job that does not finish an inline batch within
`batch.max_seconds` stays inline, because reading is not what slows it down.

Batches by ranges start at three inline ones, so that a first one cannot outlast `batch_timeout`.
They grow to what `max_seconds` allows (batch_bound.py), and a later membership starts at that size.
While ranges are used every partition is paused, from the assign callback on. On the way back the
member seeks to the next offset that is in no batch, then resumes.

Cost: each switch discards the prefetch, at most one inline batch and 32 MiB. Every action on a
DataFrame by ranges reads it again. What librdkafka cannot unpack or parse is also read by ranges,
which have no such limits; then the member goes on inline behind it. If Spark sees this machine's
memory, ranges become columnar instead, which changes neither (columnar.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.kafka_source.pieces import OffsetRange
from fleet.model import TopicPartition
from fleet.worker.batch.batches import BatchBound, InlineBatch, InlineReading, Prepared
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.ranges import NamedBatch, PartitionEnds, Ranges
from fleet.worker.events import WorkerContext

ENTER: Final = 3
"""Multiple of batch.inline: with so many waiting records, ranges are used."""
UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_COMPRESSION,  # noqa: SLF001 - so librdkafka's own codes are called
        KafkaError._BAD_MSG,  # noqa: SLF001
        KafkaError.INVALID_MSG,
        KafkaError.MSG_SIZE_TOO_LARGE,
    }
)
"""Errors of a batch that librdkafka requests again and again without progress."""
MOST_GROWTH: Final = 8
"""Multiple of the last batch by ranges, if that one was quick."""
_AHEAD: Final = 3
"""Multiple of the batch in hand: so much is gathered while Spark runs it."""
_ASKING: Final = 2.0
"""Seconds for which a backlog waits for Spark's answer on columnar reading."""
_LOOK: Final = 0.25
"""Seconds between two reads of the lag while reading inline: in memory, no request."""


def ranges_pay(waiting: int, *, inline: int, slow_job: bool, now: bool) -> bool:
    """Whether to read by ranges, given what waits and the present mode: with hysteresis."""
    return not slow_job and (waiting > inline if now else waiting >= ENTER * inline)


class AdaptiveReader:
    """Collects the records of the assigned partitions, and closes batches; see the module."""

    def __init__(
        self, context: WorkerContext, admin: Any, *, columnar: Columnar | None = None
    ) -> None:
        """admin: asks for the partitions' ends."""
        worker, events = context.worker, context.events
        self._context = context
        self._mode = mode = worker.reading
        self._batch = batch = worker.batch
        self._inline = InlineReading(
            limit=batch.inline,
            max_wait=batch.max_wait,
            max_seconds=batch.max_seconds,
            clock=context.clock,
            tell=events.report_odd_field,
        )
        self._ranges = Ranges()
        self._ends = PartitionEnds(
            admin=admin,
            isolation=worker.isolation,
            say=lambda sentence: events.log_rarely(sentence, key="leaders"),
        )
        self._clock = context.clock
        self._columnar = columnar
        self._asking_until = 0.0
        self._first_limit = min(batch.ranges, ENTER * batch.inline)
        self._bound = BatchBound(
            self._first_limit, most=batch.ranges, target=batch.max_seconds, growth=MOST_GROWTH
        )
        if columnar is not None:
            self._bound.raise_to(columnar.learnt)
        self._last = 0
        """Offsets of the last batch by ranges."""
        self._named = mode == "ranges"
        self._unread: dict[TopicPartition, int] = {}
        """Where the client cannot read on: inline again only behind it."""
        self._wanted = False
        """Whether the pipeline asked for a batch that nothing known can fill."""
        self._looked_at = 0.0
        self._was_full = False
        self._first_ids: dict[str, str] = {}
        """The id of each topic as it was begun first."""
        self._recreated: set[str] = set()
        """Topics that are others since: a consumer may know nothing of them [50]."""

    @property
    def way(self) -> str:
        """Returns the reading mode: inline, ranges or columnar."""
        if not self._named:
            return "inline"
        return "columnar" if self._by_column else "ranges"

    # --- the interface -------------------------------------------------------------------------

    def add_partition(
        self, tp: TopicPartition, *, topic_id: str, start: int, replay_to: int | None
    ) -> None:
        """Adds an assigned (or lifted) partition; its records come from `start` on.

        If `replay_to` > start, the first batch of the partition ends exactly there [4]; one too
        large for memory is read by ranges.
        """
        known = topic_id != tp.topic  # the name stands in for an unknown id
        if known and self._first_ids.setdefault(tp.topic, topic_id) != topic_id:
            self._recreated.add(tp.topic)
        if self._named:
            self._ends.forget()  # it may answer for an earlier assignment of this partition
            self._ranges.add_partition(tp, topic_id=topic_id, start=start, replay_to=replay_to)
            return
        self._inline.add_partition(tp, topic_id=topic_id, start=start, replay_to=replay_to)
        planned = 0 if replay_to is None else replay_to - start
        if self._mode == "auto" and planned > self._batch.inline:
            self._go_ranges(planned)
            self._asking_until = 0.0  # a predecessor's batch need not wait any more

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """Removes partitions and everything read of them."""
        gone = tuple(tps)
        self._ranges.drop(gone)
        self._inline.drop(gone)

    def take(self, consumer: Any, *, timeout: float) -> tuple[Any, ...]:
        """Polls once; returns errors except EOF as (KafkaError, TopicPartition | None, offset)."""
        if self._named:
            return self._take_named(consumer, timeout)
        errors = self._inline.take(consumer, timeout=timeout)
        now = self._clock.monotonic()
        # A backlog must not begin with an inline batch, which takes Spark as long as a columnar one
        # of three times as many records.
        begins = self._inline.first or (self._inline.full and not self._was_full)
        self._was_full = self._inline.full
        unread = [tp for error, tp, _ in errors if error.code() in UNREADABLE]
        if self._mode == "auto" and unread:
            positions = self._inline.positions()
            self._unread = {tp: positions[tp] for tp in unread if tp in positions}
            self._go_ranges(_cached_waiting(consumer, self._trusted()))
            return errors
        if self._mode == "auto" and (begins or now - self._looked_at >= _LOOK):
            self._looked_at = now
            waiting = _cached_waiting(consumer, self._trusted())
            slow = self._slow_job or self._inline.limit < self._batch.inline
            if ranges_pay(waiting, inline=self._batch.inline, slow_job=slow, now=False):
                self._go_ranges(waiting)
        return errors

    def to_pause(self) -> frozenset[TopicPartition]:
        """Returns partitions not to fetch now: full, or waiting for a replay to end."""
        return self._ranges.tps if self._named else self._inline.to_pause()

    def close(self, now: float, *, busy: bool = False) -> Prepared | None:
        """Returns a batch if one is due at monotonic `now`; its partitions go on behind it.

        busy: Spark runs another one. Then only a full batch is closed (or a replay, or one that is
        gathered meanwhile); any other can still take records until it can run.
        """
        if not self._named:
            return self._inline.close(now, busy=busy)
        if self._columnar is not None and self._columnar.asked and now < self._asking_until:
            return None
        asked, waiting = self._ranges.asked, self._ranges.waiting
        limit = self._most_named if busy else self._most_at_rest
        if asked and busy and waiting < self._worth_naming(limit) and not self._ranges.replay_due:
            return None
        ranges = self._ranges.cut(limit) if asked else ()
        if not ranges:
            self._wanted = True
            return None
        if self._ranges.waiting < limit:
            self._ranges.forget_looks()  # the next batch needs to know what came meanwhile
        named = NamedBatch(ranges=ranges, read=self._read)
        self._last = named.records
        return named if self._columnar is None else self._columnar.gather(named)

    @property
    def _most_named(self) -> int:
        """Returns how many offsets the next batch by ranges may have; memory has its own bound."""
        bound = self._bound.records
        if self._columnar is None:
            return bound
        fits = self._columnar.most_records or bound
        ahead = max(self._first_limit, _AHEAD * self._last) if self._by_column else bound
        return min(bound, fits, ahead)

    @property
    def _by_column(self) -> bool:
        return self._columnar is not None and self._columnar.is_on

    @property
    def _most_at_rest(self) -> int:
        """Returns the same for an idle Spark: it waits until a columnar batch is gathered."""
        return min(self._most_named, self._first_limit) if self._by_column else self._most_named

    def _worth_naming(self, limit: int) -> int:
        """Returns from how many offsets on a batch is cut while Spark is busy.

        A columnar batch can be gathered meanwhile; otherwise a larger batch costs Spark less per
        record.
        """
        return min(limit, self._batch.inline) if self._by_column else limit

    def rest(self, now: float) -> None:
        """Makes a trickle wait `max_wait` from monotonic `now` on, as after a batch."""
        self._inline.rest(now)

    def close_soon(self) -> bool:
        """Makes the next `close` wait for nothing, if a batch of the trickle takes at most twice
        `max_wait`.

        Returns whether it does.
        """
        return not self._named and self._inline.close_soon()

    def gaps(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Returns partitions whose position moved over no record: (start, position); now past it.

        By ranges such a partition is a batch without records.
        """
        return {} if self._named else self._inline.gaps()

    def seen_all_ends(self) -> bool:
        """Whether every partition was once read to its end; True if there is none."""
        if self._named:
            return self._ranges.known and not self._ranges.waiting
        return self._inline.seen_all_ends()

    def silent(self) -> Mapping[TopicPartition, int]:
        """Returns partitions of recreated topics that should be fetched and of which nothing has
        come.

        Not even that they have no records; with their positions.
        """
        silent = {} if self._named else self._unheard()
        paused = self._inline.to_pause() if silent else frozenset()
        return {tp: position for tp, position in silent.items() if tp not in paused}

    def _unheard(self) -> dict[TopicPartition, int]:
        silent = self._inline.silent().items() if self._recreated else ()
        return {tp: position for tp, position in silent if tp.topic in self._recreated}

    def _trusted(self) -> Mapping[TopicPartition, int]:
        """Returns positions whose known end is surely of this topic, not of a former one."""
        positions, unheard = self._inline.positions(), self._unheard()
        if not unheard:
            return positions
        return {tp: at for tp, at in positions.items() if tp not in unheard}

    def record_duration(self, batch: Prepared, seconds: float) -> None:
        """Records how long a batch ran: each mode adapts its own bound to the target."""
        records = batch.records
        if isinstance(batch, InlineBatch):
            self._inline.record_duration(batch, seconds)
            if records >= self._batch.inline and seconds < self._batch.max_seconds / 2:
                self._bound.raise_to(self._first_limit)
            return
        self._bound.record_duration(records, seconds)
        if self._columnar is not None:
            self._columnar.learnt = self._bound.records
        if self._slow_job:
            self._wanted = True  # the answer decides whether inline

    @property
    def _slow_job(self) -> bool:
        """Whether max_seconds has brought batches by ranges below the size of inline ones."""
        return self._bound.records < min(self._batch.inline, self._batch.ranges)

    # --- by ranges -------------------------------------------------------------------------

    def _take_named(self, consumer: Any, timeout: float) -> tuple[Any, ...]:
        """Stays a member, reads the lag, and goes back inline if it is small."""
        if self._columnar is not None:
            self._columnar.poll()
        errors = []
        for message in consumer.consume(1, timeout):
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                topic = message.topic()
                tp = None if topic is None else TopicPartition(topic, message.partition())
                errors.append((error, tp, message.offset()))
        looks = self._ends.answer()
        if looks is not None:
            self._ranges.miss(self._ranges.tps - looks.keys())
            for tp, position in self._ranges.learn(looks):
                gone = KafkaError(KafkaError._AUTO_OFFSET_RESET, "records are gone")  # noqa: SLF001
                errors.append((gone, tp, position))
            if looks and not errors:  # without any partition's answer it is not known what waits
                self._consider_inline(consumer)
        elif self._wanted and not self._ends.pending:
            self._ask()
        return tuple(errors)

    def _ask(self) -> None:
        now = self._clock.monotonic()
        if now - self._looked_at >= max(self._batch.max_wait, 0.05):
            self._looked_at, self._wanted = now, False
            self._ends.ask(self._ranges.tps)

    def _consider_inline(self, consumer: Any) -> None:
        if self._mode != "auto" or not self._ranges.asked or self._ranges.replaying:
            return
        waiting = self._ranges.waiting
        slow = self._slow_job
        if ranges_pay(waiting, inline=self._batch.inline, slow_job=slow, now=True):
            return
        parts = dict(self._ranges.parts)
        if any(parts[tp].start <= at for tp, at in self._unread.items() if tp in parts):
            return
        try:
            for tp, part in parts.items():
                consumer.seek(KafkaPartition(tp.topic, tp.partition, part.start))
        except KafkaException:
            return  # a stopped fetch is assigned again first; then the next read decides
        self._named = False
        self._ranges.drop(parts)
        for tp, part in parts.items():
            self._inline.add_partition(tp, topic_id=part.topic_id, start=part.start, replay_to=None)
        self._tell("inline", waiting)

    def _go_ranges(self, waiting: int) -> None:
        self._named, self._wanted, self._looked_at = True, True, 0.0
        self._ends.forget()
        for part in self._inline.parts():
            self._ranges.add_partition(
                part.tp, topic_id=part.topic_id, start=part.start, replay_to=part.replay_to
            )
        self._inline.drop(self._ranges.tps)
        if self._columnar is not None:
            self._columnar.prove()
            self._asking_until = self._clock.monotonic() + _ASKING
        self._tell("ranges", waiting)

    def _read(self, spark: Any, ranges: Sequence[OffsetRange]) -> Any:
        from fleet.kafka_source.source import frame_of_ranges  # noqa: PLC0415 - loads PySpark

        login, isolation = self._context.login, self._context.worker.isolation
        return frame_of_ranges(spark, ranges, login=login, isolation=isolation)

    def _tell(self, way: str, waiting: int) -> None:
        events = self._context.events
        events.log(f"reading {'by ranges' if way == 'ranges' else way}: {waiting} records wait")
        events.emit("reading", way=way, waiting=waiting)


def _cached_waiting(consumer: Any, positions: Mapping[TopicPartition, int]) -> int:
    """Returns the lag by the ends of the last fetches (READ_COMMITTED: last stable offset)."""
    waiting = 0
    for tp, position in positions.items():
        try:
            known = consumer.get_watermark_offsets(
                KafkaPartition(tp.topic, tp.partition), cached=True
            )
        except KafkaException:
            continue
        if known is not None and known[1] > position:
            waiting += known[1] - position
    return waiting
