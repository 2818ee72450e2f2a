"""What the store writes reads back as the same values."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.model import Plan, Price, Receipt, Step
from fleet.slots import Change, Gate, WorkerReport, codec

_json = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3
)


@pytest.mark.parametrize("kind", [Price, Step, Plan, Receipt, Change, Gate, WorkerReport])
def test_round_trip(kind):
    """Every field survives, through text."""
    as_json = codec.gate_as_json if kind is Gate else codec.as_json
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    st.register_type_strategy(object, _json)

    @settings(max_examples=40, deadline=None)
    @given(st.from_type(kind))
    def round_trip(value):
        if isinstance(value, Change):  # a record's own detail is always one object of JSON
            value = replace(value, detail=dict(value.detail))
        stored = as_json(value)
        assert list(stored) == [field.name for field in fields(kind)]
        assert codec.from_json(kind, json.loads(json.dumps(stored))) == value

    round_trip()
