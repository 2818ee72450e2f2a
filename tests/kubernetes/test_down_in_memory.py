"""`fleet down` where pods do not simply go: what has ended is nobody to wait for."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.kubernetes.client.object_names import SPARK, ObjectNames
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.deployment.spark_servers import (
    delete_servers,
    delete_unused,
    ensure_spark,
    ensure_tokens,
    purge_spark,
)
from fleet.kubernetes.manifests.pod_template import token
from fleet.kubernetes.manifests.spark_objects import LABELS
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.pod_yard import Yard


@pytest.fixture
def yard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """Two pods run, one was evicted by its node and stays; Spark serves them."""
    monkeypatch.setattr("fleet.kubernetes.deployment.kubernetes_runtime._SLACK_SECONDS", -1.5)
    made = Yard(SystemClock())
    made.deploy("a", 3)
    made.change_pod("a0", phase="Failed", reason="Evicted", conditions=[])
    for kind in ("Deployment", "Service"):
        made.server.put({"kind": kind, "metadata": {"name": SPARK, "labels": LABELS}})
    yield made
    made.mirror.close()


@pytest.fixture
def runtime(yard: Yard) -> Iterator[KubernetesRuntime]:
    """Of that namespace; it waits for half a second in all."""
    spec = fleet_spec(declaration("orders", runtime={**ON_KUBERNETES, "lease": "2s"}))
    made = KubernetesRuntime(spec, api=yard.api, store=yard.store, clock=yard.clock)
    yield made
    made.close()


def test_an_evicted_pod_is_not_waited_for(yard: Yard, runtime: KubernetesRuntime) -> None:
    """Its ReplicaSet neither counts nor deletes it: it goes with the others, and so does Spark."""
    runtime.down(grace=0.0)
    assert yard.names() == []
    assert ("Deployment", SPARK) not in yard.server.objects
    runtime.down(grace=0.0)


def test_a_pod_on_its_way_out_is_waited_for(yard: Yard, runtime: KubernetesRuntime) -> None:
    leaving = yard.server.get("Pod", "a1")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    yard.server.put(leaving)
    with pytest.raises(FleetError, match="pods of namespace ns do not stop: a1;"):
        runtime.down(grace=0.0)
    assert yard.names() == ["a0", "a1"]
    assert ("Deployment", SPARK) in yard.server.objects
    ends = threading.Timer(0.1, yard.server.delete, ("Pod", "a1"))
    ends.start()
    runtime.down(grace=0.0)
    ends.join()
    assert yard.names() == []


@pytest.mark.parametrize(("phase", "spark_stays"), [("Running", True), ("Failed", False)])
def test_other_peoples_pods_are_left_alone(
    yard: Yard, runtime: KubernetesRuntime, phase: str, spark_stays: bool
) -> None:
    """Spark stays for those that run; what has ended needs none, and is not ours to delete."""
    theirs = {**ObjectNames("other", "orders").labels(), "pod-template-hash": "z"}
    yard.pod("theirs", labels=theirs, phase=phase)
    runtime.down(grace=0.0)
    assert yard.names() == ["theirs"]
    assert (("Deployment", SPARK) in yard.server.objects) == spark_stays


@pytest.mark.parametrize("by_fleet", [True, False])
def test_a_purge_deletes_the_token_that_fleet_made(
    yard: Yard, runtime: KubernetesRuntime, by_fleet: bool
) -> None:
    """One that a person made stays, which is told."""
    theirs = {"kind": "Secret", "metadata": {"name": SPARK, "labels": {"team": "data"}}}
    if not by_fleet:
        yard.server.put(theirs)
    ensure_tokens(yard.api, [SPARK])
    assert ("Secret", SPARK) in yard.server.objects
    runtime.down(grace=0.0)
    told = runtime.purge()
    assert (("Secret", SPARK) in yard.server.objects) == (not by_fleet)
    assert len(told) == (0 if by_fleet else 1)
    assert all("Secret fleet-spark stays, since Fleet did not create it" in each for each in told)


@pytest.mark.parametrize("given", [None, "fleet-worker"])
def test_a_purge_deletes_the_account_that_fleet_made(yard: Yard, given: str | None) -> None:
    """Where the platform makes accounts, Fleet neither makes this one nor deletes it."""
    place = {**ON_KUBERNETES, "service_account": given, "spark": {"executors": {"instances": 1}}}
    spec = fleet_spec(declaration("orders", runtime=place))
    ensure_spark(spec, yard.api)
    account = ("ServiceAccount", SPARK)
    assert (account in yard.server.objects) == (given is None)
    yard.server.put({"kind": account[0], "metadata": {"name": SPARK}})
    delete_servers(yard.api)
    purge_spark(spec, yard.api)
    assert (account in yard.server.objects) == (given is not None)
    assert ("Secret", SPARK) not in yard.server.objects


def test_a_server_is_deleted_once_no_fleet_and_no_pod_uses_it(yard: Yard) -> None:
    """Pods of the old Secrets use theirs until they are rolled; a new one may have no pods yet."""
    clock = yard.clock.now()
    names = {"fleet-spark-used": 7200, "fleet-spark-new": 60, "fleet-spark-old": 7200, SPARK: 7200}
    for name, age in names.items():
        at = datetime.fromtimestamp(clock - age, tz=UTC).isoformat()
        meta = {"name": name, "labels": LABELS, "creationTimestamp": at}
        for kind in ("Deployment", "Service"):
            yard.server.put({"kind": kind, "metadata": meta})
    container = {"env": [token("fleet-spark-used")]}
    pods = [{"metadata": {"name": "a"}, "spec": {"containers": [container]}}]
    spec = fleet_spec(declaration("orders", runtime=ON_KUBERNETES))
    delete_unused(spec, yard.api, pods, now=clock)
    for kind in ("Deployment", "Service"):
        left = {name for each, name in yard.server.objects if each == kind}
        assert left & set(names) == set(names) - {"fleet-spark-old"}
