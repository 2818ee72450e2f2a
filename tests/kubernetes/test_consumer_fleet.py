"""What a ConsumerFleet stands for, and what its status says of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import cli
from fleet.config.spec import FixedScaling, FleetSpec, KubernetesRuntimeSpec
from fleet.errors import ConfigError
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.operator.resource import DeclaredFleet, cluster_text, spec_of
from fleet.kubernetes.operator.status import FleetView, PassOutcome, status_of
from fleet.model import StepKind
from fleet.slots import (
    ChangeState,
    Phase,
    Slot,
    SlotTargets,
    WorkerProcess,
)
from tests.support.declared_fleets import resource
from tests.support.plans import change_of, plan_of, step_of
from tests.support.slot_records import report_of

CLUSTER = """
cluster: {name: main, bootstrap_servers: "kafka:9092"}
defaults:
  runtime: {kind: kubernetes, context: laptop, image: "jobs:1"}
  worker: {python_path: [/var/run/secrets]}
"""
ENTRY = {"group": "orders", "topics": ["orders"], "worker": {"entrypoint": "jobs.orders:process"}}


def declared(status: dict[str, Any] | None = None, **spec: Any) -> DeclaredFleet:
    """A resource in its third version."""
    found = resource("orders", "shop", **{"fleet": ENTRY, **spec})
    found["metadata"] |= {"generation": 3, "uid": "u"}
    return DeclaredFleet({**found, "status": status or {}})


def spec_in(cluster: str = CLUSTER, **spec: Any) -> FleetSpec:
    """What the resource and its cluster's file mean together."""
    return spec_of(declared(**spec), cluster, namespace="shop")


def test_the_resource_is_one_entry_below_its_clusters_file() -> None:
    """In its own namespace, by the pod's account, without code of the operator's."""
    spec = spec_in()
    (fleet,) = spec.fleets
    runtime, worker = fleet.runtime, fleet.worker
    assert isinstance(runtime, KubernetesRuntimeSpec)
    assert worker is not None
    assert (runtime.namespace, runtime.context, runtime.image) == ("shop", None, "jobs:1")
    assert worker.python_path == ()
    assert spec.mode_of(fleet) == "act"


def test_a_mode_that_is_written_counts() -> None:
    """In the cluster's file, or in the fleet."""
    for spec, mode in (
        (spec_in(f"mode: plan\n{CLUSTER}"), "plan"),
        (spec_in(fleet={**ENTRY, "mode": "observe"}), "observe"),
    ):
        assert spec.mode_of(spec.fleets[0]) == mode


def test_replicas_are_the_number_of_slots_where_another_decides() -> None:
    """Whatever the policy in the entry says."""
    entry = {**ENTRY, "scaling": {"policy": "lag"}}
    (fleet,) = spec_in(fleet=entry, scaling={"policy": "external"}, replicas=5).fleets
    assert fleet.scaling == FixedScaling(policy="fixed", workers=5)


@pytest.mark.parametrize(
    ("spec", "cluster", "why"),
    [
        ({"fleet": {**ENTRY, "topics": "orders"}}, CLUSTER, r"^spec\.fleet\.topics: .*not a list"),
        ({"fleet": {**ENTRY, "owner": "${HOME}"}}, CLUSTER, r"^spec\.fleet\.owner: .*HOME"),
        ({"fleet": {"group": "orders", "topics": ["a"]}}, CLUSTER, "worker is missing"),
        ({}, "cluster: {name: main}", "has no bootstrap_servers"),
        ({}, f"{CLUSTER}\nfleets: []", "fleets: is a duplicate of the key"),
        ({}, "cluster: {nam: main}", "^cluster main:1: cluster.nam: unknown key; nearest: name"),
        ({"fleet": None}, CLUSTER, "group: is missing"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(spec: dict[str, Any], cluster: str, why: str) -> None:
    """And no variable of the operator's is looked up."""
    with pytest.raises(ConfigError, match=why):
        spec_in(cluster, **spec)


@pytest.mark.parametrize("key", ["authorization_env", "authorization_file", "ca_file"])
def test_an_address_of_the_resource_gets_no_login_of_the_operator(key: str) -> None:
    """Neither by the resource nor by the defaults of its cluster's file."""
    scaling = {"policy": "external", "url": "http://sizer:1/"}
    plain, own = ({**ENTRY, "scaling": each} for each in (scaling, {**scaling, key: "KAFKA"}))
    assert spec_in(fleet=plain).fleets[0].scaling.policy == "external"
    theirs = f"{CLUSTER}  scaling: {{policy: external, url: 'https://house/', {key}: KAFKA}}\n"
    for fleet, cluster in ((own, CLUSTER), (plain, theirs)):
        with pytest.raises(ConfigError, match=rf"spec\.fleet\.scaling\.{key}: the operator would"):
            spec_in(cluster, fleet=fleet)


def test_an_unknown_cluster_is_told_with_the_known_ones(tmp_path: Path) -> None:
    folder = tmp_path / "clusters"
    folder.mkdir()
    for file in (folder / "main.yaml", tmp_path / "secret.yaml"):
        file.write_text(CLUSTER)
    assert cluster_text(folder, "main") == CLUSTER
    for name in ("other", "../secret", ""):
        with pytest.raises(ConfigError, match="known: main"):
            cluster_text(folder, name)


CHANGE = change_of(plan_of(step_of(StepKind.OPEN, [0, 1])), ChangeState.DONE, step=1)
VIEW = FleetView(
    targets=SlotTargets(
        group="orders", version=1, open=frozenset({0, 1, 2, 3}), quarantined=frozenset({3})
    ),
    slots=(
        Slot(group="orders", number=0, owner="pod-a", phase=Phase.ACTIVE),
        Slot(group="orders", number=1, owner="pod-b", phase=Phase.JOINING),
        Slot(group="orders", number=2, owner="pod-c", phase=Phase.ACTIVE, owner_ended=True),
    ),
    reports=tuple(report_of(name, "orders") for name in ("pod-d", "pod-gone")),
    workers=(
        WorkerProcess(
            name="pod-d", group="orders", revision="r", wanted=True, running=True, restarts=0
        ),
    ),
    change=CHANGE,
    lag=12_345,
)
QUIET = PassOutcome(reason="UpToDate", message="no change needed")


def conditions(view: FleetView | None, outcome: PassOutcome = QUIET) -> dict[str, str]:
    made = status_of(declared(), view, outcome, now=0.0)
    return {each["type"]: each["status"] for each in made["conditions"]}


def test_the_status_counts_slots_that_work() -> None:
    """No dead owner, quarantined slot or pod that is gone counts; the lag has two digits."""
    made = status_of(declared(), VIEW, QUIET, now=0.0)
    assert made["slots"] == {"open": 3, "owned": 2, "ready": 1}
    assert (made["replicas"], made["standbys"], made["lag"]) == (2, 1, 12_000)
    assert made["change"]["step"] == "1/1"
    assert made["observedGeneration"] == 3


def test_conditions_are_those_of_kstatus() -> None:
    """Ready by the slots; a running change reconciles; what needs a person is stalled."""
    whole = replace(
        VIEW, slots=tuple(replace(s, phase=Phase.ACTIVE, owner_ended=False) for s in VIEW.slots)
    )
    running = replace(whole, change=replace(CHANGE, state=ChangeState.RUNNING))
    stalled = PassOutcome(reason="RolledBack", message="the canary failed", stalled=True)
    away = PassOutcome(reason="Unreachable", message="no answer", reconciling=True, unknown=True)
    expected = [
        (VIEW, QUIET, ("False", "False", "False")),
        (whole, QUIET, ("True", "False", "False")),
        (running, QUIET, ("True", "True", "False")),
        (whole, stalled, ("False", "False", "True")),
        (None, away, ("Unknown", "True", "False")),
    ]
    for view, outcome, wanted in expected:
        found = conditions(view, outcome)
        assert (found["Ready"], found["Reconciling"], found["Stalled"]) == wanted, outcome


def test_a_condition_keeps_its_time_while_it_stays() -> None:
    """Whoever waits sees since when."""
    first = status_of(declared(), VIEW, QUIET, now=0.0)
    again = status_of(declared(first), VIEW, QUIET, now=60.0)
    assert again["conditions"] == first["conditions"]
    stalled = PassOutcome(reason="Paused", message="paused", stalled=True)
    then = status_of(declared(first), VIEW, stalled, now=60.0)
    times = {c["type"]: c["lastTransitionTime"] for c in then["conditions"]}
    assert times == {
        "Ready": "1970-01-01T00:00:00Z",
        "Reconciling": "1970-01-01T00:00:00Z",
        "Stalled": "1970-01-01T00:01:00Z",
    }


def test_what_the_operator_makes_is_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From two files, without a cluster; what is wrong is told as the operator tells it."""
    (tmp_path / "main.yaml").write_text(CLUSTER)
    file = tmp_path / "orders.yml"
    asked = ["render", "consumer-fleet", str(file), "--clusters", str(tmp_path)]
    jobs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "jobs"}}
    file.write_text(yaml.safe_dump_all([jobs, resource("orders", "shop", fleet=ENTRY), None]))
    assert cli.run(asked) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {each["metadata"]["namespace"] for each in made} == {"shop"}
    names = [each["metadata"]["name"] for each in made if each["kind"] == "Deployment"]
    assert names == ["fleet-spark", ObjectNames("main", "orders").deployment]
    named = "kind: ConsumerFleet\nmetadata: {name: a}\nspec: "
    for text, why in (
        (yaml.safe_dump(resource("orders", "shop", fleet={"group": "orders"})), "spec.fleet"),
        ("kind: Pod", "no ConsumerFleet"),
        ("[]", "no ConsumerFleet"),
        ("", "no ConsumerFleet"),
        ("a: [", "is no YAML"),
        ("kind: ConsumerFleet", "no ConsumerFleet with a metadata.name"),
        (f"{named}[]", "spec is not a mapping: '[]'"),
        (f"{named}{{fleet: 3}}", "spec.fleet is not a mapping"),
        (f"{named}{{scaling: x}}", "is not a mapping: 'x'"),
    ):
        file.write_text(text)
        assert cli.run(asked) == 2, text
        assert why in capsys.readouterr().err
