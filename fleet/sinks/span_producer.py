"""Rows of one partition that is read, into a topic, with what is written of it: one transaction.

Problem: whoever writes has to know what is written already, and nobody else may write between his
look and his transaction, not even a former owner of the partition who was frozen and wakes up.
Choice: a transactional id of the partition's own. Who opens it ends what was begun under it before
and fences whoever had it; then he reads what is written, which cannot change any more without him
being fenced, and so needs no second look for as long as his transactions succeed. What is written
(spans of offsets) is the metadata of an offset of a side group without members, sent with the
transaction. Cost: a producer with its connections and threads for each partition that is read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from fleet.errors import FleetError
from fleet.kafka_source.size_limits import ANY_SIZE, refusal_of, size_of
from fleet.model.batch_context import BatchRange
from fleet.sinks.written import Spans, added, of_text, to_text

SECONDS: Final = 30.0
"""For each request to the cluster, its repetitions included."""
_ABORT_SECONDS: Final = 5.0
"""Bounded further: if it fails, the next opening or the broker ends the transaction."""
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
"""Not always told as retriable: a coordinator that moves or begins, an end that is under way."""
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
    """What a record is made of."""

    key: bytes | str | None
    value: bytes | str | None
    headers: Sequence[tuple[str, bytes | None]]


class LostTransactionalId(Exception):
    """Somebody else opened it, or the cluster forgot it: open it anew and look what is written."""


class SideGroup:
    """Where the offsets stand that a topic holds: a group that nobody is a member of."""

    def __init__(self, name: str, client: Mapping[str, Any]) -> None:
        self.name = name
        self._consumer = Consumer(
            {**client, "group.id": name, "isolation.level": "read_committed", "log_level": 2}
        )

    def metadata(self) -> Any:
        """As a transaction takes it."""
        return self._consumer.consumer_group_metadata()

    def spans(self, ranges: Sequence[BatchRange]) -> dict[BatchRange, Spans]:
        """What is written of each range's partition and topic; none of it is undecided."""
        asked = [KafkaPartition(each.topic, each.partition) for each in ranges]
        found = repeated(lambda: self._consumer.committed(asked, timeout=SECONDS))
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
        repeated(lambda: self._producer.init_transactions(SECONDS))
        self.topic_id = ""
        self.spans: Spans = ()

    def refusal(self, topic: str) -> str | None:
        """Why nobody can write to that topic; None where it is there."""
        found = self._producer.list_topics(topic, timeout=SECONDS).topics[topic]
        return None if found.error is None else str(found.error.str())

    def knows(self, each: BatchRange, spans: Spans) -> None:
        """What was written, read after the opening."""
        self.topic_id, self.spans = each.topic_id, spans

    def write(self, topic: str, rows: Sequence[Row], each: BatchRange, group: SideGroup) -> None:
        """Rows and range, or nothing.

        Raises LostTransactionalId, FleetError where the cluster refuses a row or the transaction.
        """
        refused: list[tuple[KafkaError, int]] = []
        after = added(self.spans, each.start, each.end)
        metadata = _metadata(each, after)
        end = KafkaPartition(each.topic, each.partition, after[-1][1], metadata=metadata)
        try:
            self._producer.begin_transaction()
            for row in rows:
                self._produce(topic, row, refused)
            repeated(
                lambda: self._producer.send_offsets_to_transaction([end], group.metadata(), SECONDS)
            )
            repeated(lambda: self._producer.commit_transaction(SECONDS))
        except (KafkaException, BufferError) as failure:
            self._give_up(failure, refused, topic, each)
        self.spans = after

    def let_go(self) -> None:
        """Close it now: an error that somebody looks at holds whatever raised it.

        A transaction that stays open would hold up readers until the broker ends it.
        """
        with suppress(KafkaException):  # none is open, or it is another's by now
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
            except BufferError:  # full: the cluster is slower than we are
                self._producer.poll(_POLL)
        raise BufferError(f"nothing was taken within {SECONDS:g} s")

    def _give_up(
        self,
        failure: Exception,
        refused: Sequence[tuple[KafkaError, int]],
        topic: str,
        each: BatchRange,
    ) -> None:
        with suppress(KafkaException):  # a fatal one is told again
            while self._producer.poll(_POLL):  # rows refused are told behind what came of it
                pass
        error = failure.args[0] if isinstance(failure, KafkaException) else None
        if error is not None and not refused and (error.fatal() or error.code() in _LOST):
            raise LostTransactionalId(error.str()) from failure
        if error is not None and error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            size = len(_metadata(each, added(self.spans, each.start, each.end)))
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


def repeated(ask: Callable[[], Any]) -> Any:
    """The answer, asked for again for SECONDS where that may help."""
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
    return f"{each.topic_id} {to_text(written)}"


def _spans(each: BatchRange, found: Any) -> Spans:
    if found.error is not None:
        raise KafkaException(found.error)
    topic_id, _, spans = (found.metadata or "").partition(" ")
    return of_text(spans) if topic_id == each.topic_id else ()  # another topic of the same name
