"""Lag in records is never negative and names its case; in seconds it is never guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import LagCase, TopicPartition
from fleet.observe.lag import lag_of, lag_seconds, partition_state, rate

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("offsets", "deleted", "case", "lag"),
    [
        pytest.param((5, 0, 9), False, LagCase.OK, 4, id="behind"),
        pytest.param((9, 0, 9), False, LagCase.OK, 0, id="caught-up"),
        pytest.param((9, 9, 9), False, LagCase.OK, 0, id="all-taken-by-retention"),
        pytest.param((None, 0, 9), False, LagCase.NEVER_COMMITTED, None, id="never-committed"),
        pytest.param(
            (5, 7, 9), False, LagCase.BELOW_START, 2, id="below-start-counts-the-readable"
        ),
        pytest.param((50, 0, 9), False, LagCase.BEYOND_END, None, id="recreated-topic"),
        pytest.param((5, 0, 9), True, LagCase.TOPIC_DELETED, None, id="deleted"),
        pytest.param((5, None, None), False, LagCase.UNKNOWN, None, id="log-unreadable"),
    ],
)
def test_every_situation_has_a_case(offsets, deleted, case, lag):
    """Only where a number of records means something is there one."""
    committed, start, end = offsets
    found = lag_of(committed=committed, log_start=start, log_end=end, deleted=deleted)
    assert found == (case, lag)


OFFSETS = st.one_of(st.none(), st.integers(0, 1 << 40))


@given(OFFSETS, OFFSETS, OFFSETS, st.booleans(), st.booleans())
def test_lag_is_never_negative(committed, start, end, deleted, unreadable):
    """Whatever the offsets are."""
    _, lag = lag_of(
        committed=committed,
        log_start=start,
        log_end=None if end is None or start is None else max(start, end),
        deleted=deleted,
        unreadable=unreadable,
    )
    assert lag is None or lag >= 0


@pytest.mark.parametrize(
    ("samples", "committed", "age"),
    [
        pytest.param([], 5, None, id="no-samples"),
        pytest.param([(90.0, 10)], 10, 0.0, id="one-sample-caught-up"),
        pytest.param([(90.0, 10)], 9, None, id="one-sample-behind"),
        pytest.param([(80.0, 0), (90.0, 10)], 5, 15.0, id="between"),
        pytest.param([(80.0, 0), (90.0, 10)], 0, 20.0, id="at-a-sample"),
        pytest.param([(80.0, 5), (90.0, 10)], 4, None, id="older-than-the-first"),
        pytest.param([(70.0, 5), (80.0, 5), (90.0, 10)], 5, 20.0, id="after-standing-still"),
        pytest.param([(70.0, 5), (80.0, 9), (85.0, 9), (90.0, 9)], 9, 0.0, id="stands-still"),
        pytest.param([(60.0, 50), (80.0, 0), (90.0, 10)], 5, 15.0, id="recreated"),
        pytest.param([(60.0, 5), (80.0, 0)], 4, 0.0, id="recreated-empty"),
        pytest.param([(90.0, 10), (110.0, 20)], 19, 0.0, id="clock-behind-the-samples"),
    ],
)
def test_age_of_a_committed_offset(samples, committed, age):
    """Interpolated between the samples around it; nothing waits = 0; too old = unknown."""
    assert lag_seconds(samples, committed, 100.0) == age


def test_unreadable_offsets_are_not_called_never_committed():
    """A group whose offsets could not be fetched is unknown, not without offsets."""
    found = partition_state(
        tp=TP, committed=None, log_start=0, log_end=9, deleted=False, unreadable=True,
        owner="m", samples=(), now=0.0,
    )  # fmt: skip
    assert (found.case, found.lag, found.owner) == (LagCase.UNKNOWN, None, "m")


def test_rates_are_unknown_where_an_offset_went_back():
    """A recreated topic or a reset gives no negative rate."""

    def state(committed, end):
        return partition_state(
            tp=TP, committed=committed, log_start=0, log_end=end, deleted=False,
            unreadable=False, owner=None, samples=(), now=0.0,
        )  # fmt: skip

    assert rate(state(10, 20), state(30, 70), 10.0) == rate(state(0, 0), state(20, 50), 10.0)
    assert rate(state(10, 20), state(30, 70), 10.0).produced == 5.0
    assert rate(state(10, 20), state(5, 10), 10.0).consumed is None
    assert rate(state(10, 20), state(5, 10), 10.0).produced is None
    assert rate(state(10, 20), state(30, 70), 0.0).produced is None
