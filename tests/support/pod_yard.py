"""One fleet's Deployment of one template on an API server in memory.

Its controller deletes pods down to `replicas`. What real controllers do is what
tests/kubernetes/test_rollout.py asks.
"""

import json

from fleet.clock import Clock, ManualClock
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import GROUP_LABEL, HASH_LABEL, ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.memory_server import MemoryServer

NAMES = ObjectNames("main", "orders")


class Yard:
    """One fleet's Deployment and pods."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.server = MemoryServer()
        self.server.after = self.controller
        self.api = self.server.api(self.clock)
        self.store = LeaseStore.for_manager(self.api, cluster="main", clock=self.clock, lease=10.0)
        self.mirror = PodInformer(self.api, GROUP_LABEL, clock=self.clock)

    def deploy(self, template: str, count: int) -> None:
        """So many pods of a template."""
        labels = {**NAMES.labels(), HASH_LABEL: template}
        for number in range(count):
            self.pod(f"{template}{number}", labels=labels)
        meta = {"name": NAMES.deployment, "uid": "u", "generation": 1}
        spec = {"replicas": count, "template": {"metadata": {"labels": NAMES.labels()}}}
        self.server.put({"kind": "Deployment", "metadata": meta, "spec": spec})

    def pod(self, name: str, *, labels: dict[str, str], phase: str = "Running") -> None:
        """As its kubelet tells it."""
        status = {"phase": phase, "conditions": []}
        self.server.put(
            {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": status}
        )

    def change_pod(self, name: str, **status: object) -> None:
        """Its status becomes so, and the watch has told of it."""
        found = self.server.get("Pod", name)
        found["status"] = {**found["status"], **status}
        stored = self.server.put(found)
        self.mirror.written(json.loads(json.dumps(stored)))

    def names(self) -> list[str]:
        """Of all pods."""
        return sorted(name for kind, name in self.server.objects if kind == "Pod")

    def controller(self, method: str, found: dict) -> None:
        """Told of every write: it leaves pods alone that have ended or are on their way out."""
        if method == "DELETE" or found["kind"] != "Deployment":
            return
        pods = [self.server.get("Pod", name) for name in self.names()]
        living = [
            pod["metadata"]["name"]
            for pod in pods
            if NAMES.selector().items() <= pod["metadata"]["labels"].items()
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] == "Running"
        ]
        for name in living[found["spec"]["replicas"] :]:
            self.server.delete("Pod", name)
