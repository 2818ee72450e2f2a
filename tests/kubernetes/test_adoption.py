"""Other people's consumers in pods: scaled together, left for in one request, never while alive."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.cli import cli
from fleet.config.load import load
from fleet.errors import Refused
from fleet.manager.cycle import Fleet
from fleet.model import StepKind
from fleet.slots import ChangeState
from tests.support.kafka_tools import rebalances
from tests.support.workshop import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.broker]

CONSUMER = textwrap.dedent(
    """
    import os, signal
    from confluent_kafka import Consumer
    config = {"bootstrap.servers": os.environ["BOOTSTRAP"], "group.id": os.environ["GROUP"],
              "session.timeout.ms": 120000, "partition.assignment.strategy": "range"}
    if os.environ.get("INSTANCE"):
        config["group.instance.id"] = os.environ["INSTANCE"]
    consumer, going = Consumer(config), []
    signal.signal(signal.SIGTERM, lambda *_: going.append(1))
    consumer.subscribe([os.environ["TOPIC"]])
    while not going:
        consumer.poll(0.1)
    consumer.close()
    """
)


def deployment(image: str, bootstrap: str, group: str, *, static: bool) -> dict[str, Any]:
    """Three consumers; static ones are called as their pods."""
    env: list[dict[str, Any]] = [
        {"name": "BOOTSTRAP", "value": bootstrap},
        {"name": "GROUP", "value": group},
        {"name": "TOPIC", "value": f"{group}-topic"},
    ]
    if static:
        name = {"fieldRef": {"fieldPath": "metadata.name"}}
        env.append({"name": "INSTANCE", "valueFrom": name})
    container = {
        "name": "consumer",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", CONSUMER],
        "env": env,
    }
    labels = {"app": "billing"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "billing"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def found(file: Path, bootstrap: str, namespace: str) -> dict[str, str | None]:
    """What `fleet init --kubernetes` says of each group: the Deployment that its members run in."""
    words = [
        "init",
        "--bootstrap",
        bootstrap,
        "--kubernetes",
        namespace,
        "--output-file",
        str(file),
    ]
    done = CliRunner().invoke(cli, words, env={"FLEET_HOME": str(file.parent)})
    assert done.exit_code == 0, done.output
    print(done.output, file.read_text())
    spec = load(file, {})
    return {each.group: getattr(each.runtime, "deployment", None) for each in spec.fleets}


@pytest.mark.parametrize(
    "static",
    [pytest.param(True, id="static"), pytest.param(False, id="dynamic", marks=pytest.mark.long)],
)
def test_three_become_one_and_two(
    request: pytest.FixtureRequest, kube: Any, kube_broker: Any, tmp_path: Path, static: bool
) -> None:
    """Down by 2: both stop together, and the members that remain leave in one request."""
    from tests.support.kube import image

    namespace, unique = request.getfixturevalue("namespace"), request.getfixturevalue("unique")
    request.getfixturevalue("monkeypatch").setenv("KUBECONFIG", str(kube.kubeconfig))
    group, bootstrap = f"billing-{unique}", kube_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{group}-topic", 6, 1)])[f"{group}-topic"].result(120)
    wanted = deployment(image("worker"), bootstrap, group, static=static)
    kube.kubectl("-n", namespace, "apply", "-f", "-", stdin=json.dumps(wanted))
    config = tmp_path / "fleet.yaml"

    def declare(**keys: Any) -> None:
        runtime = {"kind": "kubernetes", "namespace": namespace, "deployment": "billing"}
        fleet = {"group": group, "topics": [f"{group}-topic"], "runtime": runtime, **keys}
        cluster = {"name": "test", "bootstrap_servers": bootstrap}
        told = {"cluster": cluster, "mode": "act", "fleets": [fleet]}
        config.write_text(yaml.safe_dump(told))

    declare()

    def recorded() -> int:
        return rebalances(kube_broker.broker, group)

    with Fleet.open(config, home=tmp_path) as fleet:

        def members() -> int:
            return len(fleet.snapshot([group]).groups[group].members)

        until(lambda: members() == 3, 120, "three members")
        until(lambda: not fleet.plan(group, wanted=1).refusals, 60, "the group to settle")
        assert found(tmp_path / "found.yaml", bootstrap, namespace)[group] == "billing"
        assert any("costs" in note for note in fleet.plan(group).notes)
        with pytest.raises(Refused, match="Fleet does not roll it"):
            fleet.plan(group, roll=True)
        before = recorded()
        change = fleet.apply(group, wanted=1, actor="test", progress=print)
        assert change.state is ChangeState.DONE, change.sentence
        (receipt,) = change.receipts
        assert receipt.kind is StepKind.LEAVE
        assert 1 <= recorded() - before <= 2
        assert receipt.rebalances == recorded() - before, receipt
        assert members() == 1
        if static:
            said = " ".join(receipt.sentences)
            assert "one request removed 2 static members of deleted pods" in said
        assert fleet.plan(group).empty, "no policy is written for it"

    declare(scaling={"policy": "fixed", "workers": 2})
    before = recorded()
    with Fleet.open(config, home=tmp_path) as fleet:
        plan = fleet.plan(group)
        print(*plan.notes, sep="\n")
        assert plan.notes[0] == "fixed at 2: from 1 to 2 pods"
        change = fleet.apply(group, actor="test", progress=print)
        assert change.state is ChangeState.DONE, change.sentence
        assert len(fleet.snapshot([group]).groups[group].members) == 2
        assert 1 <= recorded() - before <= 2
