"""Finds which partitions of a failed batch, and which of their records, cannot be processed.

Problem: one record may stop a batch, a partition and its group. A sink that is down fails every
record in the same way. Its records must neither count as poison nor all go to the dead-letter topic
[9]. Choice: a record counts as poison only with a control record [43]: another part of the same
batch succeeds in this round, and then the suspect fails once more. Partitions run alone first. If
none succeeds, or dead letters are wanted, a failing partition is halved until single records fail.
Without a control record the batch goes back whole, and the worker is unhealthy. The same holds if
one record makes more rows than Spark's driver returns; a larger part that does is halved, and all
of it runs. Cost: at most 2 log2(offsets) calls per poison record and one more to be sure. Each has
a range id of its own, so a sink that writes before it fails gets those records again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from fleet.kafka_source.size_limits import ANY_SIZE, refusal_of, size_of
from fleet.model import TopicPartition
from fleet.worker.batch.batches import Prepared
from fleet.worker.batch.entrypoint import RESULT_LIMIT
from fleet.worker.events import WorkerContext

MAX_UNPROVEN_FAILURES: Final = 3
"""Records that may fail alone before any part of the batch succeeded; then the search stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonRecord:
    """One record that cannot be processed; `part` is the batch of just this record."""

    tp: TopicPartition
    offset: int
    part: Prepared
    error: str
    attempts: int
    """Calls of the entrypoint for its batch until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonFound:
    """Partitions to stop, dead letters, or that nothing of the batch succeeded."""

    failed: Mapping[TopicPartition, str] = field(default_factory=dict)
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where a failed partition stops, if behind its start: every record before succeeded."""
    letters: tuple[PoisonRecord, ...] = ()
    unhealthy: str | None = None
    """The error without a control record: no record counts as processed or as poison."""


class PoisonSearch:
    """One failed batch under examination.

    attempt runs a part once: its error or None. holds: whether a part has a record at all, because
    an empty one proves nothing. rests: waits before each repetition of a suspect after a control
    record; it is poison if it fails every time.
    """

    def __init__(
        self,
        batch: Prepared,
        error: str,
        *,
        attempt: Callable[[Prepared], str | None],
        attempts: Callable[[], int],
        holds: Callable[[Prepared], bool],
        rests: Callable[[], Iterable[None]],
        narrowing: "DeadLetters | None",
        in_time: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._batch = batch
        self._error = error
        self._attempt = attempt
        self._attempts = attempts
        self._holds = holds
        self._rests = rests
        self._narrowing = narrowing
        self._in_time = in_time
        self._say = say
        self._witness = False
        """Whether any part of the batch succeeded."""

    def search(self) -> PoisonFound:
        """Runs partitions alone, then narrows those that fail. What `attempt` raises passes."""
        failed = self._alone()
        stood = set(failed) if self._witness else set()
        """Suspects that have failed after a control record."""
        blind: set[TopicPartition] = set()
        reached: dict[TopicPartition, int] = {}
        letters: list[PoisonRecord] = []
        waiting = sorted(failed)
        while waiting:
            tp = waiting.pop(0)
            if self._witness and tp not in stood:
                again = self._still_failing({tp: failed[tp]})
                if not again:
                    del failed[tp]
                    continue
                failed.update(again)
            if self._witness and self._narrowing is None and RESULT_LIMIT not in failed[tp]:
                continue
            if not self._witness and (tp in blind or len(blind) >= MAX_UNPROVEN_FAILURES):
                break  # the next one's records prove nothing either
            found, why = self._narrowed(tp, failed[tp])
            if not self._witness:
                blind.add(tp)
                waiting.append(tp)
            elif why is not None:
                failed[tp] = why
            else:
                del failed[tp]
                if self._narrowing is not None:
                    letters += found
                elif found:
                    failed[tp], reached[tp] = found[0].error, found[0].offset
        if failed and not self._witness:
            return PoisonFound(unhealthy=self._error)
        errors = (*failed.values(), *(each.error for each in letters))
        if large := [error for error in errors if RESULT_LIMIT in error]:
            return PoisonFound(unhealthy=large[0])
        return PoisonFound(failed=failed, reached=reached, letters=tuple(letters))

    def _alone(self) -> dict[TopicPartition, str]:
        """Returns what fails alone; once more if a control record succeeded meanwhile."""
        if len(self._batch.ranges) == 1:
            return {self._batch.ranges[0].tp: self._error}
        self._say(f"the batch failed ({self._error}); running its partitions one by one")
        failed = self._failing(each.tp for each in self._batch.ranges)
        return self._still_failing(failed) if failed and self._witness else failed

    def _still_failing(self, failed: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
        large = {tp: error for tp, error in failed.items() if RESULT_LIMIT in error}
        left = {tp: error for tp, error in failed.items() if tp not in large}
        for _ in self._rests() if left else ():
            left = self._failing(left)
        return large | left

    def _failing(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        outcomes = {tp: self._run(self._batch.only([tp])) for tp in tps}
        return {tp: error for tp, error in outcomes.items() if error is not None}

    def _run(self, part: Prepared) -> str | None:
        error = self._attempt(part)
        if error is None and not self._witness:
            self._witness = self._holds(part)
        return error

    def _narrowed(self, tp: TopicPartition, error: str) -> tuple[list[PoisonRecord], str | None]:
        """Returns the records that fail alone, or why the whole partition has to stop.

        If no letters are wanted, the first record is enough.
        """
        (whole,) = (each for each in self._batch.ranges if each.tp == tp)
        letters = self._narrowing
        room = 0 if letters is None else letters.room(tp, whole.start)
        found: list[PoisonRecord] = []
        suspects: list[PoisonRecord] = []
        """Failed alone, and not yet often enough after a control record."""
        waiting = [(whole.start, whole.end, error, True)]
        self._say(f"narrowing {tp} at {whole.start} to {whole.end - 1} to the records that fail")
        while waiting or (suspects and self._witness):
            if self._witness and suspects and (not waiting or len(found + suspects) > room):
                found += self._poison(suspects)
                suspects = []
                if found and letters is None:
                    return found, None
                if letters is not None and len(found) > room:
                    return [], f"{letters.refusal(tp)}: {found[-1].error}"
                continue
            start, end, told, known = waiting.pop()
            part = self._batch.part(tp, start, end)
            if part.records == 0:
                continue
            if not known:
                outcome = self._run(part)
                if outcome is None:
                    continue
                told = outcome
            if end - start > 1:
                waiting += self._halves(tp, start, end, told)
                continue
            suspects.append(
                PoisonRecord(tp=tp, offset=start, part=part, error=told, attempts=self._attempts())
            )
            if len(suspects) >= MAX_UNPROVEN_FAILURES and not self._witness:
                return [], error
            if not self._in_time():
                found += self._poison(suspects)
                suspects = []
                if found or not self._witness:
                    return [], f"it could not be narrowed within one batch_timeout: {told}"
        return found, None

    def _poison(self, suspects: list[PoisonRecord]) -> list[PoisonRecord]:
        """Returns those that fail every time again after something else succeeded."""
        for _ in self._rests():
            outcomes = [(each, self._run(each.part)) for each in suspects]
            suspects = [
                replace(each, error=error, attempts=self._attempts())
                for each, error in outcomes
                if error is not None
            ]
        return suspects

    def _halves(
        self, tp: TopicPartition, start: int, end: int, told: str
    ) -> list[tuple[int, int, str, bool]]:
        """Returns what to run next, last first: if one half succeeds, the other one fails."""
        middle = (start + end) // 2
        left = self._batch.part(tp, start, middle)
        outcome = None if left.records == 0 else self._run(left)
        if outcome is not None:
            return [(middle, end, told, False), (start, middle, outcome, True)]
        # A single record counts as poison only after it has run alone.
        return [(middle, end, told, end - middle > 1)]


# Dead letters [9]: an idempotent producer with acks=all, flushed before the commit that skips the
# records; a kill in between sends them again. Each is sent by itself and compressed, so that only a
# record larger than the topic's limit is refused. At most `MOST` of a partition's latest `WINDOW`
# offsets: more is a wrong revision, not a bad record. A new owner begins the count again.


MOST: Final = 10
WINDOW: Final = 1000
PREFIX: Final = "fleet."
_SECONDS: Final = 30.0


class DeadLetters:
    """The dead-letter topic of a worker that names one; used on the batch thread."""

    def __init__(self, context: WorkerContext, *, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self.topic = context.worker.dead_letter_topic or ""
        self._group = context.group
        self._revision = context.settings.revision
        self._options = context.client
        self._events = context.events
        self._sent: dict[TopicPartition, deque[int]] = {}
        self._producer: Any = None

    def room(self, tp: TopicPartition, start: int) -> int:
        """Returns how many records of the partition may still be sent, from offset `start` on.

        What was sent from `start` on is sent again and not counted.
        """
        sent = self._sent.get(tp, ())
        return MOST - sum(start - WINDOW <= offset < start for offset in sent)

    def refusal(self, tp: TopicPartition) -> str:
        """Returns the sentence for a full window."""
        return (
            f"more than {MOST} of the latest {WINDOW} records of {tp} cannot be "
            f"processed, too many for the dead-letter topic {self.topic}; the last error"
        )

    def send(self, letters: Sequence[PoisonRecord], spark: Any) -> str | None:
        """Writes and waits for every acknowledgement; returns why it failed, or None."""
        for letter in letters:
            for row in letter.part.rows(spark).to_pylist():
                why = self._refused(row, [*_own(row), *self._headers(letter, row)])
                if why is not None:
                    self._producer = None  # its remaining records go with it
                    return f"the dead-letter topic {self.topic} cannot be written: {why}"
        for letter in letters:
            self._note(letter)
        return None

    def _refused(self, row: Mapping[str, Any], headers: Sequence[tuple[str, Any]]) -> str | None:
        """Sends one record; returns why it is not acknowledged, or None."""
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
                    "compression.type": "zstd",  # a compressed record is no larger now
                    **self._options,
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": int(self._seconds * 1000),
                    "topic.metadata.propagation.max.ms": 10_000,
                    "linger.ms": 0,
                    "logger": self._events.librdkafka_logger(),
                    "error_cb": lambda _: None,  # reported by each record's delivery
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
        # An error's text may have what no encoding has (half of a surrogate pair).
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
        sent = self._sent.setdefault(letter.tp, deque(maxlen=MOST * 2))
        if letter.offset not in sent:
            sent.append(letter.offset)


def send_dead_letters(letters: DeadLetters | None, found: PoisonFound, spark: Any) -> PoisonFound:
    """Sends what was found before its batch may be committed; what cannot be sent has failed."""
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


def poison(letters: DeadLetters | None, batch: Prepared, error: str, spark: Any) -> PoisonFound:
    """Sends a batch of one offset to the dead letters without the entrypoint, or stops its
    partition.
    """
    (each,) = batch.ranges
    if letters is None or letters.room(each.tp, each.start) <= 0:
        return PoisonFound(failed={each.tp: error})
    letter = PoisonRecord(tp=each.tp, offset=each.start, part=batch, error=error, attempts=0)
    try:
        return send_dead_letters(letters, PoisonFound(letters=(letter,)), spark)
    except Exception as failure:  # noqa: BLE001 - named, and stopped as without a topic
        return PoisonFound(failed={each.tp: f"{error}; {type(failure).__name__}: {failure}"})


def _own(row: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Returns the record's own headers, without those of an earlier dead letter."""
    headers = row["headers"] or ()
    return [(h["key"], h["value"]) for h in headers if not h["key"].startswith(PREFIX)]
