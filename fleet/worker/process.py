"""One worker process: wires the parts, and lives from standby to slot and back.

start → Spark, setup, warm → standby → slot → member → (handover, leave) → standby → … → end.
Exit codes: 0 asked to end, 1 broken (the last line on stderr says why), 2 wrong settings. A
worker that cannot go on ends [10]: restarting it is its supervisor's or the kubelet's business.
"""

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Final

from fleet.clock import Clock, SystemClock
from fleet.errors import ConfigError, FleetError
from fleet.references import worker_environment
from fleet.settings import WorkerSettings
from fleet.slots import SlotStore
from fleet.worker.events import Events
from fleet.worker.executor import BatchRunner, Identity
from fleet.worker.holding import Looker
from fleet.worker.leaving import Completer
from fleet.worker.protocols import protocol_of
from fleet.worker.reporting import Reporter
from fleet.worker.tenure import Tenure, Tools

TICK: Final = 0.05
"""Seconds between two looks at the store."""


def run(settings: WorkerSettings, *, name: str, home: Path, clock: Clock | None = None) -> int:
    """Be one worker until it is asked to end or cannot go on; the exit code."""
    clock = clock or SystemClock()
    unset: ConfigError | None = None
    try:
        if settings.group.worker is not None:  # a runtime may have done so already
            os.environ.update(worker_environment(settings.group.worker.env, os.environ))
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
            settings=settings, name=name, home=home, stop=stop, clock=clock, events=events
        )
        code, sentence = worker.live()
    except FleetError as error:
        code, sentence = error.exit_code, str(error)
    events.tell("exit", code=code, reason=sentence)
    events.say(f"ended: {sentence}")
    return code


class _Worker:
    def __init__(
        self,
        *,
        settings: WorkerSettings,
        name: str,
        home: Path,
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
        self._stop = stop
        self._clock = clock
        self._events = events
        self._lease = group.runtime.lease
        self._store: SlotStore = _store(settings, home, clock)
        self._reporter = Reporter(
            settings, name=name, store=self._store, clock=clock, events=events
        )
        self._runner: BatchRunner | None = None
        self._tenure: Tenure | None = None

    def live(self) -> tuple[int, str]:
        """The whole life; (exit code, why it ended)."""
        try:
            self._warm()
            looker = Looker(
                self._store, group=self._settings.group.group, lease=self._lease, clock=self._clock
            )
            tools = self._tools(looker)
            while not self._stop.is_set():
                ended = self._look_for_a_slot(looker, tools)
                if ended is not None:
                    return ended
            return 0, "asked to end"
        except FleetError as error:
            self._reporter.failed(str(error))
            if self._stop.is_set() and self._reporter.phase == "starting":
                return 0, "asked to end before it was ready"
            return error.exit_code, str(error)
        finally:
            if self._runner is not None:
                self._runner.stop()
            self._reporter.close()

    def _warm(self) -> None:
        """Load the user's code, connect Spark, run `setup`, warm."""
        from fleet.worker.entrypoint import load  # noqa: PLC0415 - after worker.env is in place
        from fleet.worker.spark_link import SparkLink  # noqa: PLC0415

        worker = self._settings.group.worker
        assert worker is not None
        self._reporter.write()
        began = self._clock.monotonic()
        entrypoint = load(worker.entrypoint, worker.python_path)
        drain = self._settings.group.rollout.drain_timeout
        self._runner = BatchRunner(
            link=SparkLink(where=self._where_spark_is, clock=self._clock, app=self._name),
            entrypoint=entrypoint,
            identity=Identity(
                cluster=self._settings.cluster.name,
                group=self._settings.group.group,
                worker=self._name,
                revision=self._settings.revision,
            ),
            batch_timeout=worker.batch_timeout or worker.max_poll_interval - drain,
            still_ours=lambda: self._tenure is None or self._tenure.still_ours(),
            ending=self._stop.is_set,
            clock=self._clock,
            events=self._events,
        )
        self._wait(self._runner.prepare())
        took = self._clock.monotonic() - began
        self._reporter.standby()
        self._events.say(f"ready after {took:.1f} s as a standby of {self._settings.group.group}")
        self._events.tell("phase", phase="standby", seconds=took)

    def _wait(self, future: "Future[None]") -> None:
        while True:
            try:
                return future.result(timeout=0.25)
            except FutureTimeout:
                if self._stop.is_set():
                    raise FleetError("asked to end before it was ready") from None
                self._reporter.beat()

    def _where_spark_is(self) -> str | None:
        worker = self._settings.group.worker
        assert worker is not None
        if worker.spark != "shared":
            return worker.spark
        from fleet.act.spark_server import connect_url  # noqa: PLC0415 - only for the shared server

        return connect_url(self._home)

    def _tools(self, looker: Looker) -> Tools:
        worker = self._settings.group.worker
        assert worker is not None
        assert self._runner is not None
        completer = Completer(
            self._store,
            group=self._settings.group.group,
            static=worker.membership == "static",
            lease=self._lease,
            leave=self._send_leave,
            clock=self._clock,
            events=self._events,
        )
        return Tools(
            settings=self._settings,
            name=self._name,
            store=self._store,
            looker=looker,
            completer=completer,
            protocol=self._protocol,
            runner=self._runner,
            reporter=self._reporter,
            stop=self._stop,
            clock=self._clock,
            events=self._events,
        )

    def _send_leave(self, group: str, members: Sequence[tuple[str, str]]) -> str | None:
        from fleet.act.kafka import GroupAdmin, LeavingMember  # noqa: PLC0415 - 0.2 s, hardly ever needed
        from fleet.security import kafka_python_config  # noqa: PLC0415

        bootstrap = self._settings.bootstrap_servers
        config = kafka_python_config(self._settings.cluster, bootstrap, os.environ)
        with GroupAdmin(bootstrap=bootstrap, kafka_python_config=config) as admin:
            leaving = [LeavingMember(instance_id=i, member_id=m) for i, m in members]
            return admin.leave(group, leaving, reason="fleet: completed by a worker").refusal

    def _look_for_a_slot(self, looker: Looker, tools: Tools) -> tuple[int, str] | None:
        """One look of a standby; what a tenure ended the worker with, or None."""
        tools.see()
        for seen in looker.takeable(worker=self._name, revision=self._settings.revision):
            self._tenure = Tenure.take(tools, seen)
            if self._tenure is not None:
                ended = self._tenure.serve()
                self._tenure = None
                if ended is None:
                    self._reporter.standby()
                return ended
            looker.forget()
            return None  # somebody was quicker: look again at once
        self._reporter.beat()
        self._stop.wait(TICK)
        return None


def _store(settings: WorkerSettings, home: Path, clock: Clock) -> SlotStore:
    from fleet.act.store import SqliteStore  # noqa: PLC0415 - Kubernetes brings its own

    return SqliteStore(home / "fleet.db", cluster=settings.cluster.name, clock=clock)
