"""Checks a Kubernetes cluster for `fleet doctor`: the server, permissions, each Deployment.

Problem: most first attempts on a cluster fail halfway at a missing permission or image. Choice: the
server reports what this login may do (SelfSubjectAccessReview). Each Deployment is checked for what
would stop or undo a change: an autoscaler, a missing budget, a stalled roll, pods that cannot
start, pods of undeclared groups. Nothing is changed. Cost: one request per permission.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.decide.slugs import k8s_slug
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.object_names import (
    ACCESS,
    CLUSTER_LABEL,
    GROUP_ANNOTATION,
    GROUP_LABEL,
    ObjectNames,
)
from fleet.kubernetes.deployment.pod_status import exit_reason, is_gone, is_ready, refusal_of
from fleet.kubernetes.deployment.rollout import DeploymentState
from fleet.kubernetes.manifests.spark_objects import spark_servers
from fleet.model import Finding, fail, ok, warn

# Autoscalers of the same Deployment: HorizontalPodAutoscalers, KEDA's included.
#
# Problem: two writers of `spec.replicas` undo each other every few seconds, and each time pods with
# slots stop. Choice: a plan is refused while an autoscaler has the same scaleTargetRef. KEDA works
# through an autoscaler that its ScaledObject owns. Cost: other kinds (a VPA, a cron job) are not
# found.


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Describes one HorizontalPodAutoscaler, or KEDA's ScaledObject that owns it."""

    title: str
    target: str
    remedy: str
    """The command that deletes it."""

    def refusal(self, group: str) -> str:
        """Returns the refusal of a plan because of it."""
        return (
            f"{self.title} also scales Deployment {self.target} of group {group}. Two writers of "
            "its replicas undo each other, and members join and leave each time; delete the "
            f"autoscaler, or run `fleet unmanage {group}`"
        )


def autoscalers_of(api: Api, deployment: str) -> tuple[Autoscaler, ...]:
    """Returns the autoscalers of a Deployment."""
    found = []
    delete = f"kubectl -n {api.namespace} delete"
    for each in api.find("HorizontalPodAutoscaler")[0]:
        target = each["spec"].get("scaleTargetRef") or {}
        if target.get("kind") != "Deployment" or target.get("name") != deployment:
            continue
        name, owners = each["metadata"]["name"], each["metadata"].get("ownerReferences") or []
        title, remedy = f"the HorizontalPodAutoscaler {name}", f"{delete} hpa {name}"
        for keda in (o["name"] for o in owners if o.get("kind") == "ScaledObject"):
            title = f"KEDA's ScaledObject {keda} (its autoscaler {name})"
            remedy = f"{delete} scaledobject {keda}"
        found.append(Autoscaler(title, deployment, remedy))
    return tuple(found)


NEEDED: Final = (
    ("Deployment", ("get", "list", "create", "patch", "delete")),
    ("ReplicaSet", ("list",)),
    ("Pod", ("list", "watch", "patch")),
    ("Lease", ("get", "list", "watch", "create", "update", "patch", "delete")),
    ("ConfigMap", ("get", "list", "create", "patch", "delete")),
    ("PodDisruptionBudget", ("get", "create", "patch", "list", "delete")),
    ("HorizontalPodAutoscaler", ("list",)),
)
"""Permissions of a manager in its namespace."""
FOR_ACCOUNTS: Final = tuple((kind, ("create", "patch", "list", "delete")) for kind in ACCESS)
"""Permissions if a fleet names no `runtime.service_account`, so that the manager makes one."""

Deployments = Mapping[str, tuple[DeploymentState | None, list[Object]]]
"""Deployment and pods of each managed group."""


def examine(spec: FleetSpec, api: Api, *, looks: Deployments) -> Iterator[Finding]:
    """Yields findings, the server first."""
    yield ok("kubernetes", f"{api.host}: {api.version()}, namespace {api.namespace}")
    yield from _permissions(spec, api)
    for fleet in spec.fleets:
        runtime = fleet.runtime
        if isinstance(runtime, KubernetesRuntimeSpec):
            yield from _fleet(spec, api, fleet, runtime, looks)
    yield from _undeclared(spec, api)
    for server in spark_servers(spec):
        yield _spark(api, server)


def _permissions(spec: FleetSpec, api: Api) -> Iterator[Finding]:
    runtimes = [each.runtime for each in spec.fleets if each.worker is not None]
    given = all(isinstance(r, KubernetesRuntimeSpec) and r.service_account for r in runtimes)
    missing = [
        f"{verb} {kind}"
        for kind, verbs in (NEEDED if given else NEEDED + FOR_ACCOUNTS)
        for verb in verbs
        if not api.allowed(verb, kind)
    ]
    if missing:
        yield fail(
            "permissions",
            f"this login may not {', '.join(missing)} in namespace {api.namespace}",
            "let it act as the operator of the chart may, or use another kubeconfig",
        )
    else:
        yield ok("permissions", f"this login has all permissions of a manager in {api.namespace}")


def _fleet(
    spec: FleetSpec, api: Api, fleet: GroupSpec, runtime: KubernetesRuntimeSpec, looks: Deployments
) -> Iterator[Finding]:
    names = ObjectNames(spec.cluster.name, fleet.group)
    deployment = names.deployment if fleet.worker is not None else runtime.deployment
    if fleet.worker is not None and runtime.image is None:
        yield fail(
            "image",
            f"{fleet.group} declares a worker, but no image",
            "write runtime: {image: REGISTRY/NAME:TAG}",
        )
    for rival in autoscalers_of(api, deployment) if deployment else ():
        yield warn(
            "autoscaler",
            f"{rival.title} also scales Deployment {deployment} of {fleet.group}",
            f"{rival.remedy}, or `fleet unmanage {fleet.group}`",
        )
    if fleet.worker is None:
        if deployment and api.get("Deployment", deployment) is None:
            found = f"{api.namespace} has no Deployment {deployment} for {fleet.group}"
            yield warn("deployment", found, "correct runtime.deployment")
        return
    state, pods = looks.get(fleet.group, (None, []))
    if state is None:
        yield ok("deployment", f"{fleet.group} has none yet; `fleet up` creates it")
        return
    yield from _deployment(fleet, api.namespace, names, state, pods)
    if api.get("PodDisruptionBudget", names.budget) is None:
        yield warn(
            "budget",
            f"{fleet.group} has no PodDisruptionBudget, so a node drain may stop all its workers",
            f"fleet apply {fleet.group}",
        )


def _deployment(
    fleet: GroupSpec, namespace: str, names: ObjectNames, state: DeploymentState, pods: list[Object]
) -> Iterator[Finding]:
    # A pod that was deleted stays Ready until its last container ends.
    ready = sum(is_ready(p) and not is_gone(p) for p in pods)
    refusal = state.refusal(pods)
    count = f"{names.deployment}: {ready} of {state.total} pods are ready"
    if refusal is not None:
        yield fail(
            "deployment",
            f"{count}; {refusal}",
            "change what refuses them (quota, LimitRange, policy), or runtime.resources",
        )
    elif state.total == 0 and (least := fleet.replicas.min + fleet.replicas.standby):
        yield warn(
            "deployment",
            f"{names.deployment} wants no pods, but fleet.yaml declares {least} (replicas.min and "
            "replicas.standby): the fleet is down, or the cluster refused its first start",
            "fleet up",
        )
    elif ready < state.total:
        yield warn("deployment", count, f"kubectl -n {namespace} get pods -l {names.of_group}")
    else:
        yield ok("deployment", count)
    if state.paused:
        yield warn(
            "deployment",
            f"{names.deployment} is paused, so that no new template starts",
            f"kubectl rollout resume deployment/{names.deployment}",
        )
    if state.stalled is not None:
        yield warn(
            "deployment",
            f"{names.deployment} stands still in the middle of a roll: {state.stalled}",
            f"fleet apply {fleet.group}, or kubectl rollout undo deployment/{names.deployment}",
        )
    for write in state.external:
        yield warn(
            "deployment",
            f"{names.deployment}: {write}",
            f"stop that writer, then fleet apply {fleet.group}, which takes it back",
        )
    for pod in pods:
        why = None if is_ready(pod) or is_gone(pod) else exit_reason(pod)
        if why:
            name = pod["metadata"]["name"]
            yield warn("pods", f"{name} is not ready: {why}", f"kubectl describe pod {name}")


def _undeclared(spec: FleetSpec, api: Api) -> Iterator[Finding]:
    """Yields Deployments of this cluster's groups that the file does not declare."""
    cluster = spec.cluster.name
    declared = {k8s_slug(cluster, f.group) for f in spec.fleets if f.worker is not None}
    for each in api.find("Deployment", GROUP_LABEL)[0]:
        meta = each["metadata"]
        notes = meta.get("annotations") or {}
        if notes.get(CLUSTER_LABEL) == cluster and meta["labels"][GROUP_LABEL] not in declared:
            group = notes.get(GROUP_ANNOTATION, "unknown")
            yield warn(
                "orphans",
                f"Deployment {meta['name']} runs group {group}, which fleet.yaml does not declare",
                f"declare it, or kubectl -n {api.namespace} delete deployment {meta['name']}",
            )


def _spark(api: Api, server: str) -> Finding:
    found = api.get("Deployment", server)
    if found is None:
        return warn("spark", f"the shared server {server} does not exist", "fleet up")
    if not int((found.get("status") or {}).get("readyReplicas") or 0):
        problem = f"the shared server {server} is not ready"
        refused = refusal_of(found)
        if refused is not None:
            remedy = "change what refuses its pod, or runtime.spark.resources"
            return fail("spark", f"{problem}: {refused}", remedy)
        return warn("spark", problem, f"kubectl -n {api.namespace} logs deployment/{server}")
    return ok("spark", f"the shared server {server} is ready")
