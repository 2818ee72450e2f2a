"""The batch thread: one batch at a time through the entrypoint, with every way that it may fail.

Problem: a batch may fail because of its records, of the user's code, of Spark, or never end;
each wants another answer. Choice: a failure of Spark is no attempt (connect again, run the
same ranges again); an exception of the entrypoint is tried three times, then per partition and
per record, so that only what fails stops [9]; where nothing goes well the batch comes back
`unhealthy`, and nothing is condemned [43]; a batch over `batch_timeout` is interrupted by its tag
and run once more, then the worker ends [5]. Cost: the user's Python code between two Spark calls
cannot be interrupted; where it hangs, the process ends itself.
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
    put_aside,
)
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.batch.spark_link import SparkLink, frame_of, is_spark_failure
from fleet.worker.events import WorkerContext

# What a batch is while it runs, and what became of it: values that two threads speak.


_LOOK: Final = 0.05
"""Seconds between two looks at whether a batch whose records are awaited is wanted still."""


class Why(StrEnum):
    """Why a running batch was interrupted."""

    TIMEOUT = "batch_timeout"
    VOID = "void"
    """Its partitions are lost, or a drain ran out of time: nobody waits for it."""


class Void(Exception):
    """The batch in hand is not wanted any more."""


class Damage(NamedTuple):
    """A record batch that cannot be read; `after` is None if its end is not known."""

    tp: TopicPartition
    offset: int
    after: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """What became of a batch. What is not `failed` or `damaged` was written, unless `void`."""

    batch: Prepared
    seconds: float
    attempts: int
    failed: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Partition → the entrypoint's error, after its last attempt alone."""
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of a failed partition: the offset that fails, where every record before it was written."""
    damaged: Mapping[TopicPartition, Damage] = field(default_factory=dict)
    """Partition → a record batch that cannot be read; every record before it was written."""
    unhealthy: str | None = None
    """The entrypoint's error where nothing of the batch went well: nobody's poison [43]."""
    letters: int = 0
    """Records that went to the dead-letter topic instead of the sink."""
    void: bool = False
    fatal: str | None = None
    """Why the worker has to end: a sentence."""

    @property
    def stops(self) -> dict[TopicPartition, int]:
        """Of partitions that are not written whole: the offset up to which they are."""
        starts = {each.tp: each.start for each in self.batch.ranges}
        failed = {tp: self.reached.get(tp, starts[tp]) for tp in self.failed}
        return {tp: found.offset for tp, found in self.damaged.items()} | failed


@dataclass(slots=True)
class Running:
    """A batch that its thread has, waiting or at work."""

    tag: str
    since: float | None = None
    """Monotonic start of the attempt in hand; None while Spark is connected again."""
    why: Why | None = None
    interrupted_at: float | None = None
    void: bool = False
    attempts: int = 0
    """Calls of the entrypoint until now."""

    def await_records(self, batch: Prepared) -> None:
        """Wait until they are at hand. Raises Void where it is interrupted before."""
        while not (batch.gathered(_LOOK) or self.why):
            pass
        if self.why or self.void:
            raise Void


RETRY_PAUSES: Final = (0.5, 1.0)
"""Seconds before the second and the third attempt of a batch."""
MOST_SPARK_FAILURES: Final = 5
"""Lost sessions that one batch survives."""
CONNECT_SECONDS: Final = 180.0
_TASK_SECONDS: Final = 20.0
"""How long a standby waits for a place on a cluster before it says that there is none."""
STUCK_SECONDS: Final = 10.0
"""How long an interrupted batch may take to return before the process ends itself."""
_HEARS: Final = 1.0
"""Seconds before a batch that took too long is run again: a process that was stopped that long
hears first, with its next poll, that the partitions are another's by now."""


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
        still_ours: Callable[[], bool],
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
        self._still_ours = still_ours
        self._renew = renew
        self._clock = context.clock
        self._events = context.events
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._jobs: list[Running] = []
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
        """Of the Spark session now; None for local[n]."""
        return self._link.session_id

    def prepare(self) -> "Future[None]":
        """Connect, run `setup`, warm; the worker is ready when it is done."""
        return self._call_later(
            lambda: self._connect(warm=True, given_up=self._context.stop.is_set)
        )

    def cure(self, session: str) -> "Future[str | None]":
        """Interrupt and release another worker's Spark session [3]."""
        return self._call_later(lambda: self._link.cure(session))

    def with_session(self, function: Callable[[Any], str | None]) -> "Future[str | None]":
        """Call it on the batch thread, between two batches, with the SparkSession."""
        return self._call_later(lambda: self._link.answer(function, _TASK_SECONDS))

    def submit(self, batch: Prepared, done: Callable[[BatchDone], None]) -> None:
        """Run a batch; `done` is called on the batch thread."""
        self._number += 1
        job = Running(f"fleet-{self._context.name}-{self._number}")
        with self._lock:
            self._jobs.append(job)
        self._work.put(lambda: done(self._batch(batch, job)))

    def condemn(self, batch: Prepared, error: str, done: Callable[[BatchDone], None]) -> None:
        """Put a batch of one record aside, unread by the entrypoint; `done` as for `submit`."""
        self._work.put(lambda: done(self._poison(batch, error)))

    def interrupt(self, why: Why) -> None:
        """Cancel the batch in hand; it comes back through `done`."""
        with self._lock:
            jobs = self._jobs if why is Why.VOID else self._jobs[:1]
            jobs = [job for job in jobs if job.why is None or why is Why.VOID]
            for job in jobs:
                job.why = why
                job.void = job.void or why is Why.VOID
                job.interrupted_at = self._clock.monotonic()
        self._wake.set()
        for job in jobs:
            # From a thread of its own: a Spark server that hangs must not stop the caller.
            threading.Thread(target=self._link.interrupt, args=(job.tag,), daemon=True).start()

    @property
    def overdue(self) -> str | None:
        """A sentence while an attempt is over `batch_timeout`: the worker is not live then [5]."""
        with self._lock:
            running = self._jobs[0] if self._jobs else None
            since = None if running is None else running.since
        took = 0.0 if since is None else self._clock.monotonic() - since
        if took <= self._timeout:
            return None
        return f"the batch runs for {duration(took)}, batch_timeout is {self._timeout:g} s"

    def watch(self) -> str | None:
        """To be called often: interrupts a batch that is over its time [5].

        A sentence where the interrupt had no effect either, so that the process must end.
        """
        with self._lock:
            running = self._jobs[0] if self._jobs else None
            now = self._clock.monotonic()
            if not self._thread.is_alive():
                return "the thread that runs batches has ended: nothing is processed any more"
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
            self._events.log(f"the batch is over its {self._timeout:g} s: interrupting it")
            self.interrupt(Why.TIMEOUT)
        return None

    def stop(self) -> None:
        """Release the Spark session and end the thread, waiting at most 5 s."""
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
                raise FleetError(
                    f"setup(spark) of {self._entrypoint.name} failed: {self._errors.told(error)}"
                ) from error
        if warm:
            self._warm(spark)

    def _warm(self, spark: Any) -> None:
        """What a first batch pays, paid before the worker is ready: a task, code, JIT, Python."""
        from fleet.kafka_source.columns import no_rows  # noqa: PLC0415 - loads pyarrow

        if not self._link.runs_tasks(_TASK_SECONDS):
            self._events.log(
                f"Spark gave a task no place within {_TASK_SECONDS:g} s: its cluster has no "
                "executor, or none that is free; batches wait for one"
            )
        context = self._told((), attempt=1, warm=True)
        try:
            self._entrypoint(frame_of(spark, no_rows(), one_task=True), context)
        except Exception as error:
            raise FleetError(
                f"the entrypoint {self._entrypoint.name} failed on the dummy batch without records "
                f"that warms it: {self._errors.told(error)}"
            ) from error

    def _batch(self, batch: Prepared, job: Running) -> BatchDone:
        started = self._clock.monotonic()
        found = PoisonFound()
        damaged: dict[TopicPartition, Damage] = {}
        void, fatal = False, None
        try:
            found = self._run_readable(batch, job, damaged)
        except Void:
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
        job: Running,
        damaged: dict[TopicPartition, Damage],
    ) -> PoisonFound:
        """Run what lies before record batches that cannot be read, which are put into `damaged`."""
        left = batch
        while True:
            try:
                error = self._attempts(left, job, pauses=self._pauses)
                found = PoisonFound()
                if error is not None:
                    found = self._culprits(left, job, error)
                    found = put_aside(self._letters, found, self._link.session)
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
            for tp in found.failed:  # it stops further in front
                damaged.pop(tp, None)
            return found

    def _poison(self, batch: Prepared, error: str) -> BatchDone:
        found = poison(self._letters, batch, error, self._link.session)
        return BatchDone(
            batch=batch,
            seconds=0.0,
            attempts=1,  # by the processes that ended; 0 would be a stop of the log [9]
            failed=found.failed,
            letters=len(found.letters),
        )

    def _culprits(self, batch: Prepared, job: Running, error: str) -> PoisonFound:
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

    def _rests(self, running: Running) -> Iterator[None]:
        for seconds in self._pauses:
            self._rest(running, seconds)
            yield

    def _rest(self, running: Running, seconds: float) -> None:
        self._wake.wait(seconds)
        if running.void or not self._still_ours():
            raise Void

    def _attempts(
        self,
        batch: Prepared,
        running: Running,
        *,
        pauses: tuple[float, ...],
    ) -> str | None:
        """None once it succeeded; the entrypoint's error after its last attempt."""
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
                if why is Why.VOID or not self._still_ours():  # its successor runs the batch [3]
                    raise Void from error
                if why is Why.TIMEOUT:
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
                    suspect = damage  # its leader may have moved to a broker with a good copy
                    self._read_again(*unread, spark_failures, running)
                elif is_spark_failure(error):
                    spark_failures += 1
                    self._recover(error, spark_failures, running)
                elif not pauses_left or over_limit(error):
                    return self._errors.told(error)
                else:
                    told = self._errors.told(error)
                    self._events.log(f"attempt {running.attempts} of the batch failed: {told}")
                    self._rest(running, pauses_left.pop(0))

    def _call(self, batch: Prepared, context: BatchContext, running: Running) -> None:
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

    def _forget_interrupt(self, running: Running) -> Why | None:
        with self._lock:
            why, running.why, running.interrupted_at = running.why, None, None
        self._wake.clear()
        return Why.VOID if running.void else why

    def _recover(self, error: Exception, failures: int, running: Running) -> None:
        """A failure of Spark is no attempt: connect again, unless the slot is not ours then [3]."""
        self._events.log(
            f"Spark failed under the batch ({self._errors.line(error)}); connecting again"
        )
        if failures > MOST_SPARK_FAILURES:
            raise FleetError(
                f"Spark failed {failures} times under one batch: {self._errors.line(error)}"
            ) from error
        why = self._errors.line(error)[:200]
        self.spark_away = f"Spark does not answer; the batch runs again once it does ({why})"
        try:
            self._connect(warm=False, given_up=lambda: running.void)
        except Unreachable:
            if running.void:  # a drain that waited for it has run out of time
                raise Void from error
            raise
        finally:
            self.spark_away = None
        if not self._renew():  # with the session of now: its successor has to end that one
            raise Void from error
        self._events.log("Spark is connected again; the same ranges run again")

    def _read_again(self, condition: str, sentence: str, failures: int, running: Running) -> None:
        """A range that its tasks could not read is no attempt, and nobody's poison [7]."""
        self._events.log(f"the batch's records could not be read: {sentence}")
        if condition == TRUNCATED:
            raise Void  # read again from what is committed, which names the loss
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
