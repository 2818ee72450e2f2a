"""What is written into Leases and ConfigMaps reads back as the same values, and is bounded."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Unreachable
from fleet.kubernetes.client.object_names import ObjectNames
from fleet.kubernetes.leases import lease_objects as objects
from fleet.kubernetes.leases.lease_objects import PublishedTemplates, SlotTargetsLease
from fleet.model import StepKind, TopicPartition
from fleet.slots import (
    Change,
    ChangeState,
    FirstOpening,
    Handover,
    Slot,
    SlotTargets,
    StoppedPartition,
    WorkerReport,
)
from fleet.slots.backend import Claim, SlotTargetsRecord
from tests.support.plans import change_of, plan_of, receipt_of, step_of
from tests.support.sampling import examples
from tests.support.slot_records import report_of, stopped

NAMES = ObjectNames("main", "orders")
_finite = st.floats(allow_nan=False, allow_infinity=False)
_json = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5))
st.register_type_strategy(float, _finite)
st.register_type_strategy(object, _json)


def through_text(found):
    """As it comes back from a server."""
    return json.loads(json.dumps(found))


def lease():
    """Without a word of state."""
    return objects.blank("Lease", NAMES.slot(3), NAMES)


@examples(60)
@given(
    st.builds(
        Slot, group=st.just("orders"), number=st.just(3), owner=st.none() | st.text(min_size=1)
    )
)
def test_a_slot_reads_back(slot):
    """Every field survives; the lease's own fields are what Kubernetes shows. Unwritten: free."""
    assert objects.slot_from(lease(), "orders", 3) == Slot(group="orders", number=3)
    stored = through_text(objects.with_slot(lease(), slot, now=1.5, lease=30.0))
    assert objects.slot_from(stored, "orders", 3) == slot
    assert stored["spec"]["holderIdentity"] == slot.owner
    assert stored["spec"]["leaseTransitions"] == slot.token
    assert stored["spec"]["leaseDurationSeconds"] == 30
    assert stored["spec"]["renewTime"] == "1970-01-01T00:00:01.500000Z"


@examples(60)
@given(
    st.builds(SlotTargets, group=st.just("orders"), version=st.integers(min_value=1)),
    st.frozensets(st.integers(0, 99)),
    st.dictionaries(st.text(max_size=10), st.text(max_size=10)),
    st.dictionaries(st.text(max_size=10), st.from_type(Claim), max_size=3),
    st.frozensets(st.text(max_size=10)),
)
def test_the_targets_lease_reads_back(targets, opened, templates, canaries, committed):
    """All that it holds with that of the answers; `first` is left to whoever rendered it."""
    opened |= targets.open
    record = SlotTargetsRecord(
        targets=targets, opened=opened, canaries=canaries, committed=committed
    )
    held = SlotTargetsLease(record=record, templates=PublishedTemplates(templates), answered=3)
    found = lease()
    found["metadata"]["annotations"][objects.FIRST] = '{"slots":2,"after":60}'
    stored = through_text(objects.with_targets(found, held))
    beside = objects.with_record_of_workers(lease(), record, answer=None, seen=3)
    read = objects.with_answers_of(objects.targets_from(stored, "orders"), through_text(beside))
    assert read == replace(held, first=FirstOpening(slots=2, after=60))


@examples(60)
@given(st.from_type(Change).map(lambda made: replace(made, detail=dict(made.detail))))
def test_a_change_reads_back(change):
    """Packed or not."""
    stored = through_text(objects.with_change(lease(), change, now=1.0, lease=30.0))
    assert objects.change_from(stored) == change


def test_a_long_change_is_packed():
    """A plan with hundreds of notes still fits into an annotation."""
    value = {"notes": [f"partition orders-{n} moves from a to b" for n in range(5000)]}
    packed = objects.packed(value)
    assert len(packed) < 60_000 < len(objects.text(value))
    assert objects.unpacked(packed) == value


@examples(60)
@given(st.from_type(WorkerReport).filter(lambda report: len(report.error or "") < 1000))
def test_a_report_reads_back(report):
    """With its worker as holder and the time of writing; a Lease that is freed has none."""
    stored = through_text(objects.with_report(lease(), report, now=7.0, lease=30.0))
    assert objects.report_from(stored) == report
    assert (objects.holder_of(stored), objects.renewed_at(stored)) == (report.worker or None, 7.0)
    free = through_text(objects.with_report(stored, None, now=8.0, lease=30.0))
    assert (objects.report_from(free), objects.holder_of(free)) == (None, None)
    assert objects.renewed_at(free) == 0.0


@examples(60)
@given(st.lists(st.builds(StoppedPartition, group=st.just("orders")), max_size=3))
def test_marks_read_back(marks):
    """One key per partition."""
    data = {objects.key_of("p.", str(mark.tp)): objects.mark_text(mark) for mark in marks}
    latest = {mark.tp: mark for mark in marks}
    read = objects.values_from({"metadata": {"name": "m"}, "data": data}, StoppedPartition)
    assert {mark.tp: mark for mark in read} == latest


def widened(found: dict[str, Any]) -> dict[str, Any]:
    """The same from a release that knows a key more, in every value that is JSON."""
    made = json.loads(json.dumps(found))
    for place in (made["metadata"].get("annotations", {}), made.get("data", {})):
        for key, text in place.items():
            if text.startswith("{") and key not in {objects.CANARIES, objects.TEMPLATES}:
                place[key] = json.dumps(json.loads(text, object_hook=wide))
    return dict(made)


def wide(value: dict[str, Any]) -> dict[str, Any]:
    """With a key more, where its keys are fields: those of a map by slot are numbers."""
    return value if all(key.isdigit() for key in value) else {"colour": "green", **value}


def test_keys_that_nobody_knows_are_left_out_and_stay_in_the_targets():
    """A newer release wrote them, of which this one takes nothing away."""
    plan = plan_of(step_of(StepKind.ROLL, (0,)))
    change = change_of(plan, ChangeState.RUNNING, receipt_of(plan))
    stored = widened(objects.with_change(lease(), change, now=1.0, lease=30.0))
    assert objects.change_from(stored) == change
    slot = Slot(group="orders", number=3, owner="w", token=2, counter=9)
    stored = widened(objects.with_slot(lease(), slot, now=1.0, lease=30.0))
    assert objects.slot_from(stored, "orders", 3) == slot
    report = report_of("w", "orders", slot=0)
    stored = widened(objects.with_report(lease(), report, now=7.0, lease=30.0))
    assert objects.report_from(stored) == report

    pins = {0: Handover(token=2, revision="r")}
    targets = SlotTargets(group="orders", version=4, open=frozenset({0}), handover=pins)
    held = SlotTargetsLease(record=SlotTargetsRecord(targets=targets))
    stored = widened(objects.with_targets(lease(), held))
    assert objects.targets_from(stored, "orders") == held
    again = objects.with_targets(stored, held)
    assert json.loads(again["metadata"]["annotations"][objects.TARGETS])["colour"] == "green"
    assert objects.targets_from(again, "orders") == held


@examples(200)
@given(st.text(max_size=300), st.text(max_size=300))
def test_keys_are_a_config_maps_and_never_shared(one, two):
    """Whatever a worker, a topic or a note is called."""
    for prefix in ("g.", "p.", "note."):
        keys = {objects.key_of(prefix, name) for name in (one, two)}
        assert len(keys) == len({one, two})
        for key in keys:
            assert 0 < len(key) <= 253
            assert key not in {".", ".."}
            assert not key.startswith("..")
            assert all(c.isascii() and (c.isalnum() or c in "-._") for c in key)


def test_what_is_long_is_shortened():
    """An error of a megabyte is kept in 2,000 characters, of a mark in 500."""
    long = "x" * 1_000_000
    slot = Slot(group="orders", number=3, error=long)
    stored = objects.slot_from(objects.with_slot(lease(), slot, now=0, lease=30), "orders", 3)
    assert stored.error is not None
    assert len(stored.error) == objects.MOST_ERROR
    assert len(objects.mark_text(stopped(TopicPartition("t", 0), error=long))) < 1000


def test_old_templates_are_forgotten():
    """The last fifty are known; one that is told again is the newest."""
    held = SlotTargetsLease.empty("g")
    for number in range(60):
        held = objects.with_template(held, f"h{number}", "r")
        held = objects.with_template(held, "h0", "r")
    known = list(held.templates.known)
    assert len(known) == objects.KEPT_TEMPLATES
    assert known[-1] == "h0"


@pytest.mark.parametrize("damage", ["{", '"text"', '{"phase": "asleep"}', "[]"])
def test_a_damaged_annotation_is_no_answer(damage):
    """Nothing is concluded from an object that nobody can read."""
    found = lease()
    found["metadata"]["annotations"][objects.SLOT] = damage
    with pytest.raises(Unreachable, match="slot-3 is damaged"):
        objects.slot_from(found, "orders", 3)


# --- revisions ------------------------------------------------------------------------------

KNOWN = PublishedTemplates({"aaa": "r1", "bbb": "r1", "ccc": "r2"})


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        pytest.param("r1~aaa", "r1", id="registered"),
        pytest.param("r1~ccc", "r1~ccc", id="registered-for-another"),
        pytest.param("r1~xyz", "r1~xyz", id="set-image-by-hand"),
        pytest.param("r1", "r1", id="plain-already"),
    ],
)
def test_a_manager_reads_plain_revisions_of_its_own_templates(raw, plain):
    """And sees any other as the unknown one that it is."""
    assert KNOWN.plain(raw) == plain


@pytest.mark.parametrize(
    ("pinned", "own", "raw"),
    [
        pytest.param("r1", "r1~bbb", "r1~bbb", id="own-template"),
        pytest.param("r1", "r2~ccc", "r1~aaa", id="another-revision"),
        pytest.param("r1", "r1~xyz", "r1~aaa", id="same-settings-unknown-template"),
        pytest.param("r9", "r1~aaa", "r9", id="not-registered-yet"),
        pytest.param("r1~xyz", "r1~aaa", "r1~xyz", id="pinned-raw"),
    ],
)
def test_a_worker_reads_pins_as_raw_revisions(pinned, own, raw):
    """Its own where that is what is meant; and writes back what the manager wrote."""
    targets = SlotTargets(group="g", handover={0: Handover(token=1, revision=pinned)})
    shown = KNOWN.targets_for_worker(targets, own=own)
    assert shown.handover[0].revision == raw
    assert KNOWN.targets_as_stored(shown) == targets
