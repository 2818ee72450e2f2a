"""The namespace's Spark server beside new code: on an API server in memory."""

from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.config.spec import FleetSpec
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.memory_server import MemoryServer


def sharing(workers: str, **spark: Any) -> FleetSpec:
    """A fleet of that image, on the shared server."""
    return fleet_spec(declaration(runtime={**ON_KUBERNETES, "image": workers, "spark": spark}))


class Place:
    """A namespace with a server of image fleet:1."""

    def __init__(self) -> None:
        self.server, self.clock = MemoryServer(), ManualClock()
        self.change_to(sharing("fleet:1"))

    def change_to(self, spec: FleetSpec) -> str:
        """As a change begins; the server's image then."""
        api = self.server.api(self.clock)
        store = LeaseStore.for_manager(api, cluster="main", clock=self.clock, lease=10.0)
        runtime = KubernetesRuntime(spec, api=api, store=store, clock=self.clock)
        runtime.ensure()
        runtime.close()
        found = self.server.get("Deployment", SPARK)
        return str(found["spec"]["template"]["spec"]["containers"][0]["image"])

    def ready(self, count: int) -> None:
        """What its controller says."""
        found = self.server.get("Deployment", SPARK)
        self.server.put({**found, "status": {"readyReplicas": count}})


@pytest.fixture
def place() -> Place:
    """That."""
    return Place()


def test_new_code_of_a_fleet_leaves_a_server_that_serves_alone(place: Place) -> None:
    """It would be recreated, and all fleets that share it stand still meanwhile."""
    place.ready(1)
    assert place.change_to(sharing("fleet:2-misspelt")) == "fleet:1"


def test_one_that_does_not_serve_is_made_anew(place: Place) -> None:
    """Its image may be why."""
    place.ready(0)
    assert place.change_to(sharing("fleet:2")) == "fleet:2"


def test_an_image_that_is_written_for_it_is_obeyed(place: Place) -> None:
    """Whoever writes it means it."""
    place.ready(1)
    assert place.change_to(sharing("fleet:2", image="spark:2")) == "spark:2"
