"""Cuts batches by offset range: where partitions stand, what waits, and what a batch takes of it.

Problem: a backlog that Spark's tasks read must be cut without reading a record. Choice: a batch is
[position, some known end) per partition; the leaders return the ends at this isolation level [7].
If more waits than a batch takes, every partition gets an equal share, and what one leaves goes to
the others. A predecessor's planned end is kept exactly [4]. A partition whose leader does not
answer goes into no batch and delays no other. Cost: offsets are counted, not records: transaction
markers and compacted records are in the estimate.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in __all__

from fleet.kafka_source.pieces import LogBounds, OffsetRange
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchRange
from fleet.worker.batch.batches import Part, Prepared
from fleet.worker.events import list_names

# *Seen* (librdkafka 2.16.1): a request to a leader that was killed a moment before is answered
# after its whole timeout, without an error, by the offset -1001. As an offset that would be a log
# that ends before every position. Callers of ListOffsets read its answers here.


def listed_offset(future: Any) -> int:
    """Returns the offset of a ListOffsets answer at once; KafkaException if it has none."""
    offset = int(future.result().offset)
    if offset < 0:
        raise KafkaException(
            KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "its leader does not answer")
        )
    return offset


def listed_or_none(future: Any) -> int | None:
    """Returns the same; None if no leader answered."""
    try:
        return listed_offset(future)
    except KafkaException:
        return None


@dataclass(kw_only=True)
class NamedBatch(Prepared):
    """A closed batch that has no records, only their ranges."""

    read: Callable[[Any, Sequence[OffsetRange]], Any]
    """(SparkSession, ranges) → DataFrame."""

    @property
    def records(self) -> int:
        """Returns how many offsets: an upper bound."""
        return sum(each.end - each.start for each in self.ranges)

    @property
    def wanted(self) -> list[OffsetRange]:
        """Returns the ranges to read."""
        return [OffsetRange(r.topic, r.partition, r.start, r.end) for r in self.ranges]

    def frame(self, spark: Any) -> Any:
        """Returns the records as a DataFrame; nothing is read before Spark asks."""
        return self.read(spark, self.wanted)

    def before(self, tp: TopicPartition, offset: int) -> "NamedBatch":
        """Returns the same batch with only what is before an offset of one partition."""
        kept = (each for each in self.ranges if each.tp != tp or each.start < offset)
        return self._of(tuple(replace(e, end=offset) if e.tp == tp else e for e in kept))

    def _of(self, ranges: tuple[BatchRange, ...]) -> "NamedBatch":
        return NamedBatch(ranges=ranges, read=self.read)


@dataclass(slots=True, kw_only=True)
class _RangePart(Part):
    look: LogBounds | None = None
    missed: bool = False
    """Whether its leader was asked last and did not answer."""

    @property
    def waiting(self) -> int:
        return 0 if self.look is None else max(0, self.look.stable - self.start)


class Ranges:
    """Cuts ranges from positions and answers. Pure."""

    def __init__(self) -> None:
        self._parts: dict[TopicPartition, _RangePart] = {}

    def add_partition(
        self, tp: TopicPartition, *, topic_id: str, start: int, replay_to: int | None
    ) -> None:
        """See AdaptiveReader.add_partition."""
        self._parts[tp] = _RangePart(tp=tp, topic_id=topic_id, start=start, replay_to=replay_to)

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        """See AdaptiveReader.drop."""
        for tp in tps:
            self._parts.pop(tp, None)

    def learn(
        self, looks: Mapping[TopicPartition, LogBounds]
    ) -> tuple[tuple[TopicPartition, int], ...]:
        """Takes answers in; returns partitions outside of their log, with their positions."""
        outside = []
        for tp, look in looks.items():
            part = self._parts.get(tp)
            if part is None:
                continue
            part.look, part.missed = look, False
            part.end_at(look.end)
            if not look.first <= part.start <= look.end:
                outside.append((tp, part.start))
                part.look = None  # must not be cut as it is
        return tuple(outside)

    def miss(self, tps: Iterable[TopicPartition]) -> None:
        """Records leaders that did not answer: a batch with their partitions would fail."""
        for tp in tps:
            if tp in self._parts:
                self._parts[tp].look, self._parts[tp].missed = None, True

    def forget_looks(self) -> None:
        """Drops answers that are too old to decide by."""
        for part in self._parts.values():
            part.look = None

    @property
    def tps(self) -> frozenset[TopicPartition]:
        """Returns all partitions."""
        return frozenset(self._parts)

    @property
    def parts(self) -> Mapping[TopicPartition, Part]:
        """Returns all partitions with their state."""
        return self._parts

    @property
    def known(self) -> bool:
        """Whether every partition has an answer."""
        return all(part.look is not None for part in self._parts.values())

    @property
    def asked(self) -> bool:
        """Whether every partition has an answer, or was asked in vain."""
        return all(part.look is not None or part.missed for part in self._parts.values())

    @property
    def replaying(self) -> bool:
        """Whether some partition still has a predecessor's range to repeat."""
        return any(part.replay_to is not None for part in self._parts.values())

    @property
    def replay_due(self) -> bool:
        """Whether such a range comes next, of a partition whose leader answers."""
        return bool(self._replays())

    def _replays(self) -> "dict[TopicPartition, _RangePart]":
        parts = self._parts.items()
        return {tp: p for tp, p in parts if p.replay_to is not None and not p.missed}

    @property
    def waiting(self) -> int:
        """Returns how many offsets wait, as far as known."""
        return sum(part.waiting for part in self._parts.values())

    def cut(self, limit: int) -> tuple[BatchRange, ...]:
        """Returns the next batch's ranges and moves behind them; () if nothing waits.

        Ranges to repeat come first, alone and whole, once their partitions have answers.
        """
        replays = self._replays()
        if replays:
            if any(part.look is None for part in replays.values()):
                return ()
            sizes = {tp: (part.replay_to or 0) - part.start for tp, part in replays.items()}
        else:
            sizes = fair({tp: part.waiting for tp, part in self._parts.items()}, limit)
        wanted = [(self._parts[tp], size) for tp, size in sorted(sizes.items()) if size > 0]
        return tuple(part.cut(part.start + size) for part, size in wanted)


def fair(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Returns at most `limit` in all: equal shares; what a partition leaves goes to others."""
    given: dict[TopicPartition, int] = {}
    left = limit
    ascending = sorted(waiting.items(), key=lambda item: (item[1], item[0]))
    for done, (tp, wants) in enumerate(ascending):
        share = -(-left // (len(ascending) - done))
        given[tp] = min(wants, share, left)
        left -= given[tp]
    return given


# The calling thread must keep polling [1]. So the admin client uses its own connections, and its
# futures are checked once per turn. librdkafka's ListOffsets uses cached leaders and never
# refreshes them, so a metadata request follows a failure.


_TIMEOUT: Final = 5.0
_METADATA_TIMEOUT: Final = 1.0
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class PartitionEnds:
    """One request at a time; used on the consumer thread. say: gets leaders that do not answer."""

    def __init__(self, *, admin: Any, isolation: str, say: Callable[[str], None]) -> None:
        self._admin = admin
        self._say = say
        self._level = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._asked: tuple[dict[Any, Any], ...] = ()

    @property
    def pending(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked)

    def ask(self, tps: Iterable[TopicPartition]) -> None:
        """Starts a request; an earlier one is dropped."""
        wanted = [KafkaPartition(tp.topic, tp.partition) for tp in sorted(tps)]
        self._asked = ()
        if wanted:
            self._asked = (
                self._list(wanted, _EARLIEST, IsolationLevel.READ_UNCOMMITTED),
                self._list(wanted, _LATEST, self._level),
                self._list(wanted, _LATEST, IsolationLevel.READ_UNCOMMITTED),
            )

    def forget(self) -> None:
        """Drops the awaited answer."""
        self._asked = ()

    def answer(self) -> dict[TopicPartition, LogBounds] | None:
        """Returns the leaders' answers, once all have come; failed partitions are left out."""
        if not self._asked or not all(f.done() for asked in self._asked for f in asked.values()):
            return None
        errors: list[str] = []
        first, end, high = (_values(asked, errors) for asked in self._asked)
        known = first.keys() & end.keys() & high.keys()
        failed = [tp for tp in _tps(self._asked[0]) if tp not in known]
        self._asked = ()
        if failed:
            untold = f"no leader returns where {list_names(failed)} ends ({errors[0]})"
            self._say(f"{untold}: these partitions are not read meanwhile, others are")
        with contextlib.suppress(KafkaException):  # none answers: the next request shows
            for topic in sorted({tp.topic for tp in failed}):
                self._admin.list_topics(topic, timeout=_METADATA_TIMEOUT)
        # Requested one after the other: a log may grow between two answers.
        return {tp: LogBounds(first[tp], end[tp], max(end[tp], high[tp])) for tp in known}

    def _list(self, wanted: list[KafkaPartition], spec: Any, level: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = self._admin.list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=_TIMEOUT
        )
        return found


def _values(asked: dict[Any, Any], errors: list[str]) -> dict[TopicPartition, int]:
    """Returns offsets by partition; errors: added to, in words."""
    found = {}
    for each, future in asked.items():
        try:
            found[TopicPartition(each.topic, each.partition)] = listed_offset(future)
        except KafkaException as error:
            errors.append(error.args[0].str())
    return found


def _tps(asked: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in asked]
