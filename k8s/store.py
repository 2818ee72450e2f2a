"""Slots, gates and changes of a cluster's fleets in Lease and ConfigMap objects of a namespace.

Problem: without a manager and on many machines, pods have to agree on who holds which slot, and
there is no file that all of them see. Choice: `fleet.slots.SlotStore` on the API server's
compare-and-set, in two views. A worker's (`LeaseStore.for_worker`) reads what its watches
brought, so that looking costs nothing and an API server that is away stops nobody; it can be
asked since when it knows (`known_since`), for nothing may be concluded from silence [13]. A
manager's (`LeaseStore.for_manager`) asks the server each time and makes the objects beforehand.
Workers speak raw revisions, managers published ones (`k8s.revisions`). Cost: what one
transaction of the local store does takes a worker two or three requests (`k8s.taking`).
"""

import contextlib
import copy
from typing import Self

from kubernetes.client import ApiClient

from fleet.clock import Clock
from fleet.errors import Unreachable
from fleet.slots import WorkerReport
from k8s import lease_objects as objects
from k8s.api import Api
from k8s.calls import CONFIG_MAP, LEASE, Calls
from k8s.lease_objects import First
from k8s.names import GROUP_LABEL, MANAGER, Names
from k8s.taking import Taking
from k8s.watching import View


class LeaseStore(Taking):
    """`fleet.slots.SlotStore` in one namespace; thread-safe.

    Raises SchemaTooNew where a newer version wrote an object, Unreachable where the server does
    not answer within about five seconds, refuses, or an object that is made beforehand is missing.
    """

    @classmethod
    def for_manager(cls, api: Api, *, cluster: str, clock: Clock, lease: float) -> Self:
        """All groups of a cluster. lease: seconds, for those who read the Leases."""
        calls = Calls(api.client, namespace=api.namespace, clock=clock)
        return cls(calls, cluster=cluster, clock=clock, lease=lease)

    @classmethod
    def for_worker(
        cls,
        api: Api,
        *,
        cluster: str,
        group: str,
        revision: str,
        slots: int,
        lease: float,
        clock: Clock,
    ) -> Self:
        """One group, for one of its workers.

        revision: raw (`<revision>~<pod-template-hash>`). slots: replicas.max, as many as the
        worker's Role names.
        """
        settings = copy.deepcopy(api.client.configuration)
        settings.connection_pool_maxsize = slots + 8  # each watch gives its connection back
        calls = Calls(ApiClient(settings), namespace=api.namespace, clock=clock)
        names = Names(cluster, group)
        view = View(
            calls,
            LEASE,
            [names.gate, *names.slots(range(slots))],
            pulse=names.gate,
            lease=lease,
            clock=clock,
        )
        return cls(calls, cluster=cluster, clock=clock, lease=lease, worker=revision, view=view)

    def close(self) -> None:
        """End the watches; what is held stays held."""
        if self._view is not None:
            self._view.close()
        for group, _ in list(self._followed):
            self.unfollow(group)

    # --- for those who look again and again -------------------------------------------------

    def data_version(self) -> int:
        """Differs whenever gate or slots have changed; a manager's view cannot tell."""
        if self._view is None:
            return int(self._clock.monotonic() * 1e6)
        return self._view.version()

    def known_since(self) -> float | None:
        """Monotonic time since when gate and slots are known without a break; None: they are not.

        A manager reads the server itself: since when that has answered.
        """
        if self._view is None:
            return self._calls.answering_since()
        return self._view.known_since()

    def report(self, report: WorkerReport) -> None:
        """Replace the worker's report; first give back what was taken without an answer."""
        with contextlib.suppress(Unreachable):
            self.settle()
        super().report(report)

    # --- objects ----------------------------------------------------------------------------

    def ensure_objects(self, group: str, *, slots: int, first: First | None = None) -> int:
        """Make what is missing of a group's Leases and ConfigMaps; how many were made.

        What is there is left alone, state above all; `first` is written where the gate's Lease
        is made, or says something else and no gate was written yet.
        """
        names = self.names(group)
        record, numbers = self._listed(group, fresh=True)
        there = {found["metadata"]["name"] for found in self._group_objects(names)}
        wanted = {LEASE: [names.gate, names.change, *names.slots(range(slots))]}
        wanted[CONFIG_MAP] = [names.crew, names.marks, names.notes]
        missing = [(k, n) for k, some in wanted.items() for n in some if n not in there]
        for kind, name in missing:
            self._calls.apply(objects.blank(kind, name, names), manager=MANAGER)
        self._made[group] = frozenset(numbers) | frozenset(range(slots))
        if first is not None and not record.gate.version and record.first != first:
            told = objects.text({"slots": first.slots, "after": first.after})
            made = objects.blank(LEASE, names.gate, names)
            made["metadata"]["annotations"][objects.FIRST] = told
            self._calls.apply(made, manager=MANAGER)
        return len(missing)

    def forget(self, group: str) -> None:
        """Delete a group's Leases and ConfigMaps of state, and a person's hold of it."""
        names = self.names(group)
        maps = {names.crew, names.marks, names.notes}
        for found in self._group_objects(names):
            kind, name = found["kind"], found["metadata"]["name"]
            if kind == LEASE or name in maps:
                self._calls.delete(kind, name)
        self._made.pop(group, None)
        self.resume(group)

    def _group_objects(self, names: Names) -> list[objects.Object]:
        selector = f"{GROUP_LABEL}={names.slug}"
        return [
            found
            for kind in (LEASE, CONFIG_MAP)
            for found in self._calls.find(kind, labelSelector=selector)[0]
        ]
