"""Dagster and the exporter of the chart, in pods of the real cluster: Ready, loaded, and at work.

They run with the image, the rights and the read-only file systems that the chart gives.

What docs/how-to/kubernetes.md shows is run here.
"""

import json
import time
import urllib.request
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import RunningBroker
from tests.kubernetes.test_chart import rendered

if TYPE_CHECKING:
    from tests.support.kube import Kube

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

PARTS = ("fleet-dagster", "fleet-exporter-main")


def install(kube: "Kube", namespace: str, cluster: dict[str, Any], **dagster: Any) -> None:
    """Apply what the chart makes of Dagster and the exporter; no operator, nothing cluster-wide."""
    from tests.support.kube import image

    off = {key: {"enabled": False} for key in ("admissionPolicy", "flowSchema")}
    values = {
        "image": {"name": image("manager"), "pullPolicy": "Never"},
        "clusters": {"main": cluster},
        "dagster": {"enabled": True, "image": image("manager"), **dagster},
        "crd": {"install": False},
        **off,
    }
    objects = [
        each
        for each in rendered(namespace, values)
        if each["metadata"]["name"] != "fleet-operator" or each["kind"] != "Deployment"
    ]
    kube.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))


class Parts:
    """The two Deployments, and ways to ask their pods."""

    def __init__(self, kube: "Kube", namespace: str, group: str) -> None:
        self.kube, self.namespace, self.group = kube, namespace, group

    def pod(self, app: str) -> Any:
        pods = self.kube.core.list_namespaced_pod(
            self.namespace, label_selector=f"app.kubernetes.io/name={app}"
        )
        return pods.items[0]

    def get(self, app: str, port: int, path: str, body: Any = None) -> str:
        """An answer of its pod, by the pod's own address."""
        request = urllib.request.Request(
            f"http://{self.pod(app).status.pod_ip}:{port}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def ask(self, query: str) -> Any:
        """GraphQL of Dagster's page."""
        return json.loads(self.get("fleet-dagster", 3000, "graphql", {"query": query}))["data"]

    def code(self, *command: str) -> str:
        """What a command prints where the code location is."""
        return self.kube.kubectl(
            *("-n", self.namespace, "exec", "deployment/fleet-dagster", "-c", "code", "--"),
            *command,
        )


@pytest.fixture(scope="module")
def parts(kube: "Kube", kube_broker: RunningBroker) -> Iterator[Parts]:
    """Installed without a volume, for one fleet and one group of others."""
    from tests.support.kube import image

    name = f"dagster-{uuid.uuid4().hex[:8]}"
    with kube.namespace(name) as namespace:
        worker = {"entrypoint": "fleet.demo.orders:process", "spark": "local[1]"}
        fleet = {
            "group": name,
            "topics": [name],
            "create": {"partitions": 4},
            "mode": "plan",
            "worker": worker,
            "replicas": {"min": 1, "max": 2},
            "runtime": {"image": image("worker")},
        }
        theirs = {"group": f"theirs-{name}", "topics": [name]}
        cluster = {"cluster": {"bootstrap_servers": kube_broker.bootstrap_servers}, "mode": "act"}
        install(kube, namespace, cluster, fleets=[fleet, theirs], volume={"size": ""})
        yield Parts(kube, namespace, name)


def _ready(parts: Parts, deployment: str) -> None:
    """Available, or its pod's state and last words."""
    asked = ("-n", parts.namespace, "rollout", "status", f"deployment/{deployment}")
    for _ in range(3):
        try:
            parts.kube.kubectl(*asked, "--timeout=80s")
        except AssertionError as error:
            last = error
        else:
            return
    raise AssertionError(parts.kube.kubectl("-n", parts.namespace, "describe", "pods")) from last


def test_dagster_comes_up_and_lists_the_fleets_assets(parts: Parts) -> None:
    """Page, daemon and code location in one pod; the graph is that of the file."""
    _ready(parts, "fleet-dagster")
    answer = parts.ask(
        "{ repositoriesOrError { ... on RepositoryConnection { nodes { location { name } "
        "assetNodes { assetKey { path } } } } ... on PythonError { message } } }"
    )
    (repository_,) = answer["repositoriesOrError"]["nodes"]
    assert repository_["location"]["name"] == "fleet"
    keys = {"/".join(node["assetKey"]["path"]) for node in repository_["assetNodes"]}
    declared = {f"main/groups/{parts.group}", f"main/groups/theirs-{parts.group}"}
    assert {*declared, "main/plan", "main/rollout"} <= keys


def test_the_code_location_reaches_kafka_and_the_api_server(parts: Parts) -> None:
    """As its ServiceAccount: it sees groups, makes a plan and keeps what it has to remember."""
    _ready(parts, "fleet-dagster")
    status = json.loads(parts.code("fleet", "status", "-o", "json"))
    assert parts.group in {each["group"] for each in status["groups"]}
    assert parts.group in parts.code("fleet", "plan", parts.group)


def test_its_daemon_looks(parts: Parts) -> None:
    """The sensor's ticks run in the pod and end well."""
    _ready(parts, "fleet-dagster")
    deadline = time.monotonic() + 300
    while True:
        answer = parts.ask(
            "{ instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } } "
            'sensorsOrError(repositorySelector: {repositoryName: "__repository__", '
            'repositoryLocationName: "fleet"}) { ... on Sensors { results { name sensorState '
            "{ ticks(limit: 3) { status error { message } } } } } } }"
        )
        daemons = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
        down = [d["daemonType"] for d in daemons if d["required"] and not d["healthy"]]
        ticks = [
            tick
            for sensor in answer["sensorsOrError"]["results"]
            if sensor["name"] == "main_fleet_watch"
            for tick in sensor["sensorState"]["ticks"]
        ]
        assert not [t for t in ticks if t["status"] == "FAILURE"], ticks
        if not down and any(t["status"] in {"SUCCESS", "SKIPPED"} for t in ticks):
            return
        assert time.monotonic() < deadline, (down, ticks)
        time.sleep(2)


def test_the_exporter_shows_groups(parts: Parts) -> None:
    """Without a token of the API server."""
    _ready(parts, "fleet-exporter-main")
    text = parts.get("fleet-exporter", 9308, "metrics")
    assert "fleet_snapshot_age_seconds{" in text


def test_nothing_of_it_writes_into_its_image(parts: Parts) -> None:
    """All containers have a read-only root, and none had to start again."""
    for name in PARTS:
        _ready(parts, name)
        pod = parts.pod(name.removesuffix("-main"))
        statuses = [*(pod.status.init_container_statuses or []), *pod.status.container_statuses]
        assert {status.name: status.restart_count for status in statuses} == {
            status.name: 0 for status in statuses
        }
        for each in [*(pod.spec.init_containers or []), *pod.spec.containers]:
            assert each.security_context.read_only_root_filesystem
