"""The one thread that owns the Consumer, from joining to leaving.

Problem: librdkafka's calls from several threads block each other for seconds, and a commit that
another thread makes inside a rebalance callback hangs [1]. Choice: one thread polls shortly and
serves a queue of commands; `on_revoke` serves the same queue while it waits for the batch in hand,
and commits in it [6]. Others post commands, read `state`. Cost: a command waits for a poll, 20 ms.
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
from fleet.worker.events import Events, WorkerContext, names
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.losses import (
    OUT_OF_RANGE,
    PERHAPS_GONE,
    QUIET,
    Losses,
    QuarantinedPartitions,
)
from fleet.worker.member.member_state import BackingOff, End, Ended, MemberState
from fleet.worker.member.pipeline import Pipeline
from fleet.worker.member.protocols import end_of, fatal_of, protocol_of, reading_options
from fleet.worker.offsets.assigning import Assigner, TopicWatch, look_around
from fleet.worker.slot.slot_life import Life

_HANDSHAKE: Final = -181
_LASTS: Final = {-169: 20.0, _HANDSHAKE: 20.0, -187: 300.0}
"""Seconds after which the same refusal of the same broker is no restart of it: a login, or a TLS
handshake, that failed; librdkafka tells it again after 30. Or no broker is connected, told every
ten: brokers that are away show the same, so that it counts only when the session is over anyway."""
_LOST: Final = -195
_ALERT: Final = "SSL alert number"
"""In what a lost connection is told with: TLS 1.3 refuses a client's certificate only once the
handshake is over (20 of these a second)."""
_FORGOTTEN: Final = 120.0
"""Seconds after which it is another one."""


class ClientErrors:
    """What a client tells of beside its answers; told on its thread [1].

    One error ends the worker, weather is told. A login that brokers refuse is weather too, unless
    the files of that login were replaced (`replaced` names them): this client will never read
    them, and would be alive and idle for ever [10]. The worker ends, to start with what is there.
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
        """A KafkaError: the first fatal one is kept, weather is told once in a while."""
        self._fatal = self._fatal or fatal_of(error) or self._outdated(error)
        if self._fatal is None:
            self._events.log_rarely(f"kafka: {error.str()}", key=f"kafka {error.code()}")

    def check(self) -> None:
        """Raise the fatal one."""
        if self._fatal:
            raise self._fatal

    def _outdated(self, error: Any) -> FleetError | None:
        """Why this client's login is not the one that its files hold; None where it is."""
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
            f"brokers do not let this process in ({error.str()}), and {', '.join(files)} was "
            "replaced since it logged in: it ends, to start again with what is there now"
        )


class Commands:
    """A queue of what other threads ask of the one that owns the consumer, and runs it [1]."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, call: Callable[[], None]) -> None:
        """To be run soon; returns at once."""
        self._calls.put(call)

    def serve(self, timeout: float) -> None:
        """Run what is posted; waits at most `timeout` seconds for the first."""
        with contextlib.suppress(queue.Empty):
            call = self._calls.get(timeout=timeout) if timeout else self._calls.get_nowait()
            while True:
                call()
                call = self._calls.get_nowait()


def is_drained(*, busy: bool, unsettled: bool, in_time: bool) -> bool:
    """Whether a member that drains has nothing left to commit, whatever follows.

    busy: a batch runs, or its commit is due. unsettled: a chosen position is not committed yet,
    which a successor would choose anew, skipping what came meanwhile [42]; it is waited for as
    long as a drain may take (in_time).
    """
    return not busy and not (unsettled and in_time)


class Draining:
    """Of one membership; used on its thread. timeout: seconds that a batch in hand may take.

    An ask that is taken back while the batch in hand runs is a drain like the others, which ends
    in reading again (SERVING): whoever read on at once would read that batch's records again, and
    give a sink a range that it does not know.
    """

    def __init__(self, state: MemberState, *, timeout: float) -> None:
        self.then: Life | None = None
        """What follows; None: it reads."""
        self.timeout = timeout
        self._state = state
        self._by = 0.0
        self._before = state.phase

    def begin(self, then: Life, now: float) -> bool:
        """It is asked for, at this monotonic time; whether nothing was until now."""
        begins = self.then in {None, Life.SERVING}
        if begins:
            self._by = now + self.timeout
            self._before, self._state.phase = self._state.phase, Phase.DRAINING
        self.then = then
        return begins

    def take_back(self) -> None:
        """A leave is asked for no more. It proves nothing: who was joining is so again [22]."""
        if self.then in {Life.HOLDING, Life.STILL}:
            self.then, self._state.phase = Life.SERVING, self._before

    def late(self, now: float) -> bool:
        """Whether the batch in hand has had its time."""
        return self.then is not Life.SERVING and now >= self._by

    def over(self, now: float, *, busy: bool, unsettled: bool) -> bool:
        """Whether nothing is left to commit."""
        return is_drained(busy=busy, unsettled=unsettled, in_time=now < self._by)

    def end(self) -> None:
        """Read again, unless more was asked while the member left to join again."""
        if self.then in {Life.REJOINING, Life.SERVING}:
            self.then = None


VARIABLE: Final = "FLEET_RESUBSCRIBES"
PAUSE: Final = 0.13
"""Eight are a little more than the second that Kafka leaves between two assignments as it comes
(KIP-1263): who begins together with the first of them hears of the second when it is due."""
STILL: Final = 10
"""Times in a row that nothing of ours moved: longer than that second."""
MOST: Final = 90
LONGEST: Final = 12.0


def wanted(environ: Mapping[str, str]) -> bool:
    """The seam of benchmarks: FLEET_RESUBSCRIBES=0 leaves members to their heartbeats.

    Raises ConfigError where it is neither 0 nor 1.
    """
    told = environ.get(VARIABLE, "1")
    if told not in {"0", "1"}:
        raise ConfigError(f"{VARIABLE}={told}: write 0 or 1, or unset it")
    return told == "1"


@dataclass(slots=True, kw_only=True)
class _Hurry:
    """One change, as this member hurries it."""

    why: str
    begins: float
    next: float
    count: int = 0
    still: int = 0
    mark: object = None


class Resubscribing:
    """Lets a KIP-848 member hear of its group's change at once, by subscribing again [41].

    It subscribes to the same topics every `PAUSE`, until nobody joins any more and its own epoch
    and partitions have kept still; at most `MOST` times or `LONGEST` seconds, and never where the
    slot is not ours. Used on the consumer's thread. ours, joining: see Membership.
    """

    def __init__(
        self, context: WorkerContext, *, ours: Callable[[], bool], joining: Callable[[], bool]
    ) -> None:
        self._ours = ours
        self._joining = joining
        self._clock = context.clock
        self._events = context.events
        self._hurry: _Hurry | None = None

    def begin(self, why: str, at: float) -> None:
        """The group's membership changes from this monotonic time on."""
        self._hurry = _Hurry(why=why, begins=at, next=at)

    def due(self, mark: Callable[[], object]) -> bool:
        """Whether to subscribe again now. mark: what is settled once it keeps still."""
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

    def _over(self, hurry: _Hurry, now: float) -> str | None:
        if not self._ours():
            return "slot lost"
        if hurry.count >= MOST or now - hurry.begins >= LONGEST:
            return "limit"
        return "settled" if hurry.still >= STILL and not self._joining() else None

    def _end(self, hurry: _Hurry, how: str, now: float) -> None:
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
    """The seam of fault tests: FLEET_COMMIT_DELAY seconds between a batch's end and its commit.

    The member polls on meanwhile. Raises ConfigError where it is no number from 0 to 60.
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
_STILL: Final = 0.05  # seconds to wait for commands where nothing is read
_UNCLEAN_SECONDS: Final = 5.0
"""Seconds for a batch that was cancelled."""


class Membership:
    """One member of one group; start() once, ended is set when it is over.

    open_at: wall time before which it must not subscribe [19]. may_join: whether its slot has no
    other owner (None: not known yet), asked directly before a join [54]. may_wait: see BackingOff.
    ours: whether the slot is still held. joining: whether anybody of the group still joins.
    Raises ConfigError where a login is missing.
    """

    def __init__(
        self,
        context: WorkerContext,
        slot: Slot,
        *,
        open_at: float,
        runner: BatchRunner,
        marks: QuarantinedPartitions,
        may_join: Callable[[], bool | None],
        may_wait: Callable[[], bool] = lambda: True,
        ours: Callable[[], bool] = lambda: True,
        joining: Callable[[], bool] = lambda: False,
        columnar: Columnar | None = None,
    ) -> None:
        clock, events, worker = context.clock, context.events, context.worker
        self.state = MemberState(moved_at=clock.monotonic())
        self.ended: Ended | None = None
        self._context = context
        self._open_at = open_at
        self._may_join = may_join
        self._runner = runner
        self._marks = marks
        self._clock = clock
        self._events = events
        self._protocol = protocol_of(worker)
        files = LoginFiles(context.login)
        base = context.client
        # What librdkafka logs about connections comes through the error callback as well.
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
        self._assigner = Assigner(context, admin, begun=marks.begun)
        self._backing_off = BackingOff(
            grace=worker.entrypoint_failure_timeout, may_wait=may_wait, clock=clock
        )
        hurries = wanted(os.environ) and self._protocol.heartbeats_on_subscribe
        self._resubscribing = (
            Resubscribing(context, ours=ours, joining=joining) if hurries else None
        )
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
        """Build the consumer and join when `open_at` has come."""
        self._thread.start()

    def become(self, life: Life) -> None:
        """Read no more, finish the batch in hand, commit, then be this. Repeating it is harmless.

        SERVING takes HOLDING back. LOST: at once, committing nothing. A drain is told others at
        once: the thread may hear of it only when a broker answers again.
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
        """Read quarantined partitions again."""
        self._commands.put(lambda: self._lifts.update(tps))

    def hear(self, why: str, at: float) -> None:
        """The group changes from this monotonic time on: hear of it at once, where that goes."""
        if (resubscribing := self._resubscribing) is not None:
            self._commands.put(lambda: resubscribing.begin(why, at))

    def spare(self) -> None:
        """Say that the batch in hand is not what ends this worker."""
        self._commands.put(self._spare)

    def join(self, timeout: float) -> bool:
        """Wait for the end; whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        how, sentence = End.CLOSED, "closed"
        try:
            with self.state.waits(self._clock):
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
            # Clients whose callbacks refer to us would stay, with threads and pipes, until gc.
            if self._flow is not None:
                self._flow.on_damage = lambda *_: None
            self._consumer = self._flow = None
            for name in ("_losses", "_topics", "_assigner", "_reading", "_errors"):
                self.__dict__.pop(name, None)
        self.ended = Ended(how=how, sentence=sentence, clean=clean)

    def _connect(self) -> None:
        """Everything that can be done before a join: connections, coordinator, metadata [19]."""
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
            poisoned=self._marks.poisoned,
            backing_off=self._backing_off,
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
                self._assigner.cluster = look_around(self._consumer, topics, self._events)
                return
            except KafkaException as error:
                self._errors.tell(error.args[0])  # what waiting does not mend ends it below
                if self._clock.monotonic() >= deadline:
                    raise Unreachable(
                        f"no broker answers at {self._options['bootstrap.servers']} "
                        f"({error.args[0].str()})"
                    ) from error
            self._commands.serve(0.2)
            self._errors.check()

    def _await_targets(self) -> None:
        # Wall time only once: it may be set while we wait.
        opens = self._clock.monotonic() + (self._open_at - self._clock.now())
        while not self._done and (left := opens - self._clock.monotonic()) > 0:
            if left > 0.05:
                self._serve(min(left - 0.03, 0.1))
            else:
                self._clock.sleep(left)
            self._errors.check()
        self._commands.serve(0.0)  # whoever was asked to end meanwhile does not join

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
        """Raises KafkaException."""
        self._consumer.subscribe(
            list(self._context.settings.group.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _resubscribe(self) -> None:
        """Subscribe to the same topics once more, where that is due [41]."""
        state, resubscribing = self.state, self._resubscribing
        generation = self._pipeline.generation
        if resubscribing is not None and resubscribing.due(
            lambda: (generation(), state.assigned, state.partitions)
        ):
            with contextlib.suppress(KafkaException):  # what is fatal comes by the error callback
                self._subscribe_now()

    @property
    def _pipeline(self) -> Pipeline:
        assert self._flow is not None
        return self._flow

    def _turn(self) -> None:
        """One look at everything."""
        self.state.moved_at = self._clock.monotonic()
        self.state.quarantined = frozenset(self._pipeline.quarantined)
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
        with self.state.waits(self._clock):
            self._losses.recreated(self._topics.look({tp.topic for tp in self.state.partitions}))
            if self._draining.then is None:
                self._losses.find_leaders()
                self._stalled = self._losses.fetches.stalled(self._reading.silent)
                if self._stalled is not None:
                    self._begin_drain(Life.CLOSING)
            self._losses.restart()
        still, busy = self._pause_and_resume(), self._pipeline.busy
        if busy and not still:
            self._commands.serve(_BUSY_POLL)  # until the batch is done: no poll ends for that
        waits = 0.0 if still or busy else _IDLE_POLL
        for error, tp, _ in self._reading.take(self._consumer, timeout=waits):
            self._on_message_error(error, tp)
        self._commands.serve(0.0)  # what was asked for meanwhile
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
        """Fetch what may be read; True where nothing may. anew: whose pause is not known."""
        owned = held = self.state.partitions
        if self._draining.then is None:
            held = self._reading.to_pause() | self._pipeline.unsettled
            held |= self._pipeline.quarantined | self._pipeline.gone
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
            idle = not self._pipeline.busy and not self._pipeline.unsettled
            if state.batches or (idle and self._reading.seen_all_ends()):
                state.phase = Phase.ACTIVE
                self._events.emit("phase", phase="active")

    def _idles(self) -> bool:
        """Whether a member has been left without partitions, which KIP-848 clients are not told."""
        joined, grace = self._joined, self._protocol.idle_after
        if joined is None or grace is None or self._clock.monotonic() - joined < grace:
            return False
        return (self._pipeline.generation() or 0) > 0

    # --- draining --------------------------------------------------------------------------

    def _begin_drain(self, then: Life) -> None:
        before = self._draining.then
        if before is not Life.CLOSING and not self._done:  # a rejoin that is due yet gives way
            self._done = before is Life.STILL and then is Life.CLOSING  # not one poll more
            if self._draining.begin(then, self._clock.monotonic()):
                if then is not Life.REJOINING:
                    self._begin_last()
                self._spare()
        if self.state.joined_at is None and then is Life.CLOSING:
            self._done = True  # not even subscribed

    def _spare(self) -> None:
        if self._flow is not None:
            self._flow.spare()

    def _begin_last(self) -> None:
        """Process what was read of a trickle, where that is quick, before others go on with it."""
        if self._flow is not None and not self._flow.busy and self._reading.hurry():
            self._flow.step()

    def _abort(self) -> None:
        self._done = True
        if self._flow is not None:
            self._flow.lose(self.state.partitions)

    def _go_on_draining(self) -> None:
        self._pipeline.drop(self.state.partitions)
        if self._pipeline.busy:
            self._pipeline.settle()
            if self._pipeline.running and self._draining.late(self._clock.monotonic()):
                self._pipeline.cut_short("the drain")
        if not (busy := self._pipeline.busy):
            self._pipeline.commit_chosen()
        unsettled, now = bool(self._pipeline.unsettled), self._clock.monotonic()
        if not self._draining.over(now, busy=busy, unsettled=unsettled):
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
        """unsubscribe() makes even a static member send LeaveGroup; the join follows at once."""
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
        """Close the consumer; whether nothing of ours runs on."""
        clean = self._flow is None or not self._flow.running
        if self._flow is not None and not clean:
            self._flow.interrupt()
        self._done = True
        if self._consumer is not None:
            with contextlib.suppress(KafkaException, RuntimeError):
                self.state.member_id = self._consumer.memberid() or self.state.member_id
            try:
                with self.state.waits(self._clock):
                    self._consumer.close()
            except (KafkaException, RuntimeError, FleetError) as error:
                self._events.log(f"closing the consumer: {error}")
        self.state.partitions = frozenset()
        self._events.emit("closed", how=str(how))
        return clean and not self.state.unclean

    # --- callbacks: all on this thread, inside consume() or close() [1] --------------------

    def _on_assign(self, consumer: Any, partitions: Sequence[KafkaPartition]) -> None:
        if self._done:  # inside close(), where nobody answers about offsets any more [51]
            self._protocol.assign(consumer, partitions)
            return
        tps = sorted(TopicPartition(each.topic, each.partition) for each in partitions)
        with self.state.waits(self._clock):
            starts = self._assigner.starts(consumer, tps)
        if tps:
            self._pipeline.reopen()
        marked, skipped = self._marks.on_assign(starts)
        starts = self._losses.skip_past_end(starts, skipped)
        self._pipeline.quarantined |= marked
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
        # librdkafka keeps a pause over a rebalance: say what shall be before the first fetch.
        self._pause_and_resume(frozenset(tps))
        self._events.log(f"assigned {plural(len(tps), 'partition')}: {names(tps)}")
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
        self._reading.rest(self._clock.monotonic())  # those who take them over go first
        self._protocol.unassign(consumer, partitions)
        self._events.log(f"revoked {plural(len(tps), 'partition')}: {names(sorted(tps))}")
        self._events.emit("revoked", partitions=[str(tp) for tp in sorted(tps)])

    def _finish(self, tps: frozenset[TopicPartition]) -> None:
        """Wait until nothing of these is uncommitted, or a drain's time is over [6, 42].

        It is within a callback of librdkafka's meanwhile, where nothing else is polled, so it
        serves the queue of what other threads ask [1].
        """
        pipeline, deadline = self._pipeline, self._clock.monotonic() + self._draining.timeout
        while pipeline.touches(tps) or pipeline.unsettled & tps:
            self._serve(_STILL)
            pipeline.commit_chosen()
            pipeline.settle()
            if self._clock.monotonic() < deadline:
                continue
            if not pipeline.touches(tps):
                return
            pipeline.cut_short("the revocation")
            if self._clock.monotonic() >= deadline + _UNCLEAN_SECONDS:
                return  # without its token it cannot commit; its watchdog sees to the rest

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
        self._events.log(f"lost {names(sorted(tps))}: nothing of them is committed any more")
        self._events.emit("lost", partitions=[str(tp) for tp in sorted(tps)])

    def _on_message_error(self, error: Any, tp: TopicPartition | None) -> None:
        if error.code() in PERHAPS_GONE:
            self._topics.soon()
        if error.code() == OUT_OF_RANGE and tp is not None:
            with self.state.waits(self._clock):
                self._losses.out_of_range(tp)
        elif error.code() in UNREADABLE and tp is not None and self._reading.way == "inline":
            self._losses.unreadable(tp, error)
        elif error.code() not in QUIET:
            self._errors.tell(error)
