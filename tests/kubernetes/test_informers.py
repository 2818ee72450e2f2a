"""What an informer holds is never older than what it heard last, however late the rest comes."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fleet.clock import ManualClock, SystemClock
from fleet.kubernetes.client.calls import Calls
from fleet.kubernetes.client.informer import LeaseInformer, PodInformer
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import FirstOpening, SlotTargets
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
    """An owner whose renewals nobody hears would look dead, though the server answers."""
    server.put({"kind": "Lease", "metadata": {"name": "targets"}})
    clock, lease = SystemClock(), 1.0
    calls = Calls(server.api(clock).connection, namespace="ns", clock=clock)
    with LeaseInformer(
        calls, "Lease", ["targets"], pulse="targets", lease=lease, clock=clock
    ) as made:
        until(lambda: made.known_since() is not None, "the first watch")
        server.cut = True
        made._by_name["targets"].stop()
        until(lambda: made.known_since() is None, "nothing to be known")
        opened = server.watches
        until(lambda: server.watches > opened + 1, "watches")
        assert made.known_since() is None
        server.cut = False
        until(lambda: made.known_since() is not None, "a watch that stands")


# --- which Leases a worker watches ----------------------------------------------------------


@pytest.fixture
def fleet(server: MemoryServer) -> Iterator[tuple[LeaseStore, LeaseStore]]:
    """A manager that opened three slots, and a worker that starts; replicas.max is 100."""
    clock = SystemClock()
    api = server.api(clock)
    manager = LeaseStore.for_manager(api, cluster="main", clock=clock, lease=30.0)
    manager.ensure_objects("orders", slots=100)
    manager.write_targets(SlotTargets(group="orders", open=frozenset(range(3))))
    (*_, last) = manager.slots("orders")
    assert manager.take(last, worker="w2", revision="r", spark_session=None)

    def slow(method, kind, name):  # each list takes a while
        if method == "GET" and not name:
            time.sleep(0.02)

    server.before = slow
    worker = LeaseStore.for_worker(
        api, cluster="main", group="orders", revision="r", slots=100, lease=30.0, clock=clock
    )
    yield manager, worker
    worker.close()


def test_what_opens_first_is_watched_before(server):
    """A hundred standbys must not ask for all of it in the second in which they join."""
    clock = SystemClock()
    api = server.api(clock)
    manager = LeaseStore.for_manager(api, cluster="main", clock=clock, lease=30.0)
    manager.ensure_objects("orders", slots=9, first=FirstOpening(slots=2, after=60))
    worker = LeaseStore.for_worker(
        api, cluster="main", group="orders", revision="r", slots=9, lease=30.0, clock=clock
    )
    until(lambda: worker.known_since() is not None, "the watches")
    worker.close()
    assert server.watches == 3


def test_room_to_grow_costs_no_watch(server, fleet):
    """Only the slot targets and slots that were ever opened; the first look shows who holds
    them.
    """
    _, worker = fleet
    assert [slot.owner for slot in worker.slots("orders")] == [None, None, "w2"]
    until(lambda: worker.known_since() is not None, "the watches")
    assert server.watches == 4


def test_nothing_is_known_before_all_that_is_open_is_listed(fleet):
    """The slot targets alone says nothing of who lives, whether anybody has looked or not."""
    _, worker = fleet
    until(lambda: worker.known_since() is not None, "the watches", every=0.001)
    names = ObjectNames("main", "orders")
    assert {names.targets, *names.slots(range(3))} == worker.leases.view._known.keys()


def test_what_is_opened_later_is_watched_and_blinds_nobody(server, fleet):
    """From the first look at it on."""
    manager, worker = fleet
    until(lambda: worker.known_since() is not None, "the watches")
    since = worker.known_since()
    targets = manager.targets("orders")
    assert manager.write_targets(replace(targets, open=targets.open | {7}))
    until(lambda: len(worker.slots("orders")) == 4, "the slot targets")
    assert manager.take(manager.slots("orders")[3], worker="w7", revision="r", spark_session=None)
    until(lambda: worker.slots("orders")[3].owner == "w7", "its owner")
    assert (server.watches, worker.known_since()) == (5, since)
