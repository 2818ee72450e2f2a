"""Where an assigned partition begins: its committed offset, its plan, and whether it still exists.

Problem: `auto.offset.reset` jumps over unread data in silence where retention removed what was
committed [7]. Choice: reset is an error; at every assignment one OffsetFetch and one ListOffsets
answer for all partitions together, and a committed offset below the log start is a named loss.
Cost: two or three round trips (a few milliseconds) per assignment.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # not in __all__

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.model import TopicPartition
from fleet.worker.events import Events
from fleet.worker.plans import decode_plan

_TIMEOUT: Final = 5.0
_PAUSE: Final = 0.25
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One partition's beginning.

    committed is None where nothing was ever committed. lost is (first, next after) of offsets
    that are gone and were never read; position is already behind them.
    """

    tp: TopicPartition
    topic_id: str
    position: int
    committed: int | None
    replay_to: int | None
    lost: tuple[int, int] | None = None


class Assigner:
    """Asks the coordinator and the leaders; used on the consumer thread, in callbacks too."""

    def __init__(
        self, *, admin: Any, start_from: str, isolation: str, patience: float, clock: Clock
    ) -> None:
        self._admin = admin
        self._latest = start_from == "latest"
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if isolation == "read_committed"
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._patience = patience
        self._clock = clock
        self._ids: dict[str, str] = {}

    def starts(self, consumer: Any, tps: Sequence[TopicPartition]) -> tuple[Start, ...]:
        """The beginning of each; Unreachable where the brokers did not answer for `patience` s."""
        if not tps:
            return ()
        asked = [KafkaPartition(tp.topic, tp.partition) for tp in tps]
        committed = self._insist(lambda: _raise_errors(consumer.committed(asked, _TIMEOUT)), ())
        first = self._insist(lambda: self._offsets(tps, _EARLIEST), tps)
        known = {TopicPartition(each.topic, each.partition): each for each in committed}
        new = [tp for tp in tps if known[tp].offset < 0]
        latest = self._insist(lambda: self._offsets(new, _LATEST), new) if new else {}
        self._learn_ids({tp.topic for tp in tps})
        return tuple(self._start(tp, known[tp], first[tp], latest.get(tp)) for tp in tps)

    def end(self, tp: TopicPartition) -> int:
        """The partition's end as this isolation level sees it."""
        return int(self._insist(lambda: self._offsets([tp], _LATEST), [tp])[tp])

    def first(self, tp: TopicPartition) -> int:
        """The partition's log start."""
        return int(self._insist(lambda: self._offsets([tp], _EARLIEST), [tp])[tp])

    def _start(self, tp: TopicPartition, stored: Any, first: int, latest: int | None) -> Start:
        topic_id = self._ids.get(tp.topic, tp.topic)
        if stored.offset < 0:
            position = latest if self._latest and latest is not None else first
            return Start(
                tp=tp, topic_id=topic_id, position=position, committed=None, replay_to=None
            )
        lost = (stored.offset, first) if stored.offset < first else None
        return Start(
            tp=tp,
            topic_id=topic_id,
            position=max(stored.offset, first),
            committed=stored.offset,
            replay_to=None if lost else decode_plan(stored.metadata),
            lost=lost,
        )

    def _offsets(self, tps: Sequence[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        asked = {KafkaPartition(tp.topic, tp.partition): spec for tp in tps}
        futures = self._admin.list_offsets(
            asked, isolation_level=self._isolation, request_timeout=_TIMEOUT
        )
        return {
            TopicPartition(each.topic, each.partition): future.result().offset
            for each, future in futures.items()
        }

    def _learn_ids(self, topics: set[str]) -> None:
        """Kafka's topic ids, asked anew each time: a recreated topic has another."""
        try:
            futures = self._admin.describe_topics(
                TopicCollection(sorted(topics)), request_timeout=_TIMEOUT
            )
            for topic, future in futures.items():
                # Java's Uuid.toString is URL-safe; librdkafka's is not, and ids become file names.
                self._ids[topic] = str(future.result().topic_id).replace("+", "-").replace("/", "_")
        except KafkaException:
            return  # ids stay as known, or the topic's name stands in: never worth a failure

    def _insist(self, ask: Callable[[], Any], tps: Sequence[TopicPartition]) -> Any:
        """Ask until `patience`; between tries learn anew who leads the partitions asked for.

        librdkafka's ListOffsets goes by cached leaders and epochs and never refreshes them by
        itself: after a broker's restart it is answered with 74 for ever.
        """
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                if self._clock.monotonic() >= deadline:
                    raise Unreachable(
                        f"the brokers did not tell where the assigned partitions begin within "
                        f"{self._patience:g} s ({error.args[0].str()})"
                    ) from error
                self._clock.sleep(_PAUSE)
                for topic in {tp.topic for tp in tps}:
                    with contextlib.suppress(KafkaException):  # the next try tells
                        self._admin.list_topics(topic, timeout=_TIMEOUT)


def _raise_errors(partitions: Sequence[Any]) -> Sequence[Any]:
    for each in partitions:
        if each.error is not None:
            raise KafkaException(each.error)
    return partitions


def look_around(consumer: Any, topics: Sequence[str], events: Events) -> None:
    """Make the connections that a join needs: brokers, metadata, the coordinator [19].

    Raises KafkaException where one of them does not answer within 5 s; a topic that is not there
    (yet) is only told.
    """
    known = []
    for topic in topics:
        if topic.startswith("^"):
            consumer.list_topics(timeout=_TIMEOUT)
            continue
        told = consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic]
        if told.error is None:
            known.append(topic)
        else:
            events.say_rarely(f"topic {topic}: {told.error.str()}; waiting for it")
    if known:  # an OffsetFetch is what finds the coordinator
        consumer.committed([KafkaPartition(known[0], 0)], _TIMEOUT)
