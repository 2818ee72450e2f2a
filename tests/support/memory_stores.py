"""The slot stores of one group over an API server in memory: a manager's, and workers' of it."""

from fleet.clock import ManualClock
from fleet.kubernetes.leases.lease_backend import LeaseBackend
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.fleet_leases import make_leases
from tests.support.memory_server import MemoryServer


class MemoryStores:
    """A manager with the group's objects, and workers without watches."""

    def __init__(self, group: str, *, slots: int, reports: int = 8) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer()
        api = self.server.api(self.clock)
        self.manager = LeaseStore.for_manager(api, cluster="main", clock=self.clock, lease=30.0)
        make_leases(self.manager, group, slots=slots, reports=reports)

    def worker(self, revision: str = "new") -> LeaseStore:
        """The store of one, which reads the server each time."""
        calls = self.server.api(self.clock).brisk()
        backend = LeaseBackend(calls, cluster="main", clock=self.clock, lease=30.0, worker=revision)
        return LeaseStore(backend, clock=self.clock)
