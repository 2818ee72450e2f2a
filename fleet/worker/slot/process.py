"""One worker process: wires the parts, and lives from standby to slot and back.

start → Spark, setup, warm → standby → slot → member → (handover, leave) → standby → … → end.
Exit codes: 0 asked to end, 1 broken (the last line on stderr says why), 2 wrong settings. A
worker that cannot go on ends [10]: restarting it is its supervisor's or the kubelet's business.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from pathlib import Path
from typing import Final

from fleet.clock import Clock, SystemClock
from fleet.collector import settled as settled_imports
from fleet.config.references import worker_environment
from fleet.config.settings import WorkerSettings
from fleet.config.spec import KubernetesRuntimeSpec
from fleet.errors import ConfigError, FleetError, Unreachable
from fleet.kafka_source.login import references
from fleet.security import client_config
from fleet.slots import FirstOpening, Gate, WorkerReport
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.slots.transitions import has_good_canary, missing_canary
from fleet.system.runtimes import runtime_kind
from fleet.text import plural
from fleet.worker.batch.entrypoint import JobErrors
from fleet.worker.batch.executor import BatchRunner, Identity
from fleet.worker.batch.poison_search import DeadLetters
from fleet.worker.batch.spark_link import LINGER, LINGER_SHARED, SparkLink, in_clear, safe
from fleet.worker.canary_note import CanaryNote, RevisionDoubts
from fleet.worker.events import Events, catch_job_logs
from fleet.worker.login_files import LoginFiles
from fleet.worker.member.protocols import protocol_of
from fleet.worker.pod_environment import SPARK_TOKEN, put_first, settled, spark_url, unpack
from fleet.worker.reach import Reach, reach_of
from fleet.worker.slot.holder_tools import HolderTools, known_secrets
from fleet.worker.slot.leave_completion import LeaveCompleter, Takeover, holder_of
from fleet.worker.slot.membership_setup import columnar_of
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_holder import SlotHolder
from fleet.worker.slot.slot_lease import SlotWatcher

# A pod's container that starts again tells that the one before it has ended [13].
#
# Problem: the kubelet starts a killed container anew within seconds, its slot waits for a lease of
# 30 s. Choice: a pod has one worker under its own name, so that whoever starts there and finds the
# name at a slot knows that its holder's process is gone; it says so before Spark is started, and a
# standby takes the slot meanwhile. On one machine the supervisor tells, which has seen the end.
# Cost: a reading of the group's slots at each start.


def end_former_life(store: Store, *, group: str, name: str, events: Events) -> None:
    """Say of each slot that this pod's last container held that its holder has ended.

    A store that does not answer now leaves it to the lease.
    """
    try:
        for slot in store.slots(group):
            if slot.holder == name and store.end_holder(slot):
                events.log(f"slot {slot.number} was this pod's last container's: it is free")
    except FleetError as error:
        events.log(f"what this pod's last container held waits for its lease: {error}")


# Opens a gate that nobody has opened, where a fleet is applied without a manager [22].
#
# Problem: manifests alone must start a fleet, and members that join one after the other cost a
# rebalance each. Choice: the store says how many slots are wanted first; each standby counts the
# warm ones and writes the gate once as many are there, or `after` seconds after it saw the first;
# compare-and-set lets one of them do it, with `open_at` ahead as a manager's opening has it [19].
# Cost: with fewer standbys than slots, the later ones join later, at a rebalance each.


AHEAD: Final = 1.5
"""Seconds between the write and the joint subscribe: time to take, build, connect [19]."""
_LOOK: Final = 0.5
"""Seconds between two looks at who is warm."""


def first_gate(
    gate: Gate, asked: FirstOpening | None, *, warm: int, waited: float, now: float
) -> Gate | None:
    """The gate to write, None where it is not due: written before, not asked for, too early.

    warm: living standbys. waited: seconds since the first of them was seen.
    """
    if gate.version != 0 or gate.open or asked is None or asked.slots < 1 or warm < 1:
        return None
    if warm < asked.slots and waited < asked.after:
        return None
    return replace(gate, open=frozenset(range(asked.slots)), open_at=now + AHEAD)


class GateOpener:
    """One standby's part in the first opening; nothing where the store leaves it to a manager."""

    def __init__(
        self, store: Store, *, group: str, lease: float, clock: Clock, events: Events
    ) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._events = events
        self._watch = LeaseWatch(lease, None)
        self._looked_at: float | None = None
        self._first_seen: float | None = None
        self.waits_for: str | None = None
        """In words, while the gate is not open."""

    def step(self, gate: Gate) -> bool:
        """Open the gate where that is due; True where it was written here. Raises Unreachable."""
        if gate.version != 0 or not self._store.unmanaged:
            self.waits_for = None
            return False
        now = self._clock.monotonic()
        if self._looked_at is not None and now - self._looked_at < _LOOK:
            return False
        self._looked_at = now
        asked = self._store.first(self._group)
        warm = self._warm(self._store.reports(self._group), now)
        if warm and self._first_seen is None:
            self._first_seen = now
        waited = 0.0 if self._first_seen is None else now - self._first_seen
        self.waits_for = _waiting(asked, warm)
        wanted = first_gate(gate, asked, warm=warm, waited=waited, now=self._clock.now())
        if wanted is None or self._store.write_gate(wanted) is None:
            return False
        self.waits_for = None
        self._events.log(
            f"opened {plural(len(wanted.open), 'slot')}, with {plural(warm, 'standby')} warm"
        )
        self._events.emit("first_opening", slots=len(wanted.open), warm=warm)
        return True

    def _warm(self, reports: Iterable[WorkerReport], now: float) -> int:
        """Standbys whose reports move: a dead pod's report stays."""
        return sum(
            report.phase == "standby"
            and not self._watch.expired(report.worker, report.counter, now)
            for report in reports
        )


def _waiting(asked: FirstOpening | None, warm: int) -> str:
    if asked is None:
        return "a manager that opens the gate: no slot is open"
    return f"the first opening: {warm} of {asked.slots} standbys are warm"


TICK: Final = 0.05
"""Seconds between two looks at the store."""
_STORE_PAUSE: Final = 1.0
"""Seconds between two attempts to open the store."""


def run(
    settings: WorkerSettings,
    *,
    name: str,
    home: Path,
    code: Path | None = None,
    clock: Clock | None = None,
) -> int:
    """Be one worker until it is asked to end or cannot go on; the exit code.

    code: an archive of the entrypoint's code, unpacked into the home and put first on the path.
    """
    clock = clock or SystemClock()
    unset: ConfigError | None = None
    try:
        if settings.group.worker is not None:  # a runtime may have done so already
            os.environ.update(worker_environment(settings.group.worker.env, os.environ))
        settings = settled(settings, os.environ)
    except ConfigError as error:
        unset = error
    events = Events(worker=name, clock=clock, environ=os.environ)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if unset is not None:
            raise unset
        worker = _Worker(
            settings=settings,
            name=name,
            home=home,
            code=code,
            stop=stop,
            clock=clock,
            events=events,
        )
        status, sentence = worker.live()
    except FleetError as error:
        status, sentence = error.exit_code, str(error)
    events.emit("exit", code=status, reason=sentence)
    events.log(f"ended: {sentence}")
    return status


class _Worker:
    def __init__(
        self,
        *,
        settings: WorkerSettings,
        name: str,
        home: Path,
        code: Path | None,
        stop: threading.Event,
        clock: Clock,
        events: Events,
    ) -> None:
        group = settings.group
        if group.worker is None:
            raise ConfigError(f"group {group.group} declares no worker")
        self._protocol = protocol_of(settings)
        self._settings = settings
        self._name = name
        self._home = home
        self._code = code
        self._stop = stop
        self._clock = clock
        self._events = events
        self._lease = group.runtime.lease
        secrets = known_secrets(settings, os.environ)
        self._errors = JobErrors(say=events.log, secrets=secrets)
        catch_job_logs(
            group.worker.log_level, say=lambda line: events.log(self._errors.clean(line))
        )
        # Out of the environment: PySpark would send it to any server that the user's code names.
        ours = group.worker.spark == "shared" or in_clear(group.worker.spark)
        self._spark_token = os.environ.pop(SPARK_TOKEN, None) if ours else None
        self._reporter = Reporter(settings, name=name, clock=clock, events=events)
        pod = isinstance(group.runtime, KubernetesRuntimeSpec)
        self._canary = CanaryNote(home if pod else None, say=events.log_rarely)
        self._reporter.canary_error = lambda: self._canary.error
        self._reporter.traceback = self._errors.traceback_in
        self._runner: BatchRunner | None = None
        self._holder: SlotHolder | None = None
        self._doubts: RevisionDoubts | None = None
        self._reach: Reach | None = None

    def live(self) -> tuple[int, str]:
        """The whole life; (exit code, why it ended)."""
        group = self._settings.group.group
        try:
            store = self._open_store()
            if isinstance(self._settings.group.runtime, KubernetesRuntimeSpec):
                end_former_life(store, group=group, name=self._name, events=self._events)
            watcher = SlotWatcher(store, group=group, lease=self._lease, clock=self._clock)
            if store.unmanaged:
                self._doubts = RevisionDoubts(
                    store, group=group, lease=self._lease, clock=self._clock
                )
            self._warm(watcher)
            opener = GateOpener(
                store, group=group, lease=self._lease, clock=self._clock, events=self._events
            )
            tools = self._tools(store, watcher)
            while not self._stop.is_set():
                self._doubt(watcher)
                ended = self._look_for_a_slot(watcher, opener, tools)
                if ended is not None:
                    return ended
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
        """Where slots are; one that does not answer is waited for [12]."""
        kind = runtime_kind(self._settings.group.runtime.kind)
        self._reporter.waits_for = "the store of its slots"
        store: Store | None = None
        while True:
            try:
                store = store or kind.store(
                    self._settings, home=self._home, environ=os.environ, clock=self._clock
                )
                self._reporter.start(store)
                return store
            except Unreachable as error:
                self._reporter.waits_for = f"the store of its slots: {error}"
                self._events.log_rarely(str(error), key="store")
            if self._stop.wait(_STORE_PAUSE):
                raise FleetError("asked to end before it was ready")

    def _warm(self, watcher: SlotWatcher) -> None:
        """Load the user's code, connect Spark, run `setup`, warm."""
        from fleet.worker.batch.entrypoint import imported_from, load, pickle_by_value  # noqa: PLC0415

        worker = self._settings.group.worker
        assert worker is not None
        self._reporter.waits_for = f"Spark ({safe(worker.spark)}) and the entrypoint to be warm"
        began = self._clock.monotonic()
        self._watch_brokers(True)
        folder = None if self._code is None else unpack(self._code, self._home)
        if folder is not None:
            put_first(folder, os.environ)
        paths = (*([] if folder is None else [str(folder)]), *worker.python_path)
        entrypoint = load(worker.entrypoint, paths, told=self._errors.told)
        if not worker.spark.startswith("local["):  # whose tasks are this process' children
            pickle_by_value(worker.entrypoint)
        link = SparkLink(
            where=self._where_spark_is,
            clock=self._clock,
            app=self._name,
            linger=LINGER_SHARED if worker.spark == "shared" else LINGER,
            token=self._token_of_spark,
            elsewhere=worker.spark.startswith("sc://"),
            ui=worker.spark_ui,
        )
        self._reporter.spark_ui = lambda: link.ui_url or self._shared_ui()
        self._runner = BatchRunner(
            link=link,
            entrypoint=entrypoint,
            identity=Identity(
                cluster=self._settings.cluster.name,
                group=self._settings.group.group,
                worker=self._name,
                revision=self._settings.revision,
            ),
            batch_timeout=self._settings.group.batch_limit,
            still_ours=lambda: self._holder is None or self._holder.still_ours(),
            renew=lambda: self._holder is None or self._holder.renew(),
            ending=self._stop.is_set,
            clock=self._clock,
            events=self._events,
            letters=self._letters(),
            errors=self._errors,
        )
        self._reporter.overdue = lambda: None if self._runner is None else self._runner.overdue
        self._reporter.spark_away = lambda: self._runner.spark_away if self._runner else None
        self._wait(self._runner.prepare(), watcher)
        live = imported_from([Path(folder) for folder in worker.python_path])
        if worker.entrypoint.partition(":")[0].partition(".")[0] not in live:  # but in the copy
            for module in live:
                self._events.log(
                    f"module {module} is no part of revision {self._settings.revision}: its name "
                    "was computed, and workers of a revision may run different code; import it "
                    "by its name"
                )
        took = self._clock.monotonic() - began
        with contextlib.suppress(Unreachable):
            watcher.look()  # whoever probes a standby is to hear at once whether it is in doubt
        self._doubt(watcher)
        settled_imports()
        self._reporter.standby()
        self._events.log(f"ready after {took:.1f} s as a standby of {self._settings.group.group}")
        self._events.emit("phase", phase="standby", seconds=took)

    def _watch_brokers(self, wanted: bool, /) -> None:
        """A standby is ready only where brokers answer it; asked while Spark starts."""
        if self._reach is None:
            settings = self._settings
            where = (settings.cluster, settings.bootstrap_servers)
            reach = self._reach = reach_of(
                lambda: client_config(*where, os.environ),
                files=LoginFiles(references(*where)),
                group=settings.group.group,
                topics=settings.group.topics,
                bootstrap=settings.bootstrap_servers,
            )
            self._reporter.cut_off = lambda: reach.trouble
        if wanted:
            self._reach.watch()
        else:
            self._reach.pause()

    def _wait(self, future: "Future[None]", watcher: SlotWatcher) -> None:
        """Holders are watched meanwhile: one that is dead by now need not be watched again."""
        while True:
            try:
                return future.result(timeout=0.25)
            except FutureTimeout:
                if self._stop.is_set():
                    raise FleetError("asked to end before it was ready") from None
                self._reporter.beat()
                with contextlib.suppress(Unreachable):
                    watcher.look()
                    watcher.dead()

    def _letters(self) -> DeadLetters | None:
        worker = self._settings.group.worker
        if worker is None or worker.dead_letter_topic is None:
            return None
        return DeadLetters(
            topic=worker.dead_letter_topic,
            group=self._settings.group.group,
            revision=self._settings.revision,
            options=client_config(
                self._settings.cluster, self._settings.bootstrap_servers, os.environ
            ),
            events=self._events,
        )

    def _where_spark_is(self) -> str | None:
        worker = self._settings.group.worker
        assert worker is not None
        if worker.spark != "shared":
            return worker.spark
        runtime = self._settings.group.runtime
        if isinstance(runtime, KubernetesRuntimeSpec):
            return spark_url(runtime, os.environ)
        from fleet.act.spark_server import connect_url  # noqa: PLC0415 - only for the shared server

        return connect_url(self._home)

    def _shared_ui(self) -> str | None:
        worker = self._settings.group.worker
        runtime = self._settings.group.runtime
        assert worker is not None
        if worker.spark != "shared" or isinstance(runtime, KubernetesRuntimeSpec):
            return None
        from fleet.act.spark_server import ui_url  # noqa: PLC0415 - only for the shared server

        return ui_url(self._home)

    def _token_of_spark(self) -> str | None:
        """Of the shared server: the pod's environment has it, or the home.

        Of a server elsewhere: the environment, where Fleet sends it; else PySpark finds it there.
        """
        worker = self._settings.group.worker
        assert worker is not None
        runtime = self._settings.group.runtime
        if worker.spark != "shared" or isinstance(runtime, KubernetesRuntimeSpec):
            return self._spark_token
        from fleet.act.spark_server import token  # noqa: PLC0415 - only for the shared server

        return token(self._home)

    def _tools(self, store: Store, watcher: SlotWatcher) -> HolderTools:
        worker = self._settings.group.worker
        assert worker is not None
        assert self._runner is not None
        completer = LeaveCompleter(
            store,
            group=self._settings.group.group,
            static=worker.membership == "static",
            lease=self._lease,
            leave=self._send_leave,
            clock=self._clock,
            events=self._events,
        )
        return HolderTools(
            settings=self._settings,
            name=self._name,
            store=store,
            watcher=watcher,
            completer=completer,
            leave=self._send_leave,
            takeover=self._takeover(),
            protocol=self._protocol,
            runner=self._runner,
            reporter=self._reporter,
            canary=self._canary,
            columnar=columnar_of(self._settings, runner=self._runner, events=self._events),
            stop=self._stop,
            clock=self._clock,
            events=self._events,
        )

    def _takeover(self) -> Takeover:
        settings = self._settings
        login = references(settings.cluster, settings.bootstrap_servers)
        return Takeover(
            group=settings.group.group,
            leave=self._send_leave,
            holder_of=holder_of(login, settings.group.group),
            events=self._events,
        )

    def _send_leave(self, group: str, members: Sequence[tuple[str | None, str]]) -> str | None:
        from fleet.act.kafka import GroupAdmin, LeavingMember  # noqa: PLC0415 - 0.2 s, hardly ever needed
        from fleet.security import kafka_python_config  # noqa: PLC0415

        bootstrap = self._settings.bootstrap_servers
        config = kafka_python_config(self._settings.cluster, bootstrap, os.environ)
        with GroupAdmin(bootstrap=bootstrap, kafka_python_config=config) as admin:
            leaving = [LeavingMember(instance_id=i, member_id=m) for i, m in members]
            return admin.leave(group, leaving, reason="fleet: sent by a worker").refusal

    def _look_for_a_slot(
        self, watcher: SlotWatcher, opener: GateOpener, tools: HolderTools
    ) -> tuple[int, str] | None:
        """One look of a standby; what a holder ended the worker with, or None."""
        if tools.see():
            self._open_first(watcher, opener)
        for seen in watcher.takeable(
            worker=self._name, revision=self._settings.revision, since=self._reporter.since
        ):
            self._holder = SlotHolder.take(tools, seen, watcher.void.get(seen.number))
            if self._holder is not None:
                self._watch_brokers(False)
                ended = self._holder.serve()
                self._holder = None
                if ended is None:
                    self._watch_brokers(True)
                    self._reporter.standby()
                return ended
            watcher.forget()
            self._stop.wait(TICK)  # somebody was quicker, or the store is away: look again
            return None
        self._reporter.beat()
        self._stop.wait(TICK)
        return None

    def _doubt(self, watcher: SlotWatcher) -> None:
        """Whether this standby may be taken for ready: its revision works, or nothing is there on
        which it will show that.
        """
        if self._doubts is None:
            return
        revision = self._settings.revision
        if self._canary.error is not None and has_good_canary(watcher.slots, revision):
            self._canary.prove()
        self._reporter.doubt = self._doubts.look(
            watcher.slots, worker=self._name, revision=revision
        )
        self._reporter.missing_canary = missing_canary(watcher.gate, watcher.slots, revision)

    def _open_first(self, watcher: SlotWatcher, opener: GateOpener) -> None:
        try:
            if opener.step(watcher.gate):
                watcher.forget()
        except Unreachable as error:
            self._events.log_rarely(str(error))
        self._reporter.waits_for = opener.waits_for or "a free slot that is open"
