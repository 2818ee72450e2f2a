"""Where the real scheduler puts a fleet's pods, on nodes without kubelets."""

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.kubernetes.client.api import Api, Object, Request
from fleet.kubernetes.client.object_names import HASH_LABEL, ObjectNames
from fleet.kubernetes.deployment.pod_status import worker_of
from fleet.kubernetes.manifests import deployment_objects
from tests.support import waiting
from tests.support.declared import ON_KUBERNETES, fleet_spec, group_spec, settings_of
from tests.support.kube_api import KubeApi, pod_of
from tests.support.kube_controllers import scheduler

pytestmark = pytest.mark.kubernetes

OURS = {"key": "fleet-test/spread", "effect": "NoSchedule"}
"""Pods of other tests do not come here."""
LOST = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Place:
    """Two nodes, and one fleet's pods."""

    def __init__(self, server: KubeApi, api: Api) -> None:
        self.server = server
        self.api = api
        self.nodes: list[str] = []

    def node(self, *, pods: int = 9) -> str:
        """One with room for so many pods."""
        name = f"node-{uuid.uuid4().hex[:8]}"
        room = {"cpu": "64", "memory": "64Gi", "pods": str(pods)}
        labels = {"kubernetes.io/hostname": name}
        ready = [{"type": "Ready", "status": "True"}]
        self.server.post(
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": labels},
                "status": {"allocatable": room, "capacity": room, "conditions": ready},
            },
        )
        self.nodes.append(name)
        self.taint(name)
        return name

    def taint(self, name: str, *more: dict[str, str]) -> None:
        """These, and the one of this test; that of a node which is not ready yet is taken away."""
        body, kind = {"spec": {"taints": [OURS, *more]}}, "application/merge-patch+json"
        path = f"/api/v1/nodes/{name}"
        self.api._call(Request("PATCH", path, body=body, content_type=kind))

    def pods(self, count: int, *, required: bool) -> list[Object]:
        """So many more, one after the other, as the scheduler left them."""
        place = {
            **ON_KUBERNETES,
            "namespace": self.api.namespace,
            "spread_required": required,
            "pod_template": {"spec": {"tolerations": [{**OURS, "operator": "Exists"}]}},
        }
        settings = settings_of(group_spec("orders", runtime=place), cluster=fleet_spec().cluster)
        made = pod_of(deployment_objects.deployment(settings, replicas=0))
        found = []
        for _ in range(count):
            name = f"orders-{uuid.uuid4().hex[:8]}"
            labels = {**made["metadata"]["labels"], HASH_LABEL: "abc"}
            self.api.create({**made, "metadata": {"name": name, "labels": labels}})
            found.append(waiting.until(lambda name=name: self._judged(name), "the scheduler"))
        return found

    def _judged(self, name: str) -> Object | None:
        """The pod, once it has a node, or a reason why it has none."""
        pod = self.api.get("Pod", name)
        assert pod is not None
        conditions = pod["status"].get("conditions") or ()
        return pod if any(each["type"] == "PodScheduled" for each in conditions) else None

    def counted(self) -> Counter[str | None]:
        found, _ = self.api.find("Pod", ObjectNames("main", "orders").selection())
        return Counter(pod["spec"].get("nodeName") for pod in found)


@pytest.fixture(scope="module")
def scheduled(kube_api: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    with scheduler(kube_api, tmp_path_factory.mktemp("scheduler")):
        yield kube_api


@pytest.fixture
def place(scheduled: KubeApi) -> Iterator[Place]:
    with scheduled.api(scheduled.namespace()) as api:
        made = Place(scheduled, api)
        try:
            yield made
        finally:
            for name in made.nodes:
                scheduled.send("DELETE", f"/api/v1/nodes/{name}", None)


def test_pods_are_spread_evenly(place: Place) -> None:
    first, second = place.node(), place.node()
    place.pods(4, required=True)
    assert place.counted() == {first: 2, second: 2}


@pytest.mark.parametrize("required", [True, False])
def test_a_node_without_room(place: Place, required: bool) -> None:
    """A required spread leaves the pod pending, and its worker says why."""
    wide, narrow = place.node(), place.node(pods=1)
    *_, last = place.pods(4, required=required)
    seen = worker_of(last, group="orders", templates={}, now=0.0)
    assert seen.waits_for_node is required
    assert not seen.is_unhealthy, "an autoscaler may add a node"
    if required:
        assert place.counted() == {wide: 2, narrow: 1, None: 1}
        assert str(seen.exit_reason).startswith("has no node: 0/2 nodes are available")
    else:
        assert place.counted() == {wide: 3, narrow: 1}


@pytest.mark.parametrize("taint", [LOST, CORDONED], ids=["lost", "cordoned"])
def test_a_node_that_takes_no_pods_does_not_count(place: Place, taint: dict[str, Any]) -> None:
    """Those of a lost or drained node start elsewhere, also if they have to be spread."""
    stays, goes = place.node(), place.node()
    place.pods(2, required=True)
    place.taint(goes, taint)
    place.pods(3, required=True)
    assert place.counted() == {stays: 4, goes: 1}
