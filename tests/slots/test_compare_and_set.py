"""Every write of the store changes something only where its caller's view still holds."""

from dataclasses import replace

import pytest

from fleet.errors import LostLease
from fleet.model import TopicPartition
from fleet.slots import (
    ChangeState,
    Handover,
    Pause,
    Phase,
    Slot,
    SlotTargets,
    StoppedPartition,
    WorkerReport,
)
from fleet.slots.store import Store
from tests.support.plans import plan_of

GROUP = "orders"


def open_slots(store: Store, *numbers: int, **fields: object) -> SlotTargets:
    targets = replace(store.targets(GROUP), open=frozenset(numbers), **fields)
    stored = store.write_targets(targets)
    assert stored is not None
    return stored


def take(store: Store, seen: Slot, worker: str = "w1", revision: str = "r1") -> Slot | None:
    return store.take(seen, worker=worker, revision=revision, spark_session=f"session-{worker}")


def holding(store: Store) -> Slot:
    """Slot 0 is opened, and w1 takes it."""
    open_slots(store, 0)
    return take(store, store.slots(GROUP)[0])


def test_a_targets_that_was_never_written_is_version_0_and_shut(store):
    """No slot targets: version 0, nothing open."""
    assert store.targets(GROUP) == SlotTargets(group=GROUP)


def test_only_the_writer_that_saw_the_stored_version_writes_the_targets(store):
    """Of two writers that saw version 0 the second gets None and changes nothing."""
    first = store.write_targets(SlotTargets(group=GROUP, open=frozenset({0})))
    assert first.version == 1
    for unread in (0, 2):
        assert store.write_targets(SlotTargets(group=GROUP, version=unread)) is None
    assert store.targets(GROUP).open == {0}


def test_what_a_group_has_committed_is_kept(stores, monkeypatch):
    """Once written, whoever opens the store and whatever becomes of the slot targets [53]."""
    store, other = stores.open(), stores.open()
    open_slots(store, 0)
    assert store.committed_topics(GROUP) == frozenset()
    assert store.committed_topics(GROUP, "t", "u") == {"t", "u"}
    with monkeypatch.context() as patch:
        patch.setattr(store, "_change_record", None)  # nothing is written twice
        assert store.committed_topics(GROUP, "t") == {"t", "u"}
    assert other.committed_topics(GROUP, "v") == {"t", "u", "v"}
    open_slots(other, 0, 1)
    assert store.committed_topics(GROUP) == {"t", "u", "v"}


def test_opening_creates_the_slots_and_shutting_keeps_them(store):
    """slots() lists all that were ever opened, by number."""
    open_slots(store, 2, 0)
    open_slots(store, 0)
    assert [(s.number, s.phase) for s in store.slots(GROUP)] == [(0, Phase.FREE), (2, Phase.FREE)]


def test_a_taken_slot_is_marked_unclean_and_joining_with_a_new_token(store):
    """Taking raises the token; the member id of the member before stays for its leave."""
    held = holding(store)
    assert held == Slot(
        group=GROUP,
        number=0,
        owner="w1",
        token=1,
        phase=Phase.JOINING,
        clean=False,
        revision="r1",
        spark_session="session-w1",
    )


@pytest.mark.parametrize(
    ("targets", "revision", "taken"),
    [
        pytest.param({"numbers": (0,)}, "r1", True, id="open"),
        pytest.param({"numbers": (1,)}, "r1", False, id="not-open"),
        pytest.param({"numbers": (0,), "leaving": frozenset({0})}, "r1", False, id="leaving"),
        pytest.param(
            {"numbers": (0,), "quarantined": frozenset({0})}, "r1", False, id="quarantined"
        ),
        pytest.param(
            {"numbers": (0,), "handover": {0: Handover(token=7, revision="r2")}},
            "r1",
            False,
            id="pinned-to-another-revision",
        ),
        pytest.param(
            {"numbers": (0,), "handover": {0: Handover(token=7, revision="r2")}},
            "r2",
            True,
            id="pinned-to-this-revision",
        ),
    ],
)
def test_the_targets_says_who_may_take(store, targets, revision, taken):
    """A slot is taken only where it is open, not leaving, not quarantined, and by its revision."""
    fields = dict(targets)
    open_slots(store, *fields.pop("numbers"), **fields)
    assert (take(store, Slot(group=GROUP, number=0), revision=revision) is not None) is taken


def test_a_pin_that_has_ended_keeps_nobody_away(store):
    """Just the pin that the new owner saw end; whoever is on trial gets no second slot by it."""
    pins = {n: Handover(token=1, revision="r2") for n in (0, 1)}
    open_slots(store, 0, 1)
    old = [take(store, slot, worker=f"old-{slot.number}") for slot in store.slots(GROUP)]
    open_slots(store, 0, 1, handover=pins)
    assert all(slot is not None and store.release(slot, clean=True) for slot in old)

    def take_of(number: int, void: Handover, revision: str = "r1") -> Slot | None:
        seen = store.slots(GROUP)[number]
        return store.take(seen, worker="s", revision=revision, spark_session=None, void=void)

    assert take_of(0, Handover(token=2, revision="r2")) is None
    assert take_of(0, pins[0], "r3") is not None
    assert take_of(1, pins[1], "r3") is None
    assert take_of(1, pins[1]) is not None


def test_a_revision_on_trial_gets_no_second_slot_of_another(store):
    """Whatever its standbys saw: the second slot waits until the first is active [22]."""
    open_slots(store, 0, 1)
    old = [take(store, slot, worker=f"old-{slot.number}") for slot in store.slots(GROUP)]
    assert all(slot is not None and store.release(slot, clean=True) for slot in old)
    seen = store.slots(GROUP)
    first = take(store, seen[0], worker="new-0", revision="r2")
    assert take(store, seen[1], worker="new-1", revision="r2") is None, "as seen, but on trial"
    assert store.renew(replace(first, phase=Phase.ACTIVE)) is not None
    assert take(store, seen[1], worker="new-1", revision="r2") is not None


def test_a_trial_holds_up_neither_its_own_slots_nor_pinned_or_fresh_ones(store):
    """An opened slot, one that ran this revision and a managed roll's are no second slot [22]."""
    open_slots(store, 0, 1, 2, handover={1: Handover(token=1, revision="r2")})
    old = take(store, store.slots(GROUP)[0], worker="old")
    assert store.release(old, clean=True)
    seen = store.slots(GROUP)
    assert take(store, seen[0], worker="new-0", revision="r2") is not None
    assert take(store, seen[1], worker="new-1", revision="r2") is not None, "pinned to it"
    assert take(store, seen[2], worker="new-2", revision="r2") is not None, "nobody's yet"
    held = store.slots(GROUP)[0]
    assert take(store, held, worker="new-3", revision="r2") is not None, "its own, from the dead"


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param({"owner": "w9"}, id="owner"),
        pytest.param({"token": 9}, id="token"),
        pytest.param({"counter": 9}, id="counter"),
    ],
)
def test_a_slot_that_moved_on_is_not_taken(store, stale):
    """Owner, token and counter must be as seen; a renewal alone saves the owner."""
    held = holding(store)
    assert take(store, replace(held, **stale), worker="w2") is None
    renewed = store.renew(held)
    assert take(store, held, worker="w2") is None, "a view that is one renewal old"
    assert take(store, renewed, worker="w2") is not None


def test_the_owner_writes_its_fields_and_nobody_else_does(store):
    """A renewal writes with counter + 1 while (owner, token) match; a former owner gets None."""
    held = holding(store)
    for token in (held.token - 1, held.token + 1):
        assert store.renew(replace(held, token=token)) is None
        assert not store.release(replace(held, token=token), clean=True)
    renewed = store.renew(
        replace(held, phase=Phase.ACTIVE, member_id="m-1", batches=3, error="bad record")
    )
    assert (renewed.counter, renewed.phase, renewed.member_id) == (1, Phase.ACTIVE, "m-1")
    assert store.slots(GROUP) == (renewed,)
    taken = take(store, renewed, worker="w2", revision="r2")
    assert (taken.member_id, taken.batches, taken.error) == ("m-1", 0, None)
    assert store.renew(renewed) is None
    assert store.release(renewed, clean=True) is False
    assert store.slots(GROUP) == (taken,)


@pytest.mark.parametrize(
    ("phase", "after"),
    [
        pytest.param(Phase.DRAINING, Phase.FREE, id="drained"),
        pytest.param(Phase.CLOSED, Phase.CLOSED, id="closed-for-a-leave"),
    ],
)
def test_a_release_keeps_the_member_id_until_the_leave(store, phase, after):
    """A released slot has no owner and still names its member; clear forgets it."""
    held = holding(store)
    held = store.renew(replace(held, phase=phase, member_id="m-1"))
    assert store.release(held, clean=True) is True
    (slot,) = store.slots(GROUP)
    assert (slot.owner, slot.phase, slot.clean, slot.member_id) == (None, after, True, "m-1")
    assert store.clear(replace(slot, token=99)) is False
    assert store.clear(slot) is True
    (slot,) = store.slots(GROUP)
    assert (slot.phase, slot.member_id, slot.token) == (Phase.FREE, None, 1)
    after = take(store, slot, worker="w2")
    assert not store.clear(slot), "a leave that was sent before says nothing of who came after"
    assert store.slots(GROUP) == (after,)


def test_one_change_at_a_time_and_a_token_that_grows(store):
    """A second one is refused while a change runs; the next one has a higher token."""
    first = store.begin_change(plan_of(id="p1"), actor="a", started_at=5.0)
    again = store.begin_change(plan_of(id="p1"), actor="a", started_at=5.0)
    assert again == first, "its answer was lost"
    first = store.advance(replace(first, step=1))
    assert store.begin_change(plan_of(id="p2"), actor="b", started_at=6.0) is None
    assert (
        store.begin_change(plan_of(id="p2", group="other"), actor="b", started_at=6.0) is not None
    )
    done = store.advance(
        replace(first, state=ChangeState.DONE, step=0, ended_at=7.0, sentence="done")
    )
    assert done.counter == 2
    second = store.begin_change(plan_of(id="p2"), actor="b", started_at=8.0)
    assert second.token > first.token
    assert [c.plan.id for c in store.changes(GROUP)] == ["p2", "p1"]
    assert store.change(GROUP) == second


def test_a_change_is_adopted_only_as_seen_and_its_former_actor_is_told(store):
    """After adopt the old actor gets LostLease; a stale adopter gets None."""
    change = store.begin_change(plan_of(id="p1"), actor="a", started_at=5.0)
    renewed = store.advance(replace(change, detail={"position": 42}))
    assert store.adopt(change, actor="b") is None
    adopted = store.adopt(renewed, actor="b")
    assert (adopted.actor, adopted.token, adopted.detail) == ("b", 2, {"position": 42})
    with pytest.raises(LostLease, match="belongs to b"):
        store.advance(renewed)
    ended = store.advance(replace(adopted, state=ChangeState.ABORTED))
    assert store.adopt(ended, actor="c") is None
    with pytest.raises(LostLease, match="no actor"):
        store.advance(replace(change, group="unknown"))


def test_old_changes_go(store, stores):
    """A group keeps its last changes only."""
    for number in range(stores.kept_changes + 3):
        change = store.begin_change(plan_of(id=f"p{number}"), actor="a", started_at=0.0)
        store.advance(replace(change, state=ChangeState.DONE))
    kept = store.changes(GROUP, limit=10_000)
    assert len(kept) == stores.kept_changes
    assert kept[0].plan.id == f"p{stores.kept_changes + 2}"


def test_marks_are_replaced_and_lifted(store):
    """Pauses, notes, quarantines and reports: the last writer wins, removal says so."""
    store.pause(Pause(group=None, reason="night", by="ann", at=1.0))
    store.pause(Pause(group=GROUP, reason="a", by="ann", at=1.0))
    store.pause(Pause(group=GROUP, reason="b", by="bob", at=2.0))
    assert [(p.group, p.reason) for p in store.pauses()] == [(None, "night"), (GROUP, "b")]
    assert store.resume(None) is True
    assert store.resume(None) is False

    store.put_manager_state(GROUP, "agreement", {"since": 1.5})
    assert store.manager_state(GROUP, "agreement") == {"since": 1.5}
    store.put_manager_state(GROUP, "agreement", None)
    assert store.manager_state(GROUP, "agreement") is None

    marks = [
        StoppedPartition(
            group=GROUP,
            tp=TopicPartition("orders", partition),
            offset=10,
            error="ValueError: no id",
            attempts=3,
            revision="r1",
            at=1.0,
        )
        for partition in range(3)
    ]
    for mark in marks:
        store.stop_partition(mark)
    assert store.stopped_partitions(GROUP) == tuple(marks)
    assert store.lift(GROUP, TopicPartition("orders", 1)) == 1
    assert store.lift(GROUP, None) == 2

    report = WorkerReport(
        worker="w1", group=GROUP, revision="r1", phase="standby", slot=None, counter=1, http_port=8
    )
    store.report(replace(report, counter=0))
    store.report(report)
    assert store.reports(GROUP) == (report,)
    store.forget_worker("w1")
    assert store.reports(GROUP) == ()


def test_clusters_do_not_see_each_other(store, stores):
    """The cluster's name is part of every key."""
    other = stores.open(cluster="other")
    open_slots(store, 0)
    assert store.begin_change(plan_of(id="p1"), actor="a", started_at=0.0)
    store.put_manager_state(GROUP, "k", {})
    assert other.targets(GROUP).version == 0
    assert (other.slots(GROUP), other.change(GROUP), other.manager_state(GROUP, "k")) == (
        (),
        None,
        None,
    )


def test_an_actor_that_lost_its_change_writes_no_targets(store):
    """Whatever it has read: the slot targets itself knows who has the change now."""
    open_slots(store, 0)
    first = store.begin_change(plan_of(id="p1"), actor="ann", started_at=0.0)
    seen = store.write_targets(replace(store.targets(GROUP), open_at=1.0), by=first)
    assert seen is not None
    second = store.adopt(first, actor="bob")
    assert second is not None
    for stale in (seen, store.targets(GROUP)):
        with pytest.raises(LostLease, match="belongs to bob"):
            store.write_targets(replace(stale, open=frozenset({0, 1})), by=first)
    assert store.targets(GROUP).open == {0}
    after = store.write_targets(replace(store.targets(GROUP), open=frozenset({0, 2})), by=second)
    assert store.write_targets(replace(after, open_at=2.0)) is not None, "workers are no actors"


def test_a_beat_changes_nothing_that_anybody_reads(store):
    """It proves that a renewal would have been stored [38]."""
    open_slots(store, 0)
    assert store.begin_change(plan_of(id="p1"), actor="ann", started_at=0.0)
    before = (store.targets(GROUP), store.slots(GROUP), store.change(GROUP))
    store.beat(GROUP)
    assert (store.targets(GROUP), store.slots(GROUP), store.change(GROUP)) == before
    assert store.writes.accepted_since(60.0) is not None
    assert not store.writes.is_due(60.0)


def test_a_owner_whose_process_ended_is_told_once_and_renews_no_more(store):
    """Only of the take that was seen; the slot goes on naming it, its member and its session."""
    open_slots(store, 0)
    free = store.slots(GROUP)[0]
    assert store.end_owner(free) is False, "nobody has it"
    held = take(store, free)
    held = store.renew(replace(held, phase=Phase.ACTIVE, member_id="m-1"))
    for stale in ({"token": held.token - 1}, {"owner": "w9"}):
        assert store.end_owner(replace(held, **stale)) is False
    assert store.end_owner(held) is True
    assert store.end_owner(held) is False
    assert store.slots(GROUP) == (replace(held, owner_ended=True),)
    assert store.renew(held) is None, "whoever is said to have ended stops"
    (seen,) = store.slots(GROUP)
    assert (seen.owner, seen.member_id, seen.clean) == ("w1", "m-1", False)
    taken = take(store, seen, worker="w2")
    assert (taken.owner_ended, taken.spark_session) == (False, "session-w1")
    assert store.end_owner(held) is False, "it is w2's"
    assert store.renew(taken) is not None


@pytest.mark.parametrize("how", ["released", "cleared"])
def test_a_slot_without_a_owner_has_none_that_ended(store, how):
    """By its own late release, or the leave of its member."""
    held = holding(store)
    assert store.end_owner(held)
    assert store.release(held, clean=False) if how == "released" else store.clear(held)
    (slot,) = store.slots(GROUP)
    assert (slot.owner, slot.owner_ended, slot.clean) == (None, False, False)
