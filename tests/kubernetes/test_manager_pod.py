"""Dagster and the exporter of the chart, in pods of the real cluster: Ready, loaded, and at work.

They run with the image, the rights and the read-only file systems that the chart gives.

What docs/how-to/kubernetes.md shows is run here.
"""

import json
import urllib.request
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import RunningBroker
from tests.dagster_ui.served import Page
from tests.kubernetes.test_chart import rendered
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.kube import Kube

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


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

    def pod(self, deployment: str) -> Any:
        """Its pod, once it is available."""
        self.kube.await_rollout(self.namespace, deployment)
        app = f"app.kubernetes.io/name={deployment.removesuffix('-main')}"
        return self.kube.core.list_namespaced_pod(self.namespace, label_selector=app).items[0]

    def page(self) -> Page:
        """Dagster's page, by the pod's own address."""
        return Page(f"http://{self.pod('fleet-dagster').status.pod_ip}:3000")

    def code(self, *command: str) -> str:
        """What a command prints where the code location is."""
        self.kube.await_rollout(self.namespace, "fleet-dagster")
        place = ("exec", "deployment/fleet-dagster", "-c", "code", "--")
        return self.kube.kubectl("-n", self.namespace, *place, *command)


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


def test_dagster_comes_up_and_lists_the_fleets_assets(parts: Parts) -> None:
    """Page, daemon and code location in one pod; the graph is that of the file."""
    answer = parts.page().ask(
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
    status = json.loads(parts.code("fleet", "status", "-o", "json"))
    assert parts.group in {each["group"] for each in status["groups"]}
    assert parts.group in parts.code("fleet", "plan", parts.group)


def test_its_daemon_looks(parts: Parts) -> None:
    """The sensor's ticks run in the pod and end well."""
    page = parts.page()

    def looks() -> bool:
        told = page.ask(
            "{ instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } } }"
        )
        daemons = told["instance"]["daemonHealth"]["allDaemonStatuses"]
        ticks = [tick["status"] for tick in page.ticks()]
        assert "FAILURE" not in ticks, page.ticks()
        well = all(each["healthy"] for each in daemons if each["required"])
        return well and not {"SUCCESS", "SKIPPED"}.isdisjoint(ticks)

    until(looks, "healthy daemons and a tick", still=300, every=2.0)


def test_the_exporter_shows_groups(parts: Parts) -> None:
    """Without a token of the API server."""
    address = parts.pod("fleet-exporter-main").status.pod_ip
    with urllib.request.urlopen(f"http://{address}:9308/metrics", timeout=30) as answer:
        assert b"fleet_snapshot_age_seconds{" in answer.read()


@pytest.mark.parametrize("deployment", ["fleet-dagster", "fleet-exporter-main"])
def test_nothing_of_it_writes_into_its_image(parts: Parts, deployment: str) -> None:
    """All containers have a read-only root, and none had to start again."""
    pod = parts.pod(deployment)
    statuses = [*(pod.status.init_container_statuses or []), *pod.status.container_statuses]
    assert {status.restart_count for status in statuses} == {0}
    for each in [*(pod.spec.init_containers or []), *pod.spec.containers]:
        assert each.security_context.read_only_root_filesystem
