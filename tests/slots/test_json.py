"""What the store writes reads back as the same values."""

import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.model import Plan, Price, Receipt, Step
from fleet.slots import Change, Gate, WorkerReport, codec

_json = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3
)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(Price, "price", id="price"),
        pytest.param(Step, "step", id="step"),
        pytest.param(Plan, "plan", id="plan"),
        pytest.param(Receipt, "receipt", id="receipt"),
        pytest.param(Change, "change", id="change"),
        pytest.param(Gate, "gate", id="gate"),
        pytest.param(WorkerReport, "report", id="report"),
    ],
)
def test_round_trip(kind, name):
    """Every field survives, through text."""
    as_json = getattr(codec, f"{name}_as_json")
    from_json = getattr(codec, f"{name}_from_json")
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    st.register_type_strategy(object, _json)

    @settings(max_examples=40, deadline=None)
    @given(st.from_type(kind))
    def round_trip(value):
        stored = as_json(value)
        assert set(stored) == {field.name for field in fields(kind)}
        assert from_json(json.loads(json.dumps(stored))) == value

    round_trip()
