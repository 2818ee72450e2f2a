"""All groups of a cluster, live: one reader of the whole `__consumer_offsets`.

Problem: asking the coordinators about 1,000 groups takes a second and says nothing of
rebalances; the log that they write says all of it, but a group's state is spread over it.
Choice: one Consumer, assigned by hand to every partition of the topic, on a thread of its own;
it never subscribes and never commits. It reads from the log's start (or from a time on) and
goes on; what the records come to is the view's business (fleet.log.readers.log_view). Reads are
committed ones, so that offsets equal what the coordinator answers. Whether it is current is
known, not assumed: once a second, and whenever somebody waits, the ends of all partitions are
asked for in one request, and `age` counts from the last such moment that the reading has reached.

Cost: the first reading takes as long as the log is (some 200,000 commits a second); an open
transaction of offset commits holds back its partition, membership too, until it ends.
Bounds: rebalances are kept for `keep` seconds and at most `most` a group; groups are forgotten
with their last record.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from fleet.clock import Clock
from fleet.log.readers.beside import Beside
from fleet.log.readers.group_log import DENIED, READS_ONLY, TOPIC, Unreadable
from fleet.log.readers.log_view import KEEP, MOST, LogView, everything
from fleet.system.closing import Closing

_CONFIG: Final[Mapping[str, Any]] = {
    **READS_ONLY,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,  # the question for the ends waits behind a parked fetch
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16_384,
}
_BATCH: Final = 10_000
_POLL: Final = 0.02
_BEAT: Final = 1.0
_AGAIN: Final = 5.0
"""Seconds before a topic that is absent or denied is tried again."""
_PRUNE_EVERY: Final = 60.0
_ASKING: Final = 2.0


class Tail(LogView, Closing):
    """A live view of all groups. Methods are safe for several threads.

    `config` is librdkafka's, with bootstrap.servers and security; `groups` chooses by group id;
    `since` is the wall time to read from (None: the log's start). Nothing is raised by the reading
    itself: see `problem` and `age`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        cluster: str,
        clock: Clock,
        groups: Callable[[str], bool] = everything,
        since: float | None = None,
        keep: float = KEEP,
        most: int = MOST,
    ) -> None:
        super().__init__(cluster=cluster, clock=clock, groups=groups, keep=keep, most=most)
        self._config = {**config, **_CONFIG, "error_cb": lambda _: None}
        self._address = str(config.get("bootstrap.servers", "?"))
        self._since = since
        self._news = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._beside = Beside(config, clock=clock, view=self)
        self.session = self._beside.session
        # Under the lock from here.
        self._next: dict[int, int] = {}
        self._goal: tuple[float, int, dict[int, int]] | None = None
        """When it was asked for, for which waiter, and the ends to reach."""
        self._current_at: float | None = None
        self._asked = 0
        self._answered = 0
        self._problem: str | None = None
        self._denied = False
        self._refused = False
        """The same of this try: `denied` ends only when something was read."""
        self._absent = False

    def start(self) -> "Tail":
        """Begin to read, on a thread of its own; returns at once."""
        if self._thread is None:
            self._counting_from = self._clock.now()
            self._thread = threading.Thread(target=self._run, name="offsets-tail", daemon=True)
            self._thread.start()
            self._beside.start()
        return self

    def close(self) -> None:
        """Stop reading; the view stays as it was."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)
        self._beside.close()
        with self._news:
            self._news.notify_all()

    def catch_up(self, timeout: float) -> bool:
        """Wait until all that was written before this call is read; False: not in `timeout` s.

        Raises Unreadable where the topic may not be read.
        """
        with self._news:
            self._asked += 1
            mine = self._asked
            self._wake.set()
            done = self._news.wait_for(
                lambda: self._answered >= mine or self._denied or self._ending.is_set(), timeout
            )
            if self._denied:
                raise Unreadable(self._problem or f"{TOPIC} may not be read")
            return done and self._answered >= mine

    # --- the view ---------------------------------------------------------------------------

    @property
    def problem(self) -> str | None:
        """Why nothing is read just now, in a sentence; None where all is well."""
        with self._lock:
            return self._problem

    @property
    def denied(self) -> bool:
        """The topic may not be read with this login, or is hidden from it."""
        with self._lock:
            return self._denied

    @property
    def absent(self) -> bool:
        """The topic is not there: no group has ever been, or it is hidden."""
        with self._lock:
            return self._absent

    def age(self) -> float | None:
        """Seconds since the view last held all that was written; None before the first time."""
        with self._lock:
            at = self._current_at
        return None if at is None else max(0.0, self._clock.monotonic() - at)

    # --- the thread: every Consumer call is here ----------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with _consumer(self._config) as consumer:
                    if self._assign(consumer):
                        self._follow(consumer)
            except KafkaException as error:
                self._failed(error.args[0])
            self._ending.wait(_AGAIN)

    def _assign(self, consumer: Consumer) -> bool:
        """Assign all partitions; False where there is no topic to read."""
        found = consumer.list_topics(TOPIC, timeout=_ASKING).topics.get(TOPIC)
        if found is None or found.error is not None:
            code = None if found is None else found.error.code()
            if code is not None and code in DENIED:
                self._failed(found.error)
            else:
                self._is_absent()
            return False
        with self._lock:
            fresh = not self._next
            where = [
                TopicPartition(TOPIC, number, self._next.get(number, OFFSET_BEGINNING))
                for number in sorted(found.partitions)
            ]
            self._absent = self._refused = False
        if fresh and self._since is not None:
            where = self._from(consumer, self._since, where)
        consumer.assign(where)
        return True

    def _from(
        self, consumer: Consumer, since: float, where: list[TopicPartition]
    ) -> list[TopicPartition]:
        asked = [TopicPartition(TOPIC, tp.partition, int(since * 1000)) for tp in where]
        found = consumer.offsets_for_times(asked, timeout=_ASKING)
        ends = self._ends(consumer, [tp.partition for tp in where])
        return [
            TopicPartition(TOPIC, tp.partition, tp.offset if tp.offset >= 0 else ends[tp.partition])
            for tp in found
        ]

    def _follow(self, consumer: Consumer) -> None:
        numbers = sorted(tp.partition for tp in consumer.assignment())
        beat = pruned = self._clock.monotonic()
        beat -= _BEAT
        while not self._ending.is_set():
            messages = consumer.consume(num_messages=_BATCH, timeout=_POLL)
            if messages:
                self._take(messages)
            now = self._clock.monotonic()
            if self._wake.is_set() or (self._goal is None and now - beat >= _BEAT):
                self._wake.clear()
                beat = now
                self._look(consumer, numbers)
            self._arrive()
            if now - pruned >= _PRUNE_EVERY:
                pruned = now
                self._prune()
            if self._refused:
                return

    def _look(self, consumer: Consumer, numbers: Sequence[int]) -> None:
        """Where the log ends now: what the reading has to reach to be current."""
        asked, at = self._asked, self._clock.monotonic()
        try:
            ends = self._ends(consumer, numbers)
        except KafkaException as error:
            self._failed(error.args[0])
            return
        with self._lock:
            self._problem = None
            self._goal = (at, asked, ends)

    def _ends(self, consumer: Consumer, numbers: Sequence[int]) -> dict[int, int]:
        """The ends of all partitions, in one request to each leader."""
        latest = [TopicPartition(TOPIC, number, _LATEST) for number in numbers]
        found = consumer.offsets_for_times(latest, timeout=_ASKING)
        for tp in found:
            if tp.error is not None:
                raise KafkaException(tp.error)
        return {tp.partition: tp.offset for tp in found}

    def _arrive(self) -> None:
        with self._news:
            if self._goal is None:
                return
            at, asked, ends = self._goal
            if all(end <= self._next.get(number, 0) for number, end in ends.items()):
                self._current_at, self._goal = at, None
                self._answered, self._denied = asked, False
                self._news.notify_all()

    def _take(self, messages: Sequence[Message]) -> None:
        epochs = self._epochs
        with self._lock:
            for message in messages:
                error = message.error()
                number, offset = message.partition() or 0, message.offset() or 0
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                        self._next[number] = offset
                    else:
                        self._note(error)
                    continue
                self._next[number] = offset + 1
                ms, epoch = message.timestamp()[1], message.leader_epoch()
                if epoch is not None and epochs.get(number) != epoch:
                    self._led(number, epoch, ms)
                self._record(number, offset, ms, message.key(), message.value())

    # --- failures -----------------------------------------------------------------------------

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # librdkafka looks for a coordinator, which is not needed here
        self._problem = self._sentence(error)
        if error.code() in DENIED:
            self._refused = self._denied = True
            self._news.notify_all()

    def _failed(self, error: KafkaError) -> None:
        with self._news:
            self._note(error)

    def _is_absent(self) -> None:
        """No such topic: nobody ever committed, so that an empty view is current."""
        with self._news:
            self._absent, self._problem = True, None
            self._current_at = self._clock.monotonic()
            self._answered = self._asked
            self._news.notify_all()

    def _sentence(self, error: KafkaError) -> str:
        if error.code() in DENIED:
            return (
                f"{TOPIC} at {self._address} may not be read ({error.str()}); grant Read and "
                "Describe on that topic for members, generations and rebalances"
            )
        return f"{TOPIC} at {self._address} is not being read: {error.str()}"


_LATEST: Final = -1
"""ListOffsets: the end of the log."""


@contextlib.contextmanager
def _consumer(config: Mapping[str, Any]) -> Iterator[Consumer]:
    consumer = Consumer(dict(config))
    try:
        yield consumer
    finally:
        consumer.close()
