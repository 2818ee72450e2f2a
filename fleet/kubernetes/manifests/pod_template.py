"""The pod of a worker: container, probes, security, memory, places.

Problem: a pod that starts as root, writes into its image or is killed before it has drained is
ordinary. Choice: non-root, a read-only root file system with two emptyDirs (state and scratch), no
capabilities, the runtime's seccomp profile. The probes ask the worker itself on the port named
`http`. The grace period covers a whole drain, and the worker is not process 1, so that it hears an
eviction from its first moment on. Kafka's credentials come from Secrets that the spec names. Cost:
an entrypoint that writes beside its code has to write under /tmp; containers that others inject
into the pod see the worker's processes.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from fleet.config.settings import WorkerSettings
from fleet.config.spec import GroupSpec, KubernetesRuntimeSpec
from fleet.decide.slugs import k8s_slug
from fleet.errors import ConfigError
from fleet.kubernetes.client.api import new_object
from fleet.kubernetes.client.object_names import (
    CONTAINER,
    HASH_LABEL,
    REVISION_ANNOTATION,
    SETTINGS_PATH,
    SPARK,
    ObjectNames,
)
from fleet.kubernetes.manifests.overlay import overlaid
from fleet.worker.pod_environment import CODE_DIGEST, REVISION, SPARK_TOKEN, TEMPLATE

# How long a pod may take for its ends, and what its probes ask: pure functions of the spec.
#
# Problem: the kubelet kills a container `terminationGracePeriodSeconds` after SIGTERM, however
# much it still has in hand, and restarts one whose probes fail. Choice: the grace holds a whole
# drain, the last writes of the slot (an API server that is away is waited for one lease) and the
# release of Spark; it must end before `max.poll.interval.ms`, the group's rebalance timeout, is
# over [5]. There is no preStop hook: no Service routes to a worker, SIGTERM itself begins the
# drain, and the time of a hook would be taken from the grace. A startup probe only waits for the
# process and its settings, not for Spark: the body names what a worker waits for. Cost: a
# worker whose `setup` never returns is never ready, so its rollout times out.


PORT: Final = "http"
"""The named port of probes, status and metrics."""
SLACK: Final = 15.0
"""Seconds after the drain: an interrupted batch comes back (10), Spark is released (5)."""


def grace_seconds(group: GroupSpec) -> int:
    """`terminationGracePeriodSeconds`: drain_timeout + lease + 15, in whole seconds.

    Raises ConfigError where the group declares no worker, or where that outlasts
    `worker.max_poll_interval`: a pod that may drain for longer holds up a rebalance.
    """
    worker = group.worker
    if worker is None:
        raise ConfigError(f"group {group.group} declares no worker, so it has no pods")
    drain, lease = group.rollout.drain_timeout, group.runtime.lease
    grace = math.ceil(drain + lease + SLACK)
    if grace > worker.max_poll_interval:
        raise ConfigError(
            f"group {group.group}: a pod needs up to {grace} s to stop (rollout.drain_timeout "
            f"{drain:g}s + runtime.lease {lease:g}s + {SLACK:g}s), more than "
            f"worker.max_poll_interval {worker.max_poll_interval:g}s; lower drain_timeout or "
            "lease, or raise max_poll_interval, which is the group's rebalance timeout"
        )
    return grace


def probes() -> dict[str, dict[str, Any]]:
    """`startupProbe`, `readinessProbe` and `livenessProbe`, by pod address on the named port."""
    return {
        # Imports on a busy node; the process listens before it opens its store or warms.
        "startupProbe": _probe("/startupz", every=1, timeout=3, failures=180),
        # A roll goes on no faster than this sees.
        "readinessProbe": _probe("/readyz", every=2, timeout=3, failures=2),
        "livenessProbe": _probe("/livez", every=10, timeout=5, failures=3),
    }


def _probe(path: str, *, every: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": PORT, "scheme": "HTTP"},
        "periodSeconds": every,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


Object = dict[str, Any]

HOME: Final = "/var/lib/fleet"
"""FLEET_HOME in a pod: an emptyDir, deleted with the pod."""
HOMES: Final = ({"name": "FLEET_HOME", "value": HOME}, {"name": "HOME", "value": HOME})
SETTINGS_DIR: Final = SETTINGS_PATH.rpartition("/")[0]
_LONGEST_LABEL: Final = 63
_WORKER_MB: Final = 512
"""What a worker asks for where the spec says nothing: Python, Arrow and one batch."""


def runtime_of(group: GroupSpec) -> KubernetesRuntimeSpec:
    """The group's Kubernetes settings. ConfigError where it runs elsewhere."""
    runtime = group.runtime
    if not isinstance(runtime, KubernetesRuntimeSpec):
        raise ConfigError(
            f"group {group.group} has runtime.kind {runtime.kind}; Kubernetes objects need "
            "runtime: {kind: kubernetes, …}"
        )
    return runtime


def template(settings: WorkerSettings, *, names: ObjectNames) -> Object:
    """The pod template of a revision: the same for a manager anywhere, with or without its code."""
    group = settings.group
    runtime = runtime_of(group)
    annotations = {
        **runtime.annotations,
        **names.annotations(),
        REVISION_ANNOTATION: settings.revision,
    }
    spec = pod_spec(_container(settings, runtime), runtime)
    settings_map = {"name": names.settings(settings.revision)}
    spec["volumes"].insert(0, {"name": "settings", "configMap": settings_map})
    spec |= {
        "serviceAccountName": runtime.service_account or names.service_account,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": grace_seconds(group),
        # As process 1 of its own it would not hear a SIGTERM that comes before its handler is
        # set: it would go on, take a slot, and be killed with a batch in hand.
        "shareProcessNamespace": True,
    }
    if runtime.spread:
        spec["topologySpreadConstraints"] = _spread(names, required=runtime.spread_required)
    made = overlaid(
        {"metadata": {"labels": dict(runtime.labels), "annotations": {}}, "spec": spec},
        runtime.pod_template.model_dump(),
    )
    # What finds the pods again is not the user's.
    made["metadata"]["labels"] |= names.labels()
    made["metadata"]["annotations"] |= annotations
    return made


def account(meta: Object, rules: Sequence[Object]) -> list[Object]:
    """Returns a ServiceAccount with a Role of these rules; all three objects have this metadata."""
    name, namespace, rbac = meta["name"], meta["namespace"], "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [
        new_object("ServiceAccount", meta, automountServiceAccountToken=False),
        new_object("Role", meta, rules=list(rules)),
        new_object("RoleBinding", meta, roleRef=role, subjects=[subject]),
    ]


def pod_spec(container: Object, runtime: KubernetesRuntimeSpec) -> Object:
    """Returns a pod of one container, as the `restricted` Pod Security Standard wants it.

    It writes to two emptyDirs alone, and has the Secrets that the spec names.
    """
    secrets = sorted(runtime.mounts.items())
    made = {
        **container,
        "imagePullPolicy": runtime.pull_policy,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            *container.get("volumeMounts", ()),
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *({"name": _volume(n), "mountPath": path, "readOnly": True} for n, path in secrets),
        ],
    }
    if runtime.env_from:
        made["envFrom"] = [{"secretRef": {"name": name}} for name in runtime.env_from]
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [made],
        "volumes": [
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            *({"name": _volume(name), "secret": {"secretName": name}} for name, _ in secrets),
        ],
    }
    if runtime.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in runtime.pull_secrets]
    if runtime.node_selector:
        spec["nodeSelector"] = dict(runtime.node_selector)
    if runtime.tolerations:
        spec["tolerations"] = [dict(each) for each in runtime.tolerations]
    return spec


def image_of(group: GroupSpec) -> str:
    """What the workers run. ConfigError where the spec names none."""
    image = runtime_of(group).image
    if image is None:
        raise ConfigError(
            f"group {group.group}: runtime.image is missing; name the image of its workers"
        )
    return image


def _container(settings: WorkerSettings, runtime: KubernetesRuntimeSpec) -> Object:
    return {
        "name": CONTAINER,
        "image": image_of(settings.group),
        "command": ["fleet", "worker", "--settings", SETTINGS_PATH, "--name", "$(POD_NAME)"],
        "env": _environment(settings),
        "ports": [{"name": PORT, "containerPort": runtime.http_port, "protocol": "TCP"}],
        **probes(),
        "resources": _resources(settings.group, runtime),
        # Its last output is the reason that a rollback names.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "settings", "mountPath": SETTINGS_DIR, "readOnly": True}],
    }


def _environment(settings: WorkerSettings) -> list[Object]:
    """Identifies the pod by the downward API; the hash shows a template that Fleet did not make.

    The digest ties the code in the revision's ConfigMap to the template: a user who may write
    ConfigMaps alone cannot choose what a pod runs.
    """
    group = settings.group
    worker = group.worker
    env = [
        field("POD_NAME", "metadata.name"),
        field("FLEET_NAMESPACE", "metadata.namespace"),
        field(REVISION, f"metadata.annotations['{REVISION_ANNOTATION}']"),
        field(TEMPLATE, f"metadata.labels['{HASH_LABEL}']"),
        # An empty value is none on the API server, and would look like another manager's write.
        *([{"name": CODE_DIGEST, "value": settings.code_digest}] if settings.code_digest else ()),
        *HOMES,
    ]
    if worker is not None and worker.shares_spark:
        env.append(token(runtime_of(group).spark_server()))
    elif worker is not None and worker.spark.startswith("local["):
        memory = runtime_of(group).spark.memory
        env.append(
            {"name": "PYSPARK_SUBMIT_ARGS", "value": f"--driver-memory {memory} pyspark-shell"}
        )
    return env


def token(server: str) -> Object:
    """A shared server's token, from the Secret of all of them."""
    return {
        "name": SPARK_TOKEN,
        "valueFrom": {"secretKeyRef": {"name": SPARK, "key": token_key(server)}},
    }


def token_key(server: str) -> str:
    """The key of a server's token in the Secret `fleet-spark`."""
    return server.replace(SPARK, "token", 1)


def field(name: str, path: str) -> Object:
    """A variable with a value of the pod itself (downward API)."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _resources(group: GroupSpec, runtime: KubernetesRuntimeSpec) -> Object:
    if runtime.resources:
        return dict(runtime.resources)
    worker = group.worker
    spark = worker.spark if worker is not None else "shared"
    if not spark.startswith("local["):
        return {"requests": {"cpu": "100m", "memory": quantity(_WORKER_MB)}}
    cores = spark[len("local[") : -1]
    memory = _WORKER_MB + with_surroundings(runtime.spark.memory)
    return {"requests": {"cpu": "1" if cores == "*" else cores, "memory": quantity(memory)}}


def quantity(megabytes: int) -> str:
    """Returns MiB as the API server stores them, so that the same text by another is no change."""
    return f"{megabytes // 1024}Gi" if megabytes % 1024 == 0 else f"{megabytes}Mi"


def with_surroundings(heap: str) -> int:
    """MiB of a JVM with this heap (as Spark writes it): metaspace, threads, Python workers."""
    megabytes = int(heap[:-1]) * (1024 if heap.endswith("g") else 1)
    return megabytes + max(384, megabytes // 4)


def _volume(secret: str) -> str:
    """A volume's name has neither the dots nor the length that a Secret's may have."""
    name = f"secret-{secret}"
    return name if len(name) <= _LONGEST_LABEL and "." not in name else k8s_slug("secret", secret)


def _spread(names: ObjectNames, *, required: bool) -> list[Object]:
    """Spreads each revision's workers over nodes and zones; required: nodes, or the pod waits.

    A node that takes no new pods does not count: else no pod of a lost node could start elsewhere.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": strictness,
            "nodeTaintsPolicy": "Honor",
            "labelSelector": {"matchLabels": names.selector()},
            "matchLabelKeys": [HASH_LABEL],
        }
        for key, strictness in (
            ("kubernetes.io/hostname", "DoNotSchedule" if required else "ScheduleAnyway"),
            ("topology.kubernetes.io/zone", "ScheduleAnyway"),
        )
    ]
