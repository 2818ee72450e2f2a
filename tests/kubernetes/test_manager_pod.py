"""Manager and exporter as rendered, in pods of the real cluster: Ready, loaded, and at work.

They run with the image, the rights and the read-only file systems that their manifests give.

What docs/how-to/kubernetes.md shows is run here.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fleet import cli
from tests.conftest import RunningBroker
from tests.support.needs import repository

if TYPE_CHECKING:
    from tests.support.kube import Kube

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

OVERLAY = repository() / "k8s" / "manifests" / "overlays" / "small" / "kustomization.yaml"
FILE = """
cluster: {{name: main, bootstrap_servers: "{bootstrap}"}}
mode: act
defaults:
  runtime: {{kind: kubernetes, namespace: {namespace}, image: "{worker}", pull_policy: Never}}
fleets:
  - group: {group}
    topics: [{group}]
    create: {{partitions: 4}}
    mode: plan
    worker: {{protocol: classic, entrypoint: "fleet.demo.orders:process", spark: "local[1]"}}
    replicas: {{min: 1, max: 2}}
  - group: theirs-{group}
    topics: [{group}]
"""


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
        return json.loads(self.get("fleet-manager", 3000, "graphql", {"query": query}))["data"]

    def code(self, *command: str) -> str:
        """What a command prints where the code location is."""
        return self.kube.kubectl(
            *("-n", self.namespace, "exec", "deployment/fleet-manager", "-c", "code", "--"),
            *command,
        )


@pytest.fixture(scope="module")
def parts(
    kube: "Kube", kube_broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Parts]:
    """Rendered for a fleet.yaml of this test, through the overlay without a volume."""
    from tests.support.kube import image

    folder = tmp_path_factory.mktemp("manager")
    name = f"manager-{folder.name.rpartition('-')[2]}{int(time.time()) % 100000}"
    with kube.namespace(name) as namespace:
        file = folder / "fleet.yaml"
        file.write_text(
            FILE.format(
                bootstrap=kube_broker.bootstrap_servers,
                namespace=namespace,
                worker=image("worker"),
                group=name,
            )
        )
        wanted = ["render", "manifests", "-c", str(file), "--image", image("manager")]
        for part in ("manager", "exporter", "network"):
            wanted += ["--part", part]
        assert cli.run([*wanted, "--output-dir", str(folder / "base")]) == 0
        text = OVERLAY.read_text().replace("../../base", "base").replace("fleets", namespace)
        (folder / "kustomization.yaml").write_text(text)
        kube.kubectl("apply", "--server-side", "-k", str(folder))
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


def test_the_manager_comes_up_and_lists_the_fleets_assets(parts: Parts) -> None:
    """Page, daemon and code location in one pod; the graph is that of the file."""
    _ready(parts, "fleet-manager")
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
    _ready(parts, "fleet-manager")
    status = json.loads(parts.code("fleet", "status", "-o", "json"))
    assert parts.group in {each["group"] for each in status["groups"]}
    assert parts.group in parts.code("fleet", "plan", parts.group)


def test_its_daemon_looks(parts: Parts) -> None:
    """The sensor's ticks run in the pod and end well."""
    _ready(parts, "fleet-manager")
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


def test_the_exporter_shows_groups_and_slots(parts: Parts) -> None:
    """With leave to read Leases, and to write nothing."""
    _ready(parts, "fleet-exporter")
    text = parts.get("fleet-exporter", 9308, "metrics")
    assert "fleet_snapshot_age_seconds{" in text
    said = parts.kube.kubectl("-n", parts.namespace, "logs", "deployment/fleet-exporter")
    assert "forbidden" not in said


def test_nothing_of_it_writes_into_its_image(parts: Parts) -> None:
    """All containers have a read-only root, and none had to start again."""
    for app in ("fleet-manager", "fleet-exporter"):
        _ready(parts, app)
        pod = parts.pod(app)
        statuses = [*(pod.status.init_container_statuses or []), *pod.status.container_statuses]
        assert {status.name: status.restart_count for status in statuses} == {
            status.name: 0 for status in statuses
        }
        for each in [*(pod.spec.init_containers or []), *pod.spec.containers]:
            assert each.security_context.read_only_root_filesystem
