"""Pods without a node, and a test that plays their kubelet: every state of a pod can be made.

The API server and the controller manager are real; what they do with ReplicaSets is what is
tested.
"""

import threading
import time
from collections import Counter
from collections.abc import Hashable
from typing import Any

from fleet.clock import SystemClock
from fleet.config.settings import WorkerSettings
from fleet.config.spec import FleetSpec
from fleet.kubernetes.client.api import Api, Request, transmit
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import GROUP_LABEL, ObjectNames
from fleet.kubernetes.deployment.pod_status import hash_of, is_gone, is_ready
from fleet.kubernetes.deployment.rollout import DeploymentState, WorkerDeployment
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.kubernetes.manifests import deployment_objects
from tests.support import waiting
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec, settings_of


class Ground:
    """One fleet in a namespace of its own, and the kubelet of its pods."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.clock = SystemClock()
        self.names = ObjectNames("main", "orders")
        self.mirror = PodInformer(api, GROUP_LABEL, clock=self.clock)
        self.rollout = self.another()
        self.unready: set[str] = set()
        self.auto = True
        self._stop = threading.Event()
        self._kubelet = threading.Thread(target=self._keep, daemon=True)
        group = self.spec("a").fleets[0]
        for each in deployment_objects.own_access(self.names, group, slots=group.replicas.max):
            api.apply(each)
        for each in deployment_objects.leases(self.names, api.namespace, group):
            api.create(each)
        self._kubelet.start()

    def another(self, api: Api | None = None) -> WorkerDeployment:
        """What the next manager has."""
        way = api or self.api
        store = LeaseStore.for_manager(way, cluster="main", clock=self.clock, lease=10.0)
        return WorkerDeployment(way, self.names, pods=self.mirror, store=store, clock=self.clock)

    def spec(self, image: str) -> FleetSpec:
        """A file with one fleet of that image."""
        job = {"entrypoint": "fleet.demo.orders:process", "spark": "local[1]"}
        place = {
            **ON_KUBERNETES,
            "namespace": self.api.namespace,
            "image": image,
            "node_selector": {"there-is": "no-such-node"},
        }
        return fleet_spec(declaration(worker=job, runtime=place, rollout={"bake": 1}))

    def settings(self, revision: str) -> WorkerSettings:
        """What workers of a revision start from."""
        spec = self.spec(f"image-{revision}")
        return settings_of(
            spec.fleets[0], revision=revision, bootstrap="kafka:9092", cluster=spec.cluster
        )

    def quota(self, pods: int) -> None:
        """The namespace takes so many pods; known to the API server when this returns."""
        path = f"/api/v1/namespaces/{self.api.namespace}/resourcequotas"
        wanted = {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(pods)}}}
        if self.api._call(Request("GET", f"{path}/pods")) is None:
            self.api._call(Request("POST", path, body=wanted))
        else:
            self.api._call(Request(
                "PATCH", f"{path}/pods", body={"spec": wanted["spec"]},
                content_type="application/merge-patch+json"))  # fmt: skip

        def known() -> bool:
            status = self.api._call(Request("GET", f"{path}/pods"))["status"]
            used = status.get("used", {}).get("pods")
            hard = status.get("hard", {}).get("pods")
            return hard == str(pods) and used == str(len(self.living()))

        self.until(known)

    def limit(self, memory: str) -> None:
        """Containers of the namespace have to ask for so much memory at least."""
        least = {"type": "Container", "min": {"memory": memory}}
        wanted = {"metadata": {"name": "limits"}, "spec": {"limits": [least]}}
        path = f"/api/v1/namespaces/{self.api.namespace}/limitranges"
        self.api._call(Request("POST", path, body=wanted))

    def start(self, revision: str, count: int) -> tuple[str, ...]:
        """More of a revision."""
        return self.rollout.start(self.settings(revision), count=count)

    def running(self, count: int) -> list[str]:
        """So many ready pods of revision one: their names."""
        self.start("one", count)
        self.ready()
        return sorted(self.names_of("one"))

    def living(self) -> list[dict[str, Any]]:
        """Pods that are not on their way out."""
        return [p for p in self.rollout.pods() if not is_gone(p)]

    def state(self) -> DeploymentState:
        """Of its Deployment."""
        _, state = self.rollout.look()
        assert state is not None
        return state

    def by_revision(self) -> dict[str, int]:
        """How many of which revision, or hash."""
        known = self.another().templates(["any"])
        return dict(Counter(known.get(hash_of(p), hash_of(p)) for p in self.living()))

    def until(self, settled: Any, seconds: float = 60.0) -> None:
        """Wait for it until nothing has moved for so long: a controller whose pods are refused
        waits twice as long each time.
        """
        waiting.until(
            settled, "the controllers", progress=self._seen, still=seconds, every=0.05,
            picture=lambda: str(self.rollout.look()[1]),
        )  # fmt: skip

    def _seen(self) -> Hashable:
        return str(self.rollout.look()[1]), frozenset(
            (p["metadata"]["name"], is_ready(p)) for p in self.living()
        )

    def ready(self) -> None:
        """All pods are ready but those that shall not be, and the controller has seen it: it
        deletes pods first that are not ready.
        """

        def known() -> bool:
            living = self.living()
            sets, _ = self.api.find("ReplicaSet", self.names.selection())
            seen = sum(each["status"].get("readyReplicas", 0) for each in sets)
            waited = [p for p in living if p["metadata"]["name"] not in self.unready]
            return all(map(is_ready, waited)) and seen == sum(map(is_ready, living))

        self.until(known)

    def remove(self, *names: str) -> None:
        """Ask, and wait until it is done."""
        self.rollout.remove(names)
        self.until(lambda: not self.rollout.settle())

    def owns(self, *names: str) -> None:
        """Pods whose workers say that they own a slot; all others are standbys."""
        store = LeaseStore.for_manager(self.api, cluster="main", clock=self.clock, lease=10.0)
        for pod in self.living():
            name = pod["metadata"]["name"]
            store.rank(name, owns=name in names)

    def stays(self, expected: dict[str, int], seconds: float = 1.5) -> None:
        """For a while nothing else comes or goes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.by_revision() == expected, self.rollout.look()[1]
            time.sleep(0.05)

    def names_of(self, revision: str) -> list[str]:
        """Pods of a revision."""
        known = self.another().templates(["any"])
        return [p["metadata"]["name"] for p in self.living() if known.get(hash_of(p)) == revision]

    def close(self) -> None:
        """End kubelet and watch."""
        self._stop.set()
        self._kubelet.join(5)
        self.mirror.close()

    def _keep(self) -> None:
        while not self._stop.wait(0.05):
            for pod in self.living() if self.auto else ():
                name = pod["metadata"]["name"]
                if not is_ready(pod) and name not in self.unready:
                    self.make_ready(name)

    def make_ready(self, name: str) -> None:
        """What a kubelet says of a pod whose probe went well."""
        write_pod_status(self.api, name, ready=True)


def write_pod_status(api: Api, name: str, *, ready: bool) -> None:
    """What a kubelet says of a pod whose worker runs."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    states = {"Ready": ready, "ContainersReady": ready, "PodScheduled": True}
    conditions = [
        {"type": kind, "status": str(holds), "lastTransitionTime": now}
        for kind, holds in states.items()
    ]
    container = {
        "name": "worker", "ready": ready, "restartCount": 0, "image": "x", "imageID": "x",
        "state": {"running": {}},
    }  # fmt: skip
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}
    api.merge("Pod", name, {"status": status}, part="status")


def patched(ground: Ground, *, manager: str, body: dict[str, Any], force: bool = False) -> None:
    """The Deployment is patched by another field manager; force: applied, with all conflicts."""
    name = ground.names.deployment
    query = [("fieldManager", manager), *([("force", "true")] if force else [])]
    kind = "application/apply-patch+yaml" if force else "application/strategic-merge-patch+json"
    path = f"/apis/apps/v1/namespaces/{ground.api.namespace}/deployments/{name}"
    request = Request("PATCH", path, body=body, query=query, content_type=kind)
    answer = transmit(ground.api.connection, request, (5.0, 20.0))
    assert answer.status == 200, answer.read()
