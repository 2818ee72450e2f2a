"""What is rendered and what kustomize makes of it, as a real API server judges it: by dry run."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import cli
from fleet.act.runtime import ManifestOptions
from fleet.kubernetes.client.api import Api, Request
from fleet.kubernetes.client.object_names import SPARK
from fleet.kubernetes.deployment.spark_servers import ensure_tokens
from fleet.kubernetes.manifests.rendering import manifests, validate_objects
from fleet.kubernetes.manifests.spark_objects import spark_servers
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.kube_api import KubeApi, program
from tests.support.needs import repository

pytestmark = pytest.mark.kubernetes

MANIFESTS = repository() / "k8s" / "manifests"
_OPERATOR = ("PrometheusRule", "prometheusrules"), ("PodMonitor", "podmonitors")


@pytest.fixture(scope="module")
def api(kube_api: KubeApi) -> Iterator[Api]:
    """A namespace of its own, with the CRDs of Prometheus Operator."""
    with kube_api.api(kube_api.namespace()) as found:
        for kind, plural in _OPERATOR:
            kube_api.define(_crd(kind, plural))
        yield found


def _crd(kind: str, plural: str) -> dict[str, Any]:
    """Name and group are Prometheus Operator's, the schema takes anything."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}
                    },
                }
            ],
        },
    }


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [program("kubectl"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "folder", ["base", "monitoring", "overlays/small", "overlays/monitored", "overlays/postgres"]
)
def test_kustomize_makes_what_the_server_takes(
    api: Api, kube_api: KubeApi, tmp_path: Path, folder: str
) -> None:
    """Everything, into another namespace than the example's, with unknown fields refused."""
    place = tmp_path / "all"
    place.mkdir()
    above = os.path.relpath(MANIFESTS / folder, place)
    (place / "kustomization.yaml").write_text(
        yaml.safe_dump({"namespace": api.namespace, "resources": [above]})
    )
    made = kubectl("kustomize", str(place))
    asked = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = kubectl("--kubeconfig", str(kube_api.kubeconfig()), *asked, stdin=made)
    count = len(list(yaml.safe_load_all(made)))
    assert len(said.splitlines()) == count
    assert said.count("(server dry run)") == count
    assert api.get("Deployment", "fleet-manager") is None


def test_pods_keep_the_restricted_security_standard(
    api: Api, kube_api: KubeApi, tmp_path: Path
) -> None:
    """As the server's own admission judges it, each pod that anything here would make."""
    strict = kube_api.namespace()
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    path = f"/api/v1/namespaces/{strict}"
    namespace = api._call(Request("GET", path))
    assert namespace is not None
    namespace["metadata"].setdefault("labels", {}).update(enforced)
    api._call(Request("PUT", path, body=namespace))
    made = yaml.safe_load_all(kubectl("kustomize", str(MANIFESTS / "overlays" / "postgres")))
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**each["spec"]["template"]["metadata"], "name": each["metadata"]["name"]},
            "spec": each["spec"]["template"]["spec"],
        }
        for each in made
        if each["kind"] in {"Deployment", "StatefulSet"}
    ]
    assert len(pods) == 5
    for pod in pods:  # the claim of the template stands for a volume here
        mounted = {m["name"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]}
        missing = mounted - {volume["name"] for volume in pod["spec"]["volumes"]}
        pod["spec"]["volumes"] += [{"name": name, "emptyDir": {}} for name in missing]
    asked = ("--kubeconfig", str(kube_api.kubeconfig()), "-n", strict, "create", "--dry-run=server")
    said = kubectl(*asked, "-f", "-", stdin=yaml.safe_dump_all(pods))
    assert said.count("created (server dry run)") == len(pods)
    loose = {**pods[0], "spec": {**pods[0]["spec"], "hostNetwork": True}}
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        kubectl(*asked, "-f", "-", stdin=yaml.safe_dump(loose))


def test_the_server_is_asked_by_the_command(
    api: Api,
    kube_api: KubeApi,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line per object; where it refuses one, exit 1 and its own words."""
    monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig()))
    text = (
        (MANIFESTS / "fleet.yaml")
        .read_text()
        .replace("namespace: fleets", f"namespace: {api.namespace}")
    )
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    asked = [
        "render",
        "manifests",
        "-c",
        str(file),
        "--part",
        "all",
        "--image",
        "a:1",
        "--validate",
    ]
    assert cli.run(asked) == 0
    said = capsys.readouterr().out.splitlines()
    assert "deployment/fleet-manager created (server dry run)" in said
    assert "prometheusrule/fleet created (server dry run)" in said

    file.write_text(text.replace("spark: {memory: 2g}", "tolerations: [{operator: Sometimes}]"))
    assert cli.run(asked) == 1
    assert 'Unsupported value: "Sometimes"' in capsys.readouterr().err


def test_names_of_secrets_are_what_the_server_takes(api: Api) -> None:
    """Dots and the longest name, for workers, Spark servers, exporter and manager."""
    odd = {"env_from": ["kafka.login", "k" * 63], "mounts": {"tls.v1": "/tls", "m" * 63: "/more"}}
    place = {**ON_KUBERNETES, "namespace": api.namespace}
    spec = fleet_spec(
        declaration("plain", runtime=place),
        declaration("odd", runtime={**place, **odd}),
    )
    parts = frozenset({"workers", "network", "exporter", "manager"})
    made = manifests(spec, ManifestOptions(parts=parts, image="a:1", text="", groups=()))
    said = validate_objects(api, made.objects)
    (server,) = set(spark_servers(spec)) - {SPARK}
    assert f"deployment/{server} created (server dry run)" in said
    assert {"kafka.login", "m" * 63} <= set(made.secrets)


def test_a_new_servers_token_is_added_to_the_secret(api: Api) -> None:
    """By whoever made the Secret; what is there stays."""
    ensure_tokens(api, [SPARK])
    before = (api.get("Secret", SPARK) or {})["data"]
    ensure_tokens(api, [SPARK, "fleet-spark-ab"])
    after = (api.get("Secret", SPARK) or {})["data"]
    assert after.items() > before.items()
    assert set(after) == {"token", "token-ab"}
    assert after["token"] != after["token-ab"]
