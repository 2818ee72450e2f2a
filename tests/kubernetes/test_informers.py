"""What an informer holds is never older than what it heard last, however late the rest comes."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.clock import ManualClock, SystemClock
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.lease_informer import LeaseInformer
from fleet.kubernetes.client.pod_informer import PodInformer
from tests.support.memory_server import MemoryServer
from tests.support.waiting import until

LABELS = {"app": "orders"}


def pod(name: str, version: int = 0, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "labels": {**LABELS, **labels}, "managedFields": [{"much": "room"}]}
    return {
        "kind": "Pod",
        "metadata": meta | ({"resourceVersion": str(version)} if version else {}),
    }


@pytest.fixture
def server() -> MemoryServer:
    made = MemoryServer()
    for name in ("a", "b"):
        made.put(pod(name))
    return made


@pytest.fixture
def pods(server: MemoryServer) -> Iterator[PodInformer]:
    with PodInformer(server.api(ManualClock()), "app=orders", clock=ManualClock()) as made:
        yield made


def names(pods: PodInformer) -> list[str]:
    return [each["metadata"]["name"] for each in pods.items()]


def version(pods: PodInformer, name: str) -> int:
    return next(int(p["metadata"]["resourceVersion"]) for p in pods.items()
                if p["metadata"]["name"] == name)  # fmt: skip


def test_it_is_listed_once_and_then_told(server, pods):
    """Only what the selector takes, without what takes the most room."""
    server.put({"kind": "Pod", "metadata": {"name": "other", "labels": {"app": "else"}}})
    assert names(pods) == ["a", "b"]
    server.put(pod("c"))
    server.delete("Pod", "a")
    until(lambda: names(pods) == ["b", "c"], "the events")
    assert [m for m, what in server.requests if what == "Pod"] == ["GET"]
    assert all("managedFields" not in each["metadata"] for each in pods.items())


def test_late_news_change_nothing(server, pods):
    """An answer to a write that is overtaken by the watch, in order or not."""
    assert names(pods) == ["a", "b"]
    now = version(pods, "a")
    pods.written(pod("a", now + 50))
    pods.written(pod("a", now + 10))
    pods.written(None)
    assert version(pods, "a") == now + 50
    pods.gone("a", now + 40)
    assert names(pods) == ["a", "b"], "it was made anew since"
    pods.gone("a", now + 60)
    pods.written(pod("a", now + 55))
    assert names(pods) == ["b"], "it was written before it was deleted"
    pods.written(pod("a", now + 70))
    assert names(pods) == ["a", "b"]


def test_a_new_list_says_what_is_gone(server, pods):
    """Where the watch had lost its place; not what was written after that list was made."""
    assert names(pods) == ["a", "b"]
    now = version(pods, "b")
    pods.written(pod("c", now + 20))
    pods.listed({"labelSelector": "app=orders"}, [pod("b", now)], now + 10)
    assert names(pods) == ["b", "c"]


def test_what_comes_before_the_first_look_is_passed(server, pods):
    """The first list tells it."""
    pods.written(pod("z", 5))
    assert names(pods) == ["a", "b"]


def test_the_first_list_may_fail_and_is_asked_for_again(server, pods):
    """Nothing is known before it."""
    server.away = True
    with pytest.raises(Exception, match="does not answer"):
        pods.items()
    server.away = False
    assert names(pods) == ["a", "b"]


def test_a_watch_that_ends_at_once_is_opened_again_after_a_pause(server, pods):
    """A proxy that lets no stream through: ever more rarely, and heard again once it does."""
    server.cut = True
    assert names(pods) == ["a", "b"]
    time.sleep(0.5)
    assert 2 <= server.watches <= 5
    server.put(pod("c"))
    server.cut = False
    until(lambda: names(pods) == ["a", "b", "c"], "the events")


def test_what_watches_that_end_at_once_have_shown_is_not_known(server):
    """A holder whose renewals nobody hears would look dead, though the server answers."""
    server.put({"kind": "Lease", "metadata": {"name": "gate"}})
    clock, lease = SystemClock(), 1.0
    calls = Calls(server.api(clock).connection, namespace="ns", clock=clock)
    with LeaseInformer(calls, "Lease", ["gate"], pulse="gate", lease=lease, clock=clock) as made:
        until(lambda: made.known_since() is not None, "the first watch")
        server.cut = True
        made._by_name["gate"].stop()
        until(lambda: made.known_since() is None, "nothing to be known")
        opened = server.watches
        until(lambda: server.watches > opened + 1, "watches")
        assert made.known_since() is None
        server.cut = False
        until(lambda: made.known_since() is not None, "a watch that stands")
