"""The store of Leases on a server in memory and a clock that is set, request by request.

Who may take at all is the store's own and asked of every store in tests/slots.
"""

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.api import BRISK, LEASE, Api, Conflict, Silent
from fleet.kubernetes.client.object_names import COST_ANNOTATION, ObjectNames
from fleet.kubernetes.leases.lease_backend import SILENT, LeaseBackend
from fleet.kubernetes.leases.lease_objects import annotate, annotation, blank
from fleet.model import TopicPartition
from fleet.slots import Phase, Slot
from fleet.slots.store import CLAIM_GRACE
from fleet.worker.slot.slot_lease import SlotWatcher
from tests.support.memory_server import Answer, MemoryServer
from tests.support.memory_stores import MemoryStores
from tests.support.slot_records import report_of, stopped

GROUP = "orders"
NAMES = ObjectNames("main", GROUP)
report = partial(report_of, group=GROUP)


class Place(MemoryStores):
    """Slots 0 to 2 open, free, last held by `old`, which has worked."""

    def __init__(self) -> None:
        super().__init__(GROUP, slots=3)
        self.write(open=frozenset({0, 1, 2}))
        for slot in self.manager.slots(GROUP):
            held = self.manager.take(slot, worker="old", revision="old", spark_session="s-old")
            worked = self.manager.renew(replace(held, phase=Phase.ACTIVE, batches=1))
            assert self.manager.release(worked, clean=True)

    def write(self, **fields: object) -> None:
        """The slot targets, whatever it was."""
        assert self.manager.write_targets(replace(self.manager.targets(GROUP), **fields))

    def slot(self, number: int) -> Slot:
        return next(s for s in self.manager.slots(GROUP) if s.number == number)

    def take(self, number: int, worker: str = "w", revision: str = "new") -> Slot | None:
        store = self.worker(revision)
        return store.take(
            self.slot(number), worker=worker, revision=revision, spark_session=f"s-{worker}"
        )

    def hold(self, number: int, worker: str, revision: str) -> Slot:
        """Taken, and one batch committed."""
        held = self.take(number, worker, revision)
        worked = self.manager.renew(replace(held, phase=Phase.ACTIVE, batches=1))
        assert worked is not None
        return worked


@pytest.fixture
def place() -> Place:
    return Place()


def test_who_was_asked_to_go_takes_nothing(place):
    """Its pod lives until it is removed; one that is gone is forgotten."""
    place.manager.retire(GROUP, ["w", "gone"], there=["w", "gone", "another"])
    assert place.take(0) is None
    place.write()
    assert place.take(1, "gone") is None
    assert place.take(0, "another") is not None
    place.manager.retire(GROUP, [], there=["another"])
    assert place.manager.leases.targets_lease(GROUP).record.going == frozenset()


def test_who_is_asked_to_go_between_its_two_requests_gives_the_slot_back(place):
    """As it was, but for the token: nobody may act on what was seen before."""
    before = place.slot(0)

    def goes(method: str, found: dict) -> None:
        if found["metadata"]["name"] == NAMES.slot(0) and method == "PUT":
            place.server.after = lambda method, found: None
            place.manager.retire(GROUP, ["w"], there=["w"])

    place.server.after = goes
    assert place.take(0) is None
    assert place.slot(0) == replace(before, token=before.token + 1)


class Died(Exception):
    """The new owner, between two of its requests."""


def claimed(place: Place) -> None:
    """Worker `dead` claims the trial for slot 0 and gets no further."""

    def dies(method: str, found: dict) -> None:
        if found["metadata"]["name"] == NAMES.answers and method == "PUT":
            raise Died

    place.server.after = dies
    with pytest.raises(Died):
        place.take(0, "dead")
    place.server.after = lambda method, found: None


def test_a_claim_of_the_dead_holds_up_for_two_seconds(place):
    """On its finder's own clock; then another claims. Another revision waits for nothing."""
    claimed(place)
    assert place.take(2, "c", "newer") is not None
    store, seen = place.worker("new"), place.slot(1)

    def take() -> Slot | None:
        return store.take(seen, worker="b", revision="new", spark_session=None)

    assert take() is None
    place.clock.sleep(CLAIM_GRACE - 0.1)
    assert take() is None
    place.clock.sleep(0.2)
    assert take() is not None


def test_a_claim_of_a_slot_that_was_deleted_holds_up_no_longer(place):
    """Nobody can use it any more, and nobody falls over it."""
    claimed(place)
    place.server.delete(LEASE, NAMES.slot(0))
    store, seen = place.worker("new"), place.slot(1)
    assert store.take(seen, worker="b", revision="new", spark_session=None) is None
    place.clock.sleep(CLAIM_GRACE + 0.1)
    assert store.take(seen, worker="b", revision="new", spark_session=None) is not None


def test_a_claim_that_was_used_is_over(place):
    """Its slot has the token that it named."""
    claimed(place)
    assert place.take(0, "dead") is not None, "its own"
    held = place.slot(0)
    failed = place.manager.renew(replace(held, error="no"))
    assert place.manager.release(failed, clean=False)
    assert place.manager.clear(place.slot(0)), "nothing tells any more who had it"
    assert place.take(1, "b") is not None


def test_used_claims_go_with_the_next_one(place):
    """Else the answers would grow with every revision."""
    place.hold(0, "a", "new")
    assert place.take(1, "b", "newer") is not None
    trials = place.manager.leases.targets_lease(GROUP).record.canaries
    assert set(trials) == {"newer"}


def test_a_lease_that_is_not_there_is_no_loss(place):
    """Somebody deleted it: nothing says that another holds the slot, or that none is open."""
    held = place.hold(0, "a", "old")
    place.server.delete(LEASE, NAMES.slot(0))
    with pytest.raises(Unreachable, match="slot-0 does not exist"):
        place.worker("old").renew(held)
    place.server.delete(LEASE, NAMES.targets)
    with pytest.raises(Unreachable, match="targets does not exist"):
        place.worker().targets(GROUP)


@pytest.mark.parametrize("status", [403, 500], ids=["role", "webhook"])
def test_who_cannot_write_calls_nobody_dead(place, monkeypatch, status):
    """Reads go on, all writes are refused: no slot of a silent owner is taken [38]."""
    held = place.hold(0, "w", "old")
    standby, answered = place.worker("old"), place.server._answered
    looker = SlotWatcher(standby, group=GROUP, lease=30.0, clock=place.clock)

    def takeable(seconds: float) -> set[int]:
        """After so long, in which the standby looks and reports."""
        for _ in range(round(seconds / 3)):
            place.clock.sleep(3.0)
            looker.refresh()
            with contextlib.suppress(Unreachable):
                standby.report(report("s"))
        found = looker.takeable_slots(worker="s", revision="old", since=0.0)
        return {slot.number for slot in found}

    def refuses(method: str, *rest: Any) -> Answer:
        return Answer(status, {"message": "no"}) if method != "GET" else answered(method, *rest)

    assert takeable(6) == {1, 2}
    with monkeypatch.context() as refusing:
        refusing.setattr(place.server, "_answered", refuses)
        assert 0 not in takeable(45)
        assert place.slot(0).token == held.token
    assert 0 not in takeable(21)
    assert 0 in takeable(30), "who really died is replaced a lease later"


def test_all_marks_are_lifted_by_one_reading(place):
    """And one write; where there is none, nothing is written."""
    for partition in (0, 1):
        place.manager.stop_partition(stopped(TopicPartition("t", partition), GROUP))
    place.server.requests.clear()
    assert place.manager.lift(GROUP, None) == 2
    assert [method for method, _ in place.server.requests] == ["GET", "PATCH"]
    assert place.manager.stopped_partitions(GROUP) == ()
    place.server.requests.clear()
    assert place.manager.lift(GROUP, None) == 0
    assert [method for method, _ in place.server.requests] == ["GET"]


# --- reports: one Lease for each worker -------------------------------------------------------


PLACES = 3


class Reports(MemoryStores):
    """A group's reports: three Leases, and workers without watches."""

    def __init__(self) -> None:
        super().__init__(GROUP, slots=1, reports=PLACES + 1)
        self.server.delete(LEASE, NAMES.report(PLACES))
        self.server.requests.clear()

    def told(self) -> list[str]:
        """The workers that have a report."""
        return sorted(each.worker for each in self.manager.reports(GROUP))

    def writes(self) -> list[tuple[str, str]]:
        """What was asked that is no reading, since the last call."""
        asked = [each for each in self.server.requests if each[0] != "GET"]
        self.server.requests.clear()
        return asked


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_each_report_is_one_write_of_the_workers_own_lease(reports):
    """Found by the first; with its holder and the time, for whoever looks with kubectl."""
    worker = reports.worker()
    worker.report(report("w"))
    ((method, place),) = reports.writes()[-1:]
    for counter in (2, 3):
        worker.report(report("w", counter=counter))
    assert reports.server.requests == [("PUT", place)] * 2
    assert reports.manager.reports(GROUP) == (report("w", counter=3),)
    stored = reports.server.get(LEASE, place.partition("/")[2])["spec"]
    assert (method, stored["holderIdentity"], stored["leaseDurationSeconds"]) == ("PUT", "w", 30)


def test_a_container_that_starts_again_goes_on_in_its_pods_lease(reports):
    """By the pod's name; another worker takes another."""
    reports.worker().report(report("w"))
    reports.worker().report(report("other"))
    (first,) = {place for _, place in reports.writes()[-2:-1]}
    reports.worker().report(report("w", counter=2))
    assert reports.writes() == [("PUT", first)]
    assert reports.told() == ["other", "w"]


def test_a_worker_takes_the_place_of_one_that_is_silent_for_minutes(reports):
    """Not before; the silent one finds another place if it lives after all."""
    names = ["a", "b", "c"]
    stores = {name: reports.worker() for name in names}
    for name in names:
        stores[name].report(report(name))
        reports.clock.sleep(30.0)
    with pytest.raises(Unreachable, match=r"none of the 3 Leases .* is free for the report of new"):
        reports.worker().report(report("new"))
    reports.clock.sleep(SILENT - 90.0)
    reports.worker().report(report("new"))
    assert reports.told() == ["b", "c", "new"]
    reports.manager.forget_worker("c")
    stores["a"].report(report("a", counter=2))
    assert reports.told() == ["a", "b", "new"]


def test_two_that_take_the_same_place_both_report(reports):
    """The server lets one write; the other looks again."""

    def meanwhile(method: str, kind: str, name: str) -> None:
        if method == "PUT":
            reports.server.before = lambda *_: None
            reports.worker().report(report("first"))

    reports.server.before = meanwhile
    reports.worker().report(report("second"))
    assert reports.told() == ["first", "second"]


def test_a_manager_makes_a_place_that_is_missing(reports):
    """As it makes each of its objects."""
    for number in range(PLACES + 2):
        reports.manager.report(report(f"w{number}"))
    assert reports.told() == [f"w{number}" for number in range(PLACES + 2)]


# --- one object's compare-and-set, and how a call that nobody answers is bounded --------------


TARGETS = NAMES.targets


class Shelf:
    """One Lease of a server in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer()
        api = self.server.api(self.clock)
        self.api = Api(
            api.connection,
            namespace=api.namespace,
            clock=self.clock,
            retries=BRISK,
            jitter=lambda: 0.5,
        )
        self.leases = LeaseBackend(self.api, cluster="main", clock=self.clock, lease=30.0)
        self.api.create_new(blank(LEASE, TARGETS, NAMES))

    def write(self, value: str) -> None:
        self.server.put(annotate(self.server.get(LEASE, TARGETS), {"fleet/x": value}))

    def written(self) -> str | None:
        return annotation(self.server.get(LEASE, TARGETS), "fleet/x")

    def writes(self) -> int:
        """Requests that change something, since the beginning."""
        return sum(method in {"PUT", "PATCH"} for method, _ in self.server.requests)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_change_is_decided_anew_on_every_version(shelf):
    """Another one came between look and write."""
    asked = []

    def edit(found: dict) -> dict | None:
        asked.append(annotation(found, "fleet/x"))
        if len(asked) == 1:
            shelf.write("theirs")
        return annotate(found, {"fleet/x": f"after {asked[-1]}"})

    assert shelf.leases.edit_lease(GROUP, TARGETS, edit) is not None
    assert asked == [None, "theirs"]
    assert shelf.written() == "after theirs"


def test_a_no_on_the_latest_version_writes_nothing(shelf):
    seen = shelf.api.get(LEASE, TARGETS)
    shelf.write("theirs")
    with pytest.raises(Conflict):
        shelf.leases.store(annotate(seen, {"fleet/x": "ours"}))
    assert shelf.leases.edit_lease(GROUP, TARGETS, lambda found: None) is None
    assert shelf.written() == "theirs"


def test_a_lost_answer_is_looked_for(shelf):
    """Stored: as if it had been answered. Overwritten meanwhile: a conflict, never a success."""
    shelf.server.silent = 1
    stored = shelf.leases.store(annotate(shelf.api.get(LEASE, TARGETS), {"fleet/x": "ours"}))
    assert annotation(stored, "fleet/x") == "ours"

    def overwrites(method: str, found: dict) -> None:
        shelf.server.after = lambda method, found: None
        shelf.write("theirs")

    shelf.server.silent, shelf.server.after = 1, overwrites
    with pytest.raises(Conflict):
        shelf.leases.store(annotate(shelf.api.get(LEASE, TARGETS), {"fleet/x": "again"}))
    assert shelf.written() == "theirs"


def test_what_compares_is_sent_once(shelf):
    """Sent again it would be refused for its own first time."""
    seen = shelf.api.get(LEASE, TARGETS)
    before = shelf.writes()
    shelf.server.silent = 1
    with pytest.raises(Silent):
        shelf.api.replace(annotate(seen, {"fleet/x": "1"}))
    patch = {"metadata": {"resourceVersion": shelf.server.get(LEASE, TARGETS)["metadata"][
        "resourceVersion"], "annotations": {"fleet/x": "2"}}}  # fmt: skip
    shelf.server.silent = 1
    with pytest.raises(Silent):
        shelf.api.merge(LEASE, TARGETS, patch)
    assert shelf.writes() == before + 2
    shelf.server.silent = 1
    patch["metadata"].pop("resourceVersion")
    assert shelf.api.merge(LEASE, TARGETS, patch) is not None, "may be done twice, and was"
    assert shelf.writes() == before + 4


def test_nobody_answers(shelf):
    """The next calls fail at once, but for one every two seconds; knowledge begins anew."""
    shelf.api.get(LEASE, TARGETS)
    assert shelf.api.answering_since() is not None
    shelf.server.away = True
    with pytest.raises(Unreachable):
        shelf.api.get(LEASE, TARGETS)
    assert shelf.api.answering_since() is None
    shelf.server.away = False
    before, at = len(shelf.server.requests), shelf.clock.monotonic()
    with pytest.raises(Unreachable):
        shelf.api.get(LEASE, TARGETS)
    assert (len(shelf.server.requests), shelf.clock.monotonic()) == (before, at)
    shelf.clock.sleep(BRISK.cool)
    assert shelf.api.get(LEASE, TARGETS) is not None
    assert shelf.api.answering_since() == shelf.clock.monotonic()


def test_a_refusal_is_no_knowledge(shelf, monkeypatch):
    """A server that lets nobody read says nothing of what is stored; a conflict does."""
    with monkeypatch.context() as refusing:
        refused = Answer(403, {"message": "no"})
        refusing.setattr(shelf.server, "_answered", lambda *_: refused)
        shelf.api._answering_since = None
        with pytest.raises(Unreachable):
            shelf.api.get(LEASE, TARGETS)
        assert shelf.api.answering_since() is None
    stale = shelf.server.get(LEASE, TARGETS)
    shelf.write("theirs")
    with pytest.raises(Conflict):
        shelf.api.replace(stale)
    assert shelf.api.answering_since() is not None


def test_a_worker_writes_the_cost_of_its_own_pod():
    """A standby costs less than an owner; without the right to, nothing follows."""
    place = Place()
    place.server.put({"kind": "Pod", "metadata": {"name": "w"}})

    def cost() -> int:
        return int(place.server.get("Pod", "w")["metadata"]["annotations"][COST_ANNOTATION])

    store = place.worker()
    store.rank("w", owns=False)
    standby = cost()
    store.rank("w", owns=True)
    assert standby < 0 < cost()
    store.rank("gone", owns=True)
    place.server._answered = lambda *_: Answer(403, {"message": "no"})
    store.rank("w", owns=False)
