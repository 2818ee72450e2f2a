"""The shared Spark Connect server of a namespace: Deployment, Service and who may talk to it.

Problem: a JVM per worker costs 600 MB; a server that anybody in the cluster may call runs
anybody's code. Choice: one server per namespace that `worker.spark: shared` stands for, behind a
token that server and workers take from the Secret `fleet-spark` (key `token`); the Secret is
made by the person or the manager, never rendered. One replica, recreated: Connect sessions are
in its memory, and workers make theirs again, which costs no rebalance. Its executors read Kafka for
all fleets that share it, so it has the Secrets of each, as variables and as files; what cannot be
had at once is refused. Cost: one heap for all, and jobs of one fleet may read another's Secrets.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fleet.config.spec import FleetSpec, GroupSpec, KubernetesRuntimeSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.object_names import MANAGED_LABEL, MANAGER, SPARK
from fleet.kubernetes.manifests.pod_template import (
    HOME,
    Object,
    container_security,
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
_SELECTOR: Final = {"app.kubernetes.io/name": SPARK}
_APART: Final = "name the same in both, or give one of them a Spark of its own (worker.spark)"


def shares_spark(group: GroupSpec) -> bool:
    """Whether the group's workers use the namespace's server."""
    return group.worker is not None and group.worker.spark == "shared"


def spark_objects(spec: FleetSpec) -> list[Object]:
    """Deployment and Service of the shared server; none where no fleet shares one."""
    sharing = [group for group in spec.fleets if shares_spark(group)]
    if not sharing:
        return []
    runtime = runtime_of(sharing[0])
    _agreed(sharing)
    _check_logins(spec, sharing)
    meta: Object = {"name": SPARK, "namespace": runtime.namespace, "labels": dict(LABELS)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "type": "ClusterIP",
                "selector": dict(_SELECTOR),
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
                "selector": {"matchLabels": dict(_SELECTOR)},
                "template": _template(sharing),
            },
        },
    ]


def beside_what_serves(wanted: Object, found: Object | None, spec: FleetSpec) -> Object:
    """One of `spark_objects`, to be applied over the Deployment that is there.

    A server that is ready keeps its image unless fleet.yaml names one: it is recreated, and one
    fleet's new code (or a tag that is not there) would take Spark from all that share it.
    """
    ready = int(((found or {}).get("status") or {}).get("readyReplicas") or 0)
    written = any(runtime_of(each).spark.image for each in spec.fleets if shares_spark(each))
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


def _check_logins(spec: FleetSpec, sharing: Sequence[GroupSpec]) -> None:
    """ConfigError where two fleets want something else under one path, or one variable."""
    first: dict[str, tuple[str, str]] = {}
    for group in sharing:
        for secret, path in runtime_of(group).mounts.items():
            owner, known = first.setdefault(path, (group.group, secret))
            if known != secret:
                raise ConfigError(
                    f"groups {owner} and {group.group} share one Spark server, but mount "
                    f"different Secrets at {path} ({known} and {secret}): {_APART}"
                )
    variables = sorted(_variables(spec.cluster.security.model_dump()))
    for one, other in itertools.combinations(sharing, 2):
        ours, theirs = (runtime_of(each).env_from for each in (one, other))
        if variables and ours and theirs and not set(ours) & set(theirs):
            raise ConfigError(
                f"groups {one.group} and {other.group} share one Spark server, but take "
                f"{', '.join(variables)} from different Secrets ({', '.join(ours)} and "
                f"{', '.join(theirs)} in runtime.env_from): {_APART}"
            )


def _variables(login: Mapping[str, Any]) -> Iterator[str]:
    """The environment variables that a login names."""
    for key, value in login.items():
        if isinstance(value, Mapping):
            yield from _variables(value)
        elif key.endswith("_env") and value:
            yield str(value)


def _template(sharing: Sequence[GroupSpec]) -> Object:
    group, runtime = sharing[0], runtime_of(sharing[0])
    mounts = {(name, path) for each in sharing for name, path in runtime_of(each).mounts.items()}
    container = _container(group, runtime)
    # Executors take Kafka's credentials from the same variables and files [11].
    secrets = dict.fromkeys(name for each in sharing for name in runtime_of(each).env_from)
    if secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in secrets]
    container["volumeMounts"] += secret_mounts(mounts)
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "home", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            *secret_volumes({name for name, _ in mounts}),
        ],
    }
    spec |= placement(runtime)
    return {"metadata": {"labels": dict(LABELS)}, "spec": spec}


def _container(group: GroupSpec, runtime: KubernetesRuntimeSpec) -> Object:
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
            token(),
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
        ],
    }
    return made
