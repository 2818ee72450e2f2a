"""A take looks at two objects and behaves as if they were one [22]."""

import itertools
import threading
import time
from dataclasses import replace

import pytest

from fleet.errors import Unreachable
from fleet.kubernetes.client.calls import LEASE
from fleet.kubernetes.leases import lease_objects as objects
from fleet.slots import Gate, Handover, Phase, Slot, acquire
from fleet.slots.backend import Kind
from tests.k8s_store.conftest import requests_of

pytestmark = pytest.mark.kubernetes
GROUP = "orders"


def opened(place, slots: int, **fields: object):
    """A manager's store with these slots open and free, last held by `old`, which has worked."""
    manager = place.manager()
    manager.ensure_objects(GROUP, slots=slots)
    assert manager.write_gate(Gate(group=GROUP, open=frozenset(range(slots)), **fields))
    for slot in manager.slots(GROUP):
        held = manager.take(slot, worker="old", revision="old", spark_session="s-old")
        let_go(manager, held)
    return manager


def let_go(store, held: Slot | None) -> None:
    """Release a slot after a batch: its revision is known to work."""
    assert held is not None
    worked = store.renew(replace(held, phase=Phase.ACTIVE, batches=1))
    assert worked is not None
    assert store.release(worked, clean=True)


def take(store, number: int, worker: str, revision: str = "new") -> Slot | None:
    seen = next(slot for slot in store.slots(GROUP) if slot.number == number)
    return store.take(seen, worker=worker, revision=revision, spark_session=f"s-{worker}")


def test_of_many_threads_of_a_new_revision_one_takes_a_slot(place):
    """Each reaches for another slot of the old revision at the same moment, ten times over."""
    slots = 4
    manager = opened(place, slots)
    workers = [place.worker("new", slots=slots) for _ in range(slots)]
    for turn in range(10):
        barrier = threading.Barrier(slots)
        won: list[Slot] = []

        def race(number: int, turn: int = turn, barrier=barrier, won=won) -> None:
            store = workers[number]
            barrier.wait()
            held = take(store, number, f"new-{number}-{turn}")
            if held is not None:
                won.append(held)

        threads = [threading.Thread(target=race, args=(n,)) for n in range(slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, f"turn {turn}"
        (held,) = won
        assert manager.release(held, clean=True)
        old = manager.take(
            manager.slots(GROUP)[held.number], worker="old", revision="old", spark_session=None
        )
        let_go(manager, old)
        for store in workers:
            wait_until(lambda store=store: store.slots(GROUP) == manager.slots(GROUP))


def wait_until(is_so, seconds: float = 5.0) -> None:
    """Poll."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_second_slot_follows_the_first_that_is_active(place):
    """With claims left behind by the trials of several revisions."""
    opened(place, 3)
    one, two = place.worker("new", slots=3), place.worker("new", slots=3)
    first = take(one, 0, "new-0")
    assert first is not None
    assert take(two, 1, "new-1") is None
    assert one.renew(replace(first, phase=Phase.ACTIVE)) is not None
    wait_until(lambda: two.slots(GROUP)[0].phase is Phase.ACTIVE)
    assert take(two, 1, "new-1") is not None
    newest = place.worker("newest", slots=3)
    assert take(newest, 2, "newest-2", "newest") is not None
    record = newest.leases.gate_lease(GROUP, fresh=True).record
    assert set(record.trials) == {"newest"}, "used claims go with the next one"


class Interrupted(Exception):
    """The process ended at this line."""


def test_a_taker_that_dies_with_a_claim_delays_its_revision_only(place, monkeypatch):
    """Its claim is replaced after two seconds; where it only slept, it gives its slot back."""
    monkeypatch.setattr(acquire, "CLAIM_PATIENCE", 0.3)
    opened(place, 2)
    slow, other = place.worker("new", slots=2), place.worker("new", slots=2)
    swap, won = slow.leases.shelf.swap, []

    def sleeps(wanted):
        if wanted["metadata"]["name"] == place.names.slot(0):
            monkeypatch.undo()
            monkeypatch.setattr(acquire, "CLAIM_PATIENCE", 0.3)
            assert take(other, 1, "new-1") is None, "claimed by another, who may still write"
            time.sleep(0.35)
            won.append(take(other, 1, "new-1"))
        return swap(wanted)

    monkeypatch.setattr(slow.leases.shelf, "swap", sleeps)
    assert take(slow, 0, "new-0") is None
    assert won[0] is not None
    wait_until(lambda: [s.holder for s in other.slots(GROUP)] == [None, "new-1"])
    assert take(slow, 0, "new-0") is None, "on trial"


def dying_at(store, request_number: int, *, after: bool):
    """Let the process of this store end at its n-th request, before or after the server did it."""
    once, count = store.leases.calls._once, itertools.count(1)

    def fatal(request, seconds):
        if threading.current_thread() is not threading.main_thread():
            return once(request, seconds)
        number = next(count)
        if number == request_number and not after:
            raise Interrupted
        answer = once(request, seconds)
        if number == request_number:
            raise Interrupted
        return answer

    store.leases.calls._once = fatal


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_at_whatever_request_a_taker_dies_the_next_one_understands(place, monkeypatch, after):
    """One slot at most is written to the new revision; the survivor gets one, or the dead's."""
    monkeypatch.setattr(acquire, "CLAIM_PATIENCE", 0.1)
    manager = opened(place, 2)
    finished = False
    for request_number in range(1, 20):
        dying, other = place.worker("new", slots=2), place.worker("new", slots=2)
        dying.slots(GROUP)
        other.slots(GROUP)
        dying_at(dying, request_number, after=after)
        try:
            finished = take(dying, 0, "dying") is not None
        except Interrupted:
            finished = False
        dying.close()
        written = [slot for slot in manager.slots(GROUP) if slot.holder is not None]
        assert [slot.number for slot in written] in ([], [0])
        if written:  # as after its lease
            held = take(other, 0, "other") or take(other, 0, "other")
        else:
            wait_until(lambda other=other: take(other, 1, "other") is not None)
            held = next(s for s in manager.slots(GROUP) if s.holder == "other")
        assert held is not None
        assert [s.holder for s in manager.slots(GROUP) if s.holder] == ["other"]
        other.close()
        for number in (0, 1):  # back to where it began
            slot = manager.slots(GROUP)[number]
            taken = manager.take(slot, worker="old", revision="old", spark_session=None)
            let_go(manager, taken)
        if finished:
            return
    pytest.fail("a take needs less than twenty requests")


@pytest.mark.parametrize(
    "shut",
    [
        pytest.param({"open": frozenset({1})}, id="closed"),
        pytest.param({"leaving": frozenset({0})}, id="leaving"),
        pytest.param({"quarantined": frozenset({0})}, id="quarantined"),
        pytest.param({"handover": {0: Handover(token=1, revision="x")}}, id="pinned"),
    ],
)
def test_a_gate_that_shuts_in_the_middle_gets_its_slot_back(place, monkeypatch, shut):
    """The taker had read an open gate and written itself into the slot: it gets None."""
    manager = opened(place, 2)
    worker = place.worker("old", slots=2)
    before = worker.slots(GROUP)[0]
    swap = worker.leases.shelf.swap

    def overtaken(wanted):
        stored = swap(wanted)
        monkeypatch.undo()
        assert manager.slots(GROUP)[0].holder == "late", "for a moment it is written there"
        assert manager.write_gate(replace(manager.gate(GROUP), **shut))
        return stored

    monkeypatch.setattr(worker.leases.shelf, "swap", overtaken)
    assert take(worker, 0, "late", "old") is None
    (after, _) = manager.slots(GROUP)
    assert after == replace(before, token=before.token + 1)


def test_a_take_whose_answer_is_lost_is_given_back(place, monkeypatch):
    """Nobody knows it held the slot, its taker least of all."""
    manager = opened(place, 2)
    worker = place.worker("old", slots=2)
    read = worker.leases.read

    def silent(key, *, fresh):
        if fresh and key.kind is Kind.GATE:
            raise Unreachable("no answer")
        return read(key, fresh=fresh)

    monkeypatch.setattr(worker.leases, "read", silent)
    with pytest.raises(Unreachable):
        take(worker, 0, "w", "old")
    assert manager.slots(GROUP)[0].holder == "w"
    monkeypatch.undo()
    worker.settle()
    assert (manager.slots(GROUP)[0].holder, manager.slots(GROUP)[0].clean) == (None, True)
    assert take(worker, 0, "w", "old") is not None


def test_a_take_costs_two_requests(place):
    """And a look none: what stands in the view is enough to begin with."""
    opened(place, 2)
    worker = place.worker("old", slots=2)
    worker.slots(GROUP)
    asked = requests_of(worker)
    assert take(worker, 0, "w", "old") is not None
    assert asked == ["PUT", "GET"]
    asked.clear()
    assert worker.slots(GROUP)
    assert worker.gate(GROUP)
    assert asked == []


def test_a_slots_lease_shows_its_holder_to_kubectl(place):
    """Holder, transitions and times stand where Kubernetes looks for them."""
    opened(place, 1)
    worker = place.worker("old", slots=1)
    held = take(worker, 0, "w", "old")
    assert held is not None
    spec = worker.leases.calls.get(LEASE, place.names.slot(0))["spec"]
    assert spec["holderIdentity"] == "w"
    assert spec["leaseTransitions"] == held.token == 2
    assert spec["leaseDurationSeconds"] == 30
    assert spec["renewTime"].endswith("Z")
    assert objects.annotation(worker.leases.calls.get(LEASE, place.names.gate), objects.GATE)


def test_who_was_asked_to_go_takes_nothing(place):
    """Its pod lives on until it can be removed; one that is gone is forgotten."""
    manager = opened(place, 2)
    store = place.worker("old", slots=2)
    manager.retire(GROUP, ["pod-a", "pod-b"], there=["pod-a", "pod-b", "pod-c"])
    wait_until(lambda: take(store, 0, "pod-a", "old") is None)
    seen = manager.gate(GROUP)
    assert manager.write_gate(seen) is not None
    assert take(manager, 0, "pod-b", "old") is None
    assert take(store, 0, "pod-c", "old") is not None
    manager.retire(GROUP, [], there=["pod-c"])
    assert manager.leases.gate_lease(GROUP, fresh=True).record.going == frozenset()
