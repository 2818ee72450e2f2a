"""What the store refuses to those who have seen an older state."""

from dataclasses import replace

from fleet.slots import Gate, Phase, Slot, SlotStore
from tests.support.plans import plan_of

GROUP = "orders"


def open_slots(store: SlotStore, *numbers: int) -> None:
    gate = store.gate(GROUP)
    assert store.write_gate(replace(gate, open=frozenset(numbers))) is not None


def take(store: SlotStore, seen: Slot, worker: str = "w1") -> Slot | None:
    return store.take(seen, worker=worker, revision="r1", spark_session=None)


def test_a_slot_that_was_taken_since_is_not_cleared(store):
    """A leave that was sent for the holder before says nothing of the one after it."""
    open_slots(store, 0)
    before = take(store, store.slots(GROUP)[0], worker="a")
    assert before is not None
    closed = store.renew(replace(before, phase=Phase.CLOSED, member_id="m"))
    assert closed is not None
    assert store.release(closed, clean=True)
    after = take(store, store.slots(GROUP)[0], worker="b")
    assert after is not None
    assert not store.clear(closed)
    assert store.slots(GROUP)[0] == after


def test_a_change_under_way_is_the_only_one(store):
    """Also after its first step."""
    begun = store.begin_change(plan_of(), actor="ann", started_at=0.0)
    assert begun is not None
    assert store.advance(replace(begun, step=1)).step == 1
    assert store.begin_change(plan_of(id="q"), actor="bob", started_at=1.0) is None


def test_a_gate_of_an_unread_version_is_refused(store):
    """Neither older nor newer than what is stored."""
    open_slots(store, 0)
    version = store.gate(GROUP).version
    for other in (version - 1, version + 1):
        assert store.write_gate(Gate(group=GROUP, version=other)) is None
    assert store.gate(GROUP).open == {0}


def test_a_newer_token_than_is_stored_renews_nothing(store):
    """Only the very holder that is stored writes."""
    open_slots(store, 0)
    held = take(store, store.slots(GROUP)[0])
    assert held is not None
    for token in (held.token - 1, held.token + 1):
        stale: Slot = replace(held, token=token)
        assert store.renew(stale) is None
        assert not store.release(stale, clean=True)
    assert store.slots(GROUP)[0] == held
