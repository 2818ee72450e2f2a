"""One fleet's Deployment on an API server in memory, with what its controllers would do.

What real controllers make of the same numbers is what tests/kubernetes/test_rolling.py asks.
"""

import itertools
import json

from fleet.clock import Clock, ManualClock
from fleet.kubernetes.client.informer import PodInformer
from fleet.kubernetes.client.object_names import COST_ANNOTATION, GROUP_LABEL, ObjectNames
from fleet.kubernetes.deployment import pod_counts
from fleet.kubernetes.deployment.pod_counts import RegisteredTemplates
from fleet.kubernetes.deployment.rolling import Rolling
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.memory_server import MemoryServer

NAMES = ObjectNames("main", "orders")
ORDER = "deployment.kubernetes.io/revision"


class Yard:
    """One fleet's Deployment, its ReplicaSets and pods; the test is their controller."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.server = MemoryServer()
        self.server.after = self.controller
        self.asked_first: list[str] | None = None
        """Pods that go with the next scale-down; None: those of the lowest deletion cost."""
        self.heard = True
        """Whether the ReplicaSets' controller hears of marks at once."""
        self.api = self.server.api(self.clock)
        self.store = LeaseStore.for_manager(self.api, cluster="main", clock=self.clock, lease=10.0)
        self.mirror = PodInformer(self.api, GROUP_LABEL, clock=self.clock)
        self.rolling = Rolling(
            self.api,
            NAMES,
            pods=self.mirror,
            templates=RegisteredTemplates(self.store, "orders", clock=self.clock),
            clock=self.clock,
        )

    def deploy(self, *, held: bool = False, **pods: int) -> None:
        """So many pods of each template, the last one the Deployment's."""
        total, new = sum(pods.values()), list(pods.values())[-1]
        wanted = max(new, total - new)
        at_rest = pod_counts.at_rest(total)
        fields = pod_counts.frozen_fields(wanted, max(1, total - wanted)) if held else at_rest
        for order, (hash_, count) in enumerate(pods.items(), 1):
            labels = {**NAMES.labels(), "pod-template-hash": hash_}
            self.server.put(
                {
                    "kind": "ReplicaSet",
                    "metadata": {
                        "name": f"set-{hash_}",
                        "labels": labels,
                        "annotations": {ORDER: str(order)},
                        "ownerReferences": [{"uid": "u", "controller": True}],
                    },
                    "spec": {
                        "replicas": count,
                        "template": {"metadata": {"labels": labels}, "spec": {"runs": hash_}},
                    },
                }
            )
            for number in range(count):
                self.pod(f"{hash_}{number}", labels=labels)
            self.tell(hash_)
        self.server.put(
            {
                "kind": "Deployment",
                "metadata": {
                    "name": NAMES.deployment,
                    "uid": "u",
                    "generation": 1,
                    "annotations": {ORDER: str(len(pods))},
                },
                "spec": {
                    **fields,
                    "template": {
                        "metadata": {"labels": NAMES.labels()},
                        "spec": {"runs": list(pods)[-1]},
                    },
                },
                "status": {"observedGeneration": 1},
            }
        )

    def pod(self, name: str, *, labels: dict[str, str], phase: str = "Running") -> None:
        """As its kubelet tells it."""
        conditions = [{"type": "Ready", "status": str(phase == "Running")}]
        self.server.put(
            {
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "status": {"phase": phase, "conditions": conditions},
            }
        )

    def change_pod(self, name: str, **status: object) -> None:
        """Its status becomes so, and the watch has told of it."""
        found = self.server.get("Pod", name)
        found["status"] = {**found["status"], **status}
        stored = self.server.put(found)
        self.mirror.written(json.loads(json.dumps(stored)))

    def tell(self, hash_: str) -> None:
        """The ReplicaSet's controller hears of its pods."""
        found = self.server.get("ReplicaSet", f"set-{hash_}")
        mine = self.active(hash_)
        wanted = found["spec"]["template"]["metadata"]["labels"].items()
        found["status"] = {
            "fullyLabeledReplicas": sum(wanted <= p["metadata"]["labels"].items() for p in mine),
            "readyReplicas": sum(
                p["status"]["conditions"][0]["status"] == "True" for p in mine
            ),
        }  # fmt: skip
        self.server.put(found)

    def pods(self) -> list[dict]:
        return [o for (kind, _), o in sorted(self.server.objects.items()) if kind == "Pod"]

    def active(self, hash_: str) -> list[dict]:
        """Pods of a template that its controller counts, and may delete: what has ended or is on
        its way out it leaves alone.
        """
        mine = [p for p in self.pods() if p["metadata"]["labels"]["pod-template-hash"] == hash_]
        mine = [p for p in mine if "deletionTimestamp" not in p["metadata"]]
        return [p for p in mine if p["status"]["phase"] not in {"Failed", "Succeeded"}]

    def names(self) -> list[str]:
        return [p["metadata"]["name"] for p in self.pods()]

    def replicas(self, hash_: str | None = None) -> int:
        """Of a template's ReplicaSet, or of the Deployment."""
        if hash_ is None:
            return self.server.get("Deployment", NAMES.deployment)["spec"]["replicas"]
        return self.server.get("ReplicaSet", f"set-{hash_}")["spec"]["replicas"]

    # --- what controllers do ----------------------------------------------------------------

    def controller(self, method: str, found: dict) -> None:
        """Told of every write of ours."""
        kind, name = found["kind"], found["metadata"]["name"]
        if method == "DELETE":
            return
        if kind == "Pod" and self.heard:
            self.tell(found["metadata"]["labels"]["pod-template-hash"])
        if kind == "Deployment":
            found = self.server.get(kind, name)
            found["metadata"]["generation"] += 1
            found["status"] = {"observedGeneration": found["metadata"]["generation"]}
            self.server.put(found)
            self.fill(found)
        if kind == "ReplicaSet":
            self.scale(name, found["spec"]["replicas"])
            self.fill(self.server.get("Deployment", NAMES.deployment))

    def fill(self, deployment: dict) -> None:
        """As many of its template as it wants; held, as many as there is room for."""
        spec, order = deployment["spec"], deployment["metadata"]["annotations"][ORDER]
        sets = [o for (kind, _), o in self.server.objects.items() if kind == "ReplicaSet"]
        (current,) = (s for s in sets if s["metadata"]["annotations"][ORDER] == order)
        have, wanted = current["spec"]["replicas"], spec["replicas"]
        if spec["minReadySeconds"]:
            room = wanted + spec["strategy"]["rollingUpdate"]["maxSurge"]
            room -= sum(s["spec"]["replicas"] for s in sets)
            wanted = min(wanted, have + max(0, room))
        if have != wanted:
            self.scale(current["metadata"]["name"], wanted)

    def scale(self, name: str, count: int) -> None:
        """Delete down to that number, by cost, or make so many more."""
        found = self.server.get("ReplicaSet", name)
        found["spec"]["replicas"] = count
        self.server.put(found)
        hash_ = found["metadata"]["labels"]["pod-template-hash"]
        mine = self.active(hash_)
        mine.sort(
            key=lambda p: int(
                (p["metadata"].get("annotations") or {}).get(COST_ANNOTATION, "0")
            )
        )  # fmt: skip
        order = self.asked_first or [p["metadata"]["name"] for p in mine]
        for each in order[: max(0, len(mine) - count)]:
            self.server.delete("Pod", each)
        free = (f"{hash_}{n}" for n in itertools.count() if f"{hash_}{n}" not in self.names())
        for each in itertools.islice(free, max(0, count - len(mine))):
            self.pod(each, labels={**NAMES.labels(), "pod-template-hash": hash_})
            self.mirror.written(self.server.get("Pod", each))
        self.tell(hash_)
