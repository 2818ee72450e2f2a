"""The batch thread: one batch at a time through the entrypoint, with every way to fail.

Problem: a batch may fail because of its records, of the user's code or of Spark, or never end. Each
needs another answer. Choice: a failure of Spark is no attempt (connect again, run the same ranges
again). An exception of the entrypoint is tried three times, then per partition and per record, so
that only what fails stops [9]. If nothing succeeds, the batch goes back as a whole [43]. A batch
over its time is interrupted and tried once more, then the worker ends [5]. Cost: a failing batch is
called up to five times and more before a partition stops.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fleet.errors import FleetError, Unreachable
from fleet.kafka_source.failures import TRUNCATED, damage_in, failure_in
from fleet.model import TopicPartition
from fleet.model.batch_context import BatchContext
from fleet.text import duration
from fleet.worker.batch.batches import Prepared
from fleet.worker.batch.entrypoint import Entrypoint, JobErrors, call, over_limit
from fleet.worker.batch.poison_search import (
    DeadLetters,
    PoisonFound,
    PoisonSearch,
    poison,
    send_dead_letters,
)
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.batch.spark_link import SparkLink, frame_of, is_spark_failure
from fleet.worker.events import WorkerContext

# A running batch and its result: values that two threads share.


_LOOK: Final = 0.05
"""Seconds between two checks whether a batch with awaited records is still wanted."""


class InterruptReason(StrEnum):
    """Why a running batch was interrupted."""

    TIMEOUT = "batch_timeout"
    VOID = "void"
    """Its partitions are lost, or a drain ran out of time: no commit follows."""


class VoidBatch(Exception):
    """The batch in hand is not wanted any more."""


class Damage(NamedTuple):
    """A record batch that cannot be read; `after` is None if its end is not known."""

    tp: TopicPartition
    offset: int
    after: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """The result of a batch. What is not `failed` or `damaged` was written, unless `void`."""

    batch: Prepared
    seconds: float
    attempts: int
    failed: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition → the entrypoint's error after its last attempt alone."""
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For a failed partition: the failing offset, if every record before it was written."""
    damaged: Mapping[TopicPartition, Damage] = field(default_factory=dict)
    """Partition → a record batch that cannot be read; every record before it was written."""
    unhealthy: str | None = None
    """The entrypoint's error if nothing of the batch succeeded: no record counts as poison [43]."""
    letters: int = 0
    """Records that went to the dead-letter topic instead of the sink."""
    void: bool = False
    fatal: str | None = None
    """Why the worker has to end, in a sentence."""

    @property
    def stops(self) -> dict[TopicPartition, int]:
        """Returns the offset up to which each partly written partition is written."""
        starts = {each.tp: each.start for each in self.batch.ranges}
        failed = {tp: self.reached.get(tp, starts[tp]) for tp in self.failed}
        return {tp: found.offset for tp, found in self.damaged.items()} | failed


@dataclass(slots=True)
class RunningBatch:
    """A batch that its thread has, waiting or at work."""

    tag: str
    since: float | None = None
    """Monotonic start of the present attempt; None while Spark is connected again."""
    why: InterruptReason | None = None
    interrupted_at: float | None = None
    void: bool = False
    attempts: int = 0
    """Calls of the entrypoint so far."""

    def await_records(self, batch: Prepared) -> None:
        """Waits until the records are available. Raises VoidBatch if it is interrupted before."""
        while not (batch.gathered(_LOOK) or self.why):
            pass
        if self.why or self.void:
            raise VoidBatch


RETRY_PAUSES: Final = (0.5, 1.0)
"""Seconds before the second and the third attempt of a batch."""
MOST_SPARK_FAILURES: Final = 5
"""Number of lost sessions that one batch survives."""
CONNECT_SECONDS: Final = 180.0
_TASK_SECONDS: Final = 20.0
"""Seconds for which a standby waits for a free executor before it reports that there is none."""
STUCK_SECONDS: Final = 10.0
"""Seconds for an interrupted batch to return before the process ends itself."""
_HEARS: Final = 1.0
"""Seconds before a batch that took too long is run again. A process that stood still for so long
first learns, with its next poll, that other members own its partitions."""


class _DamageFound(Exception):
    """The log holds a record batch that cannot be read, twice in a row."""

    def __init__(self, damage: Damage, sentence: str) -> None:
        super().__init__(sentence)
        self.damage = damage


def _damage_of(sentence: str) -> Damage | None:
    if (found := damage_in(sentence)) is None:
        return None
    topic, partition, offset, after, why = found
    return Damage(TopicPartition(topic, partition), offset, after, why)


class BatchRunner:
    """Owns the batch thread and, on it, the Spark session."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        link: SparkLink,
        entrypoint: Entrypoint,
        is_ours: Callable[[], bool],
        renew: Callable[[], bool],
        letters: DeadLetters | None = None,
        pauses: tuple[float, ...] = RETRY_PAUSES,
        errors: JobErrors | None = None,
    ) -> None:
        self._context = context
        self._errors = errors or JobErrors(say=context.events.log)
        self._letters = letters
        self._pauses = pauses
        self._link = link
        self._entrypoint = entrypoint
        self.slot: int | None = None
        """What its contexts tell."""
        self._timeout = context.settings.group.batch_limit
        self._is_ours = is_ours
        self._renew = renew
        self._clock = context.clock
        self._events = context.events
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._jobs: list[RunningBatch] = []
        """The batch in hand first; another waits only behind one that its membership gave up."""
        self._wake = threading.Event()
        self.spark_away: str | None = None
        """Why the batch in hand stands still, while Spark is connected again."""
        self._number = 0
        self._thread = threading.Thread(target=self._loop, name="batches", daemon=True)
        self._thread.start()

    # --- asked by other threads ------------------------------------------------------------

    @property
    def session_id(self) -> str | None:
        """Returns the id of the present Spark session; None for local[n]."""
        return self._link.session_id

    def prepare(self) -> "Future[None]":
        """Connects, runs `setup`, warms; then the worker is ready."""
        return self._call_later(
            lambda: self._connect(warm=True, given_up=self._context.stop.is_set)
        )

    def end_session(self, session: str) -> "Future[str | None]":
        """Interrupts and releases another worker's Spark session [3]."""
        return self._call_later(lambda: self._link.end_session(session))

    def with_session(self, function: Callable[[Any], str | None]) -> "Future[str | None]":
        """Calls it on the batch thread, between two batches, with the SparkSession."""
        return self._call_later(lambda: self._link.answer(function, _TASK_SECONDS))

    def submit(self, batch: Prepared, done: Callable[[BatchDone], None]) -> None:
        """Runs a batch; `done` is called on the batch thread."""
        self._number += 1
        job = RunningBatch(f"fleet-{self._context.name}-{self._number}")
        with self._lock:
            self._jobs.append(job)
        self._work.put(lambda: done(self._batch(batch, job)))

    def set_aside(self, batch: Prepared, error: str, done: Callable[[BatchDone], None]) -> None:
        """Puts a batch of one record aside without the entrypoint; `done` as for `submit`."""
        self._work.put(lambda: done(self._poison(batch, error)))

    def interrupt(self, why: InterruptReason) -> None:
        """Interrupts the batch in hand; it comes back through `done`."""
        with self._lock:
            jobs = self._jobs if why is InterruptReason.VOID else self._jobs[:1]
            jobs = [job for job in jobs if job.why is None or why is InterruptReason.VOID]
            for job in jobs:
                job.why = why
                job.void = job.void or why is InterruptReason.VOID
                job.interrupted_at = self._clock.monotonic()
        self._wake.set()
        for job in jobs:
            # On a thread of its own: a hanging Spark server must not stop the caller.
            threading.Thread(target=self._link.interrupt, args=(job.tag,), daemon=True).start()

    @property
    def overdue(self) -> str | None:
        """Returns a sentence while an attempt is over `batch_timeout`; the worker is not live then
        [5].
        """
        with self._lock:
            running = self._jobs[0] if self._jobs else None
            since = None if running is None else running.since
        took = 0.0 if since is None else self._clock.monotonic() - since
        if took <= self._timeout:
            return None
        return f"the batch runs for {duration(took)}, batch_timeout is {self._timeout:g} s"

    def watch(self) -> str | None:
        """Interrupts a batch that is over its time [5]; call it often.

        Returns a sentence if the interrupt had no effect either, so that the process must end.
        """
        with self._lock:
            running = self._jobs[0] if self._jobs else None
            now = self._clock.monotonic()
            if not self._thread.is_alive():
                return "the batch thread has ended: no batch is processed any more"
            if running is None or running.since is None:
                return None
            over = running.why is None and now - running.since > self._timeout
            stuck = (
                running.interrupted_at is not None
                and now - max(running.interrupted_at, running.since) > STUCK_SECONDS
            )
        if stuck:
            return (
                f"the batch did not return within {STUCK_SECONDS:g} s of its interrupt "
                f"({running.why}): the entrypoint hangs outside Spark"
            )
        if over:
            self._events.log(
                f"the batch runs for more than batch_timeout ({self._timeout:g} s): interrupting it"
            )
            self.interrupt(InterruptReason.TIMEOUT)
        return None

    def stop(self) -> None:
        """Releases the Spark session and ends the thread, waiting at most 5 s."""
        self._work.put(self._link.close)
        self._work.put(None)
        self._thread.join(timeout=5.0)

    # --- the batch thread ------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
            del work  # and the batch with it

    def _call_later(self, function: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - told through the future
                future.set_exception(error)

        self._work.put(call)
        return future

    def _connect(self, *, warm: bool, given_up: Callable[[], bool]) -> None:
        spark = self._link.connect(timeout=CONNECT_SECONDS, given_up=given_up)
        if self._entrypoint.setup is not None:
            try:
                call(self._entrypoint.setup, spark)
            except Exception as error:
                why = self._errors.describe(error)
                raise FleetError(
                    f"setup(spark) of {self._entrypoint.name} failed: {why}"
                ) from error
        if warm:
            self._warm(spark)

    def _warm(self, spark: Any) -> None:
        """Pays the first batch's extra costs before the worker is ready: a task, code, JIT."""
        from fleet.kafka_source.columns import no_rows  # noqa: PLC0415 - loads pyarrow

        if not self._link.runs_tasks(_TASK_SECONDS):
            self._events.log(
                f"Spark scheduled no task within {_TASK_SECONDS:g} s: its cluster has no free "
                "executor; batches wait for one"
            )
        context = self._told((), attempt=1, warm=True)
        try:
            self._entrypoint(frame_of(spark, no_rows(), one_task=True), context)
        except Exception as error:
            raise FleetError(
                f"the entrypoint {self._entrypoint.name} failed on the empty batch that warms it: "
                f"{self._errors.describe(error)}"
            ) from error

    def _batch(self, batch: Prepared, job: RunningBatch) -> BatchDone:
        started = self._clock.monotonic()
        found = PoisonFound()
        damaged: dict[TopicPartition, Damage] = {}
        void, fatal = False, None
        try:
            found = self._run_readable(batch, job, damaged)
        except VoidBatch:
            void = True
        except Exception as error:  # noqa: BLE001 - any failure of ours ends the worker, named
            fatal = self._errors.line(error)
        finally:
            with self._lock:
                self._jobs.remove(job)
        return BatchDone(
            batch=batch,
            seconds=self._clock.monotonic() - started,
            attempts=job.attempts,
            failed=found.failed,
            reached=found.reached,
            damaged={} if void else damaged,
            unhealthy=found.unhealthy,
            letters=len(found.letters),
            void=void,
            fatal=fatal,
        )

    def _run_readable(
        self,
        batch: Prepared,
        job: RunningBatch,
        damaged: dict[TopicPartition, Damage],
    ) -> PoisonFound:
        """Runs what is before unreadable record batches, which are put into `damaged`."""
        left = batch
        while True:
            try:
                error = self._attempts(left, job, pauses=self._pauses)
                found = PoisonFound()
                if error is not None:
                    found = self._culprits(left, job, error)
                    found = send_dead_letters(self._letters, found, self._link.session)
            except _DamageFound as unread:
                tp, offset, *_ = unread.damage
                named = left.only(each.tp for each in left.ranges)
                if not isinstance(named, NamedBatch) or not any(
                    each.tp == tp and each.start <= offset < each.end for each in named.ranges
                ):
                    raise FleetError(f"Spark's tasks cannot read the batch: {unread}") from unread
                damaged[tp], left = unread.damage, named.before(tp, offset)
                if left.ranges:
                    continue
                found = PoisonFound()
            for tp in found.failed:  # it stops at an earlier offset
                damaged.pop(tp, None)
            return found

    def _poison(self, batch: Prepared, error: str) -> BatchDone:
        found = poison(self._letters, batch, error, self._link.session)
        return BatchDone(
            batch=batch,
            seconds=0.0,
            attempts=1,  # tries that ended processes; 0 would be a stop by the log [9]
            failed=found.failed,
            letters=len(found.letters),
        )

    def _culprits(self, batch: Prepared, job: RunningBatch, error: str) -> PoisonFound:
        deadline = self._clock.monotonic() + self._timeout
        return PoisonSearch(
            batch,
            error,
            attempt=lambda part: self._attempts(part, job, pauses=()),
            attempts=lambda: job.attempts,
            holds=self._holds_records,
            rests=lambda: self._rests(job),
            narrowing=self._letters,
            in_time=lambda: self._clock.monotonic() < deadline,
            say=self._events.log,
        ).search()

    def _holds_records(self, part: Prepared) -> bool:
        try:
            return part.holds_records(self._link.session)
        except Exception:  # noqa: BLE001 - what cannot be asked is no witness
            return False

    def _rests(self, running: RunningBatch) -> Iterator[None]:
        for seconds in self._pauses:
            self._rest(running, seconds)
            yield

    def _rest(self, running: RunningBatch, seconds: float) -> None:
        self._wake.wait(seconds)
        if running.void or not self._is_ours():
            raise VoidBatch

    def _attempts(
        self,
        batch: Prepared,
        running: RunningBatch,
        *,
        pauses: tuple[float, ...],
    ) -> str | None:
        """Returns None after a success, or the entrypoint's error after its last attempt."""
        pauses_left = list(pauses)
        spark_failures = timeouts = 0
        suspect: Damage | None = None
        while True:
            running.attempts += 1
            context = self._told(batch.ranges, attempt=running.attempts)
            try:
                self._call(batch, context, running)
                return None
            except Exception as error:
                why = self._forget_interrupt(running)
                if (
                    why is InterruptReason.VOID or not self._is_ours()
                ):  # the next owner runs the batch [3]
                    raise VoidBatch from error
                if why is InterruptReason.TIMEOUT:
                    timeouts += 1
                    if timeouts > 1:
                        raise FleetError(
                            f"a batch took longer than batch_timeout ({self._timeout:g} s) twice"
                        ) from error
                    self._rest(running, _HEARS)
                    self._events.log("the interrupted batch is run once more")
                elif (unread := failure_in(error)) is not None:
                    spark_failures += 1
                    damage = _damage_of(unread[1])
                    if damage and suspect and damage[:2] == suspect[:2]:
                        raise _DamageFound(damage, unread[1]) from error
                    suspect = damage  # its leader may have moved to a broker with a valid copy
                    self._read_again(*unread, spark_failures, running)
                elif is_spark_failure(error):
                    spark_failures += 1
                    self._recover(error, spark_failures, running)
                elif not pauses_left or over_limit(error):
                    return self._errors.describe(error)
                else:
                    told = self._errors.describe(error)
                    self._events.log(f"attempt {running.attempts} of the batch failed: {told}")
                    self._rest(running, pauses_left.pop(0))

    def _call(self, batch: Prepared, context: BatchContext, running: RunningBatch) -> None:
        spark = self._link.session
        spark.addTag(running.tag)
        with self._lock:
            running.since = self._clock.monotonic()
        try:
            running.await_records(batch)
            self._entrypoint(batch.frame(spark), context)
        finally:
            with self._lock:
                running.since = None
            spark.removeTag(running.tag)

    def _forget_interrupt(self, running: RunningBatch) -> InterruptReason | None:
        with self._lock:
            why, running.why, running.interrupted_at = running.why, None, None
        self._wake.clear()
        return InterruptReason.VOID if running.void else why

    def _recover(self, error: Exception, failures: int, running: RunningBatch) -> None:
        """Connects again after a failure of Spark, which is no attempt, if the slot is still owned
        [3].
        """
        self._events.log(
            f"Spark failed during the batch ({self._errors.line(error)}); connecting again"
        )
        if failures > MOST_SPARK_FAILURES:
            raise FleetError(
                f"Spark failed {failures} times during one batch: {self._errors.line(error)}"
            ) from error
        why = self._errors.line(error)[:200]
        self.spark_away = f"Spark does not answer; the batch runs again once it does ({why})"
        try:
            self._connect(warm=False, given_up=lambda: running.void)
        except Unreachable:
            if running.void:  # a drain that waited for it ran out of time
                raise VoidBatch from error
            raise
        finally:
            self.spark_away = None
        if not self._renew():  # with the present session: the next owner has to end it
            raise VoidBatch from error
        self._events.log("Spark is connected again; the same ranges run again")

    def _read_again(
        self, condition: str, sentence: str, failures: int, running: RunningBatch
    ) -> None:
        """Reads again what Spark's tasks could not read; that is no attempt and no poison record
        [7].
        """
        self._events.log(f"the batch's records could not be read: {sentence}")
        if condition == TRUNCATED:
            raise VoidBatch  # read again from the commit, which names the loss
        if failures > MOST_SPARK_FAILURES:
            raise FleetError(f"Spark's tasks cannot read the batch's ranges: {sentence}")
        self._rest(running, min(10.0, 2.0 ** (failures - 1)))

    def _told(self, ranges: Any, *, attempt: int, warm: bool = False) -> BatchContext:
        return BatchContext(
            cluster=self._context.settings.cluster.name,
            group=self._context.group,
            slot=self.slot,
            worker=self._context.name,
            revision=self._context.settings.revision,
            attempt=attempt,
            warm=warm,
            ranges=ranges,
        )
