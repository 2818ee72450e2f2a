"""What runs beside the workers of a fleet.yaml: the exporter, and who may reach which pod.

Problem: everything of Fleet that runs on a cluster must be found, updated and locked up in one
way. Choice: fixed names (one fleet.yaml per namespace), one ServiceAccount per part, settings
from the ConfigMap `fleet-config`, which is fleet.yaml as it is written, so that `${NAME}` is
looked up in the pod. Pods accept only what they serve. Cost: egress is left open, since nothing
here knows where Kafka is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from fleet.config.first_job import dagster_instance
from fleet.config.spec import FleetSpec, KubernetesRuntimeSpec
from fleet.kubernetes.client.object_names import MANAGED_LABEL, MANAGER, SPARK
from fleet.kubernetes.leases import lease_store
from fleet.kubernetes.manifests.pod_template import (
    HOME,
    Object,
    container_security,
    env_from,
    placement,
    pod_security,
    secret_mounts,
    secret_volumes,
)
from fleet.kubernetes.manifests.spark_objects import PORT as SPARK_PORT
from fleet.kubernetes.manifests.spark_objects import shares_spark
from fleet.report.alert_rules import prometheus_duration, rules, scrape_interval
from fleet.report.dashboard import dashboard_json

# What each part may do to the API server: the least, as the rules of its Role.
#
# Problem: one service account for everything means that a worker with a hole in it can take any
# group's slot or read every Secret. Choice: what slots need of each side is beside their
# store (`fleet.kubernetes.leases.lease_store`), the manager has besides what it applies, and
# no part has a cluster role.


Rule = dict[str, Any]
_ALL: Final = ["get", "list", "watch", "create", "update", "patch", "delete"]
_LOOK: Final = ["get", "list", "watch"]


def exporter_rules() -> list[Rule]:
    """To look at slots, slot targets and changes, and nothing to write."""
    return lease_store.reader_rules()


def manager_rules() -> list[Rule]:
    """All objects of its fleets, in its own namespace; of Secrets only the Spark server's.

    It hands each fleet's workers their Role, so it must hold what those Roles allow.
    """
    return [
        *lease_store.manager_rules(),
        _rule("apps", ["deployments"], _ALL),
        _rule("apps", ["replicasets"], ["get", "list", "watch"]),
        _rule("", ["pods"], ["get", "list", "watch", "patch", "delete"]),
        _rule("", ["pods/log"], ["get"]),
        _rule("", ["services", "serviceaccounts"], _ALL),
        _rule("policy", ["poddisruptionbudgets"], _ALL),
        _rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], _ALL),
        _rule("autoscaling", ["horizontalpodautoscalers"], _LOOK),
        # Made where it is missing; RBAC cannot limit `create` to a name.
        _rule("", ["secrets"], ["create"]),
        {**_rule("", ["secrets"], ["get", "patch", "delete"]), "resourceNames": [SPARK]},
    ]


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> Rule:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


CONFIG: Final = "fleet-config"
CONFIG_DIR: Final = "/etc/fleet"
EXPORTER: Final = "fleet-exporter"
EXPORTER_PORT: Final = 9308
WORKER_APP: Final = "fleet-worker"
MANAGER_APP: Final = "fleet-manager"
WEB_PORT: Final = 3000
DAGSTER_CLIENT: Final = {"fleet/dagster": "client"}
"""Pods with this label may open Dagster's page, which has no login."""
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
    volumes = secret_volumes(name for name, _ in mounts)
    return env_from(names), secret_mounts(mounts), volumes


def logins(spec: FleetSpec) -> tuple[list[str], list[tuple[str, str]]]:
    """Secrets for the environment, and Secrets with the path where each is mounted.

    Of two Secrets for one path the first fleet's is taken: each holds a login to the cluster.
    """
    runtimes = [f.runtime for f in spec.fleets if isinstance(f.runtime, KubernetesRuntimeSpec)]
    names = {name: None for runtime in runtimes for name in runtime.env_from}
    first: dict[str, str] = {}
    for runtime in runtimes:
        for name, path in runtime.mounts.items():
            first.setdefault(path, name)
    return list(names), [(name, path) for path, name in first.items()]


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
        # The first refresh waits for the offsets topic, for a minute at most.
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


# What Prometheus Operator and Grafana read: rules, who is scraped, a dashboard.
#
# The rules and the dashboard are those of `fleet render alert-rules` and `fleet render dashboard`:
# one meaning of every alert. PrometheusRule and PodMonitor need the operator's CRDs, so this part
# is rendered only where it is asked for.


NAME: Final = "fleet"
APP: Final = "fleet-monitoring"
DASHBOARD: Final = "fleet-dashboard"


def monitoring(spec: FleetSpec) -> list[Object]:
    """PrometheusRule, PodMonitor (exporter and workers) and the dashboard's ConfigMap."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": meta(spec, NAME, APP),
            "spec": rules(spec),
        },
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": meta(spec, NAME, APP),
            "spec": {
                "selector": {
                    "matchExpressions": [
                        {
                            "key": "app.kubernetes.io/name",
                            "operator": "In",
                            "values": [EXPORTER, WORKER_APP],
                        }
                    ]
                },
                "podMetricsEndpoints": [
                    {
                        "port": "http",
                        "path": "/metrics",
                        "interval": prometheus_duration(scrape_interval(spec)),
                        # Its own labels say group and cluster; the pod's must not replace them.
                        "honorLabels": True,
                    }
                ],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta(spec, DASHBOARD, APP, grafana_dashboard="1"),
            "data": {"fleet.json": dashboard_json()},
        },
    ]


# The manager: Dagster's page, daemon and code location in one pod.
#
# Problem: Dagster's three parts share an instance, and with SQLite that is a folder. Choice: one
# pod, one volume; the code location is a sidecar that is up before the other two look for it, and
# listens on the pod's loopback only, since who reaches it runs code. Runs are its subprocesses
# (the default launcher): `assets` bring their own lock, so a pod that dies in mid-run costs a
# resumption. Cost: runs end with the pod; the overlay `postgres` starts each as a Job instead.


STATE: Final = f"{HOME}/dagster"
DAGSTER_CONFIG: Final = "fleet-dagster"
CODE_PORT: Final = 4000
VOLUME: Final = "10Gi"
_SECONDS_TO_END: Final = 60


def workspace_yaml() -> dict[str, Any]:
    """The one code location, on the pod's loopback."""
    server = {"host": "127.0.0.1", "port": CODE_PORT, "location_name": "fleet"}
    return {"load_from": [{"grpc_server": server}]}


def manager(spec: FleetSpec, *, image: str) -> list[Object]:
    """The manager's pod, its volume, its page's Service and what it may do."""
    return [
        *account(spec, MANAGER_APP, MANAGER_APP, role=MANAGER_APP, rules=manager_rules()),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta(spec, DAGSTER_CONFIG, MANAGER_APP),
            "data": {
                "dagster.yaml": yaml.safe_dump(dagster_instance(STATE), sort_keys=False),
                "workspace.yaml": yaml.safe_dump(workspace_yaml(), sort_keys=False),
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": meta(spec, MANAGER_APP, MANAGER_APP),
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": VOLUME}},
            },
        },
        service(spec, MANAGER_APP, MANAGER_APP, port=80, target="web"),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta(spec, MANAGER_APP, MANAGER_APP),
            "spec": {
                "replicas": 1,
                # SQLite and a volume for one pod: the old one goes first.
                "strategy": {"type": "Recreate"},
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": {"app.kubernetes.io/name": MANAGER_APP}},
                "template": _template(spec, image),
            },
        },
    ]


def _template(spec: FleetSpec, image: str) -> Object:
    template = pod(spec, MANAGER_APP, account=MANAGER_APP)
    _, _, volumes = login(spec)
    template["spec"] |= {
        "terminationGracePeriodSeconds": _SECONDS_TO_END,
        "initContainers": [_code(spec, image)],
        "containers": [_web(spec, image), _daemon(spec, image)],
        "volumes": [
            {
                "name": "config",
                "projected": {
                    "sources": [{"configMap": {"name": name}} for name in (CONFIG, DAGSTER_CONFIG)]
                },
            },
            {"name": "home", "persistentVolumeClaim": {"claimName": MANAGER_APP}},
            {"name": "tmp", "emptyDir": {}},
            *volumes,
        ],
    }
    return template


def _code(spec: FleetSpec, image: str) -> Object:
    """The code location; the only part that talks to Kafka and changes fleets."""
    made = _part(
        spec,
        image,
        "code",
        "dagster",
        "code-server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(CODE_PORT),
        "--module-name",
        "fleet.dagster.project",
    )
    asks = ["dagster", "api", "grpc-health-check", "--host", "127.0.0.1", "--port", str(CODE_PORT)]
    made |= {
        "restartPolicy": "Always",  # a sidecar: up before the containers, ended after them
        "startupProbe": {
            "exec": {"command": asks},
            "periodSeconds": 5,
            "timeoutSeconds": 20,
            "failureThreshold": 36,
        },
        "resources": {"requests": {"cpu": "200m", "memory": "768Mi"}},
    }
    return made


def _web(spec: FleetSpec, image: str) -> Object:
    made = _part(
        spec,
        image,
        "web",
        "dagster-webserver",
        "--host",
        "0.0.0.0",  # noqa: S104 - in a pod, behind a NetworkPolicy
        "--port",
        str(WEB_PORT),
        "--workspace",
        f"{CONFIG_DIR}/workspace.yaml",
    )
    asks = {"httpGet": {"path": "/server_info", "port": "web", "scheme": "HTTP"}}
    made |= {
        "ports": [{"name": "web", "containerPort": WEB_PORT, "protocol": "TCP"}],
        "startupProbe": {**asks, "periodSeconds": 3, "timeoutSeconds": 5, "failureThreshold": 60},
        "readinessProbe": {**asks, "periodSeconds": 10, "timeoutSeconds": 5},
        "livenessProbe": {**asks, "periodSeconds": 30, "timeoutSeconds": 15, "failureThreshold": 4},
        "resources": {"requests": {"cpu": "100m", "memory": "384Mi"}},
    }
    return made


def _daemon(spec: FleetSpec, image: str) -> Object:
    made = _part(
        spec,
        image,
        "daemon",
        "dagster-daemon",
        "run",
        "--workspace",
        f"{CONFIG_DIR}/workspace.yaml",
    )
    made |= {
        # Each look costs seconds of a core, so it is a rare one.
        "livenessProbe": {
            "exec": {"command": ["dagster-daemon", "liveness-check"]},
            "initialDelaySeconds": 120,
            "periodSeconds": 120,
            "timeoutSeconds": 60,
            "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "384Mi"}},
    }
    return made


def _part(spec: FleetSpec, image: str, name: str, *command: str) -> Object:
    # The instance's settings lie beside fleet.yaml, read-only; all that Dagster writes has a path.
    return container(spec, name, command, image=image, DAGSTER_HOME=CONFIG_DIR)
