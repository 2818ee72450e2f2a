"""The shared Spark Connect servers of a namespace: a Deployment and a Service each.

Problem: a JVM per worker costs 600 MB. A server runs the code of anyone who may call it, and its
executors read Kafka with the Secrets of the fleets that share it. Choice: `worker.spark: shared` is
one server for each set of Secrets (`runtime.env_from` and `runtime.mounts`), so that no fleet's
code reads another fleet's. Each server has a token of its own, a key of the Secret `fleet-spark`,
which the user or the manager creates and which is never rendered. One replica, recreated: workers
create their Connect sessions again, at no rebalance. With `runtime.spark.executors` its tasks run
in pods that Spark's own Kubernetes scheduler creates and the server's pod owns. Cost: one heap for
the fleets of a server, one more JVM for each set of Secrets; such a driver may create pods.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.act.spark_server import EXECUTOR_POD_ENV, EXECUTORS_ENV, MASTER_ENV, SECRET_FILE
from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.api import new_object
from fleet.kubernetes.client.object_names import MANAGED_LABEL, MANAGER, SPARK
from fleet.kubernetes.manifests.pod_template import (
    HOMES,
    Object,
    account,
    field,
    image_of,
    pod_spec,
    runtime_of,
    token,
    token_key,
    with_surroundings,
)

PORT: Final = 15002
LABELS: Final = {"app.kubernetes.io/name": SPARK, MANAGED_LABEL: MANAGER}
_INSTANCE: Final = "app.kubernetes.io/instance"
"""Label of a server's pods, and of its executors: its name."""
EXECUTOR: Final = f"{SPARK}-executor"
_SCHEDULER: Final = "k8s://https://kubernetes.default.svc"


def shares_spark(group: GroupSpec) -> bool:
    """Whether the group's workers use a server of the namespace."""
    return group.worker is not None and group.worker.shares_spark


def spark_servers(spec: FleetSpec) -> dict[str, list[GroupSpec]]:
    """The servers by name, each with the fleets that share it."""
    found: dict[str, list[GroupSpec]] = {}
    for group in filter(shares_spark, spec.fleets):
        found.setdefault(runtime_of(group).spark_server(), []).append(group)
    return found


def spark_objects(spec: FleetSpec, *, serving: Mapping[str, str] | None = None) -> list[Object]:
    """Returns the objects of all servers, each server's Deployment last; none if none is shared.

    serving: server → the image that it keeps (see `image_kept`).
    """
    kept = serving or {}
    servers = spark_servers(spec).items()
    made = [made for name, sharing in servers for made in _objects(name, sharing, kept.get(name))]
    return [*_account(spec), *made]


def _objects(name: str, sharing: Sequence[GroupSpec], image: str | None) -> list[Object]:
    runtime, agreed = runtime_of(sharing[0]), _agreed(sharing)
    image = image or str(agreed.image)
    selector = {"app.kubernetes.io/name": SPARK, _INSTANCE: name}
    labels = {**LABELS, _INSTANCE: name}
    meta: Object = {"name": name, "namespace": runtime.namespace, "labels": labels}
    port = {"name": "connect", "port": PORT, "targetPort": "connect", "protocol": "TCP"}
    deployment = {
        "replicas": 1,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": labels}, "spec": _server_pod(name, runtime, image)},
    }
    service = {"type": "ClusterIP", "selector": selector, "ports": [port]}
    return [
        new_object("Service", meta, spec=service),
        new_object("Deployment", meta, spec=deployment),
    ]


def _account(spec: FleetSpec) -> list[Object]:
    """Returns the account of servers with executors, unless the platform makes accounts.

    Its Role cannot say which pods a server, and its code, may create; the chart's policy can.
    """
    runtimes = [runtime_of(each) for each in spec.fleets if shares_spark(each)]
    made_by_fleet = any(not each.service_account for each in runtimes)
    if not any(each.spark.executors for each in runtimes) or not made_by_fleet:
        return []
    verbs = ["get", "list", "watch", "create", "delete", "deletecollection"]
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
    meta = {"name": SPARK, "namespace": runtimes[0].namespace, "labels": dict(LABELS)}
    return account(meta, [rule])


def image_kept(found: Object | None, sharing: Sequence[GroupSpec]) -> str | None:
    """The image that a server keeps: its own while it is ready, unless fleet.yaml names one.

    A change recreates it, and one fleet's new code (or a tag that is not there) would take Spark
    from all that share it.
    """
    ready = int(((found or {}).get("status") or {}).get("readyReplicas") or 0)
    if found is None or not ready or any(runtime_of(each).spark.image for each in sharing):
        return None
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"])


def _agreed(sharing: Sequence[GroupSpec]) -> Any:
    """Returns what all fleets that share a server say of it: it has one image and one heap."""
    said = []
    for group in sharing:
        spark = runtime_of(group).spark
        said.append(spark.model_copy(update={"image": spark.image or image_of(group)}))
        if said[-1] != said[0]:
            raise ConfigError(
                f"groups {sharing[0].group} and {group.group} share one Spark server, but their "
                "runtime.spark (or its image) differ; write it once, under defaults.runtime"
            )
    return said[0]


def _server_pod(server: str, runtime: KubernetesRuntimeSpec, image: str) -> Object:
    made = pod_spec(_server_container(server, runtime, image), runtime)
    if runtime.spark.executors is not None:
        made["serviceAccountName"] = SPARK
        made["automountServiceAccountToken"] = True
        _add_secret(made, server)
    return made


def _executor_pod(server: str, runtime: KubernetesRuntimeSpec, image: str) -> Object:
    """The template of an executor's pod; Spark adds what differs between two of them."""
    container = {
        "name": "executor",
        "image": image,
        "command": ["python3", "-m", "fleet.act.spark_server"],  # Spark adds `executor`
        "env": list(HOMES),
    }
    made = pod_spec(container, runtime)
    _add_secret(made, server)
    labels = {**LABELS, "app.kubernetes.io/name": EXECUTOR, _INSTANCE: server}
    return new_object("Pod", {"namespace": runtime.namespace, "labels": labels}, spec=made)


def _add_secret(pod: Object, server: str) -> None:
    """What driver and executors prove to each other that they know: the server's token."""
    folder, _, file = SECRET_FILE.rpartition("/")
    items = [{"key": token_key(server), "path": file}]
    pod["volumes"].append({"name": SPARK, "secret": {"secretName": SPARK, "items": items}})
    mount = {"name": SPARK, "mountPath": folder, "readOnly": True}
    pod["containers"][0]["volumeMounts"].append(mount)


def _server_container(server: str, runtime: KubernetesRuntimeSpec, image: str) -> Object:
    spark = runtime.spark
    memory = with_surroundings(spark.memory)
    asks = {"tcpSocket": {"port": "connect"}, "periodSeconds": 2, "timeoutSeconds": 2}
    return {
        "name": "spark",
        "image": image,
        "command": ["python3", "-m", "fleet.act.spark_server", "--listen", f"0.0.0.0:{PORT}"],
        "env": [
            *HOMES,
            {"name": "FLEET_SPARK_MEMORY", "value": spark.memory},
            {"name": MASTER_ENV, "value": spark.master if spark.executors is None else _SCHEDULER},
            token(server),
            *_executor_variables(server, runtime, image),
        ],
        "ports": [{"name": "connect", "containerPort": PORT, "protocol": "TCP"}],
        # A JVM of 6 s takes minutes on a node that starts ten at once; one that cannot start ends.
        "startupProbe": {**asks, "failureThreshold": 150},
        "readinessProbe": {**asks, "failureThreshold": 2},
        "livenessProbe": {**asks, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "resources": dict(spark.resources) or {"requests": {"memory": f"{memory}Mi"}},
    }


def _executor_variables(server: str, runtime: KubernetesRuntimeSpec, image: str) -> list[Object]:
    executors = runtime.spark.executors
    if executors is None:
        return []
    pod = _executor_pod(server, runtime, image)
    return [
        field("POD_NAME", "metadata.name"),
        {"name": EXECUTORS_ENV, "value": executors.model_dump_json(exclude_none=True)},
        {"name": EXECUTOR_POD_ENV, "value": json.dumps(pod, sort_keys=True)},
    ]
