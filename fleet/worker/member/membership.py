"""The one thread that owns the Consumer, from joining to leaving.

Problem: librdkafka's calls from several threads block each other for seconds. A commit by another
thread inside a rebalance callback hangs [1]. Choice: one thread polls shortly and serves a queue of
commands. `on_revoke` serves the same queue while it waits for the batch in hand, and commits in it
[6]. Other threads post commands and read `state`. Cost: a command waits for a poll, 20 ms.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from fleet.clock import Clock
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.model import TopicPartition
from fleet.slots import Phase, Slot
from fleet.text import plural
from fleet.worker.batch.adaptive_reader import UNREADABLE, AdaptiveReader
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.events import Events, WorkerContext, list_names
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.assigning import Assigner, TopicWatch, warm_connections
from fleet.worker.member.losses import (
    OUT_OF_RANGE,
    PERHAPS_GONE,
    QUIET,
    Losses,
    StoppedPartitionsView,
)
from fleet.worker.member.member_state import End, EntrypointBackoff, MembershipEnd, MemberState
from fleet.worker.member.pipeline import Pipeline
from fleet.worker.member.protocols import MemberProtocol, end_of, fatal_of, reading_options
from fleet.worker.slot.slot_life import Life

_HANDSHAKE: Final = -181
_LASTS: Final = {-169: 20.0, _HANDSHAKE: 20.0, -187: 300.0}
"""Seconds after which the same refusal by a broker is no restart of it.

A failed login or TLS handshake, which librdkafka reports again after 30 s. Or no connected broker,
reported every ten: unreachable brokers show the same, so it counts only when the session is over
anyway.
"""
_LOST: Final = -195
_ALERT: Final = "SSL alert number"
"""In the error of a lost connection: TLS 1.3 refuses a client's certificate only after the
handshake (20 of these a second)."""
_FORGOTTEN: Final = 120.0
"""Seconds after which it counts as another refusal."""


class ClientErrors:
    """Client error callbacks [1]: fatal errors stop the worker, transient ones are logged.

    A refused login is transient, unless the login's files were replaced (`replaced` names them).
    Then this client will never read them and would idle for ever [10]. The worker ends, to start
    with the present files.
    """

    def __init__(
        self, events: Events, *, clock: Clock, replaced: Callable[[], Sequence[str]]
    ) -> None:
        self._events = events
        self._clock = clock
        self._replaced = replaced
        self._refused: dict[str, tuple[float, float]] = {}
        """By broker: when it refused us first, and last."""
        self._fatal: FleetError | None = None

    def tell(self, error: Any) -> None:
        """Records a KafkaError: keeps the first fatal one and logs transient ones rarely."""
        self._fatal = self._fatal or fatal_of(error) or self._outdated(error)
        if self._fatal is None:
            self._events.log_rarely(f"kafka: {error.str()}", key=f"kafka {error.code()}")

    def check(self) -> None:
        """Raises the fatal error, if there is one."""
        if self._fatal:
            raise self._fatal

    def _outdated(self, error: Any) -> FleetError | None:
        """Returns why this client's login differs from its files; None if it does not."""
        code = _HANDSHAKE if error.code() == _LOST and _ALERT in error.str() else error.code()
        if (lasts := _LASTS.get(code)) is None:
            return None
        broker, now = error.str().partition(": ")[0], self._clock.monotonic()
        first, last = self._refused.get(broker, (now, now))
        if now - last > _FORGOTTEN:
            first = now
        self._refused[broker] = (first, now)
        if now - first < lasts or not (files := self._replaced()):
            return None
        return FleetError(
            f"brokers refuse this worker's login ({error.str()}), and {', '.join(files)} was "
            "replaced after it logged in: the worker ends, to start again with the new files"
        )


class Commands:
    """A queue of commands of other threads, run by the consumer's owner [1]."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, call: Callable[[], None]) -> None:
        """Posts a command to run soon; returns at once."""
        self._calls.put(call)

    def serve(self, timeout: float) -> None:
        """Runs what is posted; waits at most `timeout` seconds for the first."""
        with contextlib.suppress(queue.Empty):
            call = self._calls.get(timeout=timeout) if timeout else self._calls.get_nowait()
            while True:
                call()
                call = self._calls.get_nowait()


def is_drained(*, busy: bool, uncommitted: bool, in_time: bool) -> bool:
    """Whether a draining member has nothing left to commit.

    busy: a batch runs, or its commit is due. uncommitted: a chosen position is not committed yet; a
    new owner would choose another and skip records [42]. It is waited for as long as a drain may
    take (in_time).
    """
    return not busy and not (uncommitted and in_time)


class Draining:
    """The drain of one membership; used on its thread. timeout: seconds for a batch in hand.

    If the request is taken back while the batch in hand runs, the drain completes and then reading
    goes on (SERVING). Reading at once would read that batch's records again and give a sink an
    unknown range.
    """

    def __init__(self, state: MemberState, *, timeout: float) -> None:
        self.then: Life | None = None
        """What follows; None: it reads."""
        self.timeout = timeout
        self._state = state
        self._by = 0.0
        self._before = state.phase

    def begin(self, then: Life, now: float) -> bool:
        """Records the request at this monotonic time; returns whether there was none until now."""
        begins = self.then in {None, Life.SERVING}
        if begins:
            self._by = now + self.timeout
            self._before, self._state.phase = self._state.phase, Phase.DRAINING
        self.then = then
        return begins

    def take_back(self) -> None:
        """Takes a leave back.

        It proves nothing: a member that was joining is joining again [22].
        """
        if self.then in {Life.HOLDING, Life.STILL}:
            self.then, self._state.phase = Life.SERVING, self._before

    def is_late(self, now: float) -> bool:
        """Whether the batch in hand has had its time."""
        return self.then is not Life.SERVING and now >= self._by

    def is_over(self, now: float, *, busy: bool, uncommitted: bool) -> bool:
        """Whether nothing is left to commit."""
        return is_drained(busy=busy, uncommitted=uncommitted, in_time=now < self._by)

    def end(self) -> None:
        """Reads again, unless another request came while the member left to join again."""
        if self.then in {Life.REJOINING, Life.SERVING}:
            self.then = None


VARIABLE: Final = "FLEET_RESUBSCRIBES"
PAUSE: Final = 0.13
"""Seconds between two subscribes. Eight take a little more than the second that Kafka leaves
between two assignments (KIP-1263), so that a member learns of the second one when it is due."""
STILL: Final = 10
"""Times in a row without a change of its own: longer than that second."""
MOST: Final = 90
LONGEST: Final = 12.0


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Whether members re-subscribe; benchmarks set FLEET_RESUBSCRIBES=0 to use heartbeats only.

    Raises ConfigError if it is neither 0 nor 1.
    """
    told = environ.get(VARIABLE, "1")
    if told not in {"0", "1"}:
        raise ConfigError(f"{VARIABLE}={told}: write 0 or 1, or unset it")
    return told == "1"


@dataclass(slots=True, kw_only=True)
class _Resubscription:
    """One change of the group, and this member's re-subscribes for it."""

    why: str
    begins: float
    next: float
    count: int = 0
    still: int = 0
    mark: object = None


class Resubscriber:
    """Makes a KIP-848 member learn of its group's change at once, by subscribing again [41].

    It subscribes to the same topics every `PAUSE` until no member joins any more and its own epoch
    and partitions are unchanged. At most `MOST` times or `LONGEST` seconds, and never if the slot
    is not its own. Used on the consumer's thread. ours, joining: see Membership.
    """

    def __init__(
        self, context: WorkerContext, *, ours: Callable[[], bool], joining: Callable[[], bool]
    ) -> None:
        self._ours = ours
        self._joining = joining
        self._clock = context.clock
        self._events = context.events
        self._hurry: _Resubscription | None = None

    def begin(self, why: str, at: float) -> None:
        """Records that the group's membership changes from this monotonic time on."""
        self._hurry = _Resubscription(why=why, begins=at, next=at)

    def is_due(self, mark: Callable[[], object]) -> bool:
        """Whether to subscribe again now. mark: the group is settled once it is unchanged."""
        hurry, now = self._hurry, self._clock.monotonic()
        if hurry is None or now < hurry.next:
            return False
        seen = mark()
        hurry.still = hurry.still + 1 if seen == hurry.mark else 0
        hurry.mark = seen
        over = self._over(hurry, now)
        if over is not None:
            self._end(hurry, over, now)
            return False
        hurry.next, hurry.count = now + PAUSE, hurry.count + 1
        return True

    def _over(self, hurry: _Resubscription, now: float) -> str | None:
        if not self._ours():
            return "slot lost"
        if hurry.count >= MOST or now - hurry.begins >= LONGEST:
            return "limit"
        return "settled" if hurry.still >= STILL and not self._joining() else None

    def _end(self, hurry: _Resubscription, how: str, now: float) -> None:
        self._hurry = None
        self._events.emit(
            "resubscribed",
            why=hurry.why,
            count=hurry.count,
            seconds=round(now - hurry.begins, 3),
            ended=how,
        )
        if how == "limit":
            self._events.log(
                f"the group is not settled {now - hurry.begins:.0f} s after {hurry.why}: going "
                "on by heartbeats alone"
            )


DELAY: Final = "FLEET_COMMIT_DELAY"


def commit_delay(environ: Mapping[str, str]) -> float:
    """Returns FLEET_COMMIT_DELAY, by which fault tests delay the commit after a batch, in seconds.

    The member polls on meanwhile. Raises ConfigError if it is no number from 0 to 60.
    """
    text = environ.get(DELAY, "0")
    try:
        delay = float(text)
    except ValueError:
        delay = -1.0
    if not 0.0 <= delay <= 60.0:
        raise ConfigError(f"{DELAY}={text}: write seconds from 0 to 60, or unset it")
    return delay


_IDLE_POLL: Final = 0.02
_BUSY_POLL: Final = 0.01
_STILL: Final = 0.05  # seconds to wait for commands while nothing is read
_UNCLEAN_SECONDS: Final = 5.0
"""Seconds for a cancelled batch to end."""


class Membership:
    """One member of one group; start() once, ended is set when it is over.

    open_at: wall time before which it must not subscribe [19]. may_join: whether its slot has no
    other owner (None: not known yet), asked directly before a join [54]. may_wait: see
    EntrypointBackoff. ours: whether the slot is still owned. joining: whether any member of the
    group still joins. Raises ConfigError if a login is missing.
    """

    def __init__(
        self,
        context: WorkerContext,
        slot: Slot,
        *,
        open_at: float,
        runner: BatchRunner,
        marks: StoppedPartitionsView,
        may_join: Callable[[], bool | None],
        may_wait: Callable[[], bool] = lambda: True,
        ours: Callable[[], bool] = lambda: True,
        joining: Callable[[], bool] = lambda: False,
        columnar: Columnar | None = None,
    ) -> None:
        clock, events, worker = context.clock, context.events, context.worker
        self.state = MemberState(moved_at=clock.monotonic())
        self.ended: MembershipEnd | None = None
        self._context = context
        self._open_at = open_at
        self._may_join = may_join
        self._runner = runner
        self._stops = marks
        self._clock = clock
        self._events = events
        self._protocol = MemberProtocol(worker)
        files = LoginFiles(context.login)
        base = context.client
        # librdkafka's log lines on connections also come through the error callback.
        base |= {"logger": events.librdkafka_logger(), "log_level": 2}
        quiet = {**base, "error_cb": lambda _: None}
        admin = AdminClient(quiet)
        self._options = {
            **base,
            **reading_options(worker),
            **self._protocol.options(slot.instance_id() if context.is_static else None),
            "group.id": context.group,
            "client.id": context.name,
        }
        self._reading = AdaptiveReader(context, admin, columnar=columnar)
        self._assigner = Assigner(context, admin, begun=marks.committed_topics)
        self._backoff = EntrypointBackoff(
            grace=worker.entrypoint_failure_timeout, may_wait=may_wait, clock=clock
        )
        hurries = is_enabled(os.environ) and self._protocol.heartbeats_on_subscribe
        self._resubscribing = Resubscriber(context, ours=ours, joining=joining) if hurries else None
        self._commit_delay = commit_delay(os.environ)
        self._commands = Commands()
        timeout = context.settings.group.rollout.drain_timeout
        self._draining = Draining(self.state, timeout=timeout)
        self._lifts: set[TopicPartition] = set()
        self._paused: frozenset[TopicPartition] = frozenset()
        """As it was told to the client, which keeps it over a rebalance."""
        self._errors = ClientErrors(events, clock=clock, replaced=files.replaced)
        self._done = False
        self._joined: float | None = None
        self._stalled: str | None = None
        self._consumer: Any = None
        self._flow: Pipeline | None = None
        self._thread = threading.Thread(target=self._run, name="member", daemon=True)

    # --- asked by other threads ------------------------------------------------------------

    def start(self) -> None:
        """Builds the consumer and joins when `open_at` has come."""
        self._thread.start()

    def become(self, life: Life) -> None:
        """Stops reading, finishes the batch in hand, commits, then becomes this.

        A repetition has no effect. SERVING takes HOLDING back. LOST: at once, without a commit. A
        drain is visible to others at once, because the thread may learn of it only when a broker
        answers again.
        """
        if life is Life.LOST:
            self._commands.put(self._abort)
        elif life is Life.SERVING:
            self.state.asked_to_drain = False
            self._commands.put(self._draining.take_back)
        else:
            self.state.asked_to_drain |= life is not Life.REJOINING
            self._commands.put(lambda: self._begin_drain(life))

    def lift(self, tps: frozenset[TopicPartition]) -> None:
        """Reads stopped partitions again."""
        self._commands.put(lambda: self._lifts.update(tps))

    def expect_change(self, why: str, at: float) -> None:
        """Makes the member learn at once of a change from this monotonic time on, if it can."""
        if (resubscribing := self._resubscribing) is not None:
            self._commands.put(lambda: resubscribing.begin(why, at))

    def take_back_tries(self) -> None:
        """Records that the batch in hand is not what ends this worker."""
        self._commands.put(self._take_back_tries)

    def join(self, timeout: float) -> bool:
        """Waits for the end; returns whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        how, sentence = End.CLOSED, "closed"
        try:
            with self.state.waiting_for_brokers(self._clock):
                self._connect()
            self._await_targets()
            self._subscribe()
            while not self._done:
                self._turn()
            if self._stalled is not None:
                how, sentence = End.STALLED, self._stalled
        except FleetError as error:
            how, sentence = end_of(error), str(error)
        except KafkaException as error:
            how, sentence = end_of(fatal_of(error.args[0])), error.args[0].str()
        except Exception as error:  # noqa: BLE001 - a bug of ours must end the worker, not idle it
            how, sentence = End.FATAL, f"{type(error).__name__}: {error}"
        finally:
            clean = self._close(how)
            # Clients with callbacks to this object would stay, with threads and pipes, until gc.
            if self._flow is not None:
                self._flow.on_damage = lambda *_: None
            self._consumer = self._flow = None
            for name in ("_losses", "_topics", "_assigner", "_reading", "_errors"):
                self.__dict__.pop(name, None)
        self.ended = MembershipEnd(how=how, sentence=sentence, clean=clean)

    def _connect(self) -> None:
        """Does everything possible before a join: connections, coordinator, metadata [19]."""
        context, worker = self._context, self._context.worker
        topics, grace = context.settings.group.topics, context.session_timeout
        self._consumer = Consumer({**self._options, "error_cb": self._errors.tell})
        self._flow = Pipeline(
            context,
            consumer=self._consumer,
            reading=self._reading,
            runner=self._runner,
            state=self.state,
            post=self._commands.put,
            record_poison=self._stops.record_poison,
            backoff=self._backoff,
            commit_delay=self._commit_delay,
        )
        self._losses = Losses(
            context,
            consumer=self._consumer,
            pipeline=self._flow,
            assigner=self._assigner,
            protocol=self._protocol,
            state=self.state,
        )
        every, deadline = worker.metadata_refresh, self._clock.monotonic() + grace
        self._topics = TopicWatch(self._assigner.ask_ids, every=every, clock=self._clock)
        while not self._done:
            try:
                self._assigner.cluster = warm_connections(self._consumer, topics, self._events)
                return
            except KafkaException as error:
                self._errors.tell(error.args[0])  # a permanent error ends it below
                if self._clock.monotonic() >= deadline:
                    raise Unreachable(
                        f"no broker answers at {self._options['bootstrap.servers']} "
                        f"({error.args[0].str()})"
                    ) from error
            self._commands.serve(0.2)
            self._errors.check()

    def _await_targets(self) -> None:
        # Wall time only once: it may be set during the wait.
        opens = self._clock.monotonic() + (self._open_at - self._clock.now())
        while not self._done and (left := opens - self._clock.monotonic()) > 0:
            if left > 0.05:
                self._serve(min(left - 0.03, 0.1))
            else:
                self._clock.sleep(left)
            self._errors.check()
        self._commands.serve(0.0)  # a worker that was asked to end does not join

    def _subscribe(self) -> None:
        while not self._done and (ours := self._may_join()) is not True:
            self._done = ours is False or self._draining.then is Life.CLOSING
            self._serve(1.0)
        if self._done:
            return
        self._subscribe_now()
        if self._resubscribing is not None:
            self._resubscribing.begin("its join", self._clock.monotonic())
        self.state.joined_at, self._joined = self._clock.now(), self._clock.monotonic()
        self._events.emit("subscribed")

    def _subscribe_now(self) -> None:
        """Subscribes. Raises KafkaException."""
        self._consumer.subscribe(
            list(self._context.settings.group.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _resubscribe(self) -> None:
        """Subscribes to the same topics once more, if that is due [41]."""
        state, resubscribing = self.state, self._resubscribing
        generation = self._pipeline.generation
        if resubscribing is not None and resubscribing.is_due(
            lambda: (generation(), state.assigned, state.partitions)
        ):
            with contextlib.suppress(KafkaException):  # a fatal error comes by the error callback
                self._subscribe_now()

    @property
    def _pipeline(self) -> Pipeline:
        assert self._flow is not None
        return self._flow

    def _turn(self) -> None:
        """Does one turn: serves commands, reads, and steps the pipeline."""
        self.state.moved_at = self._clock.monotonic()
        self.state.stopped_partitions = frozenset(self._pipeline.stopped_partitions)
        self.state.reading = self._reading.way
        self.state.in_hand = self._pipeline.busy
        self._commands.serve(0.0)
        self._errors.check()
        if self._draining.then is Life.STILL and not self._pipeline.busy:
            self.state.phase = Phase.CLOSED
            self._commands.serve(_STILL)
            return
        self._losses.lift(self._lifts)
        if self._pipeline.gone or self._losses.missing:
            self._topics.soon()
        with self.state.waiting_for_brokers(self._clock):
            self._losses.recreated(self._topics.poll({tp.topic for tp in self.state.partitions}))
            if self._draining.then is None:
                self._losses.find_leaders()
                self._stalled = self._losses.fetches.find_stalled(self._reading.silent)
                if self._stalled is not None:
                    self._begin_drain(Life.CLOSING)
            self._losses.restart()
        still, busy = self._pause_and_resume(), self._pipeline.busy
        if busy and not still:
            self._commands.serve(_BUSY_POLL)  # until the batch is done: it ends no poll
        waits = 0.0 if still or busy else _IDLE_POLL
        for error, tp, _ in self._reading.take(self._consumer, timeout=waits):
            self._on_message_error(error, tp)
        self._commands.serve(0.0)  # commands that came meanwhile
        if still and (self._pipeline.busy or self._draining.then in {None, Life.HOLDING}):
            self._commands.serve(_STILL)
        self._errors.check()
        if self._done:
            return
        if self._draining.then is None:
            self._resubscribe()
            self._pipeline.step()
            self._note_active()
        else:
            self._go_on_draining()

    def _pause_and_resume(self, anew: frozenset[TopicPartition] = frozenset()) -> bool:
        """Fetches what may be read; True if nothing may. anew: partitions of unknown pause."""
        owned = held = self.state.partitions
        if self._draining.then is None:
            held = self._reading.to_pause() | self._pipeline.uncommitted
            held |= self._pipeline.stopped_partitions | self._pipeline.gone
        wanted, paused = held & owned, self._paused & owned
        for tps, act in (
            (wanted - (paused - anew), self._consumer.pause),
            ((paused | anew) - wanted, self._consumer.resume),
        ):
            if tps:
                act([KafkaPartition(tp.topic, tp.partition) for tp in sorted(tps)])
        self._paused = wanted
        return bool(owned) and wanted == owned

    def _note_active(self) -> None:
        state = self.state
        state.assigned = state.assigned or self._idles()
        if state.phase is Phase.JOINING and state.assigned and not state.failing_since:
            idle = not self._pipeline.busy and not self._pipeline.uncommitted
            if state.batches or (idle and self._reading.seen_all_ends()):
                state.phase = Phase.ACTIVE
                self._events.emit("phase", phase="active")

    def _idles(self) -> bool:
        """Whether it has been without partitions for a while; KIP-848 clients are not told."""
        joined, grace = self._joined, self._protocol.idle_after
        if joined is None or grace is None or self._clock.monotonic() - joined < grace:
            return False
        return (self._pipeline.generation() or 0) > 0

    # --- draining --------------------------------------------------------------------------

    def _begin_drain(self, then: Life) -> None:
        before = self._draining.then
        if before is not Life.CLOSING and not self._done:  # a rejoin that is still due gives way
            self._done = before is Life.STILL and then is Life.CLOSING  # not one poll more
            if self._draining.begin(then, self._clock.monotonic()):
                if then is not Life.REJOINING:
                    self._begin_last()
                self._take_back_tries()
        if self.state.joined_at is None and then is Life.CLOSING:
            self._done = True  # not even subscribed

    def _take_back_tries(self) -> None:
        if self._flow is not None:
            self._flow.take_back_tries()

    def _begin_last(self) -> None:
        """Processes what was read of a trickle, if that is quick, before new owners go on."""
        if self._flow is not None and not self._flow.busy and self._reading.close_soon():
            self._flow.step()

    def _abort(self) -> None:
        self._done = True
        if self._flow is not None:
            self._flow.lose(self.state.partitions)

    def _go_on_draining(self) -> None:
        self._pipeline.drop(self.state.partitions)
        if self._pipeline.busy:
            self._pipeline.settle()
            if self._pipeline.running and self._draining.is_late(self._clock.monotonic()):
                self._pipeline.interrupt_late("the drain")
        if not (busy := self._pipeline.busy):
            self._pipeline.commit_chosen()
        uncommitted, now = bool(self._pipeline.uncommitted), self._clock.monotonic()
        if not self._draining.is_over(now, busy=busy, uncommitted=uncommitted):
            return
        match self._draining.then:
            case Life.CLOSING:
                self._done = True
            case Life.HOLDING:
                self.state.phase = Phase.DRAINED
            case Life.REJOINING:
                self._rejoin()
            case Life.SERVING:
                self._draining.end()
                self._pipeline.rewind(sorted(self.state.partitions))

    def _rejoin(self) -> None:
        """Leaves and joins again: unsubscribe() sends LeaveGroup even for a static member."""
        self._events.log("leaving and joining again: a forced rebalance was asked for")
        self.state.assigned = False
        self._consumer.unsubscribe()
        deadline = self._clock.monotonic() + 2.0
        while self.state.partitions and self._clock.monotonic() < deadline:
            self._consumer.consume(1, 0.01)
        self._draining.end()
        self.state.phase = Phase.JOINING
        self._subscribe()

    def _close(self, how: End) -> bool:
        """Closes the consumer; returns whether nothing of this worker runs on."""
        clean = self._flow is None or not self._flow.running
        if self._flow is not None and not clean:
            self._flow.interrupt()
        self._done = True
        if self._consumer is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                self.state.member_id = self._consumer.memberid() or self.state.member_id
            try:
                with self.state.waiting_for_brokers(self._clock):
                    self._consumer.close()
            except (KafkaException, RuntimeError, FleetError) as error:
                self._events.log(f"closing the consumer: {error}")
        self.state.partitions = frozenset()
        self._events.emit("closed", how=str(how))
        return clean and not self.state.unclean

    # --- callbacks: all on this thread, inside consume() or close() [1] --------------------

    def _on_assign(self, consumer: Any, partitions: Sequence[KafkaPartition]) -> None:
        if self._done:  # inside close(), where brokers are not asked for offsets any more [51]
            self._protocol.assign(consumer, partitions)
            return
        tps = sorted(TopicPartition(each.topic, each.partition) for each in partitions)
        with self.state.waiting_for_brokers(self._clock):
            starts = self._assigner.starts(consumer, tps)
        if tps:
            self._pipeline.reopen()
        marked, skipped = self._stops.on_assign(starts)
        starts = self._losses.skip_past_end(starts, skipped)
        self._pipeline.stopped_partitions |= marked
        self.state.partitions |= frozenset(tps)
        for start in starts:
            reads = self._draining.then is None and start.tp not in marked
            self._pipeline.start_partition(start, reads=reads)
            self._losses.tell(start)
        self._pipeline.commit_chosen(assigned=False)
        at = [KafkaPartition(s.tp.topic, s.tp.partition, s.position) for s in starts]
        self._protocol.assign(consumer, at)
        self.state.member_id = consumer.memberid() or self.state.member_id
        self.state.assigned = True
        # librdkafka keeps a pause over a rebalance: set it before the first fetch.
        self._pause_and_resume(frozenset(tps))
        self._events.log(f"assigned {plural(len(tps), 'partition')}: {list_names(tps)}")
        told = {str(start.tp): start.position for start in starts}
        self._events.emit("assigned", partitions=told, generation=self._pipeline.generation())

    def _on_revoke(self, consumer: Any, partitions: Sequence[KafkaPartition]) -> None:
        began = self._clock.monotonic()
        tps = frozenset(TopicPartition(each.topic, each.partition) for each in partitions)
        if not self._done:
            if self._protocol.rejoins_after and self._draining.then is None:
                self._begin_last()
            self._pipeline.drop(tps)
            self._finish(tps)
        self._pipeline.lose(tps)
        self.state.partitions -= tps
        self._paused -= tps
        until = began + self._protocol.rejoins_after
        while not self._done and (left := until - self._clock.monotonic()) > 0:
            self._commands.serve(min(left, _STILL))
        self._reading.rest(self._clock.monotonic())  # the new owners go first
        self._protocol.unassign(consumer, partitions)
        self._events.log(f"revoked {plural(len(tps), 'partition')}: {list_names(sorted(tps))}")
        self._events.emit("revoked", partitions=[str(tp) for tp in sorted(tps)])

    def _finish(self, tps: frozenset[TopicPartition]) -> None:
        """Waits until nothing of these is uncommitted, or a drain's time is over [6, 42].

        A callback of librdkafka runs meanwhile, and nothing else polls. So it serves the queue of
        commands of other threads [1].
        """
        pipeline, deadline = self._pipeline, self._clock.monotonic() + self._draining.timeout
        while pipeline.touches(tps) or pipeline.uncommitted & tps:
            self._serve(_STILL)
            pipeline.commit_chosen()
            pipeline.settle()
            if self._clock.monotonic() < deadline:
                continue
            if not pipeline.touches(tps):
                return
            pipeline.interrupt_late("the revocation")
            if self._clock.monotonic() >= deadline + _UNCLEAN_SECONDS:
                return  # without its token it cannot commit; its watchdog does the rest

    def _serve(self, seconds: float) -> None:
        self.state.moved_at = self._clock.monotonic()
        self._commands.serve(seconds)

    def _on_lost(self, consumer: Any, partitions: Sequence[KafkaPartition]) -> None:
        tps = frozenset(TopicPartition(each.topic, each.partition) for each in partitions)
        if self._pipeline.touches(tps):
            self._pipeline.interrupt()
        self._pipeline.lose(tps)
        self.state.partitions -= tps
        self._paused -= tps
        self._protocol.unassign(consumer, partitions)
        self._events.log(
            f"lost {list_names(sorted(tps))}: their records are not committed any more"
        )
        self._events.emit("lost", partitions=[str(tp) for tp in sorted(tps)])

    def _on_message_error(self, error: Any, tp: TopicPartition | None) -> None:
        if error.code() in PERHAPS_GONE:
            self._topics.soon()
        if error.code() == OUT_OF_RANGE and tp is not None:
            with self.state.waiting_for_brokers(self._clock):
                self._losses.out_of_range(tp)
        elif error.code() in UNREADABLE and tp is not None and self._reading.way == "inline":
            self._losses.unreadable(tp, error)
        elif error.code() not in QUIET:
            self._errors.tell(error)
