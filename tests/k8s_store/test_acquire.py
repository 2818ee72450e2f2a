"""A take looks at two objects and behaves as if they were one [22]."""

import itertools
import threading
from dataclasses import replace

import pytest

from fleet.slots import Phase, Slot, SlotTargets, store
from tests.k8s_store.conftest import requests_of
from tests.support.fleet_leases import make_leases
from tests.support.waiting import until

pytestmark = pytest.mark.kubernetes
GROUP = "orders"


def opened(place, slots: int, **fields: object):
    """A manager's store with these slots open and free, last held by `old`, which has worked."""
    manager = place.manager()
    make_leases(manager, GROUP, slots=slots)
    assert manager.write_targets(SlotTargets(group=GROUP, open=frozenset(range(slots)), **fields))
    for slot in manager.slots(GROUP):
        held = manager.take(slot, worker="old", revision="old", spark_session="s-old")
        let_go(manager, held)
    return manager


def let_go(store, held: Slot | None) -> None:
    """Release a slot after a batch: its revision is known to work."""
    worked = store.renew(replace(held, phase=Phase.ACTIVE, batches=1))
    assert store.release(worked, clean=True)


def take(store, number: int, worker: str, revision: str = "new") -> Slot | None:
    seen = next(slot for slot in store.slots(GROUP) if slot.number == number)
    return store.take(seen, worker=worker, revision=revision, spark_session=f"s-{worker}")


class Interrupted(Exception):
    """The process ended at this line."""


def dying_at(store, request_number: int, *, after: bool):
    """Let the process of this store end at its n-th request, before or after the server did it."""
    once, count = store.leases.api._once, itertools.count(1)

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

    store.leases.api._once = fatal


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_at_whatever_request_a_new_owner_dies_the_next_one_understands(place, monkeypatch, after):
    """One slot at most is written to the new revision; the survivor gets one, or the dead's."""
    monkeypatch.setattr(store, "CLAIM_GRACE", 0.1)
    manager = opened(place, 2)
    finished = False
    for request_number in range(1, 20):
        dying, other = place.worker("new"), place.worker("new")
        dying.slots(GROUP)
        other.slots(GROUP)
        dying_at(dying, request_number, after=after)
        try:
            finished = take(dying, 0, "dying") is not None
        except Interrupted:
            finished = False
        dying.close()
        written = [slot for slot in manager.slots(GROUP) if slot.owner is not None]
        assert [slot.number for slot in written] in ([], [0])
        if written:  # as after its lease
            held = take(other, 0, "other") or take(other, 0, "other")
        else:
            held = until(lambda other=other: take(other, 1, "other"), "the slot", still=5.0)
        assert held is not None
        assert [s.owner for s in manager.slots(GROUP) if s.owner] == ["other"]
        other.close()
        for number in (0, 1):  # back to where it began
            slot = manager.slots(GROUP)[number]
            taken = manager.take(slot, worker="old", revision="old", spark_session=None)
            let_go(manager, taken)
        if finished:
            return
    pytest.fail("a take needs less than twenty requests")


def test_a_take_costs_two_requests(place):
    """And a look none: what stands in the view is enough to begin with."""
    opened(place, 2)
    worker = place.worker("old")
    worker.slots(GROUP)
    asked = requests_of(worker)
    assert take(worker, 0, "w", "old") is not None
    assert asked == ["PUT", "GET"]
    asked.clear()
    assert worker.slots(GROUP)
    assert worker.targets(GROUP)
    assert asked == []
