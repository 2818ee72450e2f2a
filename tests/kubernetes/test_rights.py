"""What each part may do, asked of the real API server, and one step beyond, which it refuses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from fleet.act.runtime import ManifestOptions
from fleet.config.spec import FleetSpec
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, Request
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.manifests.rendering import manifests
from tests.support.kube_api import KubeApi
from tests.support.needs import repository

pytestmark = pytest.mark.kubernetes

OVERLAY = repository() / "k8s" / "manifests" / "overlays" / "postgres"
ORDERS, PAYMENTS = ObjectNames("main", "orders"), ObjectNames("main", "payments")
WORKER, MANAGER, EXPORTER = ORDERS.service_account, "fleet-manager", "fleet-exporter"
RUN = "fleet-run"
ALL = ("get", "list", "watch", "create", "update", "patch", "delete")


@dataclass(frozen=True)
class Ground:
    """Two fleets, a manager and an exporter in a namespace, and a namespace of somebody else."""

    api: Api
    elsewhere: str
    server: KubeApi

    def may(self, who: str, verb: str, what: str, name: str = "", *, where: str = "") -> bool:
        """Whether the server would let a ServiceAccount do that: `group/resource/subresource`."""
        group, _, rest = what.rpartition(":")
        resource, _, sub = rest.partition("/")
        asked = {
            "namespace": where or self.api.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": sub,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{self.api.namespace}:{who}",
                "groups": [
                    "system:serviceaccounts",
                    f"system:serviceaccounts:{self.api.namespace}",
                    "system:authenticated",
                ],
                "resourceAttributes": asked,
            },
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        made = self.api._call(Request("POST", path, body=review))
        assert made is not None
        return bool(made["status"]["allowed"])

    def as_(self, who: str) -> Api:
        """The API with a token of that ServiceAccount."""
        namespace = self.api.namespace
        return self.server.api(namespace, self.server.account(namespace, who))


def spec(namespace: str) -> FleetSpec:
    """Two fleets that share a Spark server."""
    fleets = [
        {
            "group": group,
            "topics": [group],
            "worker": {"protocol": "classic", "entrypoint": "job:process"},
            "replicas": {"max": 2},
            "runtime": {"kind": "kubernetes", "namespace": namespace, "image": "fleet:1"},
        }
        for group in ("orders", "payments")
    ]
    cluster = {"name": "main", "bootstrap_servers": "kafka:9092"}
    return FleetSpec.model_validate({"cluster": cluster, "fleets": fleets})


@pytest.fixture(scope="module")
def ground(kube_api: KubeApi) -> Iterator[Ground]:
    """All that is rendered, applied, but for what would start pods."""
    name, elsewhere = kube_api.namespace(), kube_api.namespace()
    with kube_api.api(name) as api:
        options = ManifestOptions(text="", parts=frozenset({"workers", "manager", "exporter"}))
        for each in manifests(spec(name), options).objects:
            if each["kind"] not in {"Deployment", "PersistentVolumeClaim"}:
                api.apply(each)
        api.apply(lease(name, ORDERS.change))
        yield Ground(api, elsewhere, kube_api)


@pytest.fixture(scope="module")
def launching(kube_api: KubeApi) -> Iterator[Ground]:
    """The manager's rights as the overlay `postgres` has them, in a namespace of its own."""
    name = kube_api.namespace()
    text = (OVERLAY / "launcher.yaml").read_text().replace("fleets", name)
    with kube_api.api(name) as api:
        options = ManifestOptions(text="", parts=frozenset({"manager"}))
        made = [*manifests(spec(name), options).objects, *yaml.safe_load_all(text)]
        for each in made:
            if each["kind"] in {"ServiceAccount", "Role", "RoleBinding"}:
                api.apply(each)
        yield Ground(api, "default", kube_api)


def lease(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
    }


LEASES = "coordination.k8s.io:leases"


@pytest.mark.parametrize(
    ("verb", "what", "name"),
    [
        *((verb, LEASES, "") for verb in ("get", "list", "watch")),
        *(("update", LEASES, name) for name in (ORDERS.slot(1), ORDERS.answers, ORDERS.report(3))),
        *((verb, "configmaps", ORDERS.stopped_partitions) for verb in ("get", "patch")),
    ],
)
def test_a_worker_may_do_its_work(ground: Ground, verb: str, what: str, name: str) -> None:
    """It reads Leases; it writes its fleet's slots, answers, reports and marks, each by name."""
    assert ground.may(WORKER, verb, what, name)


@pytest.mark.parametrize(
    ("verb", "what", "name"),
    [
        *((verb, LEASES, PAYMENTS.slot(0)) for verb in ("update", "patch", "delete")),
        *((verb, LEASES, ORDERS.targets) for verb in ("update", "patch", "delete")),
        ("update", LEASES, PAYMENTS.answers),
        ("update", LEASES, PAYMENTS.report(0)),
        ("update", LEASES, ORDERS.change),
        ("update", LEASES, ORDERS.slot(2)),  # replicas.max is 2
        ("create", LEASES, ""),
        ("delete", LEASES, ORDERS.slot(0)),
        ("patch", "configmaps", PAYMENTS.stopped_partitions),
        ("list", "configmaps", ""),
        *((verb, "secrets", "") for verb in ("get", "list")),
        ("get", "secrets", "fleet-spark"),
        *((verb, "apps:deployments", ORDERS.deployment) for verb in ("get", "patch", "delete")),
        ("patch", "apps:deployments/scale", ORDERS.deployment),
        *((verb, "pods", "") for verb in ("get", "list", "delete")),
        ("create", "pods/exec", ""),
        ("create", "serviceaccounts/token", WORKER),
        ("patch", "rbac.authorization.k8s.io:roles", ORDERS.role),
    ],
)
def test_a_worker_may_nothing_else(ground: Ground, verb: str, what: str, name: str) -> None:
    """Above all no other group's slot, no Secret, and nothing of its own Deployment."""
    assert not ground.may(WORKER, verb, what, name)


def test_an_exporter_looks_and_changes_nothing(ground: Ground) -> None:
    """Slots and changes to read; no Secret, no pod, and no verb that writes."""
    for what in (LEASES, "configmaps"):
        assert ground.may(EXPORTER, "list", what)
        assert not any(
            ground.may(EXPORTER, verb, what) for verb in ("create", "update", "patch", "delete")
        )
    for what in ("secrets", "pods", "apps:deployments", "services"):
        assert not any(ground.may(EXPORTER, verb, what) for verb in ALL)
    assert not any(ground.may(EXPORTER, verb, LEASES, where=ground.elsewhere) for verb in ALL)


@pytest.mark.parametrize(
    ("what", "verbs"),
    [
        ("apps:deployments", ALL),
        ("apps:replicasets", ("get", "list")),
        ("pods", ("get", "list", "watch", "patch", "delete")),
        ("configmaps", ALL),
        (LEASES, ALL),
        ("services", ("create", "patch", "delete")),
        ("serviceaccounts", ("create", "patch", "delete")),
        ("policy:poddisruptionbudgets", ("create", "patch", "delete")),
        ("rbac.authorization.k8s.io:roles", ("create", "patch", "delete")),
        ("rbac.authorization.k8s.io:rolebindings", ("create", "patch", "delete")),
        ("autoscaling:horizontalpodautoscalers", ("list",)),
        ("secrets", ("create",)),
    ],
)
def test_a_manager_may_manage_in_its_own_namespace_alone(
    ground: Ground, what: str, verbs: tuple[str, ...]
) -> None:
    """The same request in another namespace is refused, each."""
    refused = [verb for verb in verbs if not ground.may(MANAGER, verb, what)]
    assert not refused
    beyond = [verb for verb in ALL if ground.may(MANAGER, verb, what, where=ground.elsewhere)]
    assert not beyond


@pytest.mark.parametrize(
    ("verb", "what", "name"),
    [
        ("get", "secrets", "kafka"),
        ("list", "secrets", ""),
        ("watch", "secrets", ""),
        ("update", "secrets", "kafka"),
        ("create", "pods", ""),
        ("create", "pods/exec", ""),
        ("create", "serviceaccounts/token", WORKER),
        ("patch", "nodes", ""),
        ("create", "namespaces", ""),
        ("escalate", "rbac.authorization.k8s.io:roles", ""),
        ("bind", "rbac.authorization.k8s.io:roles", ""),
        ("impersonate", "serviceaccounts", WORKER),
        ("create", "batch:jobs", ""),
        ("patch", "autoscaling:horizontalpodautoscalers", ""),
    ],
)
def test_a_manager_may_nothing_beyond(ground: Ground, verb: str, what: str, name: str) -> None:
    """Of Secrets only the Spark server's; no pods of its own making; no rights it does not have."""
    assert not ground.may(MANAGER, verb, what, name)
    assert ground.may(MANAGER, "get", "secrets", "fleet-spark")


LAUNCHED = {
    "batch:jobs": {"create", "list", "delete"},
    "batch:jobs/status": {"get"},
    "pods": {"get", "list", "watch", "patch", "delete"},  # of the manager, but for get and list
    "pods/log": {"get"},
    "events": {"list"},
}
"""What dagster-k8s asks of the API server to start, watch, end and explain a run; no more."""


@pytest.mark.parametrize("what", LAUNCHED)
def test_a_launcher_may_start_jobs_and_no_more(launching: Ground, what: str) -> None:
    """Every verb of every resource that it uses, in its own namespace alone."""
    assert {verb for verb in ALL if launching.may(MANAGER, verb, what)} == LAUNCHED[what]
    assert not any(launching.may(MANAGER, verb, what, where=launching.elsewhere) for verb in ALL)


@pytest.mark.parametrize("who", [MANAGER, RUN])
@pytest.mark.parametrize(
    ("verb", "what", "name"),
    [
        ("create", "pods", ""),
        ("create", "pods/exec", ""),
        ("create", "pods/attach", ""),
        ("create", "batch:cronjobs", ""),
        ("patch", "batch:jobs", ""),
        ("list", "secrets", ""),
        ("get", "secrets", "fleet-postgres"),
        ("create", "serviceaccounts/token", RUN),
        ("patch", "apps:statefulsets", "fleet-postgres"),
        ("delete", "persistentvolumeclaims", ""),
    ],
)
def test_neither_launcher_nor_run_may_more(
    launching: Ground, who: str, verb: str, what: str, name: str
) -> None:
    """No pods of any other making, and not the password: the kubelet hands it to their pods."""
    assert not launching.may(who, verb, what, name)


def test_a_run_changes_fleets_and_starts_no_runs(launching: Ground) -> None:
    """It has what the manager has where that is no launcher."""
    assert launching.may(RUN, "patch", "apps:deployments")
    assert launching.may(RUN, "update", LEASES)
    assert not any(launching.may(RUN, verb, "batch:jobs") for verb in ALL)
    assert not launching.may(RUN, "get", "batch:jobs/status")
    assert not launching.may(RUN, "list", "events")


def test_a_launchers_token_makes_a_job_and_a_runs_does_not(launching: Ground) -> None:
    """Tried for real."""
    path = f"/apis/batch/v1/namespaces/{launching.api.namespace}/jobs"
    pod = {"restartPolicy": "Never", "containers": [{"name": "run", "image": "fleet:1"}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "dagster-run-1"},
        "spec": {"template": {"spec": pod}},
    }
    with launching.as_(RUN) as run, pytest.raises(FleetError) as problem:
        run._call(Request("POST", path, body=job))
    assert refused(problem)
    with launching.as_(MANAGER) as manager:
        assert manager._call(Request("POST", path, body=job)) is not None
        assert manager._call(Request("GET", f"{path}/dagster-run-1/status")) is not None
        assert manager._call(Request("DELETE", f"{path}/dagster-run-1")) is not None


def refused(problem: pytest.ExceptionInfo[FleetError]) -> bool:
    return "(403)" in str(problem.value) and "forbidden" in str(problem.value)


def test_a_workers_token_takes_its_own_slot_and_no_other(ground: Ground) -> None:
    """Tried for real: a slot of its group is written; another's, and its targets, are refused."""
    with ground.as_(WORKER) as worker:
        mine = worker.get("Lease", ORDERS.slot(0))
        assert mine is not None
        mine["spec"] = {"holderIdentity": "me", "leaseTransitions": 1}
        path = worker._path("Lease", ORDERS.slot(0))
        written = worker._call(Request("PUT", path, body=mine))
        assert written is not None
        assert written["spec"]["holderIdentity"] == "me"
        for name in (PAYMENTS.slot(0), ORDERS.targets, ORDERS.change):
            theirs = ground.api.get("Lease", name) or mine
            with pytest.raises(FleetError) as problem:
                worker._call(Request("PUT", worker._path("Lease", name), body=theirs))
            assert refused(problem)


def test_a_managers_token_gives_workers_their_role_and_nobody_more(ground: Ground) -> None:
    """Applying a fleet's Role again is its work; a Role with what it has not is an escalation."""
    options = ManifestOptions(text="", parts=frozenset({"workers"}))
    role = next(
        each
        for each in manifests(spec(ground.api.namespace), options).objects
        if each["kind"] == "Role"
    )
    with ground.as_(MANAGER) as manager:
        manager.apply(role)
        more = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}
        greedy = {**role, "rules": [*role["rules"], more]}
        with pytest.raises(FleetError) as problem:
            manager.apply(greedy)
        assert refused(problem)
