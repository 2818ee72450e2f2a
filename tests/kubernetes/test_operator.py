"""The operator and its resource on a real API server; without nodes, so that no worker starts."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.clock import SystemClock
from fleet.errors import ConfigError, FleetError
from fleet.kubernetes.client.api import Request
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.kubernetes.operator.resource import FINALIZER, KIND
from fleet.model import StepKind
from fleet.slots import Pause
from tests.support import waiting
from tests.support.declared_fleets import Declared, crd, resource
from tests.support.kube_api import KubeApi
from tests.support.plans import plan_of, step_of

pytestmark = pytest.mark.kubernetes

WORKER = {"entrypoint": "fleet.demo.orders:process", "spark": "local[1]"}


def entry(group: str, **keys: Any) -> dict[str, Any]:
    """One entry of fleet.yaml whose pods never find a node."""
    return {
        "group": group,
        "topics": [f"{group}-topic"],
        "create": {"partitions": 2},
        "worker": dict(WORKER),
        "runtime": {"image": "fleet:1", "lease": "5s", "node_selector": {"there-is": "none"}},
        "rollout": {"warm_timeout": "5s", "drain_timeout": "1s"},
        **keys,
    }


@pytest.fixture
def place(control_plane: KubeApi, tmp_path: Path) -> Iterator[Declared]:
    """A namespace of a server that knows the kind."""
    control_plane.define(crd())
    with control_plane.api(control_plane.namespace()) as api:
        yield Declared(api, {"KUBECONFIG": str(control_plane.kubeconfig())}, tmp_path)


Broken = Callable[[dict[str, Any]], None]


def _set(*path: Any) -> Broken:
    *steps, key, value = path

    def change(spec: dict[str, Any]) -> None:
        for step in steps:
            spec = spec.setdefault(step, {})
        spec[key] = value

    return change


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (_set("fleet", "worker", "max_pol_interval", "5m"), "unknown field"),
        (_set("fleet", "replicas", "min", -1), "should be greater than or equal to 0"),
        (_set("fleet", "rollout", "bake", "a while"), "should match"),
        (_set("fleet", "worker", "protocol", "clasic"), "Unsupported value"),
        (_set("fleet", "topics", []), "should have at least 1 items"),
        (_set("fleet", "runtime", "namespace", "kube-system"), "unknown field"),
        (_set("fleet", "worker", "python_path", ["/var/run/secrets"]), "unknown field"),
        (_set("replicas", 3), "needs spec.scaling.policy external"),
        (_set("deletionPolicy", "Keep"), "Unsupported value"),
        (_set("clusterRef", {"name": "../etc"}), "should match"),
    ],
)
def test_the_server_refuses_what_fleet_yaml_refuses(
    place: Declared, broken: Broken, why: str
) -> None:
    """By the schema alone, before the operator sees it."""
    spec = {"fleet": entry("orders")}
    broken(spec)
    asked = [("fieldManager", "test"), ("fieldValidation", "Strict"), ("dryRun", "All")]
    body = resource("orders", place.api.namespace, **spec)
    with pytest.raises(FleetError, match=why):
        place.api._call(Request("POST", place.api._path(KIND), body=body, query=asked))


def test_a_resource_cannot_move_to_another_group(place: Declared) -> None:
    """Its workers would be left behind."""
    place.write("orders", fleet=entry("orders"))
    with pytest.raises(FleetError, match="the group cannot change"):
        place.write("orders", fleet=entry("payments"))
    with pytest.raises(FleetError, match="the cluster cannot change"):
        place.write("orders", fleet=entry("orders"), clusterRef={"name": "other"})


def test_what_cannot_be_read_is_said_in_the_status(place: Declared) -> None:
    """By its key; the resource is mended and goes on without a restart."""
    place.cluster("127.0.0.1:1", defaults={"replicas": {"max": 3}})
    wrong = entry("orders", rollout={"drain_timeout": "10m"})
    place.write("orders", fleet=wrong)
    place.write("nowhere", fleet=entry("nowhere"), clusterRef={"name": "other"})
    with place.operator():
        said = place.until("orders", "Stalled", "InvalidSpec")
        assert said.startswith("spec.fleet.")
        assert "max_poll_interval 300s must exceed rollout.drain_timeout 600s" in said
        said = place.until("nowhere", "Stalled", "InvalidSpec")
        assert "no cluster 'other'; known: main" in said
        place.write("orders", fleet=entry("orders"))
        said = place.until("orders", "Ready", "Unreachable", "Unknown")
        assert place.condition("orders", "Stalled")["status"] == "False"
    found = place.found("orders") or {}
    assert FINALIZER in found["metadata"]["finalizers"]
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2
    assert "InvalidSpec" in place.events("orders")


def test_the_older_of_two_resources_has_the_group(place: Declared, control_plane: KubeApi) -> None:
    """Both would write the same objects. One of another namespace that it watches is kept, too."""
    place.cluster("127.0.0.1:1")
    for name in ("first", "second"):
        place.write(name, fleet=entry("orders"))
    both = [(place.found(name) or {})["metadata"] for name in ("first", "second")]
    by_age = sorted(both, key=lambda meta: (meta["creationTimestamp"], meta["uid"]))
    older, younger = (each["name"] for each in by_age)
    with control_plane.api(control_plane.namespace()) as api:
        api.apply(resource("third", api.namespace, fleet=entry("payments")))
        with place.operator(api.namespace):
            said = place.until(younger, "Stalled", "Conflict")
            assert f"ConsumerFleet {older} has this group" in said
            place.until(older, "Ready", "Unreachable", "Unknown")
            there = partial(api.get, KIND, "third")
            waiting.until(
                lambda: "Unreachable" in str((there() or {}).get("status")), "the other namespace's"
            )


def test_no_definition_is_said_at_once(kube_api: KubeApi, tmp_path: Path) -> None:
    """As whoever forgot the chart, or the namespace in it, sees it."""
    kube_api.define(crd())
    namespace = kube_api.namespace()
    kube_api.grant(namespace, "reader", [])
    with kube_api.api(namespace, "reader") as api:
        place = Declared(api, {"KUBECONFIG": str(kube_api.kubeconfig("reader"))}, tmp_path)
        with place.made() as operator, pytest.raises(ConfigError, match="watchNamespaces"):
            operator.run(threading.Event())


def test_orphaned_workers_stay(place: Declared, broker: Any, unique: str) -> None:
    """Nothing owns them any more, so that nothing deletes them; their cluster may be forgotten."""
    group = f"orders-{unique}"
    place.cluster(broker.bootstrap_servers)
    place.write("orders", fleet=entry(group), deletionPolicy="Orphan")
    slug = ObjectNames("main", group).slug
    with place.operator():
        place.until("orders", "Stalled", "Failed")
        (place.clusters / "main.yaml").unlink()
        place.api.delete(KIND, "orders")
        place.gone("orders")
    deployment = place.api.get("Deployment", slug) or {}
    assert not deployment["metadata"].get("ownerReferences")
    assert "Orphaned" in place.events("orders")


def test_replicas_are_scaled_by_whoever_does(place: Declared, broker: Any, unique: str) -> None:
    """They begin with what is there; the subresource writes them, and a plan follows."""
    group = f"orders-{unique}"
    place.cluster(broker.bootstrap_servers)
    place.write("orders", fleet=entry(group, replicas={"min": 2}), scaling={"policy": "external"})
    with place.operator():
        waiting.until(lambda: "Planned" in place.events("orders"), "a plan")
        assert (place.found("orders") or {})["spec"]["replicas"] == 2
        scaled = place.api.merge(KIND, "orders", {"spec": {"replicas": 1}}, part="scale") or {}
        assert scaled["kind"] == "Scale"
        place.until("orders", "Stalled", "Failed")
        assert (place.found("orders") or {})["spec"]["replicas"] == 1
        assert "2" in place.events("orders")["Planned"][0]


def test_a_namespace_that_is_deleted_goes(place: Declared, broker: Any, unique: str) -> None:
    """Its controller deletes what the operator drains by, in any order."""
    place.cluster(broker.bootstrap_servers)
    place.write("orders", fleet=entry(f"orders-{unique}"))
    with place.operator():
        place.until("orders", "Stalled", "Failed")
        place.api.delete("Namespace", place.api.namespace)
        place.gone("orders")
        waiting.until(
            lambda: place.api.get("Namespace", place.api.namespace) is None,
            "the namespace to be gone",
        )


def test_a_pause_holds_and_says_so(place: Declared, broker: Any, unique: str) -> None:
    """The plan is shown and not carried out; once it is lifted the plan is."""
    group = f"orders-{unique}"
    place.cluster(broker.bootstrap_servers)
    store = LeaseStore.for_manager(place.api, cluster="main", clock=SystemClock(), lease=5.0)
    store.pause(Pause(group=group, reason="an audit", by="ann", at=0.0))
    place.write("orders", fleet=entry(group))
    with place.operator():
        said = place.until("orders", "Stalled", "Paused")
        assert "paused by ann (an audit)" in said
        assert place.api.get("Deployment", ObjectNames("main", group).slug) is None
        store.resume(group)
        place.until("orders", "Stalled", "Failed")
    assert "Planned" in place.events("orders")


def test_the_groups_lease_decides_among_managers(place: Declared, broker: Any, unique: str) -> None:
    """Another manager's change is waited for, and finished if nothing is heard of it any more."""
    group = f"orders-{unique}"
    place.cluster(broker.bootstrap_servers)
    plan = plan_of(step_of(StepKind.OPEN, [0]), group=group)
    store = LeaseStore.for_manager(place.api, cluster="main", clock=SystemClock(), lease=5.0)
    assert store.begin_change(plan, actor="dagster", started_at=time.time(), lease=5.0)
    place.write("orders", fleet=entry(group))
    with place.operator():
        said = place.until("orders", "Reconciling", "Changing")
        assert "dagster is changing the group" in said
        assert "Planned" not in place.events("orders")
        waiting.until(
            lambda: (change := store.change(group)) and change.actor == "operator test",
            "the operator to adopt the change",
        )
        place.until("orders", "Stalled", "Failed")
