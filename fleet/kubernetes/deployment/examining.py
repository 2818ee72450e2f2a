"""What `fleet doctor` looks at on a cluster: the server, what we may do, each fleet's Deployment.

Problem: most first tries on a cluster end at a missing permission or an image that is not there,
told by half a change. Choice: the server itself is asked what this login may do
(SelfSubjectAccessReview), and each Deployment is looked at for what would stop a change or undo
it: an autoscaler, a missing budget, a roll that somebody left held, pods that cannot start, pods
of groups that the file does not declare. Nothing is changed. Cost: one question per permission.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.decide.slugs import k8s_slug
from fleet.kubernetes.client.api import Api, Object
from fleet.kubernetes.client.object_names import (
    CLUSTER_LABEL,
    GROUP_ANNOTATION,
    GROUP_LABEL,
    SPARK,
    ObjectNames,
)
from fleet.kubernetes.deployment.pod_counts import PodCounts
from fleet.kubernetes.deployment.pod_status import exit_reason, is_gone, is_marked, is_ready
from fleet.kubernetes.manifests.spark_objects import spark_objects
from fleet.model import Finding, fail, ok, warn

# Who else scales the same Deployment: a HorizontalPodAutoscaler, KEDA's among them.
#
# Problem: two that write `spec.replicas` undo each other every few seconds, and each undoing ends
# pods that hold slots. Choice: every autoscaler on the same scaleTargetRef is named, and a plan is
# refused while there is one. KEDA works through an autoscaler that its ScaledObject owns. Cost: an
# autoscaler of a kind of its own (a VPA, a cron that scales) is not seen.


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """One HPA."""

    name: str
    target: str
    scaled_object: str | None
    """KEDA's, that owns it."""

    def __str__(self) -> str:
        if self.scaled_object is not None:
            return f"KEDA's ScaledObject {self.scaled_object} (its autoscaler {self.name})"
        return f"the HorizontalPodAutoscaler {self.name}"

    @property
    def remedy(self) -> str:
        """What to delete, or what to stop."""
        if self.scaled_object is not None:
            return f"kubectl -n NAMESPACE delete scaledobject {self.scaled_object}"
        return f"kubectl -n NAMESPACE delete hpa {self.name}"


def autoscalers_of(api: Api, deployment: str) -> tuple[Autoscaler, ...]:
    """Those that scale this Deployment."""
    found = []
    for each in api.find("HorizontalPodAutoscaler")[0]:
        target = each["spec"].get("scaleTargetRef") or {}
        if target.get("kind") != "Deployment" or target.get("name") != deployment:
            continue
        owners = each["metadata"].get("ownerReferences") or []
        keda = [o["name"] for o in owners if o.get("kind") == "ScaledObject"]
        found.append(Autoscaler(each["metadata"]["name"], deployment, keda[0] if keda else None))
    return tuple(found)


def named(rival: Autoscaler, group: str) -> str:
    """The reason against a plan, and what lifts it."""
    return (
        f"{rival} scales Deployment {rival.target} of group {group} as well: two that write its "
        "replicas undo each other, and each time members come or go; delete it, or stop managing "
        f"with `fleet unmanage {group}`"
    )


NEEDED: Final = (
    ("Deployment", ("get", "list", "create", "patch", "delete")),
    ("ReplicaSet", ("list", "patch")),
    ("Pod", ("list", "watch", "patch")),
    ("Lease", ("get", "list", "watch", "create", "update", "patch", "delete")),
    ("ConfigMap", ("get", "list", "create", "patch", "delete")),
    ("ServiceAccount", ("create", "patch", "list", "delete")),
    ("Role", ("create", "patch", "list", "delete")),
    ("RoleBinding", ("create", "patch", "list", "delete")),
    ("PodDisruptionBudget", ("get", "create", "patch", "list", "delete")),
    ("HorizontalPodAutoscaler", ("list",)),
)
"""What a manager does in its namespace."""

Looks = Mapping[str, tuple[PodCounts | None, list[Object]]]
"""Of each managed group: its Deployment, and its pods."""


def examine(spec: FleetSpec, api: Api, *, looks: Looks) -> Iterator[Finding]:
    """Findings, the server first; what comes after needs it."""
    yield ok("kubernetes", f"{api.host}: {api.version()}, namespace {api.namespace}")
    yield from _permissions(api)
    for fleet in spec.fleets:
        runtime = fleet.runtime
        if isinstance(runtime, KubernetesRuntimeSpec):
            yield from _fleet(spec, api, fleet, runtime, looks)
    yield from _strays(spec, api)
    if spark_objects(spec):
        yield _spark(api)


def _permissions(api: Api) -> Iterator[Finding]:
    lacking = [
        f"{verb} {kind}" for kind, verbs in NEEDED for verb in verbs if not api.allowed(verb, kind)
    ]
    if lacking:
        yield fail(
            "permissions",
            f"this login may not {', '.join(lacking)} in namespace {api.namespace}",
            "`fleet render manifests` renders the Role of a manager; or use a kubeconfig that may",
        )
    else:
        yield ok("permissions", f"all that a manager does in {api.namespace} is allowed")


def _fleet(
    spec: FleetSpec, api: Api, fleet: GroupSpec, runtime: KubernetesRuntimeSpec, looks: Looks
) -> Iterator[Finding]:
    names = ObjectNames(spec.cluster.name, fleet.group)
    deployment = names.deployment if fleet.worker is not None else runtime.deployment
    if fleet.worker is not None and runtime.image is None:
        yield fail(
            "image",
            f"{fleet.group} declares a worker, but no image to run",
            "write runtime: {image: REGISTRY/NAME:TAG}",
        )
    for rival in autoscalers_of(api, deployment) if deployment else ():
        yield warn(
            "autoscaler",
            f"{rival} scales Deployment {deployment} of {fleet.group} as well",
            f"{rival.remedy}, or `fleet unmanage {fleet.group}`".replace(
                "NAMESPACE", api.namespace
            ),
        )
    if fleet.worker is None:
        if deployment and api.get("Deployment", deployment) is None:
            told = f"there is no Deployment {deployment} in {api.namespace}"
            yield warn("deployment", f"{told} for {fleet.group}", "correct runtime.deployment")
        return
    shape, pods = looks.get(fleet.group, (None, []))
    if shape is None:
        yield ok("deployment", f"{fleet.group} has none yet: `fleet up` makes it")
        return
    yield from _deployment(fleet, api.namespace, names, shape, pods)
    if api.get("PodDisruptionBudget", names.budget) is None:
        yield warn(
            "budget",
            f"{fleet.group} has no PodDisruptionBudget: a drained node may take all its workers",
            f"fleet apply {fleet.group}",
        )


def _deployment(
    fleet: GroupSpec, namespace: str, names: ObjectNames, shape: PodCounts, pods: list[Object]
) -> Iterator[Finding]:
    # A pod that was deleted stays Ready until its last container ends.
    ready = sum(is_ready(p) and not is_gone(p) for p in pods)
    refusal = shape.refusal(pods)
    told = f"{names.deployment}: {ready} of {shape.total} pods are ready"
    if refusal is not None:
        yield fail(
            "deployment",
            f"{told}; {refusal}",
            "change what refuses them (quota, LimitRange, policy), or runtime.resources",
        )
    elif shape.total == 0 and (least := fleet.replicas.min + fleet.replicas.standby):
        yield warn(
            "deployment",
            f"{names.deployment} wants no pods, where {least} are declared (replicas.min and "
            "replicas.standby): the fleet is down, or its first start was refused",
            "`fleet up`: it reports what refuses pods",
        )
    elif ready < shape.total:
        selector = f"-l {GROUP_LABEL}={names.slug}"
        yield warn("deployment", told, f"kubectl -n {namespace} get pods {selector}")
    else:
        yield ok("deployment", told)
    if shape.paused:
        yield warn(
            "deployment",
            f"{names.deployment} is paused: no new template starts",
            f"kubectl rollout resume deployment/{names.deployment}",
        )
    if shape.held:
        yield warn(
            "deployment",
            f"{names.deployment} is held in the middle of a roll: nothing replaces its workers "
            "until somebody goes on",
            f"fleet apply {fleet.group}, or fleet apply {fleet.group} --abort",
        )
    for pod in pods:
        why = None if is_ready(pod) or is_gone(pod) else exit_reason(pod)
        if why:
            name = pod["metadata"]["name"]
            yield warn("pods", f"{name} is not ready: {why}", f"kubectl describe pod {name}")
    marked = [p["metadata"]["name"] for p in pods if is_marked(p) and not is_gone(p)]
    if marked:
        yield warn(
            "pods",
            f"{', '.join(marked)} was asked to go and is still there",
            f"fleet apply {fleet.group} ends it once all others are ready",
        )


def _strays(spec: FleetSpec, api: Api) -> Iterator[Finding]:
    """Deployments of this cluster's groups that the file does not declare."""
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


def _spark(api: Api) -> Finding:
    found = api.get("Deployment", SPARK)
    if found is None:
        return warn("spark", "the shared server is not there", "fleet up")
    status = found.get("status") or {}
    if not int(status.get("readyReplicas") or 0):
        told = "the shared server is not ready"
        conditions = status.get("conditions") or []
        refused = [c for c in conditions if c["type"] == "ReplicaFailure" and c["status"] == "True"]
        if refused:
            remedy = "change what refuses its pod, or runtime.spark.resources"
            return fail("spark", f"{told}: {refused[0].get('message')}", remedy)
        return warn("spark", told, f"kubectl -n {api.namespace} logs deployment/{SPARK}")
    return ok("spark", "the shared server is ready")
