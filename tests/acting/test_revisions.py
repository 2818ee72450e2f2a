"""What is published of a revision, and what of it is written anew."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from fleet.act import revisions
from fleet.act.local.local_runtime import LocalRuntime
from fleet.act.revisions import Revisions, find_obstacles
from fleet.act.standby_pool import StandbyPool
from fleet.cli import run
from fleet.clock import ManualClock, SystemClock
from fleet.config.settings import WorkerSettings, read_settings, revision_of, settings_from
from fleet.config.spec import ClusterSpec, GroupSpec
from fleet.decide.plans import make_plan
from fleet.decide.state_snapshot import NO_CONCERNS, Vetoes
from fleet.errors import CodeElsewhere, Refused, SchemaTooNew
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.deployment.kubernetes_runtime import KubernetesRuntime
from fleet.manager.cycle import Fleet
from fleet.model import UNKNOWN, Plan, StepKind
from fleet.slots import SlotTargets
from fleet.system.code import code_digest
from tests.support.declared import ON_KUBERNETES, declaration, fleet_spec, group_spec, settings_of
from tests.support.plans import plan_of, step_of
from tests.support.pod_yard import Yard


class Place:
    """Where settings are published."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.digest = "digest"
        self.held: list[Any] = []
        self.running: list[Any] = []
        self.store = SimpleNamespace(slots=lambda _: self.held)

    def workers(self, _: str) -> list[Any]:
        return self.running

    def published(self, _: str, revision: str) -> str | None:
        return self.kept.get(revision)

    def keep_code(self, *_: object) -> str:
        return self.digest

    def publish(self, _: str, revision: str, text: str) -> None:
        self.kept[revision] = text


def test_lease_and_folders_reach_who_starts_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is a part of the revision, so that not even `fleet roll` would bring them."""
    monkeypatch.setattr(revisions, "code_digest", lambda _: "digest")
    place: Any = Place()
    made = Revisions(
        cluster=ClusterSpec(), bootstrap="kafka:9092", runtime=place, clock=ManualClock()
    )
    names = set()
    for lease, folders in ((10.0, ["/jobs"]), (30.0, ["/jobs", "/libraries"])):
        spec = group_spec(
            "orders",
            worker={"python_path": folders},
            runtime={"kind": "local", "lease": lease},
            rollout={"max_parallel": len(folders)},
        )
        names.add(made.wanted(spec))
        (revision,) = names
        made.publish(spec, revision)
        kept = settings_from(place.kept[revision]).group
        assert kept.worker is not None
        assert (kept.runtime.lease, list(kept.worker.python_path)) == (lease, folders)
        assert kept.rollout.max_parallel == len(folders)


def carried(folder: Any, **changed: Any) -> GroupSpec:
    """One fleet on Kubernetes whose code is copied from a folder."""
    worker = {"protocol": "classic", "entrypoint": "job:process", "python_path": [str(folder)]}
    runtime = {"kind": "kubernetes", "image": "worker:1"}
    made = {"group": "orders", "topics": ["orders"], "worker": worker, "runtime": runtime}
    return GroupSpec.model_validate({**made, **changed})


def test_where_the_code_is_not_here_what_is_published_is_wanted(tmp_path: Any) -> None:
    """Of workers, the newest with the same settings; else it is refused, and nothing is rolled."""
    place, clock = Place(), ManualClock()
    made = Revisions(
        cluster=ClusterSpec(bootstrap_servers="kafka:9092"),
        bootstrap="kafka:9092",
        runtime=cast("Any", place),
        clock=clock,
    )
    published = []
    for text in ("x = 1\n", "x = 2\n"):
        (tmp_path / "job.py").write_text(text)
        spec = carried(tmp_path)
        place.digest = code_digest(spec)
        published.append(made.wanted(spec))
        made.publish(spec, published[-1])
        clock.sleep(10.0)
    here = carried(tmp_path / "away")
    with pytest.raises(
        CodeElsewhere, match="lan and apply new code on the machine with that folder"
    ):
        made.wanted(here)
    place.held = [SimpleNamespace(revision=published[0])]
    assert made.wanted(here) == published[0]
    place.running = [SimpleNamespace(revision=f"{published[1]}~5f")]
    assert made.wanted(here) == published[1]
    with pytest.raises(CodeElsewhere):
        made.wanted(carried(tmp_path / "away", topics=["orders", "returns"]))


# --- settings -------------------------------------------------------------------------------


@pytest.fixture
def written() -> str:
    """A revision's settings."""
    return settings_of(group_spec(runtime=ON_KUBERNETES)).model_dump_json()


def test_settings_of_a_newer_release(written: str) -> None:
    """What this one does not know is left out, and can be named; a union's tag is no key."""
    value = json.loads(written)
    value["colour"] = 1
    value["cluster"]["security"]["tls"]["colour"] = {"a": 1}
    value["group"]["worker"]["colour"] = [1]
    value["group"]["worker"]["batch"]["colour"] = None
    value["group"]["runtime"]["spark"]["colour"] = "x"
    value["group"]["scaling"]["colour"] = "x"
    text = json.dumps(value)
    assert settings_from(text) == settings_from(written)
    assert set(read_settings(text)[1]) == {
        "colour",
        "cluster.security.tls.colour",
        "group.worker.colour",
        "group.worker.batch.colour",
        "group.runtime.spark.colour",
        "group.scaling.colour",
    }


def test_settings_that_mean_something_else_are_refused(written: str) -> None:
    """An unknown value is no unknown key, and a newer schema is nobody's guess."""
    value = json.loads(written)
    value["group"]["worker"]["assignor"] = "sticky"
    value["group"]["worker"]["colour"] = 1
    with pytest.raises(ValidationError, match="assignor"):
        settings_from(json.dumps(value))
    with pytest.raises(SchemaTooNew, match="schema 2"):
        settings_from(json.dumps({**json.loads(written), "schema_version": 2, "more": 1}))
    with pytest.raises(ValidationError):
        settings_from("no JSON at all")


# --- the name of a revision -----------------------------------------------------------------


@pytest.fixture
def at_home(tmp_path: Path) -> Iterator[Revisions]:
    """Of a local home, whose settings can be written as another release would."""
    runtime = LocalRuntime(tmp_path, cluster="main", clock=SystemClock())
    spec = local_settings(tmp_path)
    yield Revisions(
        cluster=spec.cluster, bootstrap="kafka:9092", runtime=runtime, clock=SystemClock()
    )
    runtime.close()


def local_settings(home: Path) -> WorkerSettings:
    """One fleet with code of its own."""
    (home / "jobs.py").write_text("def process(df, context): ...\n")
    worker = {"python_path": [str(home)], "entrypoint": "jobs:process", "env": {"A": "b"}}
    return settings_of(group_spec(worker=worker, runtime={"kind": "local"}))


def test_the_same_wish_keeps_the_name_of_another_release(
    at_home: Revisions, tmp_path: Path
) -> None:
    """Settings without today's newest keys hash otherwise; they are not rolled for that."""
    group = local_settings(tmp_path).group
    assert group.worker is not None
    named = at_home.wanted(group)
    at_home.publish(group, named)
    text = at_home.runtime.published("orders", named)
    assert text is not None
    older = json.loads(text)
    digest = older["code_digest"]
    assert named == revision_of(group, digest)
    del older["group"]["worker"]["metadata_refresh"]
    older["group"]["worker"]["colour"] = "green"
    older["revision"] = "0123456789"

    other = group.model_copy(update={"worker": group.worker.model_copy(update={"env": {"A": "c"}})})
    assert at_home.wanted(other) != named, "nothing is known of it"
    older["group"]["worker"]["env"] = {"A": "c"}
    at_home.runtime.publish("orders", "0123456789", json.dumps(older))
    store = at_home.runtime.store
    assert at_home.wanted(other) == revision_of(other, digest), "no worker holds a slot of it"
    assert store.write_targets(SlotTargets(group="orders", open=frozenset({0})))
    taken = store.take(
        store.slots("orders")[0], worker="w", revision="0123456789", spark_session=None
    )
    assert taken is not None
    assert at_home.wanted(other) == "0123456789"
    assert at_home.wanted(group) == named

    at_home.publish(
        other.model_copy(update={"replicas": group.replicas.model_copy(update={"max": 9})}),
        "0123456789",
    )
    kept = json.loads(at_home.runtime.published("orders", "0123456789") or "")
    assert kept["group"]["replicas"]["max"] == 9, "no part of a revision, and kept current"
    assert kept["group"]["worker"]["colour"] == "green", "another release's, and left alone"
    (tmp_path / "jobs.py").write_text("def process(df, context): return 1\n")
    assert at_home.wanted(other) != "0123456789", "other code is another revision"


def test_how_the_cluster_is_reached_is_kept_current(at_home: Revisions, tmp_path: Path) -> None:
    """Address and login together: neither is part of a revision, and neither works alone."""
    group = local_settings(tmp_path).group
    named = at_home.wanted(group)
    at_home.publish(group, named)
    first = json.loads(at_home.runtime.published("orders", named) or "")
    first["cluster"]["colour"] = first["cluster"]["security"]["colour"] = "green"
    at_home.runtime.publish("orders", named, json.dumps(first))
    at_home.publish(group, named)
    kept = json.loads(at_home.runtime.published("orders", named) or "")
    assert kept == first, "as it was reached before, so another release's keys stay"

    login = {"mechanism": "PLAIN", "username": "fleet", "password_env": "KAFKA_PASSWORD"}
    security = {"protocol": "SASL_SSL", "sasl": login, "tls": {"ca_file": "/etc/ca.pem"}}
    cluster = ClusterSpec.model_validate(
        {"name": "main", "bootstrap_servers": "kafka:9093", "security": security}
    )
    moved = replace(at_home, cluster=cluster, bootstrap="kafka:9093")
    assert moved.wanted(group) == named
    moved.publish(group, named)
    text = at_home.runtime.published("orders", named)
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
    at_home: Revisions, tmp_path: Path, become: Any
) -> None:
    """A manager that was gone back to plans the way back; it starts no worker of theirs."""
    runtime, spec = at_home.runtime, local_settings(tmp_path).group
    store, newer = runtime.store, "0123456789"
    made = json.loads(local_settings(tmp_path).model_dump_json())
    runtime.publish("orders", newer, json.dumps(become({**made, "revision": newer})))
    assert store.write_targets(SlotTargets(group="orders", open=frozenset({0})))
    (free,) = store.slots("orders")
    assert store.take(free, worker="w", revision=newer, spark_session=None)

    seen: Any = SimpleNamespace(at=0.0, groups={}, topics={"orders": 4})
    fleet: Any = SimpleNamespace(
        spec=SimpleNamespace(mode_of=lambda _: "act", cluster=at_home.cluster),
        group=lambda _: spec,
        runtime=runtime,
        store=store,
        storm=lambda *_: None,
        change_alive=lambda _: False,
        _revisions=lambda: at_home,
        _broker_limits=UNKNOWN,
    )
    plan = make_plan(Fleet.state(fleet, "orders", seen), wanted=1, now=0.0)
    assert [(step.kind, step.revision) for step in plan.steps] == [
        (StepKind.ROLL, at_home.wanted(spec))
    ]
    assert any("this release cannot read" in note for note in plan.notes)
    pool = StandbyPool(runtime, store, "orders")
    assert [pool.is_static(newer, otherwise=told) for told in (True, False)] == [True, False]
    with pytest.raises(Refused, match=r"(scaling|schema 2).*use the release that published them"):
        runtime.start("orders", newer, 1)


def test_a_revision_of_the_same_name_that_cannot_be_read_is_published_anew(
    at_home: Revisions, tmp_path: Path
) -> None:
    """What names no revision (how it scales) may be a newer release's; its workers are the same."""
    spec = local_settings(tmp_path).group
    named = at_home.wanted(spec)
    at_home.publish(spec, named)
    text = at_home.runtime.published("orders", named)
    assert text is not None
    newer = json.loads(text)
    newer["group"]["scaling"] = {"policy": "by moonlight"}
    at_home.runtime.publish("orders", named, json.dumps(newer))
    assert at_home.wanted(spec) == named
    at_home.publish(spec, named)
    assert settings_from(at_home.runtime.published("orders", named) or "").group == spec


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
    tmp_path: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod of an older image that was given a newer release's settings ends with it."""
    value = json.loads(written)
    value["group"]["scaling"] = {"policy": "by moonlight"}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(value))
    assert run(["worker", "--settings", str(file), "--name", "w"]) == 2
    assert "group.scaling: Input tag 'by moonlight'" in capsys.readouterr().err


def test_what_stops_a_workers_start_is_told_with_the_plan(tmp_path: Path) -> None:
    """No Java here is a refusal, code that only lies here a note; who leaves starts nobody."""
    (tmp_path / "job.py").write_text("def process(df, context): ...\n")
    environ = {"JAVA_HOME": "/nowhere", "PATH": ""}
    opens, leaves = (plan_of(step_of(kind, (0,))) for kind in (StepKind.OPEN, StepKind.LEAVE))

    def told(plan: Plan, **keys: Any) -> Vetoes:
        worker = {"python_path": [str(tmp_path)]} if not keys else {}
        return find_obstacles(
            group_spec(worker=worker, **keys), plan, environ=environ, here=tmp_path
        )

    (refusal,) = told(opens).refusals
    assert refusal.startswith("workers cannot start here: ")
    assert "/nowhere" in refusal
    (note,) = told(opens, runtime=ON_KUBERNETES).notes
    assert "job:process comes from the image" in note
    assert told(leaves) == NO_CONCERNS
