"""A HorizontalPodAutoscaler scales a ConsumerFleet by the number that the exporter serves."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleet.exporter import RefreshResult, render
from fleet.kubernetes.client.api import Object
from fleet.kubernetes.operator.resource import GROUP, KIND, VERSION
from tests.kubernetes.test_operator import entry
from tests.support import waiting
from tests.support.declared_fleets import Declared, crd
from tests.support.json_server import JsonHandler, serving
from tests.support.kube_api import KubeApi
from tests.support.snapshots import snapshot_of

pytestmark = pytest.mark.kubernetes

METRICS = "external.metrics.k8s.io"
_LIST = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{METRICS}/v1beta1"}
METRIC = "fleet_group_wanted_members"
LABELS = {"cluster": "main", "group": "orders"}


class Adapter(JsonHandler):
    """The API of external metrics: the series of an exporter's page that have these labels."""

    wanted: ClassVar[Mapping[str, int]] = {}

    def get(self) -> None:
        """Which metrics, or the one that is asked for."""
        asked = urlsplit(self.path)
        if "/namespaces/" in asked.path:
            selector = parse_qs(asked.query).get("labelSelector", [""])[0]
            labels = dict(each.split("=") for each in selector.split(","))
            values = series(asked.path.rpartition("/")[2], labels, Adapter.wanted)
            items = {"kind": "ExternalMetricValueList", "apiVersion": f"{METRICS}/v1beta1"}
            self.say(200, {**items, "metadata": {}, "items": values})
        elif asked.path == f"/apis/{METRICS}/v1beta1":
            self.say(200, {**_LIST, "resources": []})
        else:
            self.say(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})


def series(
    name: str, labels: Mapping[str, str], wanted: Mapping[str, int]
) -> list[dict[str, object]]:
    """What an adapter finds on the page of an exporter that wants these members."""
    page = render(RefreshResult(seen=snapshot_of(), wanted=wanted)).decode()
    return [
        {
            "metricName": name,
            "metricLabels": sample.labels,
            "timestamp": "2026-01-01T00:00:00Z",
            "value": f"{sample.value:g}",
        }
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


@pytest.fixture
def place(control_plane: KubeApi, tmp_path: Path) -> Iterator[Declared]:
    """A namespace beside a server of metrics."""
    control_plane.define(crd())
    certificate = control_plane.folder / "certs" / "apiserver"
    files = (certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
    with (
        serving(Adapter, tls=files) as address,
        control_plane.api(control_plane.namespace()) as api,
    ):
        port = int(address.rpartition(":")[2])
        service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        api.create(_object("Service", "metrics", "v1", service))
        path = "/apis/apiregistration.k8s.io/v1/apiservices"
        spec = {
            "group": METRICS,
            "version": "v1beta1",
            "service": {"name": "metrics", "namespace": api.namespace, "port": port},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        }
        name = f"v1beta1.{METRICS}"
        control_plane.post(path, _object("APIService", name, "apiregistration.k8s.io/v1", spec))
        try:
            yield Declared(api, {}, tmp_path)
        finally:
            control_plane.send("DELETE", f"{path}/{name}", None)


def _object(kind: str, name: str, version: str, spec: dict[str, Any]) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_an_autoscaler_writes_the_number_of_slots(place: Declared) -> None:
    """As the page says: a target of 1 makes it the value. Without a value the slots stay."""
    place.write("orders", fleet=entry("orders"), scaling={"policy": "external"}, replicas=1)
    metric = {"name": METRIC, "selector": {"matchLabels": LABELS}}
    target = {"type": "AverageValue", "averageValue": "1"}
    spec = {
        "scaleTargetRef": {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "name": "orders"},
        "minReplicas": 1,
        "maxReplicas": 5,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
    }
    kind = "HorizontalPodAutoscaler"

    def conditions() -> dict[str, str]:
        found = place.api.get(kind, "orders") or {}
        return {c["type"]: c["status"] for c in (found.get("status") or {}).get("conditions") or ()}

    def scaled(wanted: int) -> None:
        """Waits for the number, and counts the slots as the operator reports them."""
        waiting.until(
            lambda: (place.found("orders") or {})["spec"]["replicas"] == wanted,
            f"{wanted} slots to be wanted",
            picture=lambda: str(place.api.get(kind, "orders")),
            still=90,
        )
        status = {"replicas": wanted, "selector": "fleet/name=orders,fleet/slot"}
        place.api.merge(KIND, "orders", {"status": status}, part="status")

    scaled(1)
    Adapter.wanted = {"orders": 3, "other": 5}
    place.api.create(_object(kind, "orders", "autoscaling/v2", spec))
    scaled(3)
    Adapter.wanted = {"other": 5}
    waiting.until(lambda: conditions()["ScalingActive"] == "False", "the metric to be missed")
    assert (place.found("orders") or {})["spec"]["replicas"] == 3
    Adapter.wanted = {"orders": 2}
    scaled(2)
