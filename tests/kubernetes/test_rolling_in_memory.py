"""When pods are taken away, and which numbers are written for it, on a server in memory.

What real controllers make of these numbers is what test_rolling.py asks.
"""

import json
from collections.abc import Iterator

import pytest

from fleet.clock import ManualClock
from fleet.errors import FleetError
from fleet.kubernetes.client.object_names import (
    COST_ANNOTATION,
    GROUP_LABEL,
    MANAGED_LABEL,
    ObjectNames,
)
from fleet.kubernetes.client.pod_informer import PodInformer
from fleet.kubernetes.deployment import pod_counts
from fleet.kubernetes.deployment.rolling import Rolling
from fleet.kubernetes.deployment.templates import RegisteredTemplates
from fleet.kubernetes.leases.lease_store import LeaseStore
from tests.support.memory_server import MemoryServer

NAMES = ObjectNames("main", "orders")
_ORDER = "deployment.kubernetes.io/revision"


class Yard:
    """One fleet's Deployment, its ReplicaSets and pods; the test is their controller."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer()
        self.server.after = self.controller
        self.asked_first: list[str] | None = None
        """Pods that go with the next scale-down; None: those of the lowest deletion cost."""
        self.heard = True
        """Whether the ReplicaSets' controller hears of marks at once."""
        api = self.server.api(self.clock)
        store = LeaseStore.for_manager(api, cluster="main", clock=self.clock, lease=10.0)
        self.mirror = PodInformer(api, GROUP_LABEL, clock=self.clock)
        self.rolling = Rolling(
            api,
            NAMES,
            pods=self.mirror,
            templates=RegisteredTemplates(store, "orders", clock=self.clock),
            clock=self.clock,
        )

    def deploy(self, *, held: bool = False, **pods: int) -> None:
        """So many pods of each template, the last one the Deployment's."""
        total = sum(pods.values())
        fields = pod_counts.held(total, 1) if held else pod_counts.at_rest(total)
        for order, (hash_, count) in enumerate(pods.items(), 1):
            labels = {**NAMES.labels(), "pod-template-hash": hash_}
            self.server.put(
                {
                    "kind": "ReplicaSet",
                    "metadata": {
                        "name": f"set-{hash_}",
                        "labels": labels,
                        "annotations": {_ORDER: str(order)},
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
                    "annotations": {_ORDER: str(len(pods))},
                },
                "spec": {**fields, "template": {"spec": {"runs": list(pods)[-1]}}},
                "status": {"observedGeneration": 1},
            }
        )

    def pod(self, name: str, *, labels: dict[str, str], ready: bool = True, **status: str) -> None:
        """As its kubelet tells it."""
        conditions = [{"type": "Ready", "status": str(ready)}]
        conditions += [{"type": kind, "status": is_so} for kind, is_so in status.items()]
        self.server.put(
            {
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "status": {"phase": "Running", "conditions": conditions},
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
        mine = [p for p in self.pods() if p["metadata"]["labels"]["pod-template-hash"] == hash_]
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
        if kind == "Pod" and self.heard:
            self.tell(found["metadata"]["labels"]["pod-template-hash"])
        if kind == "Deployment":
            found = self.server.get(kind, name)
            found["metadata"]["generation"] += 1
            found["status"] = {"observedGeneration": found["metadata"]["generation"]}
            self.server.put(found)
            if found["spec"]["minReadySeconds"] == 0:
                order = found["metadata"]["annotations"][_ORDER]
                for (other, its), each in list(self.server.objects.items()):
                    if other == "ReplicaSet" and each["metadata"]["annotations"][_ORDER] == order:
                        self.scale(its, found["spec"]["replicas"])
        if kind == "ReplicaSet":
            self.scale(name, found["spec"]["replicas"])

    def scale(self, name: str, count: int) -> None:
        """Delete down to that number, by cost."""
        found = self.server.get("ReplicaSet", name)
        found["spec"]["replicas"] = count
        self.server.put(found)
        hash_ = found["metadata"]["labels"]["pod-template-hash"]
        mine = [p for p in self.pods() if p["metadata"]["labels"]["pod-template-hash"] == hash_]
        mine.sort(
            key=lambda p: int(
                (p["metadata"].get("annotations") or {}).get(COST_ANNOTATION, "0")
            )
        )  # fmt: skip
        order = self.asked_first or [p["metadata"]["name"] for p in mine]
        for each in order[: max(0, len(mine) - count)]:
            self.server.delete("Pod", each)


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard()
    yield made
    made.mirror.close()


def test_the_marked_go(yard: Yard) -> None:
    """Two of three: by their cost, and no others."""
    yard.deploy(a=3)
    yard.rolling.mark(["a1", "a2"])
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0"]
    assert yard.replicas() == 1


def test_a_mark_takes_a_label_and_names_a_cost(yard: Yard) -> None:
    """By the label its controller tells that it has heard; by the cost it is chosen."""
    yard.deploy(a=2)
    yard.rolling.mark(["a1"])
    marked = yard.server.get("Pod", "a1")["metadata"]
    assert MANAGED_LABEL not in marked["labels"]
    assert int(marked["annotations"][COST_ANNOTATION]) < 0


def test_a_starting_pod_holds_a_removal_up(yard: Yard) -> None:
    """Pods that are not ready go before all others, whatever their cost."""
    yard.deploy(a=3)
    yard.rolling.pods()
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "False"}])
    yard.rolling.mark(["a1"])
    (told,) = yard.rolling.settle()
    assert told == "a1: a0 is not ready yet"
    assert (yard.names(), yard.replicas()) == (["a0", "a1", "a2"], 3)
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "True"}])
    yard.tell("a")
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "a2"]


def test_a_mark_that_was_not_heard_is_waited_for(yard: Yard) -> None:
    """The controller's own watch is behind: it would take another pod."""
    yard.deploy(a=3)
    yard.heard = False
    yard.rolling.mark(["a1"])
    assert yard.rolling.settle() == ("a1: its ReplicaSet's controller has not heard it",)
    assert yard.replicas() == 3
    yard.tell("a")
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "a2"]


def test_readiness_that_was_not_heard_is_waited_for(yard: Yard) -> None:
    """It believes one of those that stay to be starting, and would take that one."""
    yard.deploy(a=3)
    yard.heard = False
    yard.rolling.pods()
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "False"}])
    yard.rolling.mark(["a1"])
    yard.tell("a")
    yard.change_pod("a0", conditions=[{"type": "Ready", "status": "True"}])
    assert yard.rolling.settle() == ("a1: its ReplicaSet's controller has not heard it",)
    assert yard.replicas() == 3


def test_a_set_that_is_making_pods_is_waited_for(yard: Yard) -> None:
    """It wants more than there are: what it does next is not known."""
    yard.deploy(a=3)
    found = yard.server.get("ReplicaSet", "set-a")
    found["spec"]["replicas"] = 4
    yard.server.put(found)
    yard.rolling.mark(["a1"])
    assert yard.rolling.settle() == ("a1: its ReplicaSet is making or ending others",)
    assert yard.names() == ["a0", "a1", "a2"]


def test_others_than_asked_for_are_an_error(yard: Yard) -> None:
    """Whatever made Kubernetes choose them."""
    yard.deploy(a=3)
    yard.asked_first = ["a2"]
    yard.rolling.mark(["a1"])
    with pytest.raises(FleetError, match=r"asked to remove a1 .* removed a2 and kept a1"):
        yard.rolling.settle()


def test_one_evicted_meanwhile_is_somebody_elses_affair(yard: Yard) -> None:
    """A drained node is no error of ours."""
    yard.deploy(a=3)
    yard.rolling.mark(["a1"])

    def evicts(method: str, found: dict) -> None:
        if found["kind"] == "Deployment":
            yard.change_pod(
                "a2", phase="Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}]
            )
        yard.controller(method, found)

    yard.server.after = evicts
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "a2"]


def test_in_mid_roll_its_own_set_shrinks(yard: Yard) -> None:
    """The Deployment keeps its wish: it would spread a smaller one over both."""
    yard.deploy(held=True, a=2, b=2)
    yard.rolling.mark(["a1"])
    assert yard.rolling.settle() == ()
    assert yard.names() == ["a0", "b0", "b1"]
    assert (yard.replicas("a"), yard.replicas("b"), yard.replicas()) == (1, 2, 4)


def test_a_set_that_moves_at_the_last_moment_is_looked_at_again(yard: Yard) -> None:
    """Its controller has forgotten the mark between our look and our write."""
    yard.deploy(held=True, a=2, b=2)
    yard.rolling.mark(["a1"])

    def moves(method: str, kind: str, name: str) -> None:
        if (method, kind) == ("PATCH", "ReplicaSet"):
            yard.server.before = lambda method, kind, name: None
            found = yard.server.get("ReplicaSet", "set-a")
            found["status"]["fullyLabeledReplicas"] = 2
            yard.server.put(found)

    yard.server.before = moves
    assert yard.rolling.settle() == ("a1: its ReplicaSet's controller has not heard it",)
    assert yard.names() == ["a0", "a1", "b0", "b1"]


def test_it_rests_where_one_template_is_left(yard: Yard) -> None:
    """In mid-roll it stays held: its controller would delete who holds slots."""
    yard.deploy(held=True, a=1, b=2)
    yard.rolling.finish_removals()
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (pod_counts.NEVER, 3)
    yard.scale("set-a", 0)
    yard.rolling.finish_removals()
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (0, 2)


def test_it_goes_back_to_what_most_pods_run(yard: Yard) -> None:
    """Of two older templates."""
    yard.deploy(held=True, a=3, b=1, c=1)
    _, shape = yard.rolling.look()
    assert shape is not None
    yard.rolling.go_back(shape)
    template = yard.server.get("Deployment", NAMES.deployment)["spec"]["template"]
    assert template["spec"] == {"runs": "a"}
    assert "pod-template-hash" not in template["metadata"]["labels"]


def test_what_the_controller_has_not_seen_is_waited_for(yard: Yard) -> None:
    """Its ReplicaSets are of what was written before."""
    yard.deploy(a=2)
    found = yard.server.get("Deployment", NAMES.deployment)
    found["metadata"]["generation"] = 2
    yard.server.put(found)
    _, shape = yard.rolling.look()
    assert shape is not None
    assert not shape.settled
    began = yard.clock.monotonic()
    with pytest.raises(FleetError, match="has not acted on it for 180 s"):
        yard.rolling._seen()
    assert yard.clock.monotonic() - began >= 180.0


@pytest.mark.parametrize("let_go", [True, False])
def test_what_a_roll_went_back_to_is_not_given_up_in_turn(yard: Yard, let_go: bool) -> None:
    """Somebody writes between the way back and its end: the old template is the wish all the same,
    with all of its pods.
    """
    yard.deploy(held=True, a=3, b=2)

    def rolled_back(method: str, found: dict) -> None:
        yard.controller(method, found)
        if found["kind"] == "Deployment" and found["spec"]["template"]["spec"]["runs"] == "a":
            yard.server.after = yard.controller
            made = yard.server.get("Deployment", NAMES.deployment)
            made["metadata"]["annotations"][_ORDER] = "3"
            its = yard.server.get("ReplicaSet", "set-a")
            its["metadata"]["annotations"][_ORDER] = "3"
            yard.server.put(its)
            yard.server.put(made)
            yard.server.before = writes_too

    def writes_too(method: str, kind: str, name: str) -> None:
        if (method, kind) == ("PATCH", "Deployment"):
            yard.server.before = lambda method, kind, name: None
            yard.server.put(yard.server.get("Deployment", NAMES.deployment))

    yard.server.after = rolled_back
    asked: list[str] = []

    def unused(hash_: str) -> bool:
        asked.append(hash_)
        return True

    yard.rolling.finish_removals(give_up=unused, let_go=let_go)
    assert asked == ["b"]
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (0, 3)
    assert spec["template"]["spec"]["runs"] == "a"
    assert [n for n in yard.names() if n.startswith("a")] == ["a0", "a1", "a2"]


def test_nothing_to_go_back_to(yard: Yard) -> None:
    """Its other template's pods are gone and refused: the current one stays."""
    yard.deploy(held=True, a=1, b=2)
    yard.server.delete("Pod", "a0")
    yard.tell("a")
    refused = yard.server.get("ReplicaSet", "set-a")
    refused["status"]["conditions"] = [
        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    ]
    yard.server.put(refused)
    yard.rolling.finish_removals(give_up=lambda _: True)
    spec = yard.server.get("Deployment", NAMES.deployment)["spec"]
    assert (spec["minReadySeconds"], spec["replicas"]) == (0, 2)
    assert yard.names() == ["b0", "b1"]
