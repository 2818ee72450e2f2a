"""What the chart's accounts may do, each tried with their tokens on a real API server.

First all that whoever manages fleets could do with a namespace's admin rights and may not.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config.settings import WorkerSettings
from fleet.errors import FleetError
from fleet.kubernetes.client.api import Api, Object, Request
from fleet.kubernetes.client.object_names import COST_ANNOTATION, GROUP_LABEL, ObjectNames
from fleet.kubernetes.deployment.examining import examine
from fleet.kubernetes.manifests import deployment_objects
from fleet.kubernetes.operator.resource import KIND
from fleet.model import Severity
from tests.kubernetes.test_chart import VALUES, kubectl, rendered
from tests.kubernetes.test_operator import entry
from tests.support import waiting
from tests.support.declared import (
    ON_KUBERNETES,
    declaration,
    fleet_spec,
    group_spec,
    settings_of,
)
from tests.support.declared_fleets import Declared
from tests.support.kube_api import KubeApi

pytestmark = pytest.mark.kubernetes

ORDERS, PAYMENTS = ObjectNames("main", "orders"), ObjectNames("main", "payments")
POD = f"{ORDERS.slug}-5d9f8c7b6d-x2x4z"


@dataclass(frozen=True)
class Shop:
    """A namespace that a release in another one watches."""

    server: KubeApi
    admin: Api
    system: str
    operator: Api
    worker: Api
    dagster: Api
    run: Api
    """Dagster's daemon, and a Job of one of its runs; in the release's namespace."""

    @property
    def namespace(self) -> str:
        return self.admin.namespace

    def deployment(self, **runtime: Any) -> Object:
        """The workers' Deployment as the operator applies it."""
        settings = settings_in(self.namespace, **runtime)
        return deployment_objects.deployment(settings, replicas=0)


def settings_in(namespace: str, group: str = "orders", **runtime: Any) -> WorkerSettings:
    """What workers start from, with the chart's account."""
    place = {**ON_KUBERNETES, "namespace": namespace, "service_account": "fleet-worker"}
    spec = fleet_spec()
    return settings_of(group_spec(group, runtime={**place, **runtime}), cluster=spec.cluster)


def object_of(kind: str, name: str, version: str = "v1", **more: Any) -> Object:
    """An object without Fleet's labels."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def pod(name: str, labels: dict[str, str]) -> Object:
    container = {"name": "worker", "image": "fleet:1"}
    made = object_of("Pod", name, spec={"containers": [container]})
    made["spec"]["serviceAccountName"] = "fleet-worker"
    made["metadata"]["labels"] = labels
    return made


def installed(server: KubeApi) -> tuple[str, str]:
    """All of the chart but what would start pods: its namespace, and the one that it watches."""
    system, namespace = server.namespace(), server.namespace()
    objects = rendered(system, {**VALUES, "watchNamespaces": [namespace]})
    kept = [each for each in objects if each["kind"] != "Deployment"]
    kubectl(server, "apply", "-f", "-", stdin=yaml.safe_dump_all(kept))
    return system, namespace


@pytest.fixture(scope="module")
def shop(kube_api: KubeApi) -> Iterator[Shop]:
    """A fleet's objects in it, another fleet's, and what is nobody's."""
    system, namespace = installed(kube_api)
    with kube_api.api(namespace) as admin:
        admin.apply(pod(POD, ORDERS.labels()))
        admin.apply(pod("theirs", {"app": "theirs"}))
        admin.apply(object_of("ConfigMap", "theirs"))
        for names in (ORDERS, PAYMENTS):
            group = settings_in(namespace, names.group).group
            for each in deployment_objects.leases(names, namespace, group):
                admin.create(each)
            admin.apply(deployment_objects.marks_map(names, namespace))
            change = object_of("Lease", names.change, "coordination.k8s.io/v1")
            change["metadata"]["labels"] = names.labels()
            admin.apply(change)
        bound = admin.get("Pod", POD)
        operator = kube_api.api(namespace, kube_api.account(system, "fleet-operator"))
        worker = kube_api.api(namespace, kube_api.account(namespace, "fleet-worker", pod=bound))
        dagster, run = (
            kube_api.api(system, kube_api.account(system, name))
            for name in ("fleet-dagster", "fleet-dagster-run")
        )
        made = Shop(kube_api, admin, system, operator, worker, dagster, run)
        for api in (operator, worker):  # policies are heard of a moment later
            writes = partial(api.merge, "ConfigMap", "theirs", {"data": {"a": "b"}})
            waiting.until(partial(refusal, writes), "the policies")
        yield made
        for api in (operator, worker, dagster, run):
            api.close()


def refusal(act: Callable[[], object]) -> str:
    """Why the server refuses; empty where it does not."""
    try:
        act()
    except FleetError as error:
        return str(error)
    return ""


RBAC = "rbac.authorization.k8s.io"
SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
ROLE = object_of("Role", "greedy", f"{RBAC}/v1", rules=[SECRETS])
BINDING = object_of("RoleBinding", "greedy", f"{RBAC}/v1")
BINDING["roleRef"] = {"apiGroup": RBAC, "kind": "Role", "name": "fleet-operator"}
BINDING["subjects"] = [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]
TOKEN = object_of("Secret", "token", type="kubernetes.io/service-account-token")
TOKEN["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}


@pytest.mark.parametrize(
    "act",
    [
        lambda api: api.get("Secret", "kafka"),
        lambda api: api.find("Secret"),
        lambda api: api.create(object_of("Secret", "made")),
        lambda api: api.create(TOKEN),
        lambda api: api.delete("Secret", "fleet-spark"),
        lambda api: api.create(ROLE),
        lambda api: api.create(BINDING),
        lambda api: api.merge("Role", "fleet-operator", {"rules": []}),
        lambda api: api.create(object_of("ServiceAccount", "made")),
        lambda api: api.create(pod("made", ORDERS.labels())),
        lambda api: api.merge("ConsumerFleet", "orders", {"spec": {}}, part="scale"),
        lambda api: api.delete("ConsumerFleet", "orders"),
    ],
)
def test_an_operator_has_no_right_to(shop: Shop, act: Callable[[Api], object]) -> None:
    """By RBAC alone: no Secret, no Role, no account, no pod of its own making."""
    assert "forbidden" in refusal(lambda: act(shop.operator))


def image(name: str) -> Callable[[Api], object]:
    patch = {"spec": {"containers": [{"name": "worker", "image": "other:1"}]}}
    kind = "application/strategic-merge-patch+json"
    return lambda api: api._call(
        Request("PATCH", api._path("Pod", name), body=patch, content_type=kind)
    )


OURS = "only objects with Fleet's labels"
CLAIMED = {"metadata": {"labels": ORDERS.labels()}}


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (image("theirs"), OURS),
        (image(POD), "only the metadata of pods"),
        (lambda api: api.delete("Pod", "theirs"), OURS),
        (lambda api: api.delete("ConfigMap", "theirs"), OURS),
        (lambda api: api.create(object_of("ConfigMap", "made")), OURS),
        (lambda api: api.create(object_of("Lease", "made", "coordination.k8s.io/v1")), OURS),
        (lambda api: api.merge("ConfigMap", "theirs", CLAIMED), OURS),
    ],
)
def test_an_operator_writes_only_what_is_fleets(
    shop: Shop, act: Callable[[Api], object], why: str
) -> None:
    """RBAC would let it; and a label that it writes itself is none."""
    assert why in refusal(lambda: act(shop.operator))


ACCOUNTS, PRIVILEGE = "only with the workers' accounts", "no privileged pod"
SECRET = "only with Secrets that the chart names"
DATABASE = {"name": "db", "secret": {"secretName": "db"}}
PROJECTED = {"name": "db", "projected": {"sources": [{"secret": {"name": "db"}}]}}
KEY = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "a"}}}
SECURITY = {"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"serviceAccountName": "admin"}, ACCOUNTS),
        ({"serviceAccountName": "fleet-spark"}, ACCOUNTS),
        ({"containers": [{"name": "worker", "envFrom": [{"secretRef": {"name": "db"}}]}]}, SECRET),
        ({"containers": [{"name": "worker", "env": [KEY]}]}, SECRET),
        ({"volumes": [DATABASE]}, SECRET),
        ({"volumes": [PROJECTED]}, SECRET),
        ({"hostNetwork": True}, PRIVILEGE),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, PRIVILEGE),
        ({"containers": [{"name": "worker", **SECURITY}]}, PRIVILEGE),
        ({"initContainers": [{"name": "a", "image": "a:1", **SECURITY}]}, PRIVILEGE),
    ],
)
def test_no_patch_of_pods_gives_more_than_a_worker_has(
    shop: Shop, spec: dict[str, Any], why: str
) -> None:
    """Whoever may write a ConsumerFleet gets no more through the operator."""
    wanted = shop.deployment(pod_template={"spec": spec})
    assert why in refusal(lambda: shop.operator.apply(wanted, trial=True))


def test_an_operator_does_its_work(shop: Shop) -> None:
    """Its Deployment, the labels of its pods, its leases; in its namespaces alone."""
    with_secrets = shop.deployment(env_from=["kafka"], mounts={"kafka-tls": "/etc/kafka"})
    assert not refusal(lambda: shop.operator.apply(with_secrets, trial=True))
    patch = {"metadata": {"labels": {"fleet/slot": "0"}}}
    assert not refusal(lambda: shop.operator.merge("Pod", POD, patch))
    elsewhere = shop.server.namespace()
    user = shop.server.account(shop.system, "fleet-operator")
    for namespace in (elsewhere, shop.system):
        with shop.server.api(namespace, user) as api:
            for kind in ("Deployment", "Lease", "ConfigMap", "Pod", KIND):
                assert "forbidden" in refusal(lambda: api.find(kind))  # noqa: B023 - called here


@pytest.mark.parametrize(
    ("account", "severity"), [("fleet-worker", Severity.OK), (None, Severity.FAIL)]
)
def test_doctor_finds_the_operators_rights_enough(
    shop: Shop, account: str | None, severity: Severity
) -> None:
    """Unless a fleet names no account: then its manager would have to make one, with a Role."""
    place = {**ON_KUBERNETES, "namespace": shop.namespace, "service_account": account}
    spec = fleet_spec(declaration(runtime=place))
    (found,) = [f for f in examine(spec, shop.operator, looks={}) if f.check == "permissions"]
    assert found.level is severity
    assert ("create RoleBinding" in found.found) == (account is None)


def lease(holder: str | None) -> Object:
    return {"spec": {"holderIdentity": holder, "leaseTransitions": 1}}


def replaced(api: Api, admin: Api, name: str, holder: str | None) -> Callable[[], object]:
    """Write a Lease as a compare-and-set does."""

    def act() -> object:
        found = admin.get("Lease", name)
        assert found is not None
        return api._call(Request("PUT", api._path("Lease", name), body={**found, **lease(holder)}))

    return act


def test_a_worker_takes_a_slot_of_its_fleet_for_itself(shop: Shop) -> None:
    """As the pod whose token it is; no other fleet's, and not for another pod."""
    mine, theirs = ORDERS.slot(0), PAYMENTS.slot(0)
    assert not refusal(replaced(shop.worker, shop.admin, mine, POD))
    assert "only for itself" in refusal(replaced(shop.worker, shop.admin, mine, "another"))
    assert not refusal(replaced(shop.worker, shop.admin, mine, None))
    assert "of its own fleet" in refusal(replaced(shop.worker, shop.admin, theirs, POD))
    shop.admin.merge("Lease", mine, lease("another"))
    assert not refusal(replaced(shop.worker, shop.admin, mine, "another"))  # says that it ended


def test_a_worker_writes_its_report_and_nothing_of_the_managers(shop: Shop) -> None:
    """The change, the targets, other maps and other fleets' are refused."""

    def marks(name: str, **written: Any) -> str:
        return refusal(lambda: shop.worker.merge("ConfigMap", name, written))

    assert not marks(ORDERS.stopped_partitions, data={"a": "b"})
    assert not refusal(replaced(shop.worker, shop.admin, ORDERS.report(0), POD))
    for name in (PAYMENTS.stopped_partitions, "theirs"):
        assert "of its own fleet" in marks(name, data={"a": "b"})
    for name in (ORDERS.change, ORDERS.targets):
        assert "only slots" in refusal(replaced(shop.worker, shop.admin, name, POD))
    assert marks(ORDERS.stopped_partitions, metadata={"labels": {GROUP_LABEL: PAYMENTS.slug}})


def test_a_worker_annotates_its_own_pod_only(shop: Shop) -> None:
    """With its deletion cost; nothing else of it, and no other pod."""
    cost = {"metadata": {"annotations": {COST_ANNOTATION: "100"}}}
    shop.admin.apply(pod(f"{POD}y", ORDERS.labels()))
    assert not refusal(lambda: shop.worker.merge("Pod", POD, cost))
    assert "its pod" in refusal(lambda: shop.worker.merge("Pod", f"{POD}y", cost))
    assert "its pod" in refusal(lambda: image(POD)(shop.worker))
    labels = {"metadata": {"labels": {"another": "label"}}}
    assert "its pod" in refusal(lambda: shop.worker.merge("Pod", POD, labels))


def test_a_token_of_another_pod_writes_nothing(shop: Shop) -> None:
    """Of a fleet whose name begins alike, of any other pod, or of none."""
    names = ("something-else", f"{ORDERS.slug}-more-5d9f8c7b6d-x2x4z")
    for bound in (None, *(shop.admin.apply(pod(name, ORDERS.labels())) for name in names)):
        user = shop.server.account(shop.namespace, "fleet-worker", pod=bound)
        with shop.server.api(shop.namespace, user) as api:
            assert "of its own fleet" in refusal(
                replaced(api, shop.admin, ORDERS.slot(1), "something-else")
            )


DATABASE_KEY = {"secretKeyRef": {"name": "database", "key": "url"}}


def run_job(spec: dict[str, Any], name: str = "fleet-run") -> Object:
    """A Job as Dagster's launcher makes it of a run."""
    env = [{"name": "DAGSTER_DATABASE", "valueFrom": DATABASE_KEY}]
    container = {"name": "run", "image": "fleet:1", "env": env}
    whole = {"restartPolicy": "Never", "containers": [container], **spec}
    made = object_of("Job", f"dagster-run-{uuid.uuid4()}", "batch/v1")
    made["metadata"]["labels"] = {"app.kubernetes.io/name": name}
    made["spec"] = {"template": {"spec": {"serviceAccountName": "fleet-dagster-run", **whole}}}
    return made


def asked(api: Api, method: str, name: str = "", body: Object | None = None) -> Object | None:
    """A request about Jobs, which Fleet itself never makes."""
    path = f"/apis/batch/v1/namespaces/{api.namespace}/jobs{name}"
    return api._call(Request(method, path, body=body))


def test_dagster_starts_runs_and_a_run_starts_none(shop: Shop) -> None:
    """As Jobs with the account, the Secrets and the label of runs; and it ends them."""
    job = run_job({})
    name = f"/{job['metadata']['name']}"
    assert "forbidden" in refusal(lambda: asked(shop.run, "POST", body=job))
    assert not refusal(lambda: asked(shop.dagster, "POST", body=job))
    assert not refusal(lambda: asked(shop.dagster, "GET", f"{name}/status"))
    assert "forbidden" in refusal(lambda: asked(shop.run, "GET", f"{name}/status"))
    assert not refusal(lambda: shop.dagster.find("Pod"))
    assert "forbidden" in refusal(lambda: shop.dagster.get("Secret", "database"))
    assert "forbidden" in refusal(lambda: shop.dagster.create(pod("made", ORDERS.labels())))
    assert not refusal(lambda: asked(shop.dagster, "DELETE", name))


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (run_job({"serviceAccountName": "fleet-operator"}), ACCOUNTS),
        (run_job({"hostPID": True}), PRIVILEGE),
        (run_job({"volumes": [DATABASE]}), SECRET),
        (run_job({}, name="another"), OURS),
    ],
)
def test_a_job_of_dagster_is_no_way_to_more(shop: Shop, job: Object, why: str) -> None:
    """Its launcher may create Jobs, of which RBAC cannot say what is in them."""
    assert why in refusal(lambda: asked(shop.dagster, "POST", body=job))


def test_dagster_and_its_runs_change_fleets_as_the_operator_does(shop: Shop) -> None:
    """Within the same bounds, and with no account of runs for workers."""
    for user in ("fleet-dagster", "fleet-dagster-run"):
        account = shop.server.account(shop.system, user)
        with shop.server.api(shop.namespace, account) as api:
            assert not refusal(partial(api.apply, shop.deployment(), trial=True))
            assert OURS in refusal(partial(api.delete, "ConfigMap", "theirs"))
            greedy = shop.deployment(pod_template={"spec": {"serviceAccountName": user}})
            assert ACCOUNTS in refusal(partial(api.apply, greedy, trial=True))


def test_a_life_by_these_rights(
    control_plane: KubeApi, broker: Any, unique: str, tmp_path: Path
) -> None:
    """Planned, tried, failed for want of nodes, not tried again at once; drained and deleted."""
    group = f"orders-{unique}"
    slug = ObjectNames("main", group).slug
    system, namespace = installed(control_plane)
    config = control_plane.kubeconfig(control_plane.account(system, "fleet-operator"))
    with control_plane.api(namespace) as api:
        place = Declared(api, {"KUBECONFIG": str(config)}, tmp_path)
        runtime = {"kind": "kubernetes", "service_account": "fleet-worker"}
        place.cluster(broker.bootstrap_servers, defaults={"runtime": runtime})
        place.write("orders", fleet=entry(group))
        with place.operator():
            assert "warm" in place.until("orders", "Stalled", "Failed")
            found, deployment = place.found("orders") or {}, api.get("Deployment", slug) or {}
            assert found["status"]["change"]["state"] == "failed"
            owners = [each["uid"] for each in deployment["metadata"]["ownerReferences"]]
            assert owners == [found["metadata"]["uid"]]
            waiting.until(
                lambda: "next try in" in place.condition("orders", "Stalled")["message"], "a pause"
            )
            events = place.events("orders")
            assert len(events["Planned"]) == 1
            assert {"Step", "Failed"} <= set(events)

            api.delete(KIND, "orders")
            place.gone("orders")
        assert "Drained" in place.events("orders")
        for kind in ("Deployment", "Lease", "ConfigMap", "PodDisruptionBudget"):
            assert not api.find(kind, f"{GROUP_LABEL}={slug}")[0], kind
    assert "forbidden" not in json.dumps(place.said)
