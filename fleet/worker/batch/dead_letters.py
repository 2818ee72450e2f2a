"""Records that cannot be processed, sent to a topic of their own so that the partition goes on [9].

Problem: a record that is passed over must not be lost, nor may a flood of them be called normal.
Choice: an idempotent producer with acks=all, flushed before the batch comes back, so before the
commit that passes over the records; where that fails the partition is quarantined as without a
topic. A kill between the two sends the same records again: at least once, never none. Each is sent
by itself and packed, so that only a record that is larger than what the topic takes is refused,
with its size. At most `MOST` records of a partition's latest `WINDOW` offsets: more of them is a
wrong revision, not a bad record. Cost: the count lives in the worker, so a successor begins it
anew.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from fleet.kafka_source.size_limits import ANY_SIZE, refusal_of, size_of
from fleet.model import TopicPartition
from fleet.worker.batch.batch_reader import Prepared
from fleet.worker.batch.poison_search import PoisonFound, PoisonRecord
from fleet.worker.events import Events

MOST: Final = 10
WINDOW: Final = 1000
PREFIX: Final = "fleet."
_SECONDS: Final = 30.0


class DeadLetters:
    """The dead-letter topic of one worker; used on the batch thread."""

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        revision: str,
        options: Mapping[str, Any],
        events: Events,
        most: int = MOST,
        window: int = WINDOW,
        seconds: float = _SECONDS,
    ) -> None:
        self._seconds = seconds
        self.topic = topic
        self._group = group
        self._revision = revision
        self._options = options
        self._events = events
        self._most = most
        self._window = window
        self._sent: dict[TopicPartition, deque[int]] = {}
        self._producer: Any = None

    def room(self, tp: TopicPartition, start: int) -> int:
        """How many records of the partition may still be put aside, from offset `start` on.

        What was sent from `start` on is being sent again: not counted.
        """
        sent = self._sent.get(tp, ())
        return self._most - sum(start - self._window <= offset < start for offset in sent)

    def refusal(self, tp: TopicPartition) -> str:
        """The sentence where there is no room."""
        return (
            f"more than {self._most} of the latest {self._window} records of {tp} cannot be "
            f"processed, which is too much for {self.topic}; the last error"
        )

    def send(self, letters: Sequence[PoisonRecord], spark: Any) -> str | None:
        """Write and wait for every acknowledgement; why it failed, or None."""
        for letter in letters:
            for row in letter.part.rows(spark).to_pylist():
                why = self._refused(row, [*_own(row), *self._headers(letter, row)])
                if why is not None:
                    self._producer = None  # whatever it still holds goes with it
                    return f"the dead-letter topic {self.topic} cannot be written: {why}"
        for letter in letters:
            self._note(letter)
        return None

    def _refused(self, row: Mapping[str, Any], headers: Sequence[tuple[str, Any]]) -> str | None:
        """Send one record; why it is not acknowledged, or None."""
        refused: list[KafkaError] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                refused.append(error)

        try:
            producer = self._connected()
            producer.produce(
                self.topic,
                key=row["key"],
                value=row["value"],
                headers=list(headers),
                on_delivery=delivered,
            )
            if producer.flush(self._seconds + 5.0):
                return f"no answer within {self._seconds:g} s"
        except KafkaException as error:
            refused.append(error.args[0])
        if not refused:
            return None
        size = size_of(row["key"], row["value"], headers)
        return refusal_of(self._options, self.topic, [(refused[0], size)])

    def _connected(self) -> Any:
        if self._producer is None:
            self._producer = Producer(
                {
                    **ANY_SIZE,
                    "compression.type": "zstd",  # a record that came packed is no larger now
                    **self._options,
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": int(self._seconds * 1000),
                    "topic.metadata.propagation.max.ms": 10_000,
                    "linger.ms": 0,
                    "logger": self._events.librdkafka_logger(),
                    "error_cb": lambda _: None,  # told by each record's delivery
                }
            )
        return self._producer

    def _headers(self, letter: PoisonRecord, row: Mapping[str, Any]) -> list[tuple[str, bytes]]:
        told = {
            "topic": letter.tp.topic,
            "partition": letter.tp.partition,
            "offset": letter.offset,
            "timestamp": row["timestamp"].isoformat() if row["timestamp"] else "",
            "group": self._group,
            "revision": self._revision,
            "attempts": letter.attempts,
            "error": letter.error,
        }
        # An error's words may hold what no encoding has (half of a surrogate pair).
        return [
            (PREFIX + name, str(value).encode(errors="backslashreplace"))
            for name, value in told.items()
        ]

    def _note(self, letter: PoisonRecord) -> None:
        self._events.log(
            f"{letter.tp} offset {letter.offset} cannot be processed ({letter.error}): "
            f"sent to {self.topic}"
        )
        self._events.emit(
            "dead_letter", partition=str(letter.tp), offset=letter.offset, error=letter.error
        )
        sent = self._sent.setdefault(letter.tp, deque(maxlen=self._most * 2))
        if letter.offset not in sent:
            sent.append(letter.offset)


def put_aside(letters: DeadLetters | None, found: PoisonFound, spark: Any) -> PoisonFound:
    """Send what was found, before its batch may be committed; what cannot be sent has failed."""
    if not found.letters or letters is None:
        return found
    why = letters.send(found.letters, spark)
    if why is None:
        return found
    first = {each.tp: each for each in reversed(found.letters)}
    return PoisonFound(
        failed={**{tp: f"{each.error}; {why}" for tp, each in first.items()}, **found.failed},
        reached={**{tp: each.offset for tp, each in first.items()}, **found.reached},
    )


def condemned(letters: DeadLetters | None, batch: Prepared, error: str, spark: Any) -> PoisonFound:
    """Put a batch of one offset aside that the entrypoint shall not see, or stop its partition."""
    (each,) = batch.ranges
    if letters is None or letters.room(each.tp, each.start) <= 0:
        return PoisonFound(failed={each.tp: error})
    letter = PoisonRecord(tp=each.tp, offset=each.start, part=batch, error=error, attempts=0)
    try:
        return put_aside(letters, PoisonFound(letters=(letter,)), spark)
    except Exception as failure:  # noqa: BLE001 - named, and stopped as without a topic
        return PoisonFound(failed={each.tp: f"{error}; {type(failure).__name__}: {failure}"})


def _own(row: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """The record's own headers, without those of an earlier passage through here."""
    headers = row["headers"] or ()
    return [(h["key"], h["value"]) for h in headers if not h["key"].startswith(PREFIX)]
