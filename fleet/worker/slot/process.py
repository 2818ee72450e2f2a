"""One worker process: connects the parts, and goes from standby to slot and back.

start → Spark, setup, warm → standby → slot → member → (handover, leave) → standby → … → end. Exit
codes: 0 asked to end, 1 failed (the last line on stderr says why), 2 wrong settings. A worker that
cannot go on ends [10]; its supervisor or the kubelet restarts it.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fleet.clock import Clock, SystemClock
from fleet.collector import freeze_imports
from fleet.config.references import worker_environment
from fleet.config.settings import WorkerSettings
from fleet.config.spec import KubernetesRuntimeSpec
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.kafka_source.login import resolve
from fleet.slots import FirstOpening, SlotTargets
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.system.runtimes import runtime_kind
from fleet.text import plural
from fleet.worker.batch.columnar import Columnar
from fleet.worker.batch.entrypoint import JobErrors
from fleet.worker.batch.executor import BatchRunner
from fleet.worker.batch.poison_search import DeadLetters
from fleet.worker.batch.ranges import NamedBatch
from fleet.worker.batch.spark_link import LINGER, LINGER_SHARED, SparkLink, in_clear, safe
from fleet.worker.broker_reach import BrokerReach, make_broker_reach
from fleet.worker.events import Events, WorkerContext, catch_job_logs
from fleet.worker.login_files import LoginFiles, known_secrets
from fleet.worker.pod_environment import (
    SPARK_TOKEN,
    put_first,
    spark_url,
    unpack,
    with_pod_settings,
)
from fleet.worker.slot.leave_completion import Failover, LeaveCompleter
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotWatcher
from fleet.worker.slot.slot_owner import TICK, SlotOwner


def end_former_slots(store: Store, *, group: str, name: str, events: Events) -> None:
    """Records the end of each slot's owner that was this pod's last container [13].

    A pod has one worker with its own name. A worker that finds its name in a slot at its start
    knows that the owner is gone, and a standby takes the slot while Spark starts. (On one machine
    the supervisor reports it.) If the store does not answer now, the lease decides.
    """
    try:
        for slot in store.slots(group):
            if slot.owner == name and store.end_owner(slot):
                events.log(f"this pod's last container owned slot {slot.number}: it is free now")
    except FleetError as error:
        events.log(f"the slots of this pod's last container wait for their lease: {error}")


AHEAD: Final = 1.5
"""Seconds between the write and the joint subscribe: time to take, build, connect [19]."""
_LOOK: Final = 0.5
"""Seconds between two polls of the warm standbys."""


def first_targets(
    targets: SlotTargets, asked: FirstOpening | None, *, warm: int, waited: float, now: float
) -> SlotTargets | None:
    """Returns the slot targets to write; None if they exist, are not declared, or it is too early.

    warm: living standbys. waited: seconds since the first of them was seen.
    """
    if targets.version != 0 or targets.open or asked is None or asked.slots < 1 or warm < 1:
        return None
    if warm < asked.slots and waited < asked.after:
        return None
    return replace(targets, open=frozenset(range(asked.slots)), open_at=now + AHEAD)


class SlotTargetsOpener:
    """One standby's part in the first opening of slot targets without a manager [22].

    The store says how many slots are declared. Each standby counts the warm ones. It writes the
    slot targets once as many are warm, or `after` seconds after it saw the first. Compare-and-set
    lets one standby write, ahead of the joint subscribe as a manager does [19].
    """

    def __init__(self, context: WorkerContext, store: Store) -> None:
        self._store = store
        self._group = context.group
        self._clock = context.clock
        self._events = context.events
        self._watch = LeaseWatch(context.lease, None)
        self._looked_at: float | None = None
        self._first_seen: float | None = None
        self.waits_for: str | None = None
        """In words, while the slot targets are not open."""

    def step(self, targets: SlotTargets) -> bool:
        """Opens the slot targets if due; True if this call wrote them. Raises Unreachable."""
        if targets.version != 0 or not self._store.unmanaged:
            self.waits_for = None
            return False
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < _LOOK:
            return False
        self._looked_at = now
        asked = self._store.first_opening(self._group)
        living = self._watch.living(self._store.reports(self._group), now)
        warm = sum(report.phase == "standby" for report in living)
        if warm and self._first_seen is None:
            self._first_seen = now
        waited = 0.0 if self._first_seen is None else now - self._first_seen
        self.waits_for = _waiting(asked, warm)
        wanted = first_targets(targets, asked, warm=warm, waited=waited, now=self._clock.now())
        if wanted is None or self._store.write_targets(wanted) is None:
            return False
        self.waits_for = None
        self._events.log(
            f"opened {plural(len(wanted.open), 'slot')}, with {plural(warm, 'standby')} warm"
        )
        self._events.emit("first_opening", slots=len(wanted.open), warm=warm)
        return True


def _waiting(asked: FirstOpening | None, warm: int) -> str:
    if asked is None:
        return "a manager that opens slots: no slot is open"
    return f"the first opening: {warm} of {asked.slots} standbys are warm"


_STORE_PAUSE: Final = 1.0
"""Seconds between two attempts to open the store."""


def columnar_of(context: WorkerContext, runner: BatchRunner) -> Columnar:
    """Returns the columnar reading of a worker's backlogs, for all of its memberships."""
    worker, events, login = context.worker, context.events, context.login

    def report_columnar(why: str | None) -> None:
        sentence = "by column" if why is None else f"by ranges, not by column: {why}"
        events.log_rarely(f"a backlog is read {sentence}", key=f"columnar {why is None}")
        events.emit("columnar", on=why is None, why=why)

    def gather(named: NamedBatch, check: Callable[[], None]) -> Any:
        from fleet.kafka_source.columns import table_of_pieces  # noqa: PLC0415 - loads pyarrow
        from fleet.kafka_source.tasks import read_tables  # noqa: PLC0415 - loads kafka-python

        return read_tables(
            resolve(login, os.environ),
            named.wanted,
            isolation=worker.isolation,
            make=partial(table_of_pieces, tell=events.report_odd_field),
            check=check,
        )

    return Columnar(
        most=worker.batch.memory << 20,
        read=gather,
        sessions=runner,
        report_change=report_columnar,
        cores=len(os.sched_getaffinity(0)),
    )


def run(
    settings: WorkerSettings,
    *,
    name: str,
    home: Path,
    code: Path | None = None,
    clock: Clock | None = None,
) -> int:
    """Runs one worker until it is asked to end or cannot go on; returns the exit code.

    code: an archive of the entrypoint's code, unpacked into the state directory and put first on
    the path.
    """
    clock = clock or SystemClock()
    unset: ConfigError | None = None
    try:
        if settings.group.worker is not None:  # a runtime may have done it already
            os.environ.update(worker_environment(settings.group.worker.env, os.environ))
        settings = with_pod_settings(settings, os.environ)
        if settings.group.worker is None:
            raise ConfigError(f"group {settings.group.group} declares no worker")
    except ConfigError as error:
        unset = error
    context = WorkerContext(
        settings=settings,
        name=name,
        clock=clock,
        events=Events(worker=name, clock=clock, environ=os.environ),
        secrets=known_secrets(settings, os.environ),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: context.stop.set())
    try:
        if unset is not None:
            raise unset
        kind = WorkerMain
        if settings.group.worker is not None and settings.group.worker.command:
            from fleet.worker.program.process import ProgramWorker  # noqa: PLC0415 - builds on ours

            kind = ProgramWorker
        status, sentence = kind(context, home=home, code=code).run()
    except FleetError as error:
        status, sentence = error.exit_code, str(error)
    context.events.emit("exit", code=status, reason=sentence)
    context.events.log(f"ended: {sentence}")
    return status


class WorkerMain:
    """The life of a worker that calls a job; `ProgramWorker` runs a program instead."""

    def __init__(self, context: WorkerContext, *, home: Path, code: Path | None) -> None:
        self._context = context
        self._events = context.events
        self._stop = context.stop
        self._home = home
        self._code = code
        worker, runtime = context.worker, context.settings.group.runtime
        self._errors = JobErrors(say=self._events.log, secrets=context.secrets)
        catch_job_logs(
            worker.log_level, say=lambda line: self._events.log(self._errors.clean(line))
        )
        # Removed from the environment: PySpark would send it to any server that the user's code
        # names.
        ours = worker.spark == "shared" or in_clear(worker.spark)
        self._spark_token = os.environ.pop(SPARK_TOKEN, None) if ours else None
        self._pod = runtime if isinstance(runtime, KubernetesRuntimeSpec) else None
        self._reporter = Reporter(context, home=None if self._pod is None else home)
        self._reporter.traceback = self._errors.traceback_in
        self._runner: BatchRunner | None = None
        self._owner: SlotOwner | None = None
        self._reach: BrokerReach | None = None

    def run(self) -> tuple[int, str]:
        """Runs the worker's life; returns (exit code, reason)."""
        context, group = self._context, self._context.group
        lease, clock, events = context.lease, context.clock, context.events
        try:
            store = self._open_store()
            if self._pod is not None:
                end_former_slots(store, group=group, name=context.name, events=events)
            watcher = SlotWatcher(store, group=group, lease=lease, clock=clock)
            began = clock.monotonic()
            self._watch_brokers()
            self._warm(watcher)
            self._ready(watcher, seconds=clock.monotonic() - began)
            opener = SlotTargetsOpener(context, store)
            look = self._looks(store, watcher, opener)
            while not self._stop.is_set():
                if store.unmanaged:
                    self._reporter.canary.observe(watcher)
                ended = look()
                if ended is not None:
                    return ended
            self._reporter.ended()
            return 0, "asked to end"
        except FleetError as error:
            self._reporter.failed(str(error))
            if self._stop.is_set() and self._reporter.phase == "starting":
                return 0, "asked to end before it was ready"
            return error.exit_code, str(error)
        except Exception as error:  # noqa: BLE001 - whatever ends a worker is told in a sentence
            sentence = self._errors.line(error)
            self._reporter.failed(sentence)
            return 1, sentence
        finally:
            if self._reach is not None:
                self._reach.end()
            if self._runner is not None:
                self._runner.stop()
            self._reporter.close()

    def _open_store(self) -> Store:
        """Opens the slot store; waits if it does not answer [12]."""
        context = self._context
        kind = runtime_kind(context.settings.group.runtime.kind)
        self._reporter.waits_for = "the store of its slots"
        store: Store | None = None
        while True:
            try:
                store = store or kind.store(
                    context.settings, home=self._home, environ=os.environ, clock=context.clock
                )
                self._reporter.start(store)
                return store
            except Unreachable as error:
                self._reporter.waits_for = f"the store of its slots: {error}"
                self._events.log_rarely(str(error), key="store")
            if self._stop.wait(_STORE_PAUSE):
                raise FleetError("asked to end before it was ready")

    def _warm(self, watcher: SlotWatcher) -> None:
        """Loads the user's code, connects Spark, runs `setup`, warms."""
        from fleet.worker.batch.entrypoint import imported_from, load, pickle_by_value  # noqa: PLC0415

        context, worker = self._context, self._context.worker
        self._reporter.waits_for = f"Spark ({safe(worker.spark)}) and the entrypoint to be warm"
        folder = None
        if self._code is not None and self._pod is not None:
            folder = unpack(self._code, self._home, runtime=self._pod, environ=os.environ)
        if folder is not None:
            put_first(folder, os.environ)
        paths = (*([] if folder is None else [str(folder)]), *worker.python_path)
        entrypoint = load(worker.entrypoint, paths, describe=self._errors.describe)
        if not worker.spark.startswith("local["):  # its tasks are children of this process
            pickle_by_value(worker.entrypoint)
        link = SparkLink(
            where=self._where_spark_is,
            clock=context.clock,
            app=context.name,
            linger=LINGER_SHARED if worker.spark == "shared" else LINGER,
            token=self._token_of_spark,
            elsewhere=worker.spark.startswith("sc://"),
            ui=worker.spark_ui,
        )
        self._reporter.spark_ui = lambda: link.ui_url or self._shared_ui()
        has_letters = worker.dead_letter_topic is not None
        runner = self._runner = BatchRunner(
            context,
            link=link,
            entrypoint=entrypoint,
            is_ours=lambda: self._owner is None or self._owner.is_ours(),
            renew=lambda: self._owner is None or self._owner.renew(),
            letters=DeadLetters(context) if has_letters else None,
            errors=self._errors,
        )
        self._reporter.overdue = lambda: runner.overdue
        self._reporter.spark_away = lambda: runner.spark_away
        self._wait(runner.prepare(), watcher)
        live = imported_from([Path(folder) for folder in worker.python_path])
        if worker.entrypoint.partition(":")[0].partition(".")[0] not in live:  # but in the copy
            for module in live:
                self._events.log(
                    f"module {module} is not part of revision {context.settings.revision}: its "
                    "name was computed, so workers of a revision may run different code; import "
                    "it by its name"
                )

    def _ready(self, watcher: SlotWatcher, *, seconds: float) -> None:
        """Reports the warm standby."""
        with contextlib.suppress(Unreachable):
            watcher.refresh()  # a probe has to show at once whether the standby is on trial
        if watcher.store.unmanaged:
            self._reporter.canary.observe(watcher)
        freeze_imports()
        self._reporter.standby()
        self._events.log(f"ready after {seconds:.1f} s as a standby of {self._context.group}")
        self._events.emit("phase", phase="standby", seconds=seconds)

    def _watch_brokers(self) -> None:
        """Checks brokers while Spark starts: a standby is ready only if they answer."""
        context = self._context
        reach = self._reach = make_broker_reach(
            lambda: context.client,
            files=LoginFiles(context.login),
            group=context.group,
            topics=context.settings.group.topics,
            bootstrap=context.settings.bootstrap_servers,
        )
        self._reporter.cut_off = lambda: reach.trouble
        reach.watch()

    def _wait(self, future: "Future[None]", watcher: SlotWatcher) -> None:
        """Waits, and polls leases meanwhile: an owner that dies now is known at once afterwards."""
        while True:
            try:
                return future.result(timeout=0.25)
            except FutureTimeout:
                if self._stop.is_set():
                    raise FleetError("asked to end before it was ready") from None
                self._reporter.beat()
                with contextlib.suppress(Unreachable):
                    watcher.refresh()
                    watcher.dead()

    # --- the shared Spark server: of the state directory, or of the pod's environment --------

    @property
    def _at_home(self) -> bool:
        return self._context.worker.spark == "shared" and self._pod is None

    def _where_spark_is(self) -> str | None:
        if self._at_home:
            from fleet.act.spark_server import connect_url  # noqa: PLC0415 - only for that server

            return connect_url(self._home)
        spark = self._context.worker.spark
        return spark_url(self._pod, os.environ) if self._pod and spark == "shared" else spark

    def _shared_ui(self) -> str | None:
        if not self._at_home:
            return None
        from fleet.act.spark_server import ui_url  # noqa: PLC0415 - only for that server

        return ui_url(self._home)

    def _token_of_spark(self) -> str | None:
        """Returns the environment's token if Fleet has to send it; else PySpark finds it."""
        if not self._at_home:
            return self._spark_token
        from fleet.act.spark_server import token  # noqa: PLC0415 - only for that server

        return token(self._home)

    # --- slots -------------------------------------------------------------------------------

    def _send_leave(self, group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        from fleet.act.kafka import GroupAdmin  # noqa: PLC0415 - 0.2 s, hardly ever needed
        from fleet.security import kafka_python_config  # noqa: PLC0415

        settings = self._context.settings
        bootstrap = settings.bootstrap_servers
        config = kafka_python_config(settings.cluster, bootstrap, os.environ)
        with GroupAdmin(bootstrap=bootstrap, kafka_python_config=config) as admin:
            return admin.leave(group, members, reason="fleet: sent by a worker")

    def _looks(
        self, store: Store, watcher: SlotWatcher, opener: SlotTargetsOpener
    ) -> Callable[[], tuple[int, str] | None]:
        """Returns a standby's poll; the poll returns why an owner ended the worker, or None."""
        context, reach, new_owner = self._context, self._reach, self._owners()
        assert reach is not None
        failover = Failover(context, leave=self._send_leave)
        completer = LeaveCompleter(context, store, leave=self._send_leave)

        def look() -> tuple[int, str] | None:
            if completer.check(watcher):
                self._open_first(watcher, opener)
            found = watcher.takeable_slots(
                worker=context.name,
                revision=context.settings.revision,
                since=self._reporter.since,
            )
            for seen in found[:1]:
                owner = new_owner(
                    context,
                    seen,
                    watcher.void.get(seen.number),
                    watcher=watcher,
                    completer=completer,
                    failover=failover,
                    reporter=self._reporter,
                )
                if not owner.take():
                    watcher.forget()
                    self._stop.wait(
                        TICK
                    )  # another worker was quicker, or the store does not answer: poll again
                    return None
                reach.pause()
                self._owner = owner
                ended = owner.serve()
                self._owner = None
                if ended is None:
                    reach.watch()
                    self._reporter.standby()
                return ended
            self._reporter.beat()
            self._stop.wait(TICK)
            return None

        return look

    def _owners(self) -> Callable[..., SlotOwner]:
        """Returns what creates the owner of a slot."""
        runner = self._runner
        assert runner is not None
        return partial(SlotOwner, runner=runner, columnar=columnar_of(self._context, runner))

    def _open_first(self, watcher: SlotWatcher, opener: SlotTargetsOpener) -> None:
        try:
            if opener.step(watcher.targets):
                watcher.forget()
        except Unreachable as error:
            self._events.log_rarely(str(error))
        self._reporter.waits_for = opener.waits_for or "a free slot that is open"
