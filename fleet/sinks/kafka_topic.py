"""A Kafka sink: rows go to a topic once, for readers of committed records.

Problem: after a kill between producing and committing the same offsets come again [4], and a topic
has no place for the written offsets. The worker's own offsets do not help: they say that a whole
batch is done, and only the worker commits them [2]. Choice: one transaction for each partition that
is read. It has the rows and, as offsets of a side group `<group>/<topic>`, the written offsets. Its
producer fences others. So a batch is written partition by partition: a kill leaves some of them
written, and the repetition adds the others. Rows of several records are made of one partition's
records each (`transform`).

Limits: the topic is on the cluster that the records come from (Kafka refuses offsets of unknown
topics). All rows pass through the worker's memory: up to 50,000 offsets a batch at once, above that
one partition's after the other. Cost: a producer per partition (four threads with one broker, some
14 open files with three), `_most_open` at a time. About 0.1 s a batch for transactions, eight at a
time, and 8 µs of CPU a row. If rows come partition by partition, one more job of Spark looks for
rows of no partition. A batch of more partitions is written in parts, and opens a producer again for
each that was closed for another.
"""

import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.errors import FleetError
from fleet.kafka_source.size_limits import ANY_SIZE, refusal_of, size_of, topic_limit
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import as_arrow, is_arrow
from fleet.sinks.batch_rows import (
    PLACE,
    Spans,
    Transform,
    add_span,
    columns,
    format_spans,
    new_ranges,
    new_rows,
    parse_spans,
    refuse_external,
)

# One partition's rows and its written offsets are one transaction, under a transactional id of the
# partition's own. Opening it ends an earlier transaction and fences the former producer. After that
# the written offsets are read (spans, the metadata of an offset of a side group without members).
# They cannot change any more unless this producer is fenced.


SECONDS: Final = 30.0
"""Seconds for each request to the cluster, with its repetitions."""
_NEW: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE})
"""What a broker may answer of a topic that was just created."""
_NEW_SECONDS: Final = 5.0
_ABORT_SECONDS: Final = 5.0
"""A lower limit: if it fails, the next opening or the broker ends the transaction."""
_POLL: Final = 0.05
_PAUSE: Final = 0.1
_PASSING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.CONCURRENT_TRANSACTIONS,
    }
)
"""Not always marked as retriable: a coordinator that moves or begins, an end that is under way."""
_LOST: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - so librdkafka's own codes are called
        KafkaError._STATE,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_TXN_STATE,
    }
)


class Row(NamedTuple):
    """The parts of a record."""

    key: bytes | str | None
    value: bytes | str | None
    headers: Sequence[tuple[str, bytes | None]]


class LostTransactionalId(Exception):
    """Another process opened it, or the cluster forgot it: open it and read again."""


class SideGroup:
    """A group without members that stores a topic's offsets."""

    def __init__(self, name: str, client: Mapping[str, Any]) -> None:
        self.name = name
        self._consumer = Consumer(
            {**client, "group.id": name, "isolation.level": "read_committed", "log_level": 2}
        )

    def metadata(self) -> Any:
        """Returns the group's metadata for a transaction."""
        return self._consumer.consumer_group_metadata()

    def spans(self, ranges: Sequence[BatchRange]) -> dict[BatchRange, Spans]:
        """Returns the written offsets of each range's partition and topic; none is undecided."""
        asked = [KafkaPartition(each.topic, each.partition) for each in ranges]
        found = retry(lambda: self._consumer.committed(asked, timeout=SECONDS))
        told = {(each.topic, each.partition): each for each in found}
        return {each: _spans(each, told[each.topic, each.partition]) for each in ranges}


class SpanProducer:
    """The only valid producer of one partition's rows, from its opening until it is lost."""

    def __init__(self, transactional_id: str, client: Mapping[str, Any]) -> None:
        self._client = client
        self._producer = Producer(
            {
                **ANY_SIZE,
                "linger.ms": 5,
                "log_level": 2,  # a lost id is no error here
                **client,
                "transactional.id": transactional_id,
                "delivery.report.only.error": True,
            }
        )
        retry(lambda: self._producer.init_transactions(SECONDS))
        self.topic_id = ""
        self.spans: Spans = ()

    def refusal(self, topic: str) -> str | None:
        """Returns why no process can write to that topic; None if it exists."""
        enough = time.monotonic() + _NEW_SECONDS
        while True:
            error = self._producer.list_topics(topic, timeout=SECONDS).topics[topic].error
            if error is None:
                return None
            if error.code() not in _NEW or time.monotonic() > enough:
                return str(error.str())
            time.sleep(_PAUSE)

    def read_spans(self, each: BatchRange, spans: Spans) -> None:
        """Stores what was written, read after the opening."""
        self.topic_id, self.spans = each.topic_id, spans

    def write(self, topic: str, rows: Sequence[Row], each: BatchRange, group: SideGroup) -> None:
        """Writes rows and range, or nothing.

        Raises LostTransactionalId, or FleetError if the cluster refuses a row or the transaction.
        """
        refused: list[tuple[KafkaError, int]] = []
        after = add_span(self.spans, each.start, each.end)
        metadata = _metadata(each, after)
        end = KafkaPartition(each.topic, each.partition, after[-1][1], metadata=metadata)
        try:
            self._producer.begin_transaction()
            for row in rows:
                self._produce(topic, row, refused)
            retry(
                lambda: self._producer.send_offsets_to_transaction([end], group.metadata(), SECONDS)
            )
            retry(lambda: self._producer.commit_transaction(SECONDS))
        except (KafkaException, BufferError) as failure:
            self._give_up(failure, refused, topic, each)
        self.spans = after

    def close(self) -> None:
        """Closes it now, because a kept error would keep it.

        A transaction that stays open would delay readers until the broker ends it.
        """
        with suppress(KafkaException):  # none is open, or another producer has it now
            self._producer.abort_transaction(_ABORT_SECONDS)
        del self._producer

    def _produce(self, topic: str, row: Row, refused: list[tuple[KafkaError, int]]) -> None:
        def told(error: Any, _: Any) -> None:
            if error is not None:
                refused.append((error, size_of(*row)))

        for _ in range(int(SECONDS / _POLL)):
            try:
                self._producer.produce(
                    topic, row.value, row.key, headers=list(row.headers), on_delivery=told
                )
                return
            except KafkaException as failure:
                told(failure.args[0], None)
                raise
            except BufferError:  # full: the cluster is slower than this producer
                self._producer.poll(_POLL)
        raise BufferError(f"the cluster accepted no row within {SECONDS:g} s")

    def _give_up(
        self,
        failure: Exception,
        refused: Sequence[tuple[KafkaError, int]],
        topic: str,
        each: BatchRange,
    ) -> None:
        with suppress(KafkaException):  # a fatal error is raised again
            while self._producer.poll(_POLL):  # refused rows are reported after their consequence
                pass
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        if error is not None and not refused and (error.fatal() or error.code() in _LOST):
            raise LostTransactionalId(error.str()) from failure
        if error is not None and error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            size = len(_metadata(each, add_span(self.spans, each.start, each.end)))
            why = (
                f"the metadata of its side group's offset has {size} bytes, more than the brokers' "
                "offset.metadata.max.bytes: raise that (Kafka's own value is 4096)"
            )
        elif refused:
            why = refusal_of(self._client, topic, refused)
        else:
            why = str(failure if error is None else error.str())
        raise FleetError(
            f"write_kafka: offsets {each.start} to {each.end - 1} of {each.tp} cannot be written "
            f"to {topic}: {why}"
        ) from failure


def retry(ask: Callable[[], Any]) -> Any:
    """Returns the answer, asked for again for SECONDS if that may help."""
    enough = time.monotonic() + SECONDS
    while True:
        try:
            return ask()
        except KafkaException as failure:
            error = failure.args[0]
            passing = error.retriable() or error.code() in _PASSING
            if not passing or error.fatal() or time.monotonic() > enough:
                raise
        time.sleep(_PAUSE)


def _metadata(each: BatchRange, written: Spans) -> str:
    return f"{each.topic_id} {format_spans(written)}"


def _spans(each: BatchRange, found: Any) -> Spans:
    if found.error is not None:
        raise KafkaException(found.error)
    topic_id, _, spans = (found.metadata or "").partition(" ")
    return parse_spans(spans) if topic_id == each.topic_id else ()  # another topic of the same name


SMALL: Final = 50_000
"""Offsets of a batch up to which its rows come by one job of Spark."""
MOST_OPEN: Final = 100
"""Producers of one side group at a time: the one that wrote least recently is closed first."""
_FILES: Final = 20
"""Open files that a producer may need: two pipes, a socket for each of its brokers and the
coordinator."""
_AT_ONCE: Final = 8
_TRIES: Final = 5
_BATCH: Final = 1_000_000
"""Bytes of a batch of several rows, librdkafka's default."""
_TAKEN: Final = ("key", "value", "headers")
_LEFT_OUT: Final = (*PLACE, "timestamp", "timestampType")
"""Columns of records that say where a row comes from; they are not produced."""


def write_kafka(
    rows: Any,
    topic: str,
    context: BatchContext,
    *,
    client: Mapping[str, Any],
    transform: Transform | None = None,
    name: str = "",
) -> int:
    """Produces a batch's rows once, however often it is repeated; returns how many of its ranges
    were new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it: columns value, and if wanted key and
    headers (as Spark's Kafka sink has them), beside topic, partition and offset of each row's
    record, as they were read. topic: exists on the cluster that the records come from. client:
    options of librdkafka, with bootstrap.servers and the login. transform: makes rows (key, value,
    headers) of one partition's records that are not written yet. name: tells apart two writes of
    one batch to one topic. Raises FleetError if rows are of no record of the batch or cannot be
    left out, or if the topic does not take them.
    """
    if context.warm or context.trial:
        return 0
    writer = _writer(f"{context.group}/{topic}/{name}".rstrip("/"), topic, client)
    for _ in range(_TRIES):
        try:
            return writer.write(rows, context.ranges, transform)
        except LostTransactionalId as lost:
            why = lost
    raise FleetError(
        f"write_kafka: its transactional ids for {topic} were taken away {_TRIES} times while a "
        f"batch was written ({why}): look for another worker that writes the same partitions"
    )


class _TopicWriter:
    """One topic's producers in this process."""

    def __init__(self, group: str, topic: str, client: Mapping[str, Any]) -> None:
        self._group = SideGroup(group, client)
        self._topic = topic
        self._client = client
        self._open: OrderedDict[TopicPartition, SpanProducer] = OrderedDict()

    def write(self, rows: Any, ranges: Sequence[BatchRange], transform: Transform | None) -> int:
        """See write_kafka."""
        most = _most_open()
        # Ranges with open producers go first, because opening others closes some.
        ordered = sorted(ranges, key=lambda each: each.tp not in self._open)
        small = sum(each.end - each.start for each in ranges) <= SMALL
        count = 0
        with ThreadPoolExecutor(_AT_ONCE, "write-kafka") as pool:
            for at in range(0, len(ordered), most):
                written = self._written(ordered[at : at + most], pool)
                new = new_ranges(written)
                if not new:
                    continue
                if small and transform is None:
                    rows = as_arrow(rows)  # by one job of Spark for all parts
                told = dict.fromkeys(ranges, ()) | written  # rows may be of any of the batch
                parts = _parts(rows, told, new, transform, at_once=small)
                self._write_parts(parts, pool, at_once=small)
                count += len(new)
        return count

    def _write_parts(
        self, parts: Iterable[tuple[BatchRange, Any]], pool: ThreadPoolExecutor, *, at_once: bool
    ) -> None:
        """Writes each part in its own transaction; raises the failures when all are done."""
        done: list[Future[None]] = []
        for each, table in parts:
            done.append(pool.submit(self._write, each, table))
            if not at_once:
                done[-1].result()
        failures = [failure for one in done if (failure := one.exception()) is not None]
        # A lost id is tried again, and the other failures are reported then.
        failures.sort(key=lambda each: not isinstance(each, LostTransactionalId))
        for failure in failures:
            raise failure

    def _written(
        self, ranges: Sequence[BatchRange], pool: ThreadPoolExecutor
    ) -> dict[BatchRange, Spans]:
        """Returns the written offsets of each range's partition; from now on only this process adds
        to them.
        """
        missing = [
            each
            for each in ranges
            if (known := self._open.get(each.tp)) is None or known.topic_id != each.topic_id
        ]
        self._make_room(ranges, missing)
        try:
            opened = partial(self._opened, terms=self._terms() if missing else {})
            made = dict(zip(missing, pool.map(opened, missing), strict=True))
            if made:
                refusal = next(iter(made.values())).refusal(self._topic)
                if refusal is not None:
                    raise FleetError(
                        f"write_kafka: topic {self._topic} cannot be written: {refusal}: create it "
                        "first, on the cluster that the records come from"
                    )
                for each, spans in self._group.spans(missing).items():
                    made[each].read_spans(each, spans)
                    self._open[each.tp] = made[each]
        except KafkaException as error:
            raise FleetError(
                f"write_kafka: no transaction for {self._topic} can be opened: "
                f"{error.args[0].str()}"
            ) from error
        return {each: self._open[each.tp].spans for each in ranges}

    def _make_room(self, ranges: Sequence[BatchRange], missing: Sequence[BatchRange]) -> None:
        """Closes the producers that wrote least recently before others are opened."""
        for each in missing:
            self._open.pop(each.tp, None)
        for each in ranges:
            if each.tp in self._open:
                self._open.move_to_end(each.tp)
        room = _most_open() - len(missing)
        while len(self._open) > room:
            self._open.popitem(last=False)

    def _opened(self, each: BatchRange, terms: Mapping[str, Any]) -> SpanProducer:
        return SpanProducer(f"{self._group.name}/{each.topic}/{each.partition}", terms)

    def _terms(self) -> Mapping[str, Any]:
        """Returns producer options: many small rows make no batch that the topic refuses."""
        limit = topic_limit(self._client, self._topic) or _BATCH
        return {"batch.size": min(limit, _BATCH), **self._client}

    def _write(self, each: BatchRange, table: Any) -> None:
        """Writes; after any failure the next producer of this partition first reads what is
        written.
        """
        try:
            self._open[each.tp].write(self._topic, _rows(table), each, self._group)
        except BaseException:
            self._open.pop(each.tp).close()
            raise


def _most_open() -> int:
    """Returns MOST_OPEN, or fewer if this process may open few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if files < 0 else max(1, min(MOST_OPEN, files // _FILES))


_writers: dict[tuple[Any, ...], _TopicWriter] = {}
"""Opening one takes longer than a small batch."""


def _writer(group: str, topic: str, client: Mapping[str, Any]) -> _TopicWriter:
    own = (group, topic, *sorted(client.items(), key=lambda option: option[0]))
    if own not in _writers:
        _writers[own] = _TopicWriter(group, topic, client)
    return _writers[own]


def _parts(
    rows: Any,
    written: Mapping[BatchRange, Spans],
    new: Sequence[BatchRange],
    transform: Transform | None,
    *,
    at_once: bool,
) -> Iterator[tuple[BatchRange, Any]]:
    """Returns the rows of each range as Arrow tables: by one job of Spark, or by one for each."""
    left = new_rows(rows, written, None, sink="write_kafka")
    names = columns(rows)
    if lacking := [name for name in PLACE if name not in names]:
        if len(written) > 1 or transform is not None:
            raise FleetError(
                f"write_kafka writes a batch of {len(written)} partitions partition by partition; "
                f"the rows lack {', '.join(lacking)}; keep these columns, or give write_kafka the "
                "batch's records and a transform= that makes rows"
            )
        yield new[0], _checked(as_arrow(left))
        return
    if at_once and transform is None:
        left = as_arrow(left)
    # For Spark's own sink `topic` is the target: such rows would not be produced.
    refuse_external(left, written, sink="write_kafka", by=PLACE[:2])
    for each in new:
        part = _of(left, each)
        yield each, _checked(as_arrow(part if transform is None else transform(part)))


def _of(rows: Any, each: BatchRange) -> Any:
    if not is_arrow(rows):
        return rows.where(f"topic = '{each.topic}' AND partition = {each.partition}")
    import pyarrow.compute as pc  # noqa: PLC0415 - loads pyarrow

    here = (pc.field("topic") == each.topic) & (pc.field("partition") == each.partition)
    return rows.filter(here)


def _checked(table: Any) -> Any:
    """Raises FleetError for columns that cannot be produced, or would be left out unseen."""
    import pyarrow.types as kinds  # noqa: PLC0415 - loads pyarrow

    names = table.column_names
    odd = [each for each in names if each not in (*_TAKEN, *_LEFT_OUT)]
    if "value" not in names or odd:
        raise FleetError(
            f"write_kafka produces {', '.join(_TAKEN)}; the rows have {', '.join(names)}: make one "
            "column `value` of what they hold, for example to_json(struct(*))"
        )
    fits: Sequence[Callable[[Any], bool]] = (
        kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary,
        kinds.is_null,
    )  # fmt: skip
    for name in ("key", "value"):
        if name in names and not any(fit(table.schema.field(name).type) for fit in fits):
            raise FleetError(
                f"write_kafka: column {name} is {table.schema.field(name).type}; text and bytes "
                "are produced"
            )
    return table


def _rows(table: Any) -> list[Row]:
    there = [name for name in _TAKEN if name in table.column_names]
    return [
        Row(
            row.get("key"),
            row["value"],
            [(each["key"], each["value"]) for each in row.get("headers") or ()],
        )
        for row in table.select(there).to_pylist()
    ]
