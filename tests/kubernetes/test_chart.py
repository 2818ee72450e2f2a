"""The chart: linted, rendered, and judged by a real API server.

docs/how-to/alerts.md shows values that are rendered here.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import __version__
from fleet.config.first_job import dagster_instance
from fleet.config.load import load
from fleet.config.spec import FleetSpec, KubernetesRuntimeSpec
from fleet.kubernetes.manifests.deployment_objects import fleet_objects
from fleet.report.alert_rules import rules
from fleet.report.dashboard import dashboard_json
from k8s.cluster import programs
from tests.support.declared import settings_of
from tests.support.kube_api import KubeApi, pod_of
from tests.support.needs import repository

pytestmark = pytest.mark.kubernetes

CHART = repository() / "k8s" / "chart"
TEMPLATE = ("template", "fleet", str(CHART), "--kube-version", "1.36")
DAGSTER = {"enabled": True, "image": "registry.example/fleet-manager:1"}
VALUES: dict[str, Any] = {
    "image": {"name": "registry.example/fleet:1"},
    "clusters": {
        "main": {
            "cluster": {"bootstrap_servers": "kafka:9092"},
            "defaults": {"runtime": {"env_from": ["kafka"]}},
        }
    },
    "kafka": {"envFrom": ["kafka"], "mounts": {"kafka-tls": "/etc/kafka"}},
    "dagster": {**DAGSTER, "database": {"secret": "database"}},
    "networkPolicy": {"egress": [{"ports": [{"port": 9092, "protocol": "TCP"}]}]},
    "operator": {"priorityClassName": "high", "tolerations": [{"operator": "Exists"}]},
    "exporter": {"nodeSelector": {"disk": "fast"}},
}
MONITORED = {
    "serviceMonitor": True,
    "podMonitor": True,
    "rules": {"enabled": True},
    "dashboard": {"enabled": True},
}
ENTRY = {"group": "orders", "topics": ["orders"], "worker": {"entrypoint": "job:process"}}


def helm(
    *words: str, values: dict[str, Any] | None = None, kubeconfig: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """What Helm says; the values by its standard input."""
    given = [] if values is None else ["--values", "-"]
    return subprocess.run(
        [programs.path("helm"), *words, *given],
        input=None if values is None else json.dumps(values),
        env={**os.environ, "KUBECONFIG": str(kubeconfig or "/dev/null")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def done(*words: str, **how: Any) -> str:
    """The same where it has to succeed."""
    result = helm(*words, **how)
    assert result.returncode == 0, result.stderr
    return result.stdout


def rendered(namespace: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    text = done(*TEMPLATE, "--namespace", namespace, values=values)
    return [each for each in yaml.safe_load_all(text) if each]


def the(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [e for e in objects if (e["kind"], e["metadata"]["name"]) == (kind, name)]
    return found


def test_the_chart_is_clean() -> None:
    """By Helm's own lint, also of what is only a warning."""
    assert "0 chart(s) failed" in done("lint", "--strict", str(CHART), values=VALUES)


def test_the_chart_is_of_this_release() -> None:
    """Both versions are raised together."""
    told = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert told["version"] == told["appVersion"] == __version__


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"watchNamespace": ["a"]}, "watchNamespace"),
        ({"watchNamespaces": ["a_b"]}, "watchNamespaces"),
        ({"image": {"name": "fleet:latest"}}, "name"),
        ({"clusters": {"main": {"cluster": {}}}}, "bootstrap_servers"),
        ({"clusters": {"main": {**VALUES["clusters"]["main"], "fleets": []}}}, "main"),
        ({"image": {"name": ""}}, "image.name is missing"),
        ({"workers": {"spread": "yes"}}, "spread"),
        ({"workers": {"maxUnavailable": 0}}, "maxUnavailable"),
        ({"dagster": {"fleets": [{"topics": ["a"]}]}}, "group"),
        ({"dagster": {"image": "fleet-manager:latest"}}, "image"),
        ({"dagster": {"enabled": True}}, "dagster.image is missing"),
    ],
)
def test_wrong_values_are_refused_by_their_key(values: dict[str, Any], why: str) -> None:
    result = helm(*TEMPLATE, values={**VALUES, **values})
    assert result.returncode != 0
    assert why in result.stderr


def kubectl(server: KubeApi, *words: str, stdin: str | None = None) -> str:
    """What it prints as an administrator, without a warning."""
    done = subprocess.run(
        [programs.path("kubectl"), "--kubeconfig", str(server.kubeconfig()), *words],
        input=stdin, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def monitored(kube_api: KubeApi) -> KubeApi:
    """A server with the names of Prometheus Operator's kinds; their schemas take anything."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    group = "monitoring.coreos.com"
    for kind in ("PrometheusRule", "PodMonitor", "ServiceMonitor"):
        names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
        crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        kube_api.define({**crd, "metadata": {"name": f"{names['plural']}.{group}"}, "spec": spec})
    return kube_api


@pytest.mark.parametrize("watched", [0, 2])
def test_the_server_takes_every_object(monitored: KubeApi, watched: int) -> None:
    """Unknown fields refused, as the restricted Pod Security Standard wants the pods."""
    namespace = monitored.namespace(enforce="restricted")
    others = [monitored.namespace() for _ in range(watched)]
    mounts = {"mounts": {"kafka.tls": "/etc/kafka", "k" * 63: "/more"}}
    more = {"watchNamespaces": others, "monitoring": MONITORED, "kafka": mounts}
    database = VALUES["dagster"] if watched else DAGSTER
    objects = rendered(namespace, {**VALUES, **more, "dagster": database})
    pods = [pod_of(each) for each in objects if each["kind"] == "Deployment"]
    assert len(pods) == 3
    for pod in pods:
        pod["metadata"]["namespace"] = namespace
        pod["spec"] = {**pod["spec"], "priorityClassName": None}
    said = kubectl(
        monitored, *("apply", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=yaml.safe_dump_all([*objects, *pods]),
    )  # fmt: skip
    assert said.count("(server dry run)") == len(objects) + len(pods)
    assert ("job_namespace" in json.dumps(objects)) == bool(watched)
    roles = {each["metadata"]["namespace"] for each in objects if each["kind"] == "Role"}
    assert roles == {*(others or [namespace]), *([namespace] if watched else ())}


def test_parts_come_only_when_they_are_wanted() -> None:
    """The least is the operator and what it needs."""
    parts = ("exporter", "dagster", "admissionPolicy", "flowSchema", "networkPolicy")
    off = {part: {"enabled": False} for part in parts}
    objects = rendered("system", {**VALUES, **off, "crd": {"install": False}})
    left = {"ServiceAccount", "Role", "RoleBinding", "Secret", "ConfigMap", "Deployment"}
    assert {each["kind"] for each in objects} == left
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    assert deployment["metadata"]["name"] == "fleet-operator"


def test_rules_and_dashboard_are_those_of_fleet_render() -> None:
    """One source of each alert; a rendering of one's own takes its place."""
    spec = FleetSpec.model_validate({"cluster": {"name": "main"}})
    objects = rendered("system", {**VALUES, "monitoring": MONITORED})
    assert the(objects, "PrometheusRule", "fleet-main")["spec"] == rules(spec)
    dashboard = the(objects, "ConfigMap", "fleet-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["fleet.json"]) == json.loads(dashboard_json())

    main = {**VALUES["clusters"]["main"], "alerts": {"max_lag": "1m"}}
    limited = {**VALUES, "clusters": {"main": main}, "monitoring": MONITORED}
    assert "fleet render alert-rules" in helm(*TEMPLATE, values=limited).stderr
    given = {**MONITORED, "rules": {"enabled": True, "files": {"main": "groups: []"}}}
    objects = rendered("system", {**limited, "monitoring": given})
    assert the(objects, "PrometheusRule", "fleet-main")["spec"] == {"groups": []}

    main["alerts"] = {"runbooks": "https://wiki.example/fleet"}
    objects = rendered("system", limited)
    text = json.dumps(the(objects, "PrometheusRule", "fleet-main"))
    assert '"https://wiki.example/fleet/group-lag.md"' in text
    assert "RUNBOOKS" not in text


def test_dagster_reads_the_clusters_file_and_its_own_fleets(tmp_path: Path) -> None:
    """Its instance is that of `fleet new`, or has a launcher; its fleets run where others do."""
    from dagster._config import process_config
    from dagster_k8s import K8sRunLauncher

    dagster = {**DAGSTER, "fleets": [ENTRY]}
    objects = rendered("system", {**VALUES, "watchNamespaces": ["shop"], "dagster": dagster})
    data = the(objects, "ConfigMap", "fleet-dagster")["data"]
    assert yaml.safe_load(data["dagster.yaml"]) == dagster_instance("/var/lib/fleet/dagster")
    spec = load(tmp_path / "fleet.yaml", {}, text=data["fleet.yaml"])
    assert [each.group for each in spec.fleets] == ["orders"]
    assert isinstance(spec.runtime, KubernetesRuntimeSpec)
    assert (spec.runtime.namespace, spec.runtime.env_from) == ("shop", ("kafka",))
    data = the(rendered("system", VALUES), "ConfigMap", "fleet-dagster")["data"]
    launcher = yaml.safe_load(data["dagster.yaml"])["run_launcher"]["config"]
    checked = process_config(K8sRunLauncher.config_type(), launcher)
    assert checked.success, checked.errors
    elsewhere = {**DAGSTER, "cluster": "spare"}
    assert "has no spare" in helm(*TEMPLATE, values={**VALUES, "dagster": elsewhere}).stderr


def workers(tmp_path: Path, **values: Any) -> Callable[[str], dict[str, Any]]:
    """The `spec` of a fleet's objects, by kind, under these `workers`."""
    dagster = {**DAGSTER, "fleets": [{**ENTRY, "runtime": {"image": "jobs:1"}}]}
    objects = rendered("system", {**VALUES, "dagster": dagster, "workers": values})
    text = the(objects, "ConfigMap", "fleet-dagster")["data"]["fleet.yaml"]
    spec = load(tmp_path / "fleet.yaml", {}, text=text)
    made = fleet_objects(settings_of(spec.fleets[0], cluster=spec.cluster))
    return lambda kind: next(dict(each["spec"]) for each in made if each["kind"] == kind)


def test_workers_leave_a_lost_node_before_their_session_ends(tmp_path: Path) -> None:
    """And are evicted one at a time, unless the values say otherwise."""

    def spread(pod: dict[str, Any]) -> list[str]:
        return [each["whenUnsatisfiable"] for each in pod.get("topologySpreadConstraints", ())]

    made = workers(tmp_path)
    pod = made("Deployment")["template"]["spec"]
    assert [(e["key"], e["effect"], e["tolerationSeconds"]) for e in pod["tolerations"]] == [
        (f"node.kubernetes.io/{taint}", "NoExecute", 60) for taint in ("not-ready", "unreachable")
    ]
    assert made("PodDisruptionBudget")["maxUnavailable"] == 1
    assert spread(pod) == ["ScheduleAnyway", "ScheduleAnyway"]

    made = workers(tmp_path, maxUnavailable=12, tolerationSeconds=0, spread="required")
    pod = made("Deployment")["template"]["spec"]
    assert "tolerations" not in pod
    assert made("PodDisruptionBudget")["maxUnavailable"] == 12
    assert spread(pod) == ["DoNotSchedule", "ScheduleAnyway"]
    assert spread(workers(tmp_path, spread="none")("Deployment")["template"]["spec"]) == []


def test_a_second_release_leaves_the_definition_to_the_first(kube_api: KubeApi) -> None:
    """Helm keeps it when a release goes; it belongs to that release, and is no other's to take."""
    namespace, name = kube_api.namespace(), "consumerfleets.fleet-for-kafka.io"
    trial = ("install", "fleet", str(CHART), "--namespace", namespace, "--dry-run=server")
    file = str(CHART / "files" / "consumerfleets.yaml")
    kubectl(kube_api, "apply", "-f", file)
    kubectl(kube_api, "label", "--overwrite", "crd", name, "app.kubernetes.io/managed-by=Helm")
    for owner in ("another", namespace, "nobody"):
        notes = [f"meta.helm.sh/release-{key}" for key in ("name=fleet", f"namespace={owner}")]
        kubectl(kube_api, "annotate", "--overwrite", "crd", name, *notes)
        said = done(*trial, values=VALUES, kubeconfig=kube_api.kubeconfig())
        assert (f"name: {name}" in said) == (owner == namespace)
