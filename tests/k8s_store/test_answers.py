"""Workers answer to the slot targets without writing them, and no answer gets lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kubernetes.client.api import LEASE
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.answers import Answer, answer_between, with_answer
from fleet.kubernetes.leases.lease_store import LeaseStore
from fleet.slots import Handover, SlotTargets
from tests.support.memory_stores import MemoryStores
from tests.support.sampling import examples

GROUP = "orders"
NAMES = ObjectNames("main", GROUP)
SLOTS = st.frozensets(st.integers(0, 5), max_size=6)
TOKENS = st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=3)
TARGETS = SlotTargets(
    group=GROUP,
    version=4,
    open=frozenset({0, 1, 2, 3}),
    leaving=frozenset({2, 3}),
    rejoin={0: 7},
    handover={1: Handover(token=1, revision="r")},
)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        pytest.param(TARGETS, {"open": frozenset({0, 1}), "leaving": frozenset()}, id="left"),
        pytest.param(TARGETS, {"rejoin": {}}, id="rejoined"),
        pytest.param(TARGETS, {"rejoin": {0: 7, 1: 9}}, id="asks to rejoin"),
        pytest.param(TARGETS, {"quarantined": frozenset({1})}, id="quarantined"),
        pytest.param(
            SlotTargets(group=GROUP), {"open": frozenset({0, 1}), "open_at": 9.0}, id="opened"
        ),
    ],
)
def test_what_a_worker_writes_is_an_answer(before, changes):
    """It makes of the slot targets what the worker meant."""
    after = replace(before, **changes)
    answer = answer_between(before, after, number=1)
    assert with_answer(before, answer) == replace(after, version=before.version + 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"open": frozenset({0, 1, 2, 3, 4})},
        {"open": frozenset({0})},
        {"leaving": frozenset({1, 2, 3})},
        {"handover": {}},
        {"open_at": 5.0},
    ],
    ids=str,
)
def test_what_only_a_manager_writes_is_no_answer(changes):
    """To open, to close, to hand over."""
    with pytest.raises(ValueError, match="only a manager"):
        answer_between(TARGETS, replace(TARGETS, **changes), number=1)


@examples(100)
@given(
    st.builds(Answer, left=SLOTS, quarantined=SLOTS, rejoin=TOKENS, rejoined=TOKENS, opened=SLOTS)
)
def test_an_answer_does_only_what_is_asked_for(answer):
    """Whatever a worker writes: it opens nothing, and closes what is leaving at most."""
    after = with_answer(TARGETS, answer)
    assert TARGETS.open - TARGETS.leaving <= after.open <= TARGETS.open
    assert after.leaving <= TARGETS.leaving
    assert (after.handover, after.open_at) == (TARGETS.handover, TARGETS.open_at)


class Place(MemoryStores):
    """Its answers, too."""

    def answers(self) -> list[int]:
        """Numbers of the answers that are stored."""
        return [a.number for a in objects.answers_from(self.server.get(LEASE, NAMES.answers))]


@pytest.fixture
def place() -> Place:
    return Place(GROUP, slots=4)


def quarantine(store: LeaseStore, number: int) -> None:
    assert store.change_targets(
        GROUP, lambda targets: replace(targets, quarantined=targets.quarantined | {number})
    )


def test_a_worker_writes_no_slot_targets(place):
    """Not one byte of their Lease; managers and workers read its answer."""
    assert place.manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1})))
    before = place.server.get(LEASE, NAMES.targets)
    quarantine(place.worker(), 1)
    assert place.worker().committed_topics(GROUP, "orders") == {"orders"}
    assert place.server.get(LEASE, NAMES.targets) == before
    for store in (place.manager, place.worker()):
        assert store.targets(GROUP).quarantined == {1}
        assert store.targets(GROUP).version == 2


def test_the_first_opening_is_an_answer(place):
    """Without a manager; the manager that comes later goes on from there."""
    worker = place.worker()
    assert worker.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1}), open_at=7.0))
    assert worker.write_targets(SlotTargets(group=GROUP, open=frozenset({0}))) is None
    targets = place.manager.targets(GROUP)
    assert (targets.version, targets.open, targets.open_at) == (1, {0, 1}, 7.0)
    assert [slot.number for slot in place.manager.slots(GROUP)] == [0, 1]
    assert place.manager.write_targets(replace(targets, open=frozenset({0, 1, 2})))
    assert place.worker().targets(GROUP).open == {0, 1, 2}


def test_a_manager_that_wrote_meanwhile_takes_no_answer_away(place):
    """It had read before the worker wrote, and neither meets the other's version."""
    assert place.manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1})))

    def meanwhile(method: str, kind: str, name: str) -> None:
        if (method, name) == ("PUT", NAMES.targets):
            place.server.before = lambda *_: None
            quarantine(place.worker(), 1)

    place.server.before = meanwhile
    targets = replace(place.manager.targets(GROUP), open=frozenset({0, 1, 2}))
    assert place.manager.write_targets(targets)
    seen = place.manager.targets(GROUP)
    assert (seen.open, seen.quarantined) == ({0, 1, 2}, {1})


def test_a_manager_that_has_seen_an_answer_may_take_it_back(place):
    """It reopens a quarantined slot; answers that were seen go with the next one."""
    assert place.manager.write_targets(SlotTargets(group=GROUP, open=frozenset({0, 1})))
    for number in (0, 1):
        quarantine(place.worker(), number)
    assert place.answers() == [1, 2]
    targets = place.manager.targets(GROUP)
    assert place.manager.write_targets(replace(targets, quarantined=frozenset()))
    assert place.worker().targets(GROUP).quarantined == frozenset()
    quarantine(place.worker(), 0)
    assert place.answers() == [3]
    assert place.manager.targets(GROUP).quarantined == {0}
