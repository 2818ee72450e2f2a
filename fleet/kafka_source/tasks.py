"""What one Spark task does: read its ranges to their ends with a consumer of its own.

Problem: a range's last offset may be a transaction marker or compacted away, a start may be
gone, and a broker may fall silent; a loop that waits for "the last record" never ends. Choice: a
range is done at a record or an end of partition at or behind its end [7]; reset is an error; no
progress for `read_timeout` fails the task with a sentence. `assign` makes no group member: the
group's name is only the one that the principal may read with. The client holds little and asks
again at once: librdkafka waits a whole second (`fetch.queue.backoff.ms`) after its queue was
full, which here is two thirds of a task's life, and what it read ahead behind a range's end is
thrown away. Cost: a consumer's start (30 ms) per task, and some 10,000 records of each partition
read in vain.

Where a start that is gone is no failure (a compacted log that somebody reads whole), the caller
gives a word for it (`gone`), and reading goes on where the log begins.
"""

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from operator import is_not
from typing import Any, Final

from fleet.kafka_source.columns import Part, batch_of_parts, to_stderr
from fleet.kafka_source.failures import RangeTruncated, RangeUnread
from fleet.kafka_source.pieces import OffsetRange

CHUNK: Final = 10_000
"""Records of one Arrow batch, as Spark's own default."""
_POLL: Final = 0.05
_REFUSED: Final = frozenset({29, 30, 31})
"""Not authorised: for the topic, the group, the cluster. Waiting helps nothing."""
_OUT_OF_RANGE: Final = -140
_END: Final = -191
_Where = tuple[str, int]


def options_of(login: Mapping[str, str], *, group: str, isolation: str) -> dict[str, Any]:
    """Librdkafka's options for reading ranges."""
    return {
        **login,
        "group.id": group,
        "client.id": "fleet-ranges",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "fetch.wait.max.ms": 5,
        "fetch.queue.backoff.ms": 5,
        "queued.min.messages": CHUNK,
        "queued.max.messages.kbytes": 32768,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
    }


def reading(options: Mapping[str, Any]) -> Any:
    """A consumer for `read_ranges`, which closes it."""
    from confluent_kafka import Consumer  # noqa: PLC0415 - only where the task runs

    return Consumer(dict(options))


def read_ranges(
    consumer: Any,
    ranges: Sequence[OffsetRange],
    *,
    read_timeout: float,
    make: Callable[[Sequence[Part]], Any] | None = None,
    gone: Callable[[OffsetRange], Any] | None = None,
) -> Iterator[Any]:
    """The records of the ranges, at most one per partition; closes the consumer at the end.

    make: columns of messages, by partition, instead of SCHEMA's (built once for all of them they
    cost a third of what they cost one partition at a time). gone: what to yield for the part of a
    range that is before the log's first offset; without it that is a failure. Raises
    RangeTruncated or RangeUnread.
    """
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - only where the task runs

    make = make or partial(batch_of_parts, tell=to_stderr())
    todo = {(each.topic, each.partition): each for each in ranges}
    collecting = gc.isenabled()
    gc.disable()  # messages hold no cycles, and the collector looks at each of them (a quarter)
    try:
        consumer.assign([TopicPartition(r.topic, r.partition, r.start) for r in ranges])
        moved, last_error = time.monotonic(), ""
        while todo:
            room = sum(each.end - each.start for each in todo.values())
            messages = consumer.consume(min(CHUNK, room), _POLL)
            before = dict(todo)
            records, ends, errors = _sorted_out(messages)
            parts = [
                (*where, kept)
                for where, group in records.items()
                if (kept := _wanted(group, where, todo))
            ]
            made = make(parts) if parts else None
            for where, position in ends:
                _move(todo, where, position)
            behind = {where for error, where in errors if error.code() == _OUT_OF_RANGE}
            if gone is not None and behind & todo.keys():
                yield from map(gone, _lost(consumer, behind & todo.keys(), todo))
                errors = [each for each in errors if each[1] not in behind]
            for error, where in errors:
                last_error = _judge(consumer, error, where, todo)
            done = before.keys() - todo.keys()
            if done and todo:
                consumer.pause([TopicPartition(topic, partition) for topic, partition in done])
            if made is not None:
                yield made
            if parts or todo != before:
                moved = time.monotonic()  # after the yield: Spark may take its time
            elif time.monotonic() - moved > read_timeout:
                raise RangeUnread(_stalled(todo, read_timeout, last_error))
    finally:
        if collecting:
            gc.enable()
        consumer.close()


def _sorted_out(
    messages: Sequence[Any],
) -> tuple[dict[_Where, list[Any]], list[tuple[_Where, int]], list[tuple[Any, _Where]]]:
    """Records by partition, ends of partitions with their positions, errors."""
    if not messages:
        return {}, [], []
    kind = type(messages[0])
    if not any(map(is_not, map(kind.error, messages), repeat(None))):  # nearly always
        return _by_partition(messages, kind), [], []
    records: dict[_Where, list[Any]] = {}
    ends: list[tuple[_Where, int]] = []
    errors: list[tuple[Any, _Where]] = []
    for message in messages:
        error = message.error()
        where = (message.topic(), message.partition())
        if error is None:
            records.setdefault(where, []).append(message)
        elif error.code() == _END:
            ends.append((where, message.offset()))
        else:
            errors.append((error, where))
    return records, ends, errors


def _by_partition(messages: Sequence[Any], kind: type[Any]) -> dict[_Where, list[Any]]:
    """Records by partition; they come in stretches of one."""
    found: dict[_Where, list[Any]] = {}
    topics, numbers = list(map(kind.topic, messages)), map(kind.partition, messages)
    begin = 0
    if topics.count(topics[0]) == len(topics):
        stretches = [((topics[0], number), len(list(s))) for number, s in groupby(numbers)]
    else:
        stretches = [(w, len(list(s))) for w, s in groupby(zip(topics, numbers, strict=True))]
    for where, length in stretches:
        found.setdefault(where, []).extend(messages[begin : begin + length])
        begin += length
    return found


def _wanted(messages: list[Any], where: _Where, todo: dict[_Where, OffsetRange]) -> list[Any]:
    """The records of one partition that are in its range; moves or ends the range."""
    left = todo.get(where)
    if left is None:
        return []
    first, last = messages[0].offset(), messages[-1].offset()
    _move(todo, where, last + 1)
    if left.start <= first and last < left.end:  # nearly always
        return messages
    offsets = [m.offset() for m in messages]
    return messages[bisect_left(offsets, left.start) : bisect_left(offsets, left.end)]


def _move(todo: dict[_Where, OffsetRange], where: _Where, position: int) -> None:
    left = todo.get(where)
    if left is None:
        return
    if position >= left.end:
        del todo[where]
    elif position > left.start:
        todo[where] = left._replace(start=position)


def _lost(
    consumer: Any, behind: Iterable[_Where], todo: dict[_Where, OffsetRange]
) -> list[OffsetRange]:
    """What the log no longer has of ranges that are out of it; reading goes on behind that."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - only where the task runs

    lost = []
    for where in sorted(behind):
        left = todo[where]
        first, after = _bounds(consumer, where)
        if left.start > after:
            raise RangeTruncated(*where, left.start, first, after)
        if left.start < first:
            lost.append(left._replace(end=min(first, left.end)))
            _move(todo, where, lost[-1].end)
    # Seek is refused after such an error. What was prefetched of the others comes again, and so
    # may an error that is cured by now: that one ends here too, with nothing lost.
    consumer.assign([TopicPartition(r.topic, r.partition, r.start) for r in todo.values()])
    return lost


def _bounds(consumer: Any, where: _Where) -> tuple[int, int]:
    """The log's first offset, and the one after its last."""
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

    try:
        first, after = consumer.get_watermark_offsets(TopicPartition(*where), timeout=5.0)
    except KafkaException as unknown:
        raise RangeUnread(f"{where[0]}-{where[1]}: {unknown.args[0].str()}") from unknown
    return int(first), int(after)


def _judge(consumer: Any, error: Any, where: _Where, todo: Mapping[_Where, OffsetRange]) -> str:
    """Raise what cannot get better; else its words, for a stall's sentence."""
    if error.code() == _OUT_OF_RANGE and where in todo:
        raise RangeTruncated(*where, todo[where].start, *_bounds(consumer, where))
    if error.fatal() or error.code() in _REFUSED:
        raise RangeUnread(f"the brokers refuse: {error.str()} ({error.code()})")
    return str(error.str())


def _stalled(todo: Mapping[_Where, OffsetRange], read_timeout: float, last_error: str) -> str:
    left = next(iter(todo.values()))
    more = f" and {len(todo) - 1} more" if len(todo) > 1 else ""
    why = f" (last error: {last_error})" if last_error else ""
    return (
        f"no progress within {read_timeout:g} s at offset {left.start} of "
        f"{left.topic}-{left.partition}, wanted up to {left.end}{more}{why}"
    )
