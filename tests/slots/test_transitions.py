"""Moves that are none; what the store writes reads back as the same values."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Plan, Price, Receipt, Step
from fleet.slots import Change, Gate, Phase, Slot, WorkerReport, codec, transitions
from fleet.slots.transitions import Event, IllegalMove, moved
from tests.support.sampling import examples


@pytest.mark.parametrize("event", [e for e in Event if e not in (Event.TAKE, Event.CLEAR)])
def test_what_nobody_holds_is_only_taken_or_cleared(event: Event) -> None:
    """An illegal move tells whose slot it is and what is possible."""
    slot = Slot(group="orders", number=3, token=7)
    told = r"slot 3 of group orders is free \(holder nobody.* only clear, take"
    with pytest.raises(IllegalMove, match=told):
        moved(slot, event)


def test_a_slot_given_up_for_a_leave_stays_closed() -> None:
    """Its member is to be removed yet; any other is free."""
    for phase in set(Phase) - {Phase.FREE}:
        after = Phase.CLOSED if phase is Phase.CLOSED else Phase.FREE
        assert moved(Slot(group="orders", number=3, phase=phase), Event.RELEASE) is after


def test_a_holder_renews_as_what_a_holder_is() -> None:
    """Free is what a release makes."""
    held = Slot(group="orders", number=3, holder="w1", token=7, phase=Phase.ACTIVE)
    told = Slot(group="orders", number=3, holder="w1", token=7, phase=Phase.FREE)
    with pytest.raises(IllegalMove, match="w1 renews slot 3 of group orders as free"):
        transitions.renewed(held, told)


def test_a_take_that_is_undone_keeps_the_tokens_growing() -> None:
    """Whoever saw the taken slot has seen another one than who sees it free again."""
    before = Slot(group="orders", number=3, token=7, phase=Phase.CLOSED, member_id="m", batches=4)
    taken = transitions.taken(before, worker="w", revision="r", spark_session="s")
    back = transitions.given_back(taken, before)
    assert (back.holder, back.token, back.phase) == (None, 8, Phase.CLOSED)
    assert (back.member_id, back.batches, back.clean) == ("m", 4, True)


# --- what the store writes reads back as the same values --------------------------------------


_json = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3
)


@pytest.mark.parametrize("kind", [Price, Step, Plan, Receipt, Change, Gate, WorkerReport])
def test_round_trip(kind):
    """Every field survives, through text."""
    as_json = codec.gate_as_json if kind is Gate else codec.as_json
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    st.register_type_strategy(object, _json)

    @examples(60)
    @given(st.from_type(kind))
    def round_trip(value):
        if isinstance(value, Change):  # a record's own detail is always one object of JSON
            value = replace(value, detail=dict(value.detail))
        stored = as_json(value)
        assert list(stored) == [field.name for field in fields(kind)]
        assert codec.from_json(kind, json.loads(json.dumps(stored))) == value

    round_trip()
