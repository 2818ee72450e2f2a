"""What the first release wrote is read by this one, and unknown keys disturb nobody.

`first/` holds objects as the release of that name stored them: they are never edited. A test
that fails here means that a newer manager would not drive workers one release older: give the
new key a default where it is read (docs/kubernetes.md, "Two releases at once").
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from fleet.act.local.local_runtime import LocalRuntime
from fleet.act.revisions import Revisions
from fleet.act.standby_pool import StandbyPool
from fleet.cli import run
from fleet.clock import SystemClock
from fleet.config.settings import WorkerSettings, read_settings, revision_of, settings_from
from fleet.config.spec import ClusterSpec
from fleet.decide.plans import make_plan
from fleet.errors import Refused, SchemaTooNew
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.kubernetes.leases import lease_objects as objects
from fleet.manager.planning import PlanningFleet
from fleet.model import StepKind, TopicPartition, Verdict
from fleet.model.broker_limits import UNKNOWN
from fleet.slots import ChangeState, Gate, Handover, Phase
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec
from tests.support.pod_yard import Yard

FIRST = Path(__file__).with_name("first")
PACKED = {"fleet/gate", "fleet/slot", "fleet/change", "fleet/trials"}
"""Annotations that hold JSON."""


def stored(name: str) -> dict[str, Any]:
    """An object of the first release."""
    return dict(json.loads((FIRST / f"{name}.json").read_text()))


def widened(found: dict[str, Any]) -> dict[str, Any]:
    """The same from a release that knows a key more, in every value that is JSON."""
    made = json.loads(json.dumps(found))
    notes = made["metadata"].get("annotations", {})
    for key in PACKED & notes.keys():
        told = json.loads(notes[key])
        if key != "fleet/trials":  # which is a map by revision
            told = wide(told)
        notes[key] = json.dumps(told)
    for key, text in made.get("data", {}).items():
        if text.startswith("{"):
            made["data"][key] = json.dumps(wide(json.loads(text)))
    notes["fleet/something-new"] = "1"
    return dict(made)


def wide(value: Any) -> Any:
    """With a key more in it, and in the plan and the records below it."""
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {"colour": "green", **value}
    for key in ("plan", "price"):
        if key in made:
            made[key] = wide(made[key])
    for key in ("steps", "receipts"):
        if key in made:
            made[key] = [wide(each) for each in made[key]]
    return made


def test_gate() -> None:
    """Open slots, pins, templates and claims."""
    for found in (stored("gate"), widened(stored("gate"))):
        held = objects.gate_from(found, "orders")
        record, gate = held.record, held.record.gate
        assert (gate.version, gate.open, gate.leaving) == (4, {0, 1}, {1})
        assert gate.handover == {0: Handover(token=2, revision="bbbbbbbbbb")}
        assert (gate.rejoin, gate.quarantined, gate.open_at) == ({0: 1}, {5}, 100.0)
        assert held.templates.known == {"abc": "aaaaaaaaaa", "def": "bbbbbbbbbb"}
        assert record.trials["bbbbbbbbbb~def"].slot == 1
        assert record.going == frozenset()


def test_what_a_newer_release_wrote_into_the_gate_stays() -> None:
    """An older worker that writes the gate takes nothing of it away."""
    found = widened(stored("gate"))
    held = objects.gate_from(found, "orders")
    again = objects.with_gate(found, held)
    assert json.loads(again["metadata"]["annotations"]["fleet/gate"])["colour"] == "green"
    assert again["metadata"]["annotations"]["fleet/something-new"] == "1"
    assert objects.gate_from(again, "orders") == held


def test_slot() -> None:
    """Its holder, token and what the holder does."""
    for found in (stored("slot"), widened(stored("slot"))):
        slot = objects.slot_from(found, "orders", 0)
        assert (slot.holder, slot.token, slot.counter) == ("main-orders-e7b3c880-abc-x7k2p", 2, 9)
        assert (slot.phase, slot.clean, slot.member_id) == (Phase.ACTIVE, False, "rdkafka-1")
        assert (slot.revision, slot.batches, slot.error) == ("aaaaaaaaaa~abc", 12, "ValueError: no")


def test_change() -> None:
    """An unfinished change of an older manager is resumed by this one."""
    for found in (stored("change"), widened(stored("change"))):
        change = objects.change_from(found)
        assert change is not None
        assert (change.state, change.token, change.step) == (ChangeState.RUNNING, 3, 1)
        assert change.plan.steps[0].kind is StepKind.ROLL
        assert change.receipts[0].verdict is Verdict.EQUAL
        assert change.detail == {"position": 42}


def test_reports_and_marks() -> None:
    """What workers of that release say of themselves."""
    for crew in (stored("crew"), widened(stored("crew"))):
        ((_, report),) = objects.reports_from(crew).values()
        assert (report.phase, report.slot, report.batches) == ("active", 0, 12)
        assert (report.since, report.last_commit_at) == (90.0, 140.0)
    for marks in (stored("marks"), widened(stored("marks"))):
        (mark,) = objects.marks_from(marks, "orders")
        assert (mark.tp, mark.offset, mark.attempts) == (TopicPartition("orders", 1), 77, 3)


# --- settings -------------------------------------------------------------------------------


@pytest.fixture
def first() -> str:
    """A revision's settings."""
    return (FIRST / "settings.json").read_text()


def test_settings(first: str) -> None:
    """Read whole; written again they are the same, but for what was added since."""
    read = settings_from(first)
    assert (read.group.group, read.code_digest, read.published_at) == ("orders", "d1", 90.0)
    assert read_settings(first)[1] == ()
    assert settings_from(read.model_dump_json()) == read


def test_settings_of_a_newer_release(first: str) -> None:
    """What this one does not know is left out, and can be named; a union's tag is no key."""
    value = json.loads(first)
    value["colour"] = 1
    value["cluster"]["security"]["tls"]["colour"] = {"a": 1}
    value["group"]["worker"]["colour"] = [1]
    value["group"]["worker"]["batch"]["colour"] = None
    value["group"]["runtime"]["spark"]["colour"] = "x"
    value["group"]["scaling"]["colour"] = "x"
    text = json.dumps(value)
    assert settings_from(text) == settings_from(first)
    assert set(read_settings(text)[1]) == {
        "colour",
        "cluster.security.tls.colour",
        "group.worker.colour",
        "group.worker.batch.colour",
        "group.runtime.spark.colour",
        "group.scaling.colour",
    }


def test_settings_of_an_older_release(first: str) -> None:
    """What it did not have yet is its default."""
    value = json.loads(first)
    del value["group"]["worker"]["metadata_refresh"]
    del value["group"]["storm"]
    assert settings_from(json.dumps(value)) == settings_from(first)


def test_settings_that_mean_something_else_are_refused(first: str) -> None:
    """An unknown value is no unknown key, and a newer schema is nobody's guess."""
    value = json.loads(first)
    value["group"]["worker"]["assignor"] = "sticky"
    value["group"]["worker"]["colour"] = 1
    with pytest.raises(ValidationError, match="assignor"):
        settings_from(json.dumps(value))
    with pytest.raises(SchemaTooNew, match="schema 2"):
        settings_from(json.dumps({**json.loads(first), "schema_version": 2, "more": 1}))
    with pytest.raises(ValidationError):
        settings_from("no JSON at all")


# --- the name of a revision -----------------------------------------------------------------


@pytest.fixture
def revisions(tmp_path: Path) -> Iterator[Revisions]:
    """Of a local home, whose settings can be written as another release would."""
    runtime = LocalRuntime(tmp_path, cluster="main", clock=SystemClock())
    spec = settings_of(tmp_path)
    yield Revisions(
        cluster=spec.cluster, bootstrap="kafka:9092", runtime=runtime, clock=SystemClock()
    )
    runtime.close()


def settings_of(home: Path, **worker: Any) -> WorkerSettings:
    """One fleet with code of its own."""
    (home / "jobs.py").write_text("def process(df, context): ...\n")
    value = json.loads((FIRST / "settings.json").read_text())
    value["group"]["runtime"] = {"kind": "local"}
    value["group"]["worker"] |= {"python_path": [str(home)], "entrypoint": "jobs:process", **worker}
    return settings_from(json.dumps(value))


def test_the_same_wish_keeps_the_name_of_another_release(
    revisions: Revisions, tmp_path: Path
) -> None:
    """Settings without today's newest keys hash otherwise; they are not rolled for that."""
    group = settings_of(tmp_path).group
    assert group.worker is not None
    named = revisions.wanted(group)
    revisions.publish(group, named)
    text = revisions.runtime.published("orders", named)
    assert text is not None
    older = json.loads(text)
    digest = older["code_digest"]
    assert named == revision_of(group, digest)
    del older["group"]["worker"]["metadata_refresh"]
    older["group"]["worker"]["colour"] = "green"
    older["revision"] = "0123456789"

    other = group.model_copy(update={"worker": group.worker.model_copy(update={"env": {"A": "c"}})})
    assert revisions.wanted(other) != named, "nothing is known of it"
    older["group"]["worker"]["env"] = {"A": "c"}
    revisions.runtime.publish("orders", "0123456789", json.dumps(older))
    store = revisions.runtime.store
    assert revisions.wanted(other) == revision_of(other, digest), "no worker holds a slot of it"
    assert store.write_gate(Gate(group="orders", open=frozenset({0})))
    taken = store.take(
        store.slots("orders")[0], worker="w", revision="0123456789", spark_session=None
    )
    assert taken is not None
    assert revisions.wanted(other) == "0123456789"
    assert revisions.wanted(group) == named

    revisions.publish(
        other.model_copy(update={"replicas": group.replicas.model_copy(update={"max": 9})}),
        "0123456789",
    )
    kept = json.loads(revisions.runtime.published("orders", "0123456789") or "")
    assert kept["group"]["replicas"]["max"] == 9, "no part of a revision, and kept current"
    assert kept["group"]["worker"]["colour"] == "green", "another release's, and left alone"
    (tmp_path / "jobs.py").write_text("def process(df, context): return 1\n")
    assert revisions.wanted(other) != "0123456789", "other code is another revision"


def test_how_the_cluster_is_reached_is_kept_current(revisions: Revisions, tmp_path: Path) -> None:
    """Address and login together: neither is part of a revision, and neither works alone."""
    group = settings_of(tmp_path).group
    named = revisions.wanted(group)
    revisions.publish(group, named)
    first = json.loads(revisions.runtime.published("orders", named) or "")
    first["cluster"]["colour"] = first["cluster"]["security"]["colour"] = "green"
    revisions.runtime.publish("orders", named, json.dumps(first))
    revisions.publish(group, named)
    kept = json.loads(revisions.runtime.published("orders", named) or "")
    assert kept == first, "as it was reached before, so another release's keys stay"

    login = {"mechanism": "PLAIN", "username": "fleet", "password_env": "KAFKA_PASSWORD"}
    security = {"protocol": "SASL_SSL", "sasl": login, "tls": {"ca_file": "/etc/ca.pem"}}
    cluster = ClusterSpec.model_validate(
        {"name": "main", "bootstrap_servers": "kafka:9093", "security": security}
    )
    moved = replace(revisions, cluster=cluster, bootstrap="kafka:9093")
    assert moved.wanted(group) == named
    moved.publish(group, named)
    text = revisions.runtime.published("orders", named)
    assert text is not None
    now = settings_from(text)
    assert (now.bootstrap_servers, now.cluster) == ("kafka:9093", cluster)
    kept = json.loads(text)["cluster"]
    assert kept["colour"] == "green"
    assert "colour" not in kept["security"], "another release's word on a login that is no more"


UNREADABLE = {
    "a newer schema": lambda told: {**told, "schema_version": 2},
    "a value of a newer release": lambda told: {
        **told, "group": {**told["group"], "scaling": {"policy": "by moonlight"}},
    },
}  # fmt: skip


@pytest.mark.parametrize("become", UNREADABLE.values(), ids=UNREADABLE)
def test_workers_of_settings_that_cannot_be_read_can_be_rolled_back(
    revisions: Revisions, tmp_path: Path, become: Any
) -> None:
    """A manager that was gone back to plans the way back; it starts no worker of theirs."""
    runtime, spec = revisions.runtime, settings_of(tmp_path).group
    store, newer = runtime.store, "0123456789"
    made = json.loads(settings_of(tmp_path).model_dump_json())
    runtime.publish("orders", newer, json.dumps(become({**made, "revision": newer})))
    assert store.write_gate(Gate(group="orders", open=frozenset({0})))
    (free,) = store.slots("orders")
    assert store.take(free, worker="w", revision=newer, spark_session=None)

    seen: Any = SimpleNamespace(at=0.0, groups={}, topics={"orders": 4})
    fleet: Any = SimpleNamespace(
        spec=SimpleNamespace(mode_of=lambda _: "act", cluster=revisions.cluster),
        group=lambda _: spec,
        runtime=runtime,
        store=store,
        storm=lambda _: None,
        change_alive=lambda _: False,
        _revisions=lambda: revisions,
        _broker_limits=UNKNOWN,
    )
    plan = make_plan(PlanningFleet.world(fleet, "orders", seen), wanted=1, now=0.0)
    assert [(step.kind, step.revision) for step in plan.steps] == [
        (StepKind.ROLL, revisions.wanted(spec))
    ]
    assert any("that this release can read" in note for note in plan.notes)
    pool = StandbyPool(runtime, store, "orders")
    assert [pool.is_static(newer, otherwise=told) for told in (True, False)] == [True, False]
    with pytest.raises(Refused, match=r"(scaling|schema 2).*use the fleet that published them"):
        runtime.start("orders", newer, 1)


def test_a_revision_of_the_same_name_that_cannot_be_read_is_published_anew(
    revisions: Revisions, tmp_path: Path
) -> None:
    """What names no revision (how it scales) may be a newer release's; its workers are the same."""
    spec = settings_of(tmp_path).group
    named = revisions.wanted(spec)
    revisions.publish(spec, named)
    text = revisions.runtime.published("orders", named)
    assert text is not None
    newer = json.loads(text)
    newer["group"]["scaling"] = {"policy": "by moonlight"}
    revisions.runtime.publish("orders", named, json.dumps(newer))
    assert revisions.wanted(spec) == named
    revisions.publish(spec, named)
    assert settings_from(revisions.runtime.published("orders", named) or "").group == spec


def test_pods_settings_keep_what_a_newer_release_wrote() -> None:
    """An older manager that keeps them current takes nothing of them away: pods read them anew."""
    yard, revision = Yard(), "0123456789"
    spec = fleet_spec(declaration(runtime={**ON_KUBERNETES, "context": "my-laptop"}))
    runtime = KubernetesRuntime(spec, api=yard.api, store=yard.store, clock=yard.clock)
    made = WorkerSettings(
        cluster=spec.cluster, bootstrap_servers="kafka:9092", group=spec.fleets[0],
        revision=revision,
    )  # fmt: skip
    newer = json.loads(made.model_dump_json())
    newer["group"]["worker"]["colour"] = "green"
    try:
        runtime.publish("orders", revision, json.dumps(newer))
    finally:
        runtime.close()
        yard.mirror.close()
    stored = yard.server.get("ConfigMap", ObjectNames("main", "orders").settings(revision))
    read = json.loads(stored["data"]["settings.json"])
    assert read["group"]["worker"]["colour"] == "green"
    newer["group"]["runtime"]["context"] = None
    assert read == newer, "a pod has its own way to the API server, and all else is as it was"


def test_a_worker_says_which_value_it_does_not_know(
    tmp_path: Path, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod of an older image that was given a newer release's settings ends with it."""
    value = json.loads(first)
    value["group"]["scaling"] = {"policy": "by moonlight"}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(value))
    assert run(["worker", "--settings", str(file), "--name", "w"]) == 2
    assert "group.scaling: Input tag 'by moonlight'" in capsys.readouterr().err
