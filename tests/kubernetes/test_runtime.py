"""The runtime of a namespace: published, started, seen, removed, taken down, purged.

What docs/contributing/slot-store.md shows is run here.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.act.runtime import RolloutStatus
from fleet.clock import SystemClock
from fleet.config.load import load
from fleet.config.settings import WorkerSettings, revision_of
from fleet.errors import FleetError, NoRoom, Refused
from fleet.kubernetes.client.api import Api
from fleet.kubernetes.client.object_names import GROUP_LABEL, ObjectNames
from fleet.kubernetes.deployment import rollout
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.kind import KIND
from fleet.kubernetes.manifests import deployment_objects
from fleet.model import Severity, StepKind
from tests.support.declared import declaration, settings_of
from tests.support.kube_api import KubeApi
from tests.support.nodeless import Ground, patched
from tests.support.plans import plan_of, step_of

pytestmark = pytest.mark.kubernetes


class Place:
    """A namespace, a fleet.yaml for it, and the kubelet of its pods."""

    def __init__(self, folder: Path, namespace: str, api: Api, environ: dict[str, str]) -> None:
        self.environ = environ
        self.namespace = namespace
        self.api = api
        self.kubelet = Ground(api)
        self.file = folder / "fleet.yaml"
        self.write()

    def write(self, image: str = "worker:1", **more: Any) -> None:
        """The file; `more` are further fleets by group."""
        runtime = {"kind": "kubernetes", "namespace": self.namespace, "image": image}
        orders = declaration(
            worker={"entrypoint": "fleet.demo.orders:process", "spark": "local[1]"},
            replicas={"min": 1, "max": 4},
            rollout={"bake": "1s"},
            runtime={**runtime, "node_selector": {"there-is": "no-such-node"}},
        )
        fleets = [orders, *more.values()]
        cluster = {"name": "main", "bootstrap_servers": "kafka:9092"}
        self.file.write_text(yaml.safe_dump({"cluster": cluster, "fleets": fleets}))

    def patch(self, body: dict[str, Any], *, manager: str, force: bool = False) -> None:
        """Another field manager changes the Deployment; force: applies it."""
        patched(self.kubelet, manager=manager, body=body, force=force)

    def rolls(self, revision: str) -> bool:
        """Whether the controller has begun with that template."""
        state = self.kubelet.state()
        return state.is_observed and state.sets[0].revision == revision

    def open(self) -> KubernetesRuntime:
        spec = load(self.file, self.environ)
        return KIND.open(spec, home=self.file.parent, environ=self.environ, clock=SystemClock())

    def publish(self, runtime: KubernetesRuntime) -> str:
        """The revision of the file; its name."""
        spec = runtime.spec.fleets[0]
        digest = runtime.keep_code(spec, "")
        revision = revision_of(spec, digest)
        runtime.keep_code(spec, revision)
        settings = settings_of(
            spec, revision=revision, cluster=runtime.spec.cluster, code_digest=digest
        )
        runtime.publish("orders", revision, settings.model_dump_json())
        return revision


@pytest.fixture
def place(control_plane: KubeApi, tmp_path: Path) -> Iterator[Place]:
    namespace = control_plane.namespace()
    api = control_plane.api(namespace)
    made = Place(tmp_path, namespace, api, {"KUBECONFIG": str(control_plane.kubeconfig())})
    try:
        yield made
    finally:
        made.kubelet.close()
        api.close()


def test_a_life(place: Place) -> None:
    """Published once, started twice, one removed by name, nothing left after the purge."""
    runtime = place.open()
    with pytest.raises(Refused, match="is not published"):
        runtime.start("orders", "0123456789", 1)
    assert runtime.published("orders", "0123456789") is None
    revision = place.publish(runtime)
    names = runtime.start("orders", revision, 2)
    place.kubelet.ready()
    seen = {w.name: w for w in runtime.workers("orders")}
    assert set(seen) == set(names)
    assert {w.revision for w in seen.values()} == {revision}
    assert all(w.wanted and w.pid is None for w in seen.values())
    again = runtime.start("orders", revision, 1)
    place.kubelet.ready()

    runtime.remove(names[:1], grace=1.0)
    runtime.finish_removals("orders")
    assert {w.name for w in runtime.workers()} == {names[1], *again}
    with pytest.raises(Refused, match="no pod nobody exists"):
        runtime.restart("nobody")
    runtime.restart(names[1])
    place.kubelet.until(
        lambda: names[1] not in {w.name for w in runtime.workers()} and len(runtime.workers()) == 2
    )

    other = place.open()  # another manager knows the same
    kept = WorkerSettings.model_validate_json(other.published("orders", revision) or "")
    assert kept == WorkerSettings.model_validate_json(runtime.published("orders", revision) or "")
    assert other.published("orders", f"{revision}~abc") == other.published("orders", revision)
    assert {w.revision for w in other.workers()} == {revision}
    other.close()

    runtime.down(grace=1.0)
    assert runtime.workers() == ()
    runtime.purge()
    slug = ObjectNames("main", "orders").slug
    for kind in ("Deployment", "Lease", "ConfigMap", "PodDisruptionBudget", "Role", "RoleBinding"):
        assert place.api.find(kind, f"{GROUP_LABEL}={slug}")[0] == [], kind


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_a_change_that_failed_keeps_nothing_that_no_slot_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    """With half of its pods refused: where no slot runs the new template, the old one is back; else
    the controller goes on.
    """
    monkeypatch.setattr(rollout, "_REFUSED_SECONDS", 1.0)
    first = place.open()
    old = place.publish(first)
    before = first.start("orders", old, 2)
    place.kubelet.ready()
    first.close()
    place.write(image="worker:2")
    runtime = place.open()
    new = place.publish(runtime)
    place.kubelet.quota(3)
    place.kubelet.auto = False
    with pytest.raises(NoRoom, match="exceeded quota") as short:
        runtime.start("orders", new, 2)
    (made,) = short.value.started
    if used:
        store = runtime.store
        targets = store.targets("orders")
        assert store.write_targets(replace(targets, open=frozenset({0}))) is not None
        slot = store.slots("orders")[0]
        assert store.take(slot, worker=made, revision=new, spark_session=None) is not None
    assert runtime.rollout("orders", new) == RolloutStatus(complete=False)
    runtime.finish_removals("orders", failed=True)
    place.kubelet.auto = True
    if used:
        place.kubelet.until(lambda: runtime.rollout("orders", new).complete)
        assert not set(before) & {w.name for w in runtime.workers()}
        runtime.finish_removals("orders")
    else:
        place.kubelet.until(lambda: {w.name for w in runtime.workers()} == set(before))
        place.kubelet.until(lambda: runtime.rollout("orders", old).complete)
    runtime.close()


def test_another_writer_in_mid_roll_is_named_and_taken_back_once(place: Place) -> None:
    """Old manifests applied with force by another field manager; the second time it is an error.

    `kubectl rollout restart` changes nothing of Fleet's, and is none.
    """
    first = place.open()
    old = place.publish(first)
    first.start("orders", old, 2)
    place.kubelet.ready()
    stale = deployment_objects.deployment(
        WorkerSettings.model_validate_json(first.published("orders", old) or ""), replicas=2
    )
    assert first.rollout("orders", old).notes == ()
    first.close()
    place.write(image="worker:2")
    place.kubelet.auto = False
    runtime = place.open()
    new = place.publish(runtime)
    runtime.start("orders", new, 1)
    at = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    restart = {"spec": {"template": {"metadata": {"annotations": at}}}}
    place.patch(restart, manager="kubectl-rollout")
    place.kubelet.until(lambda: len(place.kubelet.state().sets) == 3)
    assert runtime.rollout("orders", new) == RolloutStatus(complete=False)
    assert not [f for f in runtime.examine() if "changed" in f.found]

    place.patch(stale, manager="argocd-controller", force=True)
    place.kubelet.until(lambda: place.rolls(old))
    (told,) = [f for f in runtime.examine() if "argocd-controller" in f.found]
    assert "changed template.metadata" in told.found or "template.spec" in told.found
    plan = plan_of(step_of(StepKind.ROLL, (0,), new), wanted=2)
    (note,) = runtime.vetoes(plan).notes
    assert "argocd-controller changed" in note
    runtime.rollout("orders", new)
    place.kubelet.until(lambda: place.rolls(new))
    status = runtime.rollout("orders", new)
    assert status.stalled is None
    (said,) = status.notes
    assert "argocd-controller changed" in said
    assert said.endswith("; Fleet took that back")
    assert runtime.vetoes(plan).notes == ()

    place.patch(stale, manager="argocd-controller", force=True)
    place.kubelet.until(lambda: place.rolls(old))
    with pytest.raises(FleetError, match=r"argocd-controller .*again; stop that writer"):
        runtime.rollout("orders", new)
    runtime.close()


def test_the_doctor_and_the_plan_name_an_autoscaler(place: Place) -> None:
    """KEDA's as well, which works through one that it owns; ours and an adopted Deployment."""
    runtime = place.open()
    revision = place.publish(runtime)
    runtime.start("orders", revision, 1)
    place.kubelet.ready()
    found = {f.check: f.level for f in runtime.examine()}
    assert {"permissions", "deployment"} <= set(found)
    assert set(found.values()) == {Severity.OK}
    owner = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "lag", "uid": "1"}
    name = ObjectNames("main", "orders").deployment
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    place.api.create(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "keda-hpa-lag", "ownerReferences": [owner]},
            "spec": {"maxReplicas": 9, "scaleTargetRef": target},
        }
    )
    (rival,) = [f for f in runtime.examine() if f.check == "autoscaler"]
    assert "KEDA's ScaledObject lag" in rival.found
    assert "delete scaledobject lag" in rival.remedy
    plan = plan_of(step_of(StepKind.OPEN, (1,), revision), wanted=2)
    (why,) = runtime.vetoes(plan).add_to(plan).refusals
    assert "KEDA's ScaledObject lag (its autoscaler keda-hpa-lag) also scales Deployment" in why
    runtime.close()


def test_other_peoples_deployment(place: Place) -> None:
    """Scaled in one patch; it is told when its pods are gone, and its template is left alone."""
    template = {
        "metadata": {"labels": {"app": "billing", GROUP_LABEL: "none-of-ours"}},
        "spec": {
            "nodeSelector": {"there-is": "no-such-node"},
            "containers": [{"name": "worker", "image": "billing:1"}],
        },
    }
    place.api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "billing"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"app": "billing"}},
                "template": template,
            },
        }
    )
    runtime = {"kind": "kubernetes", "namespace": place.namespace, "deployment": "billing"}
    place.write(billing={"group": "billing", "topics": ["orders"], "runtime": runtime})
    runtime = place.open()
    seen = runtime.adopted("billing")
    assert (seen.name, seen.replicas, seen.one_by_one) == ("billing", 3, True)
    assert runtime.adopted("orders") is None
    with pytest.raises(Refused, match="has no runtime"):
        runtime.scale_adopted("orders", 1)
    before = place.api.get("Deployment", "billing")

    def pods() -> list[dict]:
        return list(place.api.find("Pod", "app=billing")[0])

    place.kubelet.until(lambda: len(pods()) == 3)
    for pod in pods():
        place.kubelet.make_ready(pod["metadata"]["name"])
    assert runtime.scale_adopted("billing", 1).replicas == len(pods()) == 1
    after = place.api.get("Deployment", "billing")
    assert after["spec"]["template"] == before["spec"]["template"]
    place.api.delete("Deployment", "billing")
    with pytest.raises(FleetError, match="has no Deployment billing"):
        runtime.scale_adopted("billing", 2)
    (missing,) = [f for f in runtime.examine() if f.level is Severity.WARN]
    assert "has no Deployment billing" in missing.found
    runtime.close()
