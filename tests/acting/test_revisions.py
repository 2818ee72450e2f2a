"""What is published of a revision, and what of it is written anew."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.act import revisions
from fleet.act.revisions import Revisions
from fleet.clock import ManualClock
from fleet.config.settings import WorkerSettings, settings_from
from fleet.config.spec import ClusterSpec, GroupSpec
from fleet.errors import CodeElsewhere
from fleet.system.code import code_digest
from tests.support.declared import group_spec

LOGIN = {
    "protocol": "SASL_SSL",
    "sasl": {"mechanism": "PLAIN", "username": "u", "password_env": "KAFKA_PASSWORD"},
    "tls": {"ca_file": "/ca.pem"},
}


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


def published(place: Any, cluster: ClusterSpec, bootstrap: str) -> tuple[str, WorkerSettings]:
    """The wanted revision of one group, as a change publishes it."""
    spec = group_spec("orders")
    made = Revisions(cluster=cluster, bootstrap=bootstrap, runtime=place, clock=ManualClock())
    revision = made.wanted(spec)
    made.publish(spec, revision)
    return revision, settings_from(place.kept[revision])


def test_a_changed_login_reaches_who_starts_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It rolls nobody, as the address does not; one without the other would reach no broker."""
    monkeypatch.setattr(revisions, "code_digest", lambda _: "digest")
    place = Place()
    before, first = published(place, ClusterSpec(bootstrap_servers="kafka:9092"), "kafka:9092")
    secure = ClusterSpec(bootstrap_servers="kafka:9093", security=LOGIN)
    after, then = published(place, secure, "kafka:9093")
    assert before == after
    assert first.cluster.security.protocol == "PLAINTEXT"
    assert then.bootstrap_servers == then.cluster.bootstrap_servers == "kafka:9093"
    assert then.cluster.security == secure.security
    assert published(place, secure, "kafka:9093")[1] == then


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
    with pytest.raises(CodeElsewhere, match="plan and apply new code where that folder is"):
        made.wanted(here)
    place.held = [SimpleNamespace(revision=published[0])]
    assert made.wanted(here) == published[0]
    place.running = [SimpleNamespace(revision=f"{published[1]}~5f")]
    assert made.wanted(here) == published[1]
    with pytest.raises(CodeElsewhere):
        made.wanted(carried(tmp_path / "away", topics=["orders", "returns"]))
