"""A take request by request, on a server in memory and a clock that is set.

Who may take at all is the store's own and asked of every store in tests/slots.
"""

from dataclasses import replace

import pytest

from fleet.clock import ManualClock
from fleet.errors import Unreachable
from fleet.kubernetes.client.calls import LEASE, Calls
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases.lease_backend import LeaseBackend
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.model import TopicPartition
from fleet.slots import Gate, Handover, Phase, Quarantine, Slot
from fleet.slots.store import CLAIM_PATIENCE
from tests.support.memory_server import MemoryServer

GROUP = "orders"
NAMES = ObjectNames("main", GROUP)


class Place:
    """Slots 0 to 2 open, free, last held by `old`, which has worked."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = MemoryServer()
        api = self.server.api(self.clock)
        self.manager = LeaseStore.for_manager(api, cluster="main", clock=self.clock, lease=30.0)
        self.write(open=frozenset({0, 1, 2}))
        for slot in self.manager.slots(GROUP):
            held = self.manager.take(slot, worker="old", revision="old", spark_session="s-old")
            assert held is not None
            worked = self.manager.renew(replace(held, phase=Phase.ACTIVE, batches=1))
            assert worked is not None
            assert self.manager.release(worked, clean=True)

    def worker(self, revision: str = "new") -> LeaseStore:
        """The store of one, which reads the server each time."""
        api = self.server.api(self.clock)
        calls = Calls(api.connection, namespace=api.namespace, clock=self.clock)
        backend = LeaseBackend(calls, cluster="main", clock=self.clock, lease=30.0, worker=revision)
        return LeaseStore(backend, clock=self.clock)

    def write(self, **fields: object) -> None:
        """The gate, whatever it was."""
        gate = self.manager.gate(GROUP) if self.server.objects else Gate(group=GROUP)
        assert self.manager.write_gate(replace(gate, **fields)) is not None

    def slot(self, number: int) -> Slot:
        return next(s for s in self.manager.slots(GROUP) if s.number == number)

    def take(self, number: int, worker: str = "w", revision: str = "new") -> Slot | None:
        """By a worker of its own."""
        store = self.worker(revision)
        return store.take(
            self.slot(number), worker=worker, revision=revision, spark_session=f"s-{worker}"
        )

    def hold(self, number: int, worker: str, revision: str) -> Slot:
        """Taken, and one batch committed."""
        held = self.take(number, worker, revision)
        assert held is not None
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
    assert place.manager.leases.gate_lease(GROUP, fresh=True).record.going == frozenset()


@pytest.mark.parametrize(
    "shut",
    [
        pytest.param({"leaving": frozenset({0})}, id="leaving"),
        pytest.param({"open": frozenset()}, id="closed"),
        pytest.param({"handover": {0: Handover(token=1, revision="old")}}, id="pinned"),
    ],
)
def test_a_gate_that_shuts_meanwhile_gets_its_slot_back(place, shut):
    """As it was, but for the token: nobody may act on what was seen before."""
    before = place.slot(0)

    def shuts(method: str, found: dict) -> None:
        if found["metadata"]["name"] == NAMES.slot(0) and method == "PUT":
            place.server.after = lambda method, found: None
            place.write(**shut)

    place.server.after = shuts
    assert place.take(0) is None
    assert place.slot(0) == replace(before, token=before.token + 1)


def test_who_is_asked_to_go_meanwhile_gives_it_back(place):
    """Between its two requests."""
    before = place.slot(0)

    def goes(method: str, found: dict) -> None:
        if found["metadata"]["name"] == NAMES.slot(0) and method == "PUT":
            place.server.after = lambda method, found: None
            place.manager.retire(GROUP, ["w"], there=["w"])

    place.server.after = goes
    assert place.take(0) is None
    assert place.slot(0) == replace(before, token=before.token + 1)


def test_a_take_whose_answer_was_lost_is_looked_for(place):
    """Done all the same: the slot is ours. Nobody answers at all: it is given back later."""
    place.server.silent = 1
    assert place.take(0, revision="old") == place.slot(0)

    def falls(method: str, found: dict) -> None:
        place.server.away = True

    store, seen = place.worker("old"), place.slot(1)
    place.server.silent, place.server.after = 1, falls
    with pytest.raises(Unreachable):
        store.take(seen, worker="x", revision="old", spark_session=None)
    place.server.away, place.server.after = False, lambda method, found: None
    place.clock.sleep(60)
    assert place.slot(1).holder == "x"
    store.settle()
    assert place.slot(1) == replace(seen, token=seen.token + 1)


class Died(Exception):
    """The taker, between two of its requests."""


def claimed(place: Place) -> None:
    """Worker `dead` claims the trial for slot 0 and gets no further."""

    def dies(method: str, found: dict) -> None:
        if found["metadata"]["name"] == NAMES.gate and method == "PUT":
            raise Died

    place.server.after = dies
    with pytest.raises(Died):
        place.take(0, "dead")
    place.server.after = lambda method, found: None


def test_a_claim_of_the_dead_holds_up_for_two_seconds(place):
    """On its finder's own clock; then another claims."""
    claimed(place)
    store, seen = place.worker("new"), place.slot(1)

    def take() -> Slot | None:
        return store.take(seen, worker="b", revision="new", spark_session=None)

    assert take() is None
    place.clock.sleep(CLAIM_PATIENCE - 0.1)
    assert take() is None
    place.clock.sleep(0.2)
    assert take() is not None


def test_a_claim_of_a_slot_that_was_deleted_holds_up_no_longer(place):
    """Nobody can use it any more, and nobody falls over it."""
    claimed(place)
    place.server.delete(LEASE, NAMES.slot(0))
    store, seen = place.worker("new"), place.slot(1)
    assert store.take(seen, worker="b", revision="new", spark_session=None) is None
    place.clock.sleep(CLAIM_PATIENCE + 0.1)
    assert store.take(seen, worker="b", revision="new", spark_session=None) is not None


def test_a_claim_that_was_used_is_over(place):
    """Its slot has the token that it named."""
    claimed(place)
    assert place.take(0, "dead") is not None, "its own"
    held = place.slot(0)
    failed = place.manager.renew(replace(held, error="no"))
    assert failed is not None
    assert place.manager.release(failed, clean=False)
    assert place.manager.clear(place.slot(0)), "nothing tells any more who had it"
    assert place.take(1, "b") is not None


def test_used_claims_go_with_the_next_one(place):
    """Else the gate would grow with every revision."""
    place.hold(0, "a", "new")
    assert place.take(1, "b", "newer") is not None
    trials = place.manager.leases.gate_lease(GROUP, fresh=True).record.canaries
    assert set(trials) == {"newer"}


def test_others_claims_stay_others(place):
    """One revision's claim says nothing of another's."""
    claimed(place)
    assert place.take(1, "c", "newer") is not None


def test_a_lease_that_is_not_there_is_no_loss(place):
    """Somebody deleted it: nothing says that another holds the slot."""
    held = place.hold(0, "a", "old")
    place.server.delete(LEASE, NAMES.slot(0))
    with pytest.raises(Unreachable, match="slot-0 is not there"):
        place.worker("old").renew(held)


def test_what_a_manager_writes_keeps_the_pods_own_revision(place):
    """It reads published revisions; which template ran stays in the slot."""
    place.manager.register_template(GROUP, "hash", "new")
    held = place.take(0, revision="new~hash")
    assert held is not None
    assert place.slot(0).revision == "new"
    assert place.manager.release(place.slot(0), clean=True)
    (stored, *_) = place.worker().slots(GROUP)
    assert stored.revision == "new~hash"


def test_who_comes_between_a_look_and_a_take_keeps_the_slot(place):
    """Its holder renews in the last moment before the write."""
    held = place.hold(0, "living", "old")
    store, seen = place.worker("old"), place.slot(0)

    def renews(method: str, kind: str, name: str) -> None:
        if (method, name) == ("PUT", NAMES.slot(0)):
            place.server.before = lambda *_: None
            assert place.manager.renew(held) is not None

    place.server.before = renews
    assert store.take(seen, worker="w", revision="old", spark_session=None) is None
    assert place.slot(0).holder == "living"


def test_all_marks_are_lifted_by_one_reading(place):
    """And one write; where there is none, nothing is written."""
    for partition in (0, 1):
        tp = TopicPartition("t", partition)
        mark = Quarantine(
            group=GROUP, tp=tp, offset=7, error="no", attempts=3, revision="r", at=1.0
        )
        place.manager.quarantine(mark)
    place.server.requests.clear()
    assert place.manager.lift(GROUP, None) == 2
    assert [method for method, _ in place.server.requests] == ["GET", "PATCH"]
    assert place.manager.quarantines(GROUP) == ()
    place.server.requests.clear()
    assert place.manager.lift(GROUP, None) == 0
    assert [method for method, _ in place.server.requests] == ["GET"]
