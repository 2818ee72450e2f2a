"""A Kafka sink: rows go to a topic once, as readers see them who read what is committed.

Problem: after a kill between producing and committing the same offsets come again [4], and a topic
has no place for what it holds of them. The worker's own offsets are none: they say that a whole
batch is done, and only the worker commits them [2]. Choice: one transaction for each partition that
is read, with its rows and, as offsets of a side group `<group>/<topic>`, what is written of it;
`span_producer` has how nobody comes between. So a batch is written partition by partition: a kill
leaves some of them written, and the repetition adds the others. Rows that several records make are
made of one partition's records each (`transform`).

Limits: the topic is on the cluster that the records come from (Kafka refuses offsets of topics
that it does not have). All rows pass through the worker's memory: a batch's up to 50,000 offsets,
above that one partition's after the other. Cost: a producer per partition (four threads of it with
one broker, some 14 open files with three), `_most_open` at a time; about 0.1 s a batch for
transactions, eight at a time, and 8 µs of CPU a row; one more job of Spark where rows come
partition by partition, which looks for rows of none. A batch of more partitions is written in
parts of so many, and opens a producer anew for each that gave way to another.
"""

import resource
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from fleet.errors import FleetError
from fleet.kafka_source.size_limits import topic_limit
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext, BatchRange
from fleet.sinks.arrow_rows import as_arrow, is_arrow
from fleet.sinks.batch_rows import (
    PLACE,
    Transform,
    columns,
    new_ranges,
    new_rows,
    refuse_foreign,
)
from fleet.sinks.span_producer import LostTransactionalId, Row, SideGroup, SpanProducer
from fleet.sinks.written import Spans

SMALL: Final = 50_000
"""Offsets of a batch up to which its rows come by one job of Spark."""
MOST_OPEN: Final = 100
"""Producers of one side group at a time: a partition not written for longest gives way."""
_FILES: Final = 20
"""That a producer may need: two pipes, a socket for each of its brokers and the coordinator."""
_AT_ONCE: Final = 8
_TRIES: Final = 5
_BATCH: Final = 1_000_000
"""Bytes of a batch of several rows, as librdkafka has it."""
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
    """Produce a batch's rows once, however often it is repeated; how many of its ranges were new.

    rows: the batch's DataFrame, or a `pyarrow.Table` of it: columns value, and if wanted key and
    headers (as Spark's Kafka sink has them), beside topic, partition and offset, as they were read,
    of the record that each row is of. topic: is there, on the cluster that the records come from.
    client: options of librdkafka, with bootstrap.servers and the login. transform: makes rows (key,
    value, headers) of one partition's records that are not written yet. name: tells apart two
    writes of one batch to one topic. Raises FleetError where rows are of no record of the batch or
    cannot be left out, or the topic does not take them.
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
        # Whose producers are open go first: those that are opened close others.
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
        """Each in a transaction of its own; what failed is raised when all are done."""
        done: list[Future[None]] = []
        for each, table in parts:
            done.append(pool.submit(self._write, each, table))
            if not at_once:
                done[-1].result()
        failures = [failure for one in done if (failure := one.exception()) is not None]
        # A lost id is tried again, and tells the other failures then.
        failures.sort(key=lambda each: not isinstance(each, LostTransactionalId))
        for failure in failures:
            raise failure

    def _written(
        self, ranges: Sequence[BatchRange], pool: ThreadPoolExecutor
    ) -> dict[BatchRange, Spans]:
        """What the topic holds of each range's partition; from now on only we add to it."""
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
                    made[each].knows(each, spans)
                    self._open[each.tp] = made[each]
        except KafkaException as error:
            raise FleetError(
                f"write_kafka: no transaction for {self._topic} can be opened: "
                f"{error.args[0].str()}"
            ) from error
        return {each: self._open[each.tp].spans for each in ranges}

    def _make_room(self, ranges: Sequence[BatchRange], missing: Sequence[BatchRange]) -> None:
        """Close those not written for longest before others are opened."""
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
        """Options of the producers: many small rows make no batch that the topic refuses."""
        limit = topic_limit(self._client, self._topic) or _BATCH
        return {"batch.size": min(limit, _BATCH), **self._client}

    def _write(self, each: BatchRange, table: Any) -> None:
        """Whatever fails, the producer is of no more use: its next one begins with a look."""
        try:
            self._open[each.tp].write(self._topic, _rows(table), each, self._group)
        except BaseException:
            self._open.pop(each.tp).let_go()
            raise


def _most_open() -> int:
    """MOST_OPEN, or fewer where this process may open few files."""
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
    """The rows of each range as Arrow tables: by one job of Spark, or by one for each."""
    left = new_rows(rows, written, None, sink="write_kafka")
    names = columns(rows)
    if lacking := [name for name in PLACE if name not in names]:
        if len(written) > 1 or transform is not None:
            raise FleetError(
                f"write_kafka: a batch of {len(written)} partitions is written partition by "
                f"partition, and the rows lack {', '.join(lacking)}: keep these columns, or give "
                "write_kafka the batch's records and the function that makes rows of them "
                "(transform=)"
            )
        yield new[0], _checked(as_arrow(left))
        return
    if at_once and transform is None:
        left = as_arrow(left)
    # Spark's own sink takes `topic` for where a row goes: of such rows none would be produced.
    refuse_foreign(left, written, sink="write_kafka", by=PLACE[:2])
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
    """FleetError for columns that cannot be produced, or would be left out unseen."""
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
