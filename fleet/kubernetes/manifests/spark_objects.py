"""The shared Spark Connect servers of a namespace: a Deployment and a Service each.

Problem: a JVM per worker costs 600 MB; a server that anybody in the cluster may call runs
anybody's code, and its executors read Kafka for the fleets that share it, with their Secrets.
Choice: `worker.spark: shared` stands for one server for each set of Secrets (`runtime.env_from`
and `runtime.mounts`), so that no fleet's code reads another fleet's. Each server has a token of
its own: a key of the Secret `fleet-spark`, which the person or the manager creates and which is
never rendered. One replica, recreated: Connect sessions are in its memory, and workers create
theirs again, which costs no rebalance. Cost: one heap for the fleets of a server, and one more JVM
for each set of Secrets.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.object_names import MANAGED_LABEL, MANAGER, SPARK
from fleet.kubernetes.manifests.pod_template import (
    HOME,
    Object,
    container_security,
    env_from,
    image_of,
    placement,
    pod_security,
    runtime_of,
    secret_mounts,
    secret_volumes,
    token,
    with_surroundings,
)

PORT: Final = 15002
LABELS: Final = {"app.kubernetes.io/name": SPARK, MANAGED_LABEL: MANAGER}
_INSTANCE: Final = "app.kubernetes.io/instance"
"""Label of a server's pods: its name."""


def shares_spark(group: GroupSpec) -> bool:
    """Whether the group's workers use a server of the namespace."""
    return group.worker is not None and group.worker.shares_spark


def spark_servers(spec: FleetSpec) -> dict[str, list[GroupSpec]]:
    """The servers by name, each with the fleets that share it."""
    found: dict[str, list[GroupSpec]] = {}
    for group in filter(shares_spark, spec.fleets):
        found.setdefault(runtime_of(group).spark_server(), []).append(group)
    return found


def spark_objects(spec: FleetSpec) -> list[Object]:
    """Service and Deployment of each server; none where no fleet shares one."""
    servers = spark_servers(spec).items()
    return [made for name, sharing in servers for made in _objects(name, sharing)]


def _objects(name: str, sharing: Sequence[GroupSpec]) -> list[Object]:
    runtime = runtime_of(sharing[0])
    _agreed(sharing)
    selector = {"app.kubernetes.io/name": SPARK, _INSTANCE: name}
    labels = {**LABELS, _INSTANCE: name}
    meta: Object = {"name": name, "namespace": runtime.namespace, "labels": labels}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "type": "ClusterIP",
                "selector": selector,
                "ports": [
                    {"name": "connect", "port": PORT, "targetPort": "connect", "protocol": "TCP"}
                ],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "replicas": 1,
                "revisionHistoryLimit": 2,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": selector},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": _pod(sharing[0], runtime, name),
                },
            },
        },
    ]


def beside_what_serves(
    wanted: Object, found: Object | None, sharing: Sequence[GroupSpec]
) -> Object:
    """One of `spark_objects`, to be applied over the Deployment that is there.

    A server that is ready keeps its image unless fleet.yaml names one: it is recreated, and one
    fleet's new code (or a tag that is not there) would take Spark from all that share it.
    """
    ready = int(((found or {}).get("status") or {}).get("readyReplicas") or 0)
    written = any(runtime_of(each).spark.image for each in sharing)
    if found is None or not ready or written or wanted["kind"] != found["kind"]:
        return wanted
    made: Object = json.loads(json.dumps(wanted))
    image = found["spec"]["template"]["spec"]["containers"][0]["image"]
    made["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return made


def _agreed(sharing: Sequence[GroupSpec]) -> None:
    """One server has one image and one heap: fleets that share it say the same of it."""
    first = sharing[0]
    for other in sharing[1:]:
        if _server(other) != _server(first):
            raise ConfigError(
                f"groups {first.group} and {other.group} share one Spark server, but their "
                "runtime.spark (or its image) differ; write it once, under defaults.runtime"
            )


def _server(group: GroupSpec) -> Any:
    runtime = runtime_of(group)
    return runtime.spark.model_copy(update={"image": runtime.spark.image or image_of(group)})


def _pod(group: GroupSpec, runtime: KubernetesRuntimeSpec, server: str) -> Object:
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(),
        "containers": [_container(group, runtime, server)],
        "volumes": [
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            *secret_volumes(runtime.mounts),
        ],
        **placement(runtime),
    }


def _container(group: GroupSpec, runtime: KubernetesRuntimeSpec, server: str) -> Object:
    memory = with_surroundings(runtime.spark.memory)
    asks = {"tcpSocket": {"port": "connect"}, "periodSeconds": 2, "timeoutSeconds": 2}
    made: Object = {
        "name": "spark",
        "image": runtime.spark.image or image_of(group),
        "imagePullPolicy": runtime.pull_policy,
        "command": ["python3", "-m", "fleet.act.spark_server", "--listen", f"0.0.0.0:{PORT}"],
        "env": [
            {"name": "FLEET_HOME", "value": HOME},
            {"name": "HOME", "value": HOME},
            {"name": "FLEET_SPARK_MEMORY", "value": runtime.spark.memory},
            {"name": "FLEET_SPARK_MASTER", "value": runtime.spark.master},
            token(server),
        ],
        "ports": [{"name": "connect", "containerPort": PORT, "protocol": "TCP"}],
        # A JVM of 6 s takes minutes on a node that starts ten at once; one that cannot start ends.
        "startupProbe": {**asks, "failureThreshold": 150},
        "readinessProbe": {**asks, "failureThreshold": 2},
        "livenessProbe": {**asks, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "resources": dict(runtime.spark.resources) or {"requests": {"memory": f"{memory}Mi"}},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *secret_mounts(runtime.mounts.items()),
        ],
    }
    # Executors take Kafka's credentials from the same variables and files [11].
    if runtime.env_from:
        made["envFrom"] = env_from(runtime.env_from)
    return made
