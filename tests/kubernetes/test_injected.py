"""A fleet to whose pods admission adds containers, as a service mesh does: on a real cluster."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.kubernetes.client.object_names import GROUP_LABEL
from fleet.model import Severity
from fleet.slots import ChangeState
from tests.support.kube import Kube, image
from tests.support.pod_shop import PodShop
from tests.support.workshop import until

pytestmark = [pytest.mark.broker, pytest.mark.kubernetes]
WAITS = "import time; print('words of {name}', flush=True); time.sleep(10**6)"
"""Ends by SIGTERM, as a proxy does."""
POLICY = "admissionregistration.k8s.io/v1"


def container(name: str, kind: str, **more: str) -> str:
    """In the words of a policy (CEL)."""
    fields = {
        "name": json.dumps(name),
        "image": json.dumps(image("worker")),
        "imagePullPolicy": '"Never"',
        "command": json.dumps(["python3", "-c", WAITS.format(name=name)]),
        **more,
    }
    return f"Object.spec.{kind}{{{', '.join(f'{key}: {value}' for key, value in fields.items())}}}"


@contextlib.contextmanager
def injecting(kube: Kube, namespace: str) -> Iterator[None]:
    """A sidecar that is an init container, and a second container before the worker's."""
    sidecar = container("proxy", "initContainers", restartPolicy='"Always"')
    agent = container("agent", "containers")
    patch = (
        # A list that is not empty as a value makes this API server panic.
        '[JSONPatch{op: "add", path: "/spec/initContainers", value: []}, '
        f'JSONPatch{{op: "add", path: "/spec/initContainers/-", value: {sidecar}}}, '
        f'JSONPatch{{op: "add", path: "/spec/containers/0", value: {agent}}}]'
    )
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}]
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "objectSelector": {"matchExpressions": [{"key": GROUP_LABEL, "operator": "Exists"}]},
            "resourceRules": [{**rules[0], "resources": ["pods"]}],
        },
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    objects: list[dict[str, Any]] = [
        {"kind": "MutatingAdmissionPolicy", "spec": policy},
        {"kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": namespace}},
    ]
    for each in objects:
        each |= {"apiVersion": POLICY, "metadata": {"name": namespace}}
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kube.kubectl("apply", "-f", "-", stdin=listed)
    tried = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried", "labels": {GROUP_LABEL: "tried"}},
        "spec": {"containers": [{"name": "worker", "image": "none"}]},
    }

    def mutated() -> bool:
        words = ("-n", namespace, "create", "--dry-run=server", "-o", "json", "-f", "-")
        return "initContainers" in json.loads(kube.kubectl(*words, stdin=json.dumps(tried)))["spec"]

    try:
        until(mutated, 60, "the policy to be known")
        yield
    finally:
        kube.kubectl("delete", "-f", "-", stdin=listed)


def refuse_pods(kube: Kube, namespace: str) -> None:
    """From now on the namespace takes none."""
    least = {"type": "Container", "min": {"memory": "64Gi"}}
    limits = {"metadata": {"name": "limits"}, "spec": {"limits": [least]}}
    kube.core.create_namespaced_limit_range(namespace, limits)


def test_containers_that_admission_adds(
    kube: Kube, namespace: str, pod_shop: Callable[..., PodShop]
) -> None:
    """The fleet comes up and works, its log is the worker's; an image that is not there is told
    beside a sidecar that runs, and nothing is handed over to it; pods that admission refuses are
    told by status, doctor and up.
    """
    shop = pod_shop(namespace)
    shop.create_topic(2)
    with injecting(kube, namespace):
        shop.apply()
        shop.rest(3)
        shop.produce_to(shop.topic, 1000)
        assert shop.lost_and_duplicates() == (0, 0)
        with shop.fleet() as fleet:
            for worker in fleet.workers(shop.group):
                assert worker.running
                assert worker.exit_reason is None
                lines = [line.text for line in fleet.runtime.read_log(worker.name).lines]
                assert lines
                assert not [line for line in lines if "words of" in line]
        there = kube.core.list_namespaced_pod(namespace, label_selector=GROUP_LABEL).items
        assert {len(pod.spec.containers) for pod in there} == {2}
        assert {len(pod.spec.init_containers) for pod in there} == {1}
        with shop.fleet() as fleet:
            tokens = [slot.token for slot in fleet.slots(shop.group)]
        began = SystemClock().monotonic()
        shop.declare(runtime={**shop.runtime, "image": "localhost/no-such-image:1"})
        with shop.fleet() as fleet:
            change = fleet.apply(shop.group, actor="test", progress=shop.say)
        assert change.state is ChangeState.ROLLED_BACK, change.sentence
        assert "cannot be started: ErrImageNeverPull" in change.sentence
        assert SystemClock().monotonic() - began < 120
        with shop.fleet() as fleet:
            assert [slot.token for slot in fleet.slots(shop.group)] == tokens
        shop.declare(runtime=shop.runtime)
        refuse_pods(kube, namespace)
        with shop.fleet() as fleet:
            assert fleet.refusal(shop.group) is None
            owners = {slot.owner for slot in fleet.slots(shop.group)}
            standby = next(w.name for w in fleet.workers(shop.group) if w.name not in owners)
            kube.core.delete_namespaced_pod(standby, namespace)
            until(lambda: fleet.refusal(shop.group), 60, "the refusal to be told")
            (found,) = (f for f in fleet.runtime.examine() if f.level is Severity.FAIL)
            assert "2 of 3 pods are ready; 2 of 3 pods were created" in found.found
            said: list[str] = []
            fleet.up([shop.group], actor="test", progress=said.append)
            assert [s for s in said if "minimum memory usage per Container is 64Gi" in s], said
