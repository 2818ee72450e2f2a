"""One contract, several stores: how a test, and a process that it starts, opens each of them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.clock import Clock, ManualClock, SystemClock
from fleet.slots.backend import KEPT_CHANGES
from fleet.slots.sqlite import SqliteStore
from fleet.slots.store import Store
from tests.support.memory_slots import Memory, MemoryBackend
from tests.support.waiting import until

if TYPE_CHECKING:
    from fleet.kubernetes.leases.lease_store import LeaseStore

GROUP = "orders"
SLOTS = 20
LEASE = 30.0


def sqlite(folder: Path, cluster: str = "main", clock: Clock | None = None) -> SqliteStore:
    """In a file of this folder."""
    return SqliteStore(folder / "fleet.db", cluster=cluster, clock=clock or ManualClock())


def leases(
    kubeconfig: str, namespace: str, cluster: str = "main", worker: str | None = None
) -> "LeaseStore":
    """In a namespace; worker: the raw revision of the worker whose view it is."""
    from fleet.kubernetes.client.api import connect
    from fleet.kubernetes.leases.lease_store import LeaseStore

    clock = SystemClock()
    environ = {"KUBECONFIG": kubeconfig}
    api = connect(namespace=namespace, context=None, environ=environ, clock=clock)
    if worker is None:
        return LeaseStore.for_manager(api, cluster=cluster, clock=clock, lease=LEASE)
    return LeaseStore.for_worker(
        api, cluster=cluster, group=GROUP, revision=worker, lease=LEASE, clock=clock
    )


class WorkerAndManager:
    """A worker's store; what only managers write goes through one, until the worker sees it."""

    _OURS = frozenset({"write_targets", "begin_change", "adopt", "advance", "put_manager_state"})

    def __init__(self, worker: "LeaseStore", manager: "LeaseStore") -> None:
        self.worker = worker
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        if name not in self._OURS:
            return getattr(self.worker, name)

        def call(*args: Any, **keywords: Any) -> Any:
            try:
                return getattr(self._manager, name)(*args, **keywords)
            finally:
                self._catch_up()

        return call

    def _catch_up(self) -> None:
        names, leases = self.worker.leases.names(GROUP), self.worker.leases
        for name in (names.targets, names.change):
            until(
                lambda name=name: leases.view.get(name) == _bare(leases.api.get("Lease", name)),
                "the watch",
                every=0.01,
            )

    def close(self) -> None:
        """Both."""
        self.worker.close()
        self._manager.close()


def _bare(found: Any) -> Any:
    """As a watch keeps it."""
    if found is not None:
        found["metadata"].pop("managedFields", None)
    return found


@dataclass
class Stores:
    """One place of state, opened as often as a test likes.

    kind: memory, sqlite, manager, follower (a manager in the middle of a change), worker.
    """

    kind: str
    folder: Path
    kubeconfig: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        self._open: list[Any] = []
        self._memories: dict[str, Memory] = {}

    @property
    def local(self) -> bool:
        """Whether a write takes microseconds."""
        return self.kind in {"memory", "sqlite"}

    @property
    def kept_changes(self) -> int:
        from fleet.kubernetes.leases import lease_backend

        return KEPT_CHANGES if self.local else lease_backend.KEPT_CHANGES

    @property
    def racers(self) -> int:
        """Processes that race for it; a Kubernetes client takes a second to import."""
        return 5 if self.kind == "sqlite" else 3

    def open(self, cluster: str = "main") -> Any:
        """Another store of the same state."""
        if self.kind == "memory":
            held = self._memories.setdefault(cluster, Memory())
            store: Any = Store(MemoryBackend(held, clock=ManualClock()), clock=ManualClock())
        elif self.kind == "sqlite":
            store = sqlite(self.folder, cluster)
        else:
            if self.kind == "worker":
                from tests.support.fleet_leases import make_leases

                for group in (GROUP, "other", "g"):
                    maker = leases(self.kubeconfig, self.namespace, cluster)
                    make_leases(maker, group, slots=SLOTS if group == GROUP else 2)
            worker = "r1" if self.kind == "worker" else None
            store = leases(self.kubeconfig, self.namespace, cluster, worker)
            if self.kind == "follower":
                store.leases.follow(GROUP)
            if self.kind == "worker":
                manager = leases(self.kubeconfig, self.namespace, cluster)
                store = WorkerAndManager(store, manager)
        self._open.append(store)
        return store

    def told(self) -> str:
        """For `opened_by`, in another process."""
        return json.dumps([self.kind, str(self.folder), self.kubeconfig, self.namespace])

    def close(self) -> None:
        """All that were opened."""
        for store in self._open:
            store.close()


def opened_by(told: str) -> Any:
    """In a process that a test started."""
    kind, folder, kubeconfig, namespace = json.loads(told)
    if kind == "sqlite":
        return sqlite(Path(folder), clock=SystemClock())
    os.environ.pop("KUBECONFIG", None)
    return leases(kubeconfig, namespace, worker="r1" if kind == "worker" else None)
