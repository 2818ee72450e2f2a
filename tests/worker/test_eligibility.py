"""Which slot a standby may take."""

from dataclasses import replace

import pytest

from fleet.slots import Gate, Handover, Phase, Slot
from fleet.worker.slot.slot_lease import candidates, outranked
from tests.support.slot_records import report_of

GATE = Gate(group="g", version=1, open=frozenset({0, 1}))
FREE = [Slot(group="g", number=0), Slot(group="g", number=1)]


def held(number: int, revision: str = "r1", phase: Phase = Phase.ACTIVE) -> Slot:
    return Slot(
        group="g", number=number, holder="w9", token=1, phase=phase, revision=revision, clean=False
    )


def numbers(
    gate: Gate,
    slots: list[Slot],
    *,
    revision: str = "r1",
    dead: set[int] | None = None,
    waited: set[int] | None = None,
    newest: bool = True,
    handed: set[int] | None = None,
    void: set[int] | None = None,
) -> set[int]:
    found = candidates(
        gate,
        slots,
        worker="w1",
        revision=revision,
        dead=frozenset(dead or ()),
        waited=frozenset(waited or ()),
        newest=newest,
        handed=frozenset(handed or ()),
        void=void or (),
    )
    return {slot.number for slot in found}


def test_open_free_slots_are_for_anybody():
    """A slot that was never held goes to any revision."""
    assert numbers(GATE, FREE) == {0, 1}


def test_a_slot_without_a_row_is_takeable():
    """A gate may open a number that the store has not seen yet."""
    assert numbers(GATE, []) == {0, 1}


@pytest.mark.parametrize(
    "gate",
    [
        pytest.param(replace(GATE, open=frozenset({1})), id="closed"),
        pytest.param(replace(GATE, leaving=frozenset({0})), id="leaving"),
        pytest.param(replace(GATE, quarantined=frozenset({0})), id="quarantined"),
        pytest.param(
            replace(GATE, handover={0: Handover(token=1, revision="r2")}), id="pinned to another"
        ),
    ],
)
def test_reasons_not_to_take(gate: Gate):
    """Closed, leaving, quarantined and pinned slots are left alone."""
    assert numbers(gate, FREE) == {1}


def test_a_pin_admits_its_revision():
    """During a managed roll the slot goes to the pinned revision, at once."""
    gate = replace(GATE, handover={0: Handover(token=1, revision="r2")})
    slots = [replace(held(0), holder=None), held(1)]
    assert numbers(gate, slots, revision="r2") == {0}
    assert numbers(gate, slots, waited={0}) == set(), "it ends with its plan, not with a lease"


def test_who_handed_a_slot_over_leaves_it_to_others():
    """A roll of unchanged code pins the former holder's own revision; after a lease it may help."""
    gate = replace(GATE, handover={0: Handover(token=1, revision="r1")})
    slots = [replace(held(0), holder=None), held(1)]
    assert numbers(gate, slots) == {0}
    assert numbers(gate, slots, handed={0}) == set()
    assert numbers(gate, slots, handed={0}, waited={0}) == {0}


def test_held_slots_are_taken_only_from_the_dead():
    """A holder whose lease was watched to expire loses its slot."""
    assert numbers(GATE, [held(0), held(1)]) == set()
    assert numbers(GATE, [held(0), held(1)], dead={1}) == {1}


@pytest.mark.parametrize("was", ["r1", "r2", None], ids=["theirs", "another's", "nobody's"])
def test_the_newest_revision_has_the_first_right(was: str | None):
    """Unpinned, a free slot is the newest revision's at once, an older one's after one lease."""
    slots = [replace(held(0), holder=None, revision=was), held(1)]
    assert numbers(GATE, slots, revision="r2", newest=True) == {0}
    assert numbers(GATE, slots, revision="r1", newest=False) == set()
    assert numbers(GATE, slots, revision="r1", newest=False, waited={0}) == {0}


def test_a_managed_roll_keeps_its_other_slots_to_their_revision():
    """While slot 1 is pinned to r2, a crash on slot 0 is r1's to mend; r2 is not proven yet."""
    gate = replace(GATE, handover={1: Handover(token=1, revision="r2")})
    slots = [replace(held(0), holder=None), held(1)]
    assert numbers(gate, slots, revision="r1", newest=False) == {0}
    assert numbers(gate, slots, revision="r2", newest=True) == set()
    assert numbers(gate, slots, revision="r2", newest=True, waited={0}) == {0}


def test_who_is_newest_is_told_by_the_standbys_reports():
    """Holders do not count, nor standbys of ours, nor of a revision that is no later."""
    report = report_of("w2", revision="r2", since=20.0)
    mine = {"revision": "r1", "since": 10.0}
    assert outranked([report], **mine) is report
    assert outranked([replace(report, phase="active", slot=0)], **mine) is None
    assert outranked([replace(report, revision="r1")], **mine) is None
    assert outranked([replace(report, since=5.0)], **mine) is None
    assert outranked([replace(report, since=10.0)], **mine) is None, "both would wait for the other"
    assert outranked([replace(report, since=None)], **mine) is None


@pytest.mark.parametrize(
    ("phase", "expected"), [(Phase.JOINING, set()), (Phase.ACTIVE, {0})], ids=["unproven", "proven"]
)
def test_a_revision_takes_a_second_slot_once_the_first_is_active(phase: Phase, expected: set[int]):
    """A bad revision takes one slot, not all [22]."""
    slots = [replace(held(0), holder=None), held(1, "r2", phase)]
    assert numbers(GATE, slots, revision="r2", waited={0}) == expected


def test_racers_begin_at_different_slots():
    """Standbys that race for many slots do not all reach for the same one first."""
    gate = replace(GATE, open=frozenset(range(8)))
    usual = {"revision": "r1", "dead": frozenset(), "waited": frozenset(), "newest": True}
    firsts = [candidates(gate, [], worker=f"w{n}", **usual)[0].number for n in range(20)]
    assert len(set(firsts)) > 3


def test_a_spoiled_slot_is_anothers_at_once():
    """Who failed on it waits for a lease, whether it is the newest or not."""
    gate = replace(GATE, open=frozenset({0}))
    spoiled = [replace(held(0, "r2"), holder=None, error="the entrypoint fails")]
    assert numbers(gate, spoiled, revision="r1", newest=False) == {0}
    assert numbers(gate, spoiled, revision="r2") == set()
    assert numbers(gate, spoiled, revision="r2", waited={0}) == {0}


def test_a_pin_that_has_ended_is_none():
    """The slot goes on as in a roll: to the revision it had, to others after a lease."""
    gate = replace(GATE, handover={0: Handover(token=1, revision="r2")})
    was = [replace(held(0), holder=None, phase=Phase.FREE), held(1)]
    assert numbers(gate, was) == set()
    assert numbers(gate, was, void={0}) == {0}
    assert numbers(gate, was, revision="r3", void={0}) == set()
    assert numbers(gate, was, revision="r3", void={0}, waited={0}) == {0}
