"""A namespace of an API server, and the two views of a fleet in it."""

from collections.abc import Iterator

import pytest

from fleet.clock import SystemClock
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.kube_api import ADMIN, KubeApi

GROUP = "orders"


class Namespace:
    """Opens stores in a namespace, and closes them at the end."""

    def __init__(self, server: KubeApi) -> None:
        self.server = server
        self.name = server.namespace()
        self.names = ObjectNames("main", GROUP)
        self._open: list[LeaseStore] = []

    def manager(self, user: str = ADMIN) -> LeaseStore:
        api = self.server.api(self.name, user)
        return self._kept(
            LeaseStore.for_manager(api, cluster="main", clock=SystemClock(), lease=30.0)
        )

    def worker(self, revision: str = "r1", *, lease: float = 30.0, user: str = ADMIN) -> LeaseStore:
        """Of a worker of that raw revision, as `user`."""
        return self._kept(
            LeaseStore.for_worker(
                self.server.api(self.name, user),
                cluster="main",
                group=GROUP,
                revision=revision,
                lease=lease,
                clock=SystemClock(),
            )
        )

    def _kept(self, store: LeaseStore) -> LeaseStore:
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def place(kube_api: KubeApi) -> Iterator[Namespace]:
    """A namespace of the session's server."""
    namespace = Namespace(kube_api)
    yield namespace
    namespace.close()


@pytest.fixture
def falling(place: Namespace) -> Iterator[Namespace]:
    """A namespace of a server that this test may freeze and kill."""
    yield place
    place.server.thaw()
    place.server.start()
