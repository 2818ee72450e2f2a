"""The manager: Dagster's page, daemon and code location in one pod.

Problem: Dagster's three parts share an instance, and with SQLite that is a folder. Choice: one
pod, one volume; the code location is a sidecar that is up before the other two look for it, and
listens on the pod's loopback only, since who reaches it runs code. Runs are its subprocesses
(the default launcher): `assets` bring their own lock, so a pod that dies in mid-run costs a
resumption. Cost: runs end with the pod; the overlay `postgres` starts each as a Job instead.
"""

from typing import Any, Final

import yaml

from fleet.config.dagster_instance import dagster_instance
from fleet.config.spec import FleetSpec
from fleet.kubernetes.manifests.part_objects import (
    CONFIG,
    CONFIG_DIR,
    MANAGER_APP,
    WEB_PORT,
    account,
    container,
    login,
    meta,
    pod,
    service,
)
from fleet.kubernetes.manifests.pod_template import HOME, Object
from fleet.kubernetes.manifests.roles import manager_rules

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
