"""A HorizontalPodAutoscaler scales a ConsumerFleet by a metric of somebody else's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.kubernetes.client.api import Object
from fleet.kubernetes.operator.resource import GROUP, KIND, VERSION
from tests.kubernetes.test_operator import entry
from tests.support import waiting
from tests.support.declared_fleets import Declared, crd
from tests.support.json_server import JsonHandler, serving
from tests.support.kube_api import KubeApi

pytestmark = pytest.mark.kubernetes

METRICS = "external.metrics.k8s.io"
_LIST = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{METRICS}/v1beta1"}
_VALUE = {
    "metricName": "fleet_group_lag",
    "metricLabels": {},
    "timestamp": "2026-01-01T00:00:00Z",
    "value": "30",
}


class Lag(JsonHandler):
    """The API of external metrics: thirty records wait, wherever."""

    def get(self) -> None:
        """Which metrics, or the one that is asked for."""
        if "/namespaces/" in self.path:
            items = {"kind": "ExternalMetricValueList", "apiVersion": f"{METRICS}/v1beta1"}
            self.say(200, {**items, "metadata": {}, "items": [_VALUE]})
        elif self.path.partition("?")[0] == f"/apis/{METRICS}/v1beta1":
            self.say(200, {**_LIST, "resources": []})
        else:
            self.say(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})


@pytest.fixture
def place(control_plane: KubeApi, tmp_path: Path) -> Iterator[Declared]:
    """A namespace beside a server of metrics."""
    control_plane.define(crd())
    certificate = control_plane.folder / "certs" / "apiserver"
    files = (certificate.with_suffix(".crt"), certificate.with_suffix(".key"))
    with (
        serving(Lag, tls=files) as address,
        control_plane.api(control_plane.namespace()) as api,
    ):
        port = int(address.rpartition(":")[2])
        where = {"name": "metrics", "namespace": api.namespace, "port": port}
        service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        api.create(_object("Service", "metrics", "v1", service))
        path = "/apis/apiregistration.k8s.io/v1/apiservices"
        spec = {
            "group": METRICS,
            "version": "v1beta1",
            "service": where,
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
    """Ten records for each slot; the operator is not asked."""
    place.write("orders", fleet=entry("orders"), scaling={"policy": "external"}, replicas=1)
    metric = {"name": _VALUE["metricName"]}
    spec = {
        "scaleTargetRef": {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "name": "orders"},
        "minReplicas": 1,
        "maxReplicas": 5,
        "metrics": [
            {
                "type": "External",
                "external": {
                    "metric": metric,
                    "target": {"type": "AverageValue", "averageValue": "10"},
                },
            }
        ],
    }
    # Counted by who owns a slot: as the operator reports it.
    status = {"replicas": 1, "selector": "fleet/name=orders,fleet/slot"}
    place.api.merge(KIND, "orders", {"status": status}, part="status")
    kind = "HorizontalPodAutoscaler"
    place.api.create(_object(kind, "orders", "autoscaling/v2", spec))
    waiting.until(
        lambda: (place.found("orders") or {})["spec"]["replicas"] == 3,
        "three slots to be wanted",
        picture=lambda: str(place.api.get(kind, "orders")),
        still=90,
    )
