"""The chart: linted, rendered, and judged by a real API server."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import __version__
from tests.support.kube_api import KubeApi, program
from tests.support.needs import repository

pytestmark = pytest.mark.kubernetes

CHART = repository() / "k8s" / "chart"
TEMPLATE = ("template", "fleet", str(CHART), "--kube-version", "1.36")
VALUES: dict[str, Any] = {
    "image": {"name": "registry.example/fleet:1"},
    "clusters": {
        "main": {
            "cluster": {"bootstrap_servers": "kafka:9092"},
            "defaults": {"runtime": {"env_from": ["kafka"]}},
        }
    },
    "kafka": {"envFrom": ["kafka"], "mounts": {"kafka-tls": "/etc/kafka"}},
    "networkPolicy": {"egress": [{"ports": [{"port": 9092, "protocol": "TCP"}]}]},
    "operator": {"priorityClassName": "high", "tolerations": [{"operator": "Exists"}]},
}


def helm(
    *words: str, values: dict[str, Any] | None = None, kubeconfig: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """What Helm says; the values by its standard input."""
    given = [] if values is None else ["--values", "-"]
    return subprocess.run(
        [program("helm"), *words, *given],
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
    """The chart's objects."""
    text = done(*TEMPLATE, "--namespace", namespace, values=values)
    return [each for each in yaml.safe_load_all(text) if each]


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
    ],
)
def test_wrong_values_are_refused_by_their_key(values: dict[str, Any], why: str) -> None:
    """Before anything is installed."""
    result = helm(*TEMPLATE, values={**VALUES, **values})
    assert result.returncode != 0
    assert why in result.stderr


@pytest.mark.parametrize("watched", [0, 2])
def test_the_server_takes_every_object(kube_api: KubeApi, watched: int) -> None:
    """Unknown fields refused, as the restricted Pod Security Standard wants the pods."""
    namespace = kube_api.namespace()
    others = [kube_api.namespace() for _ in range(watched)]
    path = f"/api/v1/namespaces/{namespace}"
    found = kube_api.send("GET", path, None)
    found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    kube_api.send("PUT", path, found)
    objects = rendered(namespace, {**VALUES, "watchNamespaces": others})
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": each["metadata"]["name"], "namespace": namespace},
            "spec": {**each["spec"]["template"]["spec"], "priorityClassName": None},
        }
        for each in objects
        if each["kind"] == "Deployment"
    ]
    assert len(pods) == 2
    said = subprocess.run(
        [
            *(program("kubectl"), "--kubeconfig", str(kube_api.kubeconfig()), "apply"),
            *("--dry-run=server", "--validate=strict", "-f", "-"),
        ],
        input=yaml.safe_dump_all([*objects, *pods]),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("(server dry run)") == len(objects) + len(pods)
    assert "Warning" not in said.stderr
    roles = {each["metadata"]["namespace"] for each in objects if each["kind"] == "Role"}
    assert roles == set(others or [namespace])


def test_a_second_release_leaves_the_definition_to_the_first(kube_api: KubeApi) -> None:
    """Helm keeps it when a release goes; it belongs to that release, and is no other's to take."""
    namespace, name = kube_api.namespace(), "consumerfleets.fleet-for-kafka.io"
    trial = ("install", "fleet", str(CHART), "--namespace", namespace, "--dry-run=server")
    file = str(CHART / "files" / "consumerfleets.yaml")

    def kubectl(*words: str) -> None:
        subprocess.run(
            [program("kubectl"), "--kubeconfig", str(kube_api.kubeconfig()), *words],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip

    kubectl("apply", "-f", file)
    kubectl("label", "--overwrite", "crd", name, "app.kubernetes.io/managed-by=Helm")
    for owner in ("another", namespace, "nobody"):
        notes = [f"meta.helm.sh/release-{key}" for key in ("name=fleet", f"namespace={owner}")]
        kubectl("annotate", "--overwrite", "crd", name, *notes)
        said = done(*trial, values=VALUES, kubeconfig=kube_api.kubeconfig())
        assert (f"name: {name}" in said) == (owner == namespace)
