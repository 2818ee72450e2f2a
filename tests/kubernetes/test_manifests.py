"""fleet.yaml as objects of a cluster: complete, with no secret in it, and of one revision."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import cli
from fleet.config.load import load
from fleet.config.settings import revision_of
from fleet.system.code import code_digest
from fleet.system.runtimes import PARTS
from tests.support.needs import repository

MANIFESTS = repository() / "k8s" / "manifests"
FILE = """
cluster:
  name: main
  bootstrap_servers: kafka:9092
  security:
    protocol: SASL_PLAINTEXT
    sasl: {mechanism: PLAIN, username: "${KAFKA_USER}", password_env: KAFKA_PASSWORD}
defaults:
  runtime: {kind: kubernetes, namespace: fleets, image: "fleet:1", env_from: [kafka]}
fleets:
  - group: orders
    topics: [orders]
    worker:
      protocol: classic
      entrypoint: "jobs.orders:process"
      env: {TARGET: "${TARGET_PASSWORD}"}
    replicas: {min: 2, max: 4}
  - group: payments
    topics: [payments]
    worker: {protocol: consumer, entrypoint: "jobs.payments:process", spark: "local[1]"}
  - group: theirs
    topics: [orders]
    runtime: {deployment: theirs}
"""
SECRETS = {"KAFKA_USER": "scott", "KAFKA_PASSWORD": "tiger-1", "TARGET_PASSWORD": "tiger-2"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet.yaml here, and the environment with its secrets."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return path


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[Any], str]:
    """The printed objects, and what was said beside them."""
    assert cli.run(["render", "manifests", *arguments]) == 0
    said = capsys.readouterr()
    return list(yaml.safe_load_all(said.out)), said.err


def kinds(objects: list[Any]) -> set[str]:
    return {each["kind"] for each in objects}


def test_workers_alone_are_what_starts_a_fleet(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything a worker needs, in an order that can be applied, and nothing that needs CRDs."""
    objects, _ = rendered(capsys)
    assert objects[0]["kind"] == "Namespace"
    assert kinds(objects) == {
        *("Namespace", "Service", "Deployment", "ServiceAccount", "Role", "RoleBinding"),
        *("Lease", "ConfigMap", "PodDisruptionBudget"),
    }
    deployments = [o["metadata"] for o in objects if o["kind"] == "Deployment"]
    groups = [m.get("annotations", {}).get("fleet/group") for m in deployments]
    assert groups == [None, "orders", "payments"]
    leases = [o for o in objects if o["kind"] == "Lease"]
    assert len(leases) == (2 + 4 + 2 * 5) + (2 + 12 + 2 * 13)


def test_the_revision_is_the_managers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A manager that comes later finds nothing to roll."""
    objects, _ = rendered(capsys, "orders")
    group = load(file, SECRETS).fleets[0]
    revision = revision_of(group, code_digest(group))
    template = next(
        o["spec"]["template"]
        for o in objects
        if o["kind"] == "Deployment" and "annotations" in o["metadata"]
    )
    assert template["metadata"]["annotations"]["fleet/revision"] == revision
    volume = next(v for v in template["spec"]["volumes"] if v["name"] == "settings")
    settings = next(
        o
        for o in objects
        if o["kind"] == "ConfigMap" and o["metadata"]["name"] == volume["configMap"]["name"]
    )
    assert json.loads(settings["data"]["settings.json"])["revision"] == revision


def test_an_image_is_named_and_may_be_a_digest(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No tag is guessed: `latest` is another image tomorrow."""
    digest = f"registry.example/orders@sha256:{'ab' * 32}"
    words = ["render", "manifests", "--part", "workers", "--part", "exporter"]
    file.write_text(file.read_text().replace("fleet:1", digest))
    assert cli.run(words) == 0
    images = re.findall(r'image: "?([^",\s]+)', capsys.readouterr().out)
    assert set(images) == {digest}
    file.write_text(file.read_text().replace(f'image: "{digest}", ', ""))
    assert cli.run(["render", "manifests", "--part", "exporter"]) == 2
    assert "REPOSITORY@sha256:DIGEST" in capsys.readouterr().err


def test_no_secret_is_rendered(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their names are, and those that have to be there are told."""
    assert cli.run(["render", "manifests", "--part", "all", "--image", "boss:2"]) == 0
    said = capsys.readouterr()
    assert "tiger" not in said.out + said.err
    assert "scott" not in said.out + said.err
    assert "Secret" not in kinds(list(yaml.safe_load_all(said.out)))
    assert "kafka, fleet-spark (key token-" in said.err


def test_json_is_one_list(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same objects as in YAML, as kubectl reads them."""
    assert cli.run(["render", "manifests", "-o", "json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    objects, _ = rendered(capsys)
    assert (whole["kind"], whole["items"]) == ("List", objects)


def test_a_folder_can_be_applied(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file per fleet and part, all of them listed."""
    words = ["render", "manifests", "--part", "all", "--image", "boss:2"]
    assert cli.run([*words, "--output-dir", "deploy"]) == 0
    folder = file.parent / "deploy"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert {p.name for p in folder.iterdir()} == {*listed, "kustomization.yaml"}
    written = [o for name in listed for o in yaml.safe_load_all((folder / name).read_text())]
    capsys.readouterr()
    objects, _ = rendered(capsys, "--part", "all", "--image", "boss:2")
    assert len(written) == len(objects)


@pytest.mark.parametrize("part", PARTS)
def test_parts_are_named_once_and_lie_in_one_namespace(
    file: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """No two objects have one kind and name."""
    objects, _ = rendered(capsys, "--part", part, "--image", "boss:2")
    assert objects
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    places = {o["metadata"].get("namespace") for o in objects if o["kind"] != "Namespace"}
    assert places == {"fleets"}


def test_the_managers_image_is_its_own(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers have no Dagster, so that the manager may have another image."""
    objects, _ = rendered(capsys, "--part", "manager", "--part", "exporter", "--image", "boss:2")
    images = {
        container["image"]
        for each in objects
        if each["kind"] == "Deployment"
        for part in ("containers", "initContainers")
        for container in each["spec"]["template"]["spec"].get(part, [])
    }
    assert images == {"boss:2"}


@pytest.mark.parametrize("part", ["manager", "all"])
def test_a_manager_without_an_image_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """Not the workers' by itself: its pods would end at once, for want of Dagster."""
    assert cli.run(["render", "manifests", "--part", part]) == 2
    said = capsys.readouterr()
    assert "--part manager needs --image NAME" in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(("kafka:9092", "embedded"), "pods cannot reach", id="embedded broker"),
        pytest.param(('image: "fleet:1", ', ""), "runtime.image is missing", id="no image"),
        pytest.param(
            (
                'kind: kubernetes, namespace: fleets, image: "fleet:1", env_from: [kafka]',
                "kind: local",
            ),
            "run on this machine",
            id="local",
        ),
    ],
)
def test_what_cannot_be_rendered_is_said(
    file: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], told: str
) -> None:
    """Exit 2, and what to write."""
    text = FILE.replace("    runtime: {deployment: theirs}\n", "") if "local" in change[1] else FILE
    file.write_text(text.replace(*change))
    assert cli.run(["render", "manifests"]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("group", "told"), [("none", "orders, payments, theirs"), ("theirs", "consumers are external")]
)
def test_a_group_that_has_no_workers_of_ours_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], group: str, told: str
) -> None:
    assert cli.run(["render", "manifests", group]) == 2
    assert told in capsys.readouterr().err


def objects_of(folder: Path) -> Iterator[Any]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((folder / name).read_text())


@pytest.mark.parametrize(
    ("folder", "parts"),
    [("base", ("workers", "network", "exporter", "manager")), ("monitoring", ("monitoring",))],
)
def test_the_kustomize_base_is_what_is_rendered(
    capsys: pytest.CaptureFixture[str], folder: str, parts: tuple[str, ...]
) -> None:
    """Render it again where this fails: the command stands in k8s/manifests/fleet.yaml."""
    chosen = [word for part in parts for word in ("--part", part)]
    words = ["-c", str(MANIFESTS / "fleet.yaml"), "--image", "fleet:0.1.0"]
    objects, _ = rendered(capsys, *words, *chosen)
    key = lambda o: (o["kind"], o["metadata"]["name"])  # noqa: E731
    assert sorted(objects_of(MANIFESTS / folder), key=key) == sorted(objects, key=key)


@pytest.mark.prometheus
def test_prometheus_takes_what_is_in_the_rule_object(tmp_path: Path) -> None:
    """The operator hands `spec` to Prometheus as it is."""
    objects = objects_of(MANIFESTS / "monitoring")
    file = tmp_path / "rules.yml"
    rule = next(each for each in objects if each["kind"] == "PrometheusRule")
    file.write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
