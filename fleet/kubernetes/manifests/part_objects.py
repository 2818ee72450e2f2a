"""What runs beside the workers of a fleet.yaml: the exporter, and who may reach which pod.

Problem: everything of Fleet that runs on a cluster must be found, updated and locked up in one
way. Choice: fixed names (one fleet.yaml per namespace), one ServiceAccount per part, settings
from the ConfigMap `fleet-config`, which is fleet.yaml as it is written, so that `${NAME}` is
looked up in the pod. Pods accept only what they serve. Cost: egress is left open, since nothing
here knows where Kafka is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.config.spec import FleetSpec, KubernetesRuntimeSpec
from fleet.kubernetes.client.object_names import MANAGED_LABEL, MANAGER, SPARK
from fleet.kubernetes.manifests.pod_template import (
    HOME,
    Object,
    container_security,
    placement,
    pod_security,
)
from fleet.kubernetes.manifests.roles import exporter_rules
from fleet.kubernetes.manifests.spark_objects import PORT as SPARK_PORT
from fleet.kubernetes.manifests.spark_objects import shares_spark

CONFIG: Final = "fleet-config"
CONFIG_DIR: Final = "/etc/fleet"
EXPORTER: Final = "fleet-exporter"
EXPORTER_PORT: Final = 9308
WORKER_APP: Final = "fleet-worker"
MANAGER_APP: Final = "fleet-manager"
WEB_PORT: Final = 3000
DAGSTER_CLIENT: Final = {"fleet/dagster": "client"}
"""Pods with this label may open Dagster's page, which asks nobody who they are."""
_PROMETHEUS: Final = {"app.kubernetes.io/name": "prometheus"}
GROUP_ID: Final = 65532
"""fsGroup where a volume must be writable for whatever user the image runs as."""


def kubernetes(spec: FleetSpec) -> KubernetesRuntimeSpec:
    """The file's runtime, which is known to be Kubernetes."""
    assert isinstance(spec.runtime, KubernetesRuntimeSpec)
    return spec.runtime


def labels(app: str) -> dict[str, str]:
    """Of a part's objects; the first one selects its pods."""
    return {"app.kubernetes.io/name": app, MANAGED_LABEL: MANAGER}


def meta(spec: FleetSpec, name: str, app: str, **more: str) -> Object:
    """Metadata of a part's object."""
    return {
        "name": name,
        "namespace": kubernetes(spec).namespace,
        "labels": {**labels(app), **more},
    }


def namespace(spec: FleetSpec) -> list[Object]:
    """The namespace, unless it is the one that is always there."""
    name = kubernetes(spec).namespace
    if name == "default":
        return []
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}]


def config(spec: FleetSpec, text: str) -> Object:
    """fleet.yaml as it is written."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(spec, CONFIG, CONFIG),
        "data": {"fleet.yaml": text},
    }


def account(
    spec: FleetSpec, name: str, app: str, *, role: str, rules: Sequence[Mapping[str, Any]]
) -> list[Object]:
    """A part's ServiceAccount and the Role that it holds."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": meta(spec, name, app),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": meta(spec, role, app),
            "rules": list(rules),
        },
        binding(spec, name, app, role=role),
    ]


def binding(spec: FleetSpec, name: str, app: str, *, role: str) -> Object:
    """One more Role for a part's ServiceAccount."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": meta(spec, name, app),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [
            {"kind": "ServiceAccount", "name": name, "namespace": kubernetes(spec).namespace}
        ],
    }


def service(spec: FleetSpec, name: str, app: str, *, port: int, target: str) -> Object:
    """A part's Service."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta(spec, name, app),
        "spec": {
            "type": "ClusterIP",
            "selector": {"app.kubernetes.io/name": app},
            "ports": [{"name": target, "port": port, "targetPort": target, "protocol": "TCP"}],
        },
    }


def pod(spec: FleetSpec, app: str, *, account: str) -> Object:
    """The template of a part's pod, its containers and volumes left out."""
    runtime = kubernetes(spec)
    made: Object = {
        "serviceAccountName": account,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": {**pod_security(), "fsGroup": GROUP_ID},
    }
    made |= placement(runtime)
    return {"metadata": {"labels": labels(app)}, "spec": made}


def login(spec: FleetSpec) -> tuple[list[Object], list[Object], list[Object]]:
    """What a container takes of the fleets' Secrets: envFrom, volumeMounts, volumes."""
    names, mounts = logins(spec)
    return (
        [{"secretRef": {"name": name}} for name in names],
        [
            {"name": f"secret-{name}", "mountPath": path, "readOnly": True}
            for name, path in sorted(mounts.items())
        ],
        [{"name": f"secret-{name}", "secret": {"secretName": name}} for name in sorted(mounts)],
    )


def logins(spec: FleetSpec) -> tuple[list[str], dict[str, str]]:
    """Secrets for the environment, and Secrets by the path where they are mounted."""
    runtimes = [f.runtime for f in spec.fleets if isinstance(f.runtime, KubernetesRuntimeSpec)]
    names = {name: None for runtime in runtimes for name in runtime.env_from}
    mounts = {name: path for runtime in runtimes for name, path in runtime.mounts.items()}
    return list(names), mounts


def container(
    spec: FleetSpec, name: str, command: Sequence[str], *, image: str, **env: str
) -> Object:
    """A container of a part: image, fleet.yaml, home, the login to Kafka."""
    runtime = kubernetes(spec)
    from_secrets, mounts, _ = login(spec)
    variables = {
        "FLEET_CONFIG": f"{CONFIG_DIR}/fleet.yaml",
        "FLEET_HOME": HOME,
        "HOME": HOME,
        **env,
    }
    made: Object = {
        "name": name,
        "image": image,
        "imagePullPolicy": runtime.pull_policy,
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *mounts,
        ],
    }
    if from_secrets:
        made["envFrom"] = from_secrets
    return made


def exporter(spec: FleetSpec, *, image: str) -> list[Object]:
    """`fleet exporter`: one pod, a Service, and leave to look at slots."""
    made = container(
        spec, "exporter", ["fleet", "exporter", "--listen", f"0.0.0.0:{EXPORTER_PORT}"], image=image
    )
    made["ports"] = [{"name": "http", "containerPort": EXPORTER_PORT, "protocol": "TCP"}]
    asks = {"port": "http", "scheme": "HTTP"}
    made["readinessProbe"] = {"httpGet": {"path": "/readyz", **asks}, "periodSeconds": 5}
    made["livenessProbe"] = {
        "httpGet": {"path": "/healthz", **asks},
        "periodSeconds": 20,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
        # The first look waits for the offsets topic, for a minute at most.
        "initialDelaySeconds": 60,
    }
    made["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    template = pod(spec, EXPORTER, account=EXPORTER)
    _, _, volumes = login(spec)
    template["spec"]["containers"] = [made]
    template["spec"]["volumes"] = [
        {"name": "config", "configMap": {"name": CONFIG}},
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        *volumes,
    ]
    return [
        *account(spec, EXPORTER, EXPORTER, role=EXPORTER, rules=exporter_rules()),
        service(spec, EXPORTER, EXPORTER, port=EXPORTER_PORT, target="http"),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta(spec, EXPORTER, EXPORTER),
            "spec": {
                "replicas": 1,
                # Two of them at once would be counted twice.
                "strategy": {"type": "Recreate"},
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": {"app.kubernetes.io/name": EXPORTER}},
                "template": template,
            },
        },
    ]


def policies(spec: FleetSpec) -> list[Object]:
    """Who may reach which pod: Prometheus the metrics, workers the Spark server, few Dagster."""
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": _PROMETHEUS}}
    made = [
        _policy(spec, WORKER_APP, "http", [prometheus]),
        _policy(spec, EXPORTER, "http", [prometheus]),
        _policy(spec, MANAGER_APP, WEB_PORT, [{"podSelector": {"matchLabels": DAGSTER_CLIENT}}]),
    ]
    if any(shares_spark(fleet) for fleet in spec.fleets):
        mine = [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": WORKER_APP}}}]
        made.append(_policy(spec, SPARK, SPARK_PORT, mine))
    return made


def _policy(spec: FleetSpec, app: str, port: str | int, sources: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta(spec, app, app),
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": app}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": sources, "ports": [{"port": port, "protocol": "TCP"}]}],
        },
    }
