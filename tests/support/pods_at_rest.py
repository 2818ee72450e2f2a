"""Workers of a fleet as the API server sees them: the product's watcher, lease and reporter.

No Spark and no consumer: what a pod asks of the API server does not depend on them.
"""

import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any

from fleet.clock import SystemClock
from fleet.errors import Unreachable
from fleet.slots import Phase
from fleet.slots.store import Store
from fleet.worker.member.member_state import MemberState
from fleet.worker.slot.leave_completion import LeaveCompleter
from fleet.worker.slot.reporting import Reporter
from fleet.worker.slot.slot_lease import SlotLease, SlotWatcher
from tests.support.batch_parts import worker_context
from tests.support.declared import ON_KUBERNETES, group_spec, settings_of
from tests.support.kube_api import KubeApi

LEASE_KINDS = ("leases", "configmaps")
_COUNT = re.compile(r"apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)")
_OPEN = re.compile(r"apiserver_longrunning_requests\{(?P<labels>.*)\} (?P<count>\S+)")
_SENT = re.compile(r"apiserver_watch_events_total\{(?P<labels>.*)\} (?P<count>\S+)")


def requests_at(server: KubeApi) -> dict[tuple[str, str], float]:
    """Answered requests of Leases and ConfigMaps so far, by (verb, resource)."""
    return _sums(server, _COUNT)


def watches_at(server: KubeApi, *kinds: str) -> int:
    """Open watches of Leases and ConfigMaps, those of the server itself included."""
    found, of = _sums(server, _OPEN).items(), kinds or LEASE_KINDS
    return round(sum(n for (verb, kind), n in found if verb == "WATCH" and kind in of))


def events_at(server: KubeApi) -> int:
    """Events of Leases that were sent to watches so far."""
    sent = _SENT.finditer(server.metrics())
    return round(sum(float(n["count"]) for n in sent if "lease" in n["labels"].lower()))


def _sums(server: KubeApi, line: re.Pattern[str]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for each in line.finditer(server.metrics()):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', each["labels"]))
        if labels["resource"] in LEASE_KINDS:
            key = labels["verb"], labels["resource"]
            found[key] = found.get(key, 0.0) + float(each["count"])
    return found


class PodAtRest:
    """One worker: a standby, or the owner of the slot that it takes first."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        *,
        group: str,
        name: str,
        revision: str,
        lease: float,
        tick: float = 0.05,
    ) -> None:
        clock = SystemClock()
        spec = group_spec(group, runtime={**ON_KUBERNETES, "lease": lease})
        settings = settings_of(spec, revision=revision)
        self.context = worker_context(settings, name=name)
        self.store: Any = open_store()
        self.reporter = Reporter(self.context)
        self.watcher = SlotWatcher(self.store, group=group, lease=lease, clock=clock)
        self.completer = LeaveCompleter(self.context, self.store, leave=lambda *_: None)
        self.slot: SlotLease | None = None
        self.state = MemberState(phase=Phase.ACTIVE, batches=100)
        self._tick = tick
        self._thread = threading.Thread(target=self._live, daemon=True)

    @property
    def is_narrow(self) -> bool:
        """Whether it watches a part of its fleet's Leases."""
        return not self.store.leases.view.is_whole

    def start(self) -> "PodAtRest":
        self._thread.start()
        return self

    def close(self) -> None:
        self.context.stop.set()
        self._thread.join()
        if self.slot is not None:
            self.slot.abandon()
        self.reporter.close()
        self.store.close()

    def _live(self) -> None:
        self.reporter.start(self.store)
        self.reporter.standby()
        while not self.context.stop.wait(self._tick):
            if self.slot is None:
                self.reporter.canary.observe(self.watcher)
            self.completer.check(self.watcher)
            if self.slot is None:
                self._take()
                self.reporter.beat()
            else:
                self.state.moved_at = self.context.clock.monotonic()
                self.watcher.attend(self.slot.slot.number)

    def _take(self) -> None:
        name, revision = self.context.name, self.context.settings.revision
        found = self.watcher.takeable_slots(worker=name, revision=revision, since=0.0)
        for seen in found[:1]:
            held = None
            with contextlib.suppress(Unreachable):
                held = self.store.take(seen, worker=name, revision=revision, spark_session=None)
            if held is None:
                self.watcher.forget()
                return
            self.slot = SlotLease(
                self.store,
                held,
                lease=self.context.lease,
                fields=self._fields,
                clock=self.context.clock,
                events=self.context.events,
                after=self.reporter.on_renewed,
            )
            self.slot.start()
            self.reporter.member(seen.number, self.state)

    def _fields(self) -> dict[str, Any]:
        return {"phase": self.state.phase, "batches": self.state.batches, "error": None}
