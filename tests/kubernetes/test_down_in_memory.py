"""`fleet down` where pods do not simply go: what has ended is nobody to wait for."""

import threading
from collections.abc import Iterator

import pytest

from fleet.clock import SystemClock
from fleet.errors import FleetError
from fleet.kubernetes.client.object_names import SPARK, ObjectNames
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.deployment.spark_servers import ensure_token
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.pod_yard import Yard


@pytest.fixture
def yard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    """Two pods run, one was evicted by its node and stays; Spark serves them."""
    monkeypatch.setattr("fleet.kubernetes.deployment.kubernetes_runtime._SLACK_SECONDS", -1.5)
    made = Yard(SystemClock())
    made.deploy(a=3)
    made.change_pod("a0", phase="Failed", reason="Evicted", conditions=[])
    for kind in ("Deployment", "Service"):
        made.server.put({"kind": kind, "metadata": {"name": SPARK}})
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
    """It may work still."""
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
    ensure_token(yard.api)
    assert ("Secret", SPARK) in yard.server.objects
    runtime.down(grace=0.0)
    told = runtime.purge()
    assert (("Secret", SPARK) in yard.server.objects) == (not by_fleet)
    assert len(told) == (0 if by_fleet else 1)
    assert all("Secret fleet-spark stays, since Fleet did not create it" in each for each in told)
