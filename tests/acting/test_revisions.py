"""What is published of a revision, and what of it is written anew."""

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.act import revisions
from fleet.act.revisions import Revisions
from fleet.clock import ManualClock
from fleet.config.settings import WorkerSettings, settings_from
from fleet.config.spec import ClusterSpec
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
        self.store = SimpleNamespace(slots=lambda _: ())

    def published(self, _: str, revision: str) -> str | None:
        return self.kept.get(revision)

    def keep_code(self, *_: object) -> str:
        return "digest"

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
