"""What an informer shows is what the watch brought last, and what was written here since."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fleet.clock import ManualClock, SystemClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.informer import Informer, PodInformer
from fleet.kubernetes.client.object_names import WATCHED_LABEL
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import ChangeState, Phase, Slot, SlotTargets
from tests.support.fleet_leases import make_leases
from tests.support.memory_server import MemoryServer
from tests.support.plans import plan_of
from tests.support.slot_records import report_of
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


def labels(pods: PodInformer, name: str) -> dict[str, str]:
    (found,) = (p for p in pods.items() if p["metadata"]["name"] == name)
    return found["metadata"]["labels"]


def test_it_is_listed_once_and_then_told(server, pods):
    """Only what the selector takes, without what takes the most room."""
    server.put({"kind": "Pod", "metadata": {"name": "other", "labels": {"app": "else"}}})
    assert names(pods) == ["a", "b"]
    server.put(pod("c"))
    server.delete("Pod", "a")
    until(lambda: names(pods) == ["b", "c"], "the events")
    assert [m for m, what in server.requests if what == "Pod"] == ["GET"]
    assert all("managedFields" not in each["metadata"] for each in pods.items())


def test_an_own_write_is_shown_until_the_watch_brings_it(server, pods):
    """Whatever else comes of that pod before; an answer that is late changes nothing."""
    assert names(pods) == ["a", "b"]
    pods._end_watch()
    until(lambda: not pods._stands, "the end of the watch")
    server.put(pod("a", theirs="yes"))
    answer = server.put(pod("a", ours="yes"))
    pods.written(answer)
    pods.written(None)
    assert labels(pods, "a") == {**LABELS, "ours": "yes"}
    until(lambda: pods._stands and not pods._written, "the events")
    server.put(pod("a", last="yes"))
    until(lambda: labels(pods, "a") == {**LABELS, "last": "yes"}, "the event")
    pods.written(answer)
    assert labels(pods, "a") == {**LABELS, "last": "yes"}


def test_a_watch_that_does_not_bring_an_own_write_is_listed_again(server):
    """A connection that is half gone says nothing for minutes."""
    clock = ManualClock()
    with PodInformer(server.api(clock), "app=orders", clock=clock) as pods:
        assert names(pods) == ["a", "b"]
        until(lambda: pods._stands, "the watch")
        pods.written(pod("lost", 7))
        assert names(pods) == ["a", "b", "lost"]
        clock.sleep(6.0)
        until(lambda: names(pods) == ["a", "b"], "a list")
        assert server.requests == [("GET", "Pod")] * 2


def test_a_forgotten_version_is_listed_again(server, pods):
    """Versions are opaque: the list says what is there, whatever was known."""
    assert names(pods) == ["a", "b"]
    server.forgets = True
    server.delete("Pod", "b")
    pods._end_watch()
    until(lambda: names(pods) == ["a"], "a list")


def test_the_first_list_may_fail_and_is_asked_for_again(server, pods):
    """Nothing is known before it, and what was written before is in it."""
    pods.written(pod("z", 5))
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
    clock = SystemClock()
    calls = server.api(clock).brisk()
    with Informer(calls, "Pod", {"labelSelector": "app=orders"}, silence=0.5, clock=clock) as made:
        made.start()
        until(lambda: made.known_since() is not None, "the first list")
        server.cut = True
        made._end_watch()
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
    make_leases(manager, "orders", slots=100)
    manager.write_targets(SlotTargets(group="orders", open=frozenset(range(3))))
    (*_, last) = manager.slots("orders")
    assert manager.take(last, worker="w2", revision="r", spark_session=None)

    def slow(method, kind, name):  # each list takes a while
        if method == "GET" and not name:
            time.sleep(0.02)

    server.before = slow
    worker = LeaseStore.for_worker(
        api, cluster="main", group="orders", revision="r", lease=30.0, clock=clock
    )
    yield manager, worker
    watching = worker.leases.view._thread
    worker.close()
    assert not watching.is_alive()


def test_a_worker_has_one_watch_whatever_opens(server, fleet):
    """And no look of it is a request; the first one shows who owns the slots."""
    manager, worker = fleet
    assert [slot.owner for slot in worker.slots("orders")] == [None, None, "w2"]
    until(lambda: worker.known_since() is not None, "the watch")
    since = worker.known_since()
    targets = manager.targets("orders")
    assert manager.write_targets(replace(targets, open=targets.open | {7}))
    until(lambda: len(worker.slots("orders")) == 4, "the slot targets")
    assert manager.take(manager.slots("orders")[3], worker="w7", revision="r", spark_session=None)
    until(lambda: worker.slots("orders")[3].owner == "w7", "its owner")
    assert (server.watches, worker.known_since()) == (1, since)


def test_a_take_costs_two_requests_and_a_look_none(server, fleet):
    """What stands in the view is enough to begin with; an own write is in it at once."""
    _, worker = fleet
    until(lambda: worker.known_since() is not None, "the watch")
    server.requests.clear()
    free = worker.slots("orders")[0]
    held = worker.take(free, worker="w", revision="r", spark_session=None)
    assert worker.slots("orders")[0] == held is not None
    assert worker.targets("orders").open == {0, 1, 2}
    assert [method for method, _ in server.requests] == ["PUT", "GET"]


def test_a_manager_that_changes_a_group_looks_by_a_watch(server, fleet):
    """Ten looks a second for minutes would be hundreds of requests; it ends with the change."""
    manager, worker = fleet
    change = manager.begin_change(plan_of(), actor="me", started_at=1.0)
    report = report_of("w2", "orders", phase="active", slot=2)
    worker.report(report)
    until(lambda: manager.reports("orders") == (report,), "the manager's view")
    server.requests.clear()
    for _ in range(20):
        assert [slot.owner for slot in manager.slots("orders")] == [None, None, "w2"]
        assert manager.targets("orders").version == 1
        assert (manager.change("orders"), manager.reports("orders")) == (change, (report,))
    assert server.requests == []
    manager.advance(replace(change, state=ChangeState.DONE))
    server.requests.clear()
    assert len(manager.slots("orders")) == 3
    assert [method for method, _ in server.requests] == ["GET"]


def test_a_managers_look_after_its_write_shows_what_was_taken_before_it(server, fleet):
    """A slot that was taken before the slot targets shut is not read as free after that."""
    manager, worker = fleet
    assert manager.begin_change(plan_of(), actor="me", started_at=1.0)
    server.lag = 0.05
    for number in (0, 1):
        free = worker.slots("orders")[number]
        held = worker.take(free, worker=f"w{number}", revision="r", spark_session=None)
        shut = replace(manager.targets("orders"), leaving=frozenset({number}))
        assert manager.write_targets(shut)
        assert manager.slots("orders")[number] == held is not None


def test_a_manager_that_changes_a_group_says_that_the_server_is_silent(server, fleet):
    """What was known a while ago is no answer for somebody who acts on it."""
    manager, _ = fleet
    change = manager.begin_change(plan_of(), actor="me", started_at=1.0)
    assert manager.change("orders") == change
    server.away = True
    manager.leases._followed["orders"]._end_watch()
    with pytest.raises(Unreachable):
        until(lambda: manager.slots("orders") == (), "silence")
    assert manager.known_since() is None


class Owning:
    """The worker owns slot 0, w2 slot 2; both are active, slot 1 is free."""

    def __init__(self, server: MemoryServer, manager: LeaseStore, worker: LeaseStore) -> None:
        self.server, self.manager, self.worker = server, manager, worker
        free = worker.slots("orders")[0]
        taken = worker.take(free, worker="w", revision="r", spark_session=None)
        assert taken is not None
        self.own = self._active(worker, taken)
        self.other = self._active(manager, manager.slots("orders")[2])

    def _active(self, store: LeaseStore, slot: Slot) -> Slot:
        renewed = store.renew(replace(slot, phase=Phase.ACTIVE))
        assert renewed is not None
        return renewed

    def attend(self) -> None:
        assert self.worker.attend("orders", 0)
        self.known()

    def known(self) -> None:
        until(lambda: self.worker.known_since() is not None, "the list")

    def tell(self, **fields: Any) -> Slot:
        renewed = self.manager.renew(replace(self.other, **fields))
        assert renewed is not None
        self.other = renewed
        return renewed

    def events(self) -> int:
        """Of the worker's watch, once it has brought what the worker wrote now."""
        renewed = self.worker.renew(self.own)
        assert renewed is not None
        self.own = renewed
        view = self.worker.leases.view
        assert view is not None
        until(lambda: view._stands and not view._written, "its echo")
        return self.server.events

    def slots(self) -> dict[int, Slot]:
        return {slot.number: slot for slot in self.worker.slots("orders")}


@pytest.fixture
def owning(server, fleet) -> Owning:
    made = Owning(server, *fleet)
    made.attend()
    return made


def test_an_owner_at_rest_hears_of_its_own_slot_alone(owning):
    """One event for each of its renewals, whatever others renew and report."""
    first = owning.events()
    for counter in range(5):
        owning.tell(batches=counter)
        owning.manager.report(report_of("w2", "orders", counter=counter))
    assert owning.events() == first + 1
    slots = owning.slots()
    assert slots[0] == owning.own
    assert (slots[1].owner, slots[1].phase) == (None, Phase.FREE)
    shown = slots[2]
    assert (shown.owner, shown.token, shown.phase) == ("w2", owning.other.token, Phase.ACTIVE)
    assert shown.counter < owning.other.counter, "it is not followed"


def test_an_owner_sees_at_once_what_is_not_at_rest(owning):
    """Another's drain, release, take and first batch, and what a manager asks for."""
    for fields in ({"phase": Phase.DRAINING}, {"phase": Phase.DRAINED}):
        now = owning.tell(**fields)
        until(lambda now=now: owning.slots()[2] == now, "its phase")
    assert owning.manager.release(owning.other, clean=True)
    until(lambda: owning.slots()[2].owner is None, "its release")
    seen = owning.manager.slots("orders")[2]
    taken = owning.manager.take(seen, worker="w3", revision="r", spark_session=None)
    assert taken is not None
    until(lambda: owning.slots()[2] == taken, "its take")
    owning.other = taken
    owning.tell(phase=Phase.ACTIVE)
    until(lambda: owning.slots()[2].phase is Phase.ACTIVE, "its rest")
    assert (owning.slots()[2].owner, owning.slots()[2].token) == ("w3", taken.token)
    targets = owning.manager.targets("orders")
    assert owning.manager.write_targets(replace(targets, leaving=frozenset({2})))
    until(lambda: owning.worker.targets("orders").leaving == {2}, "the slot targets")


def test_a_slot_that_came_to_rest_unseen_is_never_read_as_free(server, owning):
    """The watch was away while it was taken: only that it is not shown is known."""
    assert owning.manager.release(owning.tell(phase=Phase.DRAINED), clean=True)
    until(lambda: owning.slots()[2].owner is None, "its release")
    server.away = True
    owning.worker.leases.view._end_watch()
    server.forgets = True
    until(lambda: not owning.worker.leases.view._stands, "the end of the watch")
    server.away = False
    seen = owning.manager.slots("orders")[2]
    taken = owning.manager.take(seen, worker="w3", revision="r", spark_session=None)
    owning.other = taken
    owning.tell(phase=Phase.ACTIVE)
    until(lambda: owning.slots()[2].owner is not None, "a list")
    until(lambda: owning.slots()[2].phase is Phase.ACTIVE, "its rest")


def test_who_follows_all_again_knows_nothing_until_they_are_listed(server, owning):
    """What it was shown before is no evidence; then every lease is as it is stored."""
    for counter in range(3):
        owning.tell(batches=counter)
    server.away = True
    assert not owning.worker.attend("orders", None)
    assert owning.worker.known_since() is None
    assert owning.slots()[2].phase is Phase.ACTIVE
    with pytest.raises(Unreachable):
        owning.worker.reports("orders")
    server.away = False
    owning.known()
    assert owning.slots()[2] == owning.other
    assert owning.worker.reports("orders") == ()


def test_an_owner_reports_at_rest(server, owning):
    """In a Lease that its watch does not bring back; also where it has forgotten which it was."""
    for counter, forgets in ((1, False), (2, False), (3, True)):
        if forgets:
            owning.worker.leases.reports._own.clear()
        owning.worker.report(report_of("w", "orders", counter=counter))
        (told,) = owning.manager.reports("orders")
        assert (told.worker, told.counter) == ("w", counter)
    listed = server.requests.count(("GET", "Lease"))
    owning.events()
    assert not owning.worker.leases.view._written
    assert server.requests.count(("GET", "Lease")) == listed


def test_leases_of_an_earlier_release_are_followed_as_before(server, fleet):
    """A watch by a label that the slot targets lack would never bring a leave."""
    owning = Owning(server, *fleet)
    name = owning.worker.leases.names("orders").targets
    bare = server.get("Lease", name)
    del bare["metadata"]["labels"][WATCHED_LABEL]
    server.put(bare)
    until(lambda: owning.worker.leases.view.get(name) == bare | {"metadata": {
        **bare["metadata"], "resourceVersion": str(server._version)}}, "the event")  # fmt: skip
    assert not owning.worker.attend("orders", 0)
    now = owning.tell(batches=7)
    until(lambda: owning.slots()[2] == now, "another's renewal")
    targets = owning.manager.targets("orders")
    assert owning.manager.write_targets(replace(targets, open_at=1.0))
    until(lambda: owning.worker.attend("orders", 0), "the label")


def test_nothing_is_known_before_the_list(server, fleet):
    """Whether anybody has looked or not."""
    _, worker = fleet
    until(lambda: worker.known_since() is not None, "the watch", every=0.001)
    assert len(worker.leases.view.objects()) == sum(kind == "Lease" for kind, _ in server.objects)
