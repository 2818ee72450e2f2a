"""What a worker reports of itself: the stored report and the HTTP status, from one set of facts.

A standby stores a report every third of the lease, which is its sign of life. An owner renews its
slot instead. It stores a report with every renewal that has news, else once per lease, or once per
minute if the store asks for that (`report_every`). The status is available before a store or a
Spark is, so that probes see what a start waits for. It never asks the store.
"""

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import FleetError, Unreachable
from fleet.slots import WorkerReport
from fleet.slots.evidence import LeaseWatch
from fleet.slots.store import Store
from fleet.slots.transitions import describe_doubt, describe_missing_canary, has_good_canary
from fleet.system.home import read_state, write_state
from fleet.system.listening import Listening, QuietHandler
from fleet.worker.events import WorkerContext
from fleet.worker.member.member_state import MemberState
from fleet.worker.pod_environment import template_of
from fleet.worker.slot.slot_lease import SlotWatcher

if TYPE_CHECKING:
    from prometheus_client.core import Metric


# Decides whether a worker's revision works, beyond one life of its process [22].
#
# Problem: a container whose entrypoint fails on every batch ends, starts again and is a warm
# standby once more. If it counted as ready, a rollout would go on and replace every good worker. A
# warm pod beside its revision's canary would do the same if the rollout is faster than the canary.
# Choice: a pod writes a file into its state directory when it owns a slot and has committed nothing
# yet. The first batch removes the file (or nothing to read and no error). A process that finds the
# file of its predecessor is a standby that is not ready, and reports so. Standbys of the same
# revision are not ready either while a living one reports so. All of them go on taking slots, and
# the first good canary ends it. A standby is also not ready while a slot has, or will have, its
# revision's canary: owned by the revision, free, or drained. Cost: a pod killed between its take
# and its first commit is not ready until its revision has a good canary again. At a first start
# standbys are ready once, and again after the first commit. If the state directory cannot be
# written, what the process has seen counts.


_SCHEMA: Final = 1
_NOTE: Final = "canary.json"
_UNTOLD: Final = "the process before this one ended before its first batch was committed"


class Canary:
    """What a worker knows of its revision's canary, which may be the worker itself.

    home: of a pod; elsewhere nothing is recorded.
    """

    def __init__(self, context: WorkerContext, *, home: Path | None = None) -> None:
        self._context = context
        self._file = None if home is None else home / _NOTE
        self._reports = LeaseWatch(context.lease, None)
        self._polled_at = -math.inf
        self.running = False
        """Whether this worker holds a slot, and has not shown yet that its revision works."""
        left = None if self._file is None else read_state(self._file, schema=_SCHEMA)
        self.error = None if left is None else str(left.get("error") or _UNTOLD)
        """Why this pod's last owner failed before its first batch, also of an earlier life."""
        self.doubt: str | None = None
        """Why others of its revision doubt it."""
        self.missing: str | None = None
        """On which slot its revision has to show first that it works."""

    def start(self) -> None:
        """Records that a slot is taken."""
        if self._file is not None:
            self.running = True
            self._write(self._file)

    def fail(self, sentence: str) -> None:
        """Records the owner's failure, unless it was a good canary."""
        if self.running and self._file is not None:
            self.error = sentence
            self._write(self._file)

    def succeed(self) -> None:
        """Records that the revision works."""
        self.running, self.error = False, None
        if self._file is not None:
            with self._failures_told():
                self._file.unlink(missing_ok=True)

    def end(self) -> None:
        """Ends the ownership without a result: what was known before stays."""
        if self.running and self.error is None:
            self.succeed()
        self.running = False

    def observe(self, watcher: SlotWatcher) -> None:
        """Reads the canary's state from slots, and from others' reports every sixth of the lease.

        A store that does not answer changes nothing.
        """
        context = self._context
        revision, now = context.settings.revision, context.clock.monotonic()
        if self.error is not None and has_good_canary(watcher.slots, revision):
            self.succeed()
        self.missing = describe_missing_canary(watcher.targets, watcher.slots, revision)
        if now - self._polled_at < context.lease / 6:
            return
        self._polled_at = now
        with contextlib.suppress(Unreachable):
            living = self._reports.living(watcher.store.reports(context.group), now)
            self.doubt = describe_doubt(
                living, watcher.slots, worker=context.name, revision=revision
            )

    def _write(self, file: Path) -> None:
        with self._failures_told():
            write_state(file, {"error": self.error}, schema=_SCHEMA)

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._context.events.log_rarely(f"the file {self._file} cannot be written: {error}")


# Over HTTP. /startupz: the process has read its settings and may warm, however long that takes.
# /livez: its threads move, or wait for unreachable brokers. /readyz: a warm standby that brokers
# answer, or an owner that has committed (or found nothing to read) and whose last batch succeeded.
# Each says in words the worker's condition and what it waits for. /metrics: Prometheus text.
# /status: the same facts as JSON. None has a secret. Answers come from memory, so a hanging store,
# broker or Spark delays none.


Status = Callable[[], Mapping[str, Any]]
"""Returns the worker's facts now; see `fleet.worker.slot.process`."""

_COUNTERS: Final = {
    "batches": "Batches committed.",
    "records": "Records committed.",
    "busy_seconds": "Seconds spent inside batches.",
    "lost_records": "Records that retention deleted before they were read.",
    "dead_letters": "Records sent to the dead-letter topic.",
}
_GAUGES: Final = {
    "ready": "1 if the worker is a warm standby or its last batch succeeded.",
    "partitions": "Partitions assigned now.",
    "stopped_partitions": "Partitions stopped because their next record cannot be processed.",
    "failing_seconds": "Seconds for which the entrypoint has failed for every batch; else 0.",
    "last_commit_timestamp_seconds": "Wall time of the last commit.",
}
_PROBES: Final = {"/startupz": None, "/livez": "live", "/readyz": "ready"}
"""Path of a probe → the fact that it needs; None: only an answer."""


def describe_status(facts: Mapping[str, Any]) -> str:
    """Describes a worker in a line: its condition, its slot, its error, what it waits for."""
    said = str(facts["condition"])
    if facts.get("slot") is not None:
        said += f" (slot {facts['slot']})"
    if facts.get("error"):
        said += f": {facts['error']}"
    if facts.get("doubt"):
        said += f": {facts['doubt']}"
    if facts.get("waits_for"):
        said += f"; waits for {facts['waits_for']}"
    return " ".join(said.split())


class _Collector:
    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> "Iterator[Metric]":
        """Returns families made from the status at the time of the scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        facts = self._status()
        names = ("cluster", "group", "worker", "revision")
        labels = [str(facts[name]) for name in names]
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"fleet_worker_{name}", text, labels=names)
            counter.add_metric(labels, float(facts[name]))
            yield counter
        for name, text in _GAUGES.items():
            if facts.get(name) is not None:
                gauge = GaugeMetricFamily(f"fleet_worker_{name}", text, labels=names)
                gauge.add_metric(labels, float(facts[name]))
                yield gauge
        phase = GaugeMetricFamily(
            "fleet_worker_phase", "1 for the phase the worker is in.", labels=(*names, "phase")
        )
        phase.add_metric([*labels, str(facts["phase"])], 1.0)
        yield phase


class StatusServer(Listening):
    """Serves one worker's status until the process ends."""

    def __init__(self, address: str, status: Status) -> None:
        handler = _handler(status)
        remedy = "write host:port, port 0 for a free one"
        super().__init__(address, handler, key="worker.http", remedy=remedy)


def _exposition(status: Status) -> bytes:
    """Returns Prometheus text; its library is loaded at the first scrape."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(_Collector(status))
    return generate_latest(registry)


def _handler(status: Status) -> type[QuietHandler]:
    class StatusHandler(QuietHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self.answer(200, _exposition(status), "text/plain; version=0.0.4")
                return
            facts = status()
            if path == "/status":
                self.answer(200, json.dumps(facts, default=str).encode(), "application/json")
            elif path in _PROBES:
                fact = _PROBES[path]
                good = fact is None or bool(facts[fact])
                told = f"{'ok' if good else 'no'}: {describe_status(facts)}\n"
                self.answer(200 if good else 503, told.encode())
            else:
                self.answer(404, f"{' '.join(_PROBES)} /metrics /status\n".encode())

    return StatusHandler


_STALLED: Final = 30.0
"""Seconds without a turn of the consumer thread after which the worker is not live."""
_FIRST_BATCHES: Final = 10
"""Batches of which each is reported with the next renewal."""
_WELL: Final = frozenset({"active", "draining", "drained", "closed"})
"""Phases of an owner that has committed a batch, or found nothing to read, since its take."""


_READY: Final = frozenset({"no slot", "serving"})
"""Conditions: starting (not warm yet), no slot (a warm standby), on trial (a standby whose revision
another worker is about to try), disconnected (a standby that no broker answers), joining (owns a
slot, and nothing committed yet), serving, unhealthy (the error says why)."""


class Reporter:
    """Counts over all memberships of this process, and reports them."""

    def __init__(self, context: WorkerContext, *, home: Path | None = None) -> None:
        """home: where a pod records what its owner has shown."""
        clock, settings, worker = context.clock, context.settings, context.worker
        self._context = context
        self._settings = settings
        self.canary = Canary(context, home=home)
        self._since = settings.published_at or clock.now()
        self._store: Store | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._counter = 0
        self._written_at = clock.monotonic()
        self._told: WorkerReport | None = None
        """What the store has of us, but for what an owner counts."""
        self._owned: bool | None = None
        """Whether the store ranks us as an owner; None: not known."""
        self._before = MemberState()
        self._state: MemberState | None = None
        self._slot: int | None = None
        self._error: str | None = None
        # The longest wait for brokers, of a join, an assignment or a commit.
        self._grace = max(worker.max_poll_interval, context.session_timeout)
        self._phase = "starting"
        self.waits_for: str | None = None
        """In words, while there is no slot."""
        self.cut_off: Callable[[], str | None] = lambda: None
        """Why a standby could not serve now: which brokers do not answer."""
        self.overdue: Callable[[], str | None] = lambda: None
        """Says why the batch in hand makes the worker not live [5]."""
        self.spark_away: Callable[[], str | None] = lambda: None
        """Why an owner's batch in hand stands still."""
        self.traceback: Callable[[str | None], str | None] = lambda _: None
        """Of the job, where an error is the job's."""
        self.spark_ui: Callable[[], str | None] = lambda: None
        self._http = StatusServer(worker.http, self.status)

    @property
    def since(self) -> float:
        """Returns since when this revision is wanted."""
        return self._since

    @property
    def phase(self) -> str:
        """Returns the phase of the report: the membership's if there is one."""
        if self._state is not None and self._phase != "failed":
            return str(self._state.reported_phase)
        return self._phase

    def start(self, store: Store) -> None:
        """Stores reports from here on; reads the revision's date. Raises Unreachable."""
        template = template_of(self._settings.revision)
        if template is not None and store.unmanaged:
            self._since = store.since(self._context.group, template, self._clock.now())
        self._store = store
        self.write()

    def standby(self) -> None:
        """Records that the worker is warm, without a slot."""
        self._phase, self._slot, self._error = "standby", None, None
        self.waits_for = "a free slot that is open"
        self.write()

    def member(self, slot: int, state: MemberState) -> None:
        """Records that a membership begins."""
        self._end_membership()
        self._slot, self._state, self._error = slot, state, None
        self.waits_for = None
        self.write()

    def membership_ended(self) -> None:
        """Records that the membership is over; its counts stay."""
        self._end_membership()

    def failed(self, error: str) -> None:
        """Records the error with which the process is about to end."""
        if self._phase != "starting":
            self._phase = "failed"
        self._error = error
        self.write(failed=True)

    def ended(self) -> None:
        """Records that a worker that was asked to end takes no slot any more."""
        if self._state is None and self._phase == "standby":
            self._phase = "ended"
            self.write()

    def beat(self) -> None:
        """Writes a report if the last one is a third of the lease old."""
        if self._clock.monotonic() - self._written_at >= self._context.lease / 3:
            self.write()

    def on_renewed(self) -> None:
        """Writes what is new after a renewal, or if the last report is a lease (or more) old.

        The slot shows that an owner lives. A worker without a slot, or with an error, is watched by
        its reports: one lease without any is a death (Canary), so it writes every time.
        """
        if self._store is None:
            return
        with self._lock, contextlib.suppress(FleetError):
            report = self._report()
            # A renewal that comes a little early still counts.
            due = max(self._context.lease, self._store.report_every) - self._context.lease / 6
            old = self._clock.monotonic() - self._written_at >= due
            watched = report.slot is None or report.error is not None
            if old or watched or _news(report) != self._told:
                self._store_report(self._store, report)

    def write(self, *, failed: bool = False) -> None:
        """Writes the report now; a store that does not answer, or refuses, stops no worker [40]."""
        if self._store is None:
            return
        with self._lock, contextlib.suppress(FleetError):
            self._store_report(self._store, self._report(failed=failed))

    def _store_report(self, store: Store, report: WorkerReport) -> None:
        self._counter, self._written_at = report.counter, self._clock.monotonic()
        self._told = None  # what was not stored is still news
        store.report(report)
        self._told = _news(report)
        owns = report.slot is not None
        if owns != self._owned:
            store.rank(report.worker, owns=owns)
            self._owned = owns

    def _report(self, *, failed: bool = False) -> WorkerReport:
        facts, state = self.status(), self._state or self._before
        return WorkerReport(
            worker=self._context.name,
            group=self._context.group,
            revision=self._settings.revision,
            phase="failed" if failed else str(facts["phase"]),
            slot=self._slot,
            counter=self._counter + 1,
            http_port=self._http.port,
            batches=facts["batches"],
            records=facts["records"],
            busy_seconds=facts["busy_seconds"],
            joined_at=state.joined_at,
            last_commit_at=facts["last_commit_timestamp_seconds"],
            error=facts["error"],
            traceback=self.traceback(facts["error"]),
            spark_ui=self.spark_ui(),
            reading=facts["reading"],
            unclean=state.unclean,
            since=self._since,
            in_hand=self._state is not None and self._state.in_hand,
            gap=state.gap,
        )

    def status(self) -> Mapping[str, Any]:
        """Returns all facts, for HTTP and the report."""
        now, before = self._state or MemberState(), self._before
        overdue = self.overdue()
        tried = self.canary.error if self._state is None else self.spark_away()
        error = self._error or overdue or now.error or tried
        phase, live = self.phase, overdue is None and self._live()
        condition = self._condition(phase, live=live)
        return {
            "cluster": self._settings.cluster.name,
            "group": self._context.group,
            "worker": self._context.name,
            "revision": self._settings.revision,
            "phase": phase,
            "slot": self._slot,
            "member_id": now.member_id,
            "partitions": len(now.partitions),
            "assignment": sorted(str(tp) for tp in now.partitions),
            "stopped_partitions": len(now.stopped_partitions),
            "reading": now.reading,
            "batches": before.batches + now.batches,
            "records": before.records + now.records,
            "busy_seconds": round(before.busy_seconds + now.busy_seconds, 6),
            "lost_records": before.lost_records + now.lost_records,
            "dead_letters": before.dead_letters + now.dead_letters,
            "failing_seconds": self._failing_for(now),
            "last_commit_timestamp_seconds": now.last_commit_at or before.last_commit_at,
            "error": error,
            "condition": condition,
            "doubt": (
                (self.canary.doubt or self.cut_off() or self.canary.missing)
                if self._state is None
                else None
            ),
            "waits_for": self.waits_for,
            "live": live,
            "ready": condition in _READY,
        }

    def _failing_for(self, state: MemberState) -> float:
        since = state.failing_since
        return 0.0 if since is None else round(self._clock.monotonic() - since, 3)

    def close(self) -> None:
        """Stops listening."""
        self._http.close()

    def _condition(self, phase: str, *, live: bool) -> str:
        """Returns the worker's condition for probes and people; no slot is not unhealthy."""
        state, standby = self._state, phase == "standby"
        if not live or self._error is not None or (state is not None and state.failed):
            return "unhealthy"
        if standby and (self.canary.error or self.canary.doubt):
            return "unhealthy"
        if standby and self.cut_off() is not None:
            return "disconnected"
        if standby:
            return "no slot" if self.canary.missing is None else "on trial"
        if phase == "starting":
            return phase
        return "serving" if phase in _WELL else "joining"

    def _live(self) -> bool:
        state = self._state
        if state is None:
            return True
        now = self._clock.monotonic()
        return state.is_moving(now, stalled=_STALLED, grace=self._grace)

    def _end_membership(self) -> None:
        state, self._state = self._state, None
        self._slot = None
        if state is not None:
            before = self._before
            before.batches += state.batches
            before.records += state.records
            before.busy_seconds += state.busy_seconds
            before.lost_records += state.lost_records
            before.dead_letters += state.dead_letters
            before.last_commit_at = state.last_commit_at or before.last_commit_at
            before.joined_at = state.joined_at
            before.unclean = state.unclean
            before.gap = state.gap or before.gap


def _news(report: WorkerReport) -> WorkerReport:
    """Returns the report without what changes all the time at a healthy owner; its first batches
    are news.
    """
    first = report.batches < _FIRST_BATCHES
    return replace(
        report,
        counter=0,
        batches=min(report.batches, _FIRST_BATCHES),
        in_hand=report.in_hand and first,
        records=0,
        busy_seconds=0.0,
        last_commit_at=None,
    )
