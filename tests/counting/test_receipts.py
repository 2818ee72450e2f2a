"""A receipt holds only our own rebalances against the plan, and names the others' causes."""

from typing import Any

import pytest

from fleet.decide.receipts import make_receipt
from fleet.model import ExpectedCost, Plan, Receipt, ReceiptResult, StepKind, TopicPartition
from fleet.model.rebalances import Rebalance, RebalanceCounts
from tests.support.plans import plan_of, step_of
from tests.support.rebalances import rebalance as gen

OURS = frozenset({"g-2", "g-3"})


def plan(low: int, high: int) -> Plan:
    expected_cost = ExpectedCost(rebalances_min=low, rebalances_max=high)
    return plan_of(step_of(StepKind.OPEN, (2, 3), expected_cost=expected_cost), group="g", wanted=4)


def receipt(*generations: Rebalance, low: int = 1, high: int = 1, **more: Any) -> Receipt:
    counted = RebalanceCounts(
        group="g", generations=generations, replacements=0, pauses={TopicPartition("t", 0): 0.4},
        from_generation=4, to_generation=9, undecoded=more.get("undecoded", 0),
        open_downtimes={
            TopicPartition("t", n): s for n, s in enumerate(more.get("open_downtimes", ()), start=1)
        },
    )  # fmt: skip
    return make_receipt(
        plan=plan(low, high), step_index=0, counted=counted, our_instances=OURS,
        started_at=10.0, ended_at=15.5, moved_at=more.get("moved_at"),
        extra=("Join spread 0.03 s.",),
    )  # fmt: skip


def test_as_planned_is_equal():
    """Both slots joined in one generation."""
    found = receipt(gen(5, joined={"g-2", "g-3"}, moved=(TopicPartition("t", 0),)))
    assert (found.result, found.rebalances, found.external_rebalances, found.moved) == (
        ReceiptResult.EQUAL,
        1,
        0,
        1,
    )
    assert (found.from_generation, found.to_generation, found.seconds) == (4, 9, 5.5)
    assert (found.longest_downtime_s, found.sentences) == (0.4, ("Join spread 0.03 s.",))


def test_a_longest_pause_that_has_not_ended_is_told():
    """Of partitions that stand still for longer already than the longest that is known, 0.4 s."""
    joined = gen(5, joined={"g-2", "g-3"})
    assert receipt(joined, open_downtimes=[0.3]).sentences == ("Join spread 0.03 s.",)
    (said, _) = receipt(joined, open_downtimes=[0.3, 2.44, 1.0]).sentences
    assert said == ("2 moved partitions (t-2, t-3) had no commit yet: 2.4 s of downtime so far.")


@pytest.mark.parametrize(
    ("downtime", "verdict"),
    [
        ({"pauses": 37.0, "silences": 37.0}, ReceiptResult.DIFFERS),
        ({"pauses": 37.0}, ReceiptResult.EQUAL),
        ({"silences": 37.0}, ReceiptResult.EQUAL),
        ({"open_downtimes": 37.0}, ReceiptResult.EQUAL),
        ({"pauses": 7.0, "silences": 7.0}, ReceiptResult.EQUAL),
    ],
)
def test_a_downtime_that_no_such_step_has_is_not_as_planned(downtime, verdict):
    """A standby was frozen, a broker away: the rebalances alone are as they should be.

    What was not handed over, or waits still, may have had no input: it is told, and no more.
    """
    told = {name: {TopicPartition("t", 1): seconds} for name, seconds in downtime.items()}
    counted = RebalanceCounts(group="g", generations=(), replacements=1, **told)
    found = make_receipt(
        plan=plan(0, 0), step_index=0, counted=counted, our_instances=OURS,
        started_at=10.0, ended_at=60.0, most_downtime=15.0,
    )  # fmt: skip
    assert found.result is verdict
    said = " ".join(found.sentences)
    assert ("had 37.0 s of downtime, more than 15 s" in said) == (verdict is ReceiptResult.DIFFERS)
    assert (found.longest_downtime_s, "t-1" in said) == (37.0, True) or set(downtime) != {
        "silences"
    }


@pytest.mark.parametrize(
    ("generations", "low", "high", "verdict"),
    [
        pytest.param([], 0, 0, ReceiptResult.EQUAL, id="zero-as-planned"),
        pytest.param([], 1, 1, ReceiptResult.DIFFERS, id="fewer"),
        pytest.param([gen(5, joined={"g-2"}), gen(6)], 1, 2, ReceiptResult.EQUAL, id="within"),
        pytest.param(
            [gen(5, joined={"g-2"}), gen(6, joined={"g-3"})],
            1,
            1,
            ReceiptResult.DIFFERS,
            id="more",
        ),
        pytest.param([gen(5)], 0, 0, ReceiptResult.DIFFERS, id="named-by-nobody-is-ours"),
    ],
)
def test_the_verdict_is_whether_ours_lie_within_the_expected_cost(generations, low, high, verdict):
    """Fewer is a difference too: the plan was wrong about something."""
    found = receipt(*generations, low=low, high=high)
    assert found.result is verdict
    assert any("expected" in sentence for sentence in found.sentences) == (
        verdict is ReceiptResult.DIFFERS
    )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param(gen(6, joined={"x"}), "x joined", id="external-join"),
        pytest.param(gen(6, left={"g-0"}), "g-0 left or expired", id="a-slot-outside-the-step"),
        pytest.param(gen(6, resubscribed={"x"}), "changed its topics", id="subscription"),
        pytest.param(
            gen(6, added=(TopicPartition("t", 9),)),
            "1 partition added to t",
            id="topic-grew",
        ),
    ],
)
def test_causes_outside_the_step_are_others_and_named(other, words):
    """They are not held against the plan [26]."""
    found = receipt(gen(5, joined={"g-2", "g-3"}), other, gen(7))
    assert (found.result, found.rebalances, found.external_rebalances) == (
        ReceiptResult.EQUAL,
        1,
        2,
    )
    assert any(words in sentence for sentence in found.sentences)
    assert any("another round" in sentence for sentence in found.sentences)


def test_a_round_shared_with_others_is_ours_and_says_so():
    """It would have happened anyway."""
    found = receipt(gen(5, joined={"g-2", "g-3", "x"}))
    counts = (found.rebalances, found.external_rebalances)
    assert (found.result, *counts) == (ReceiptResult.EQUAL, 1, 0)
    assert "also has external members: x" in found.sentences[0]


def test_settled_with_the_last_rebalance_of_ours():
    """Since the first member's move; not with what others did later, and not before it."""
    ours = (gen(5, 11.2, joined={"g-2", "g-3"}), gen(6, 12.5))
    assert receipt(*ours, gen(7, 14.0, joined={"x"}), moved_at=11.0).settled_s == pytest.approx(1.5)
    assert receipt(*ours, moved_at=12.9).settled_s == 0.0, "another clock's"
    assert receipt(*ours).settled_s is None
    assert receipt(low=0, moved_at=11.0).settled_s is None


def test_aborted_rounds_are_shown_beside():
    """Gaps are counted, not charged."""
    found = receipt(gen(7, joined={"g-2", "g-3"}, aborted=2))
    assert (found.result, found.aborted) == (ReceiptResult.EQUAL, 2)
    assert "2 rounds never completed, before generation 7." in found.sentences


def test_undecoded_records_are_said():
    """A count over records that could not be read is not silently sure."""
    assert "could not decode" in receipt(gen(5, joined={"g-2"}), undecoded=1).sentences[0]


def test_unreadable_records_are_unverified():
    """Managed Kafka: no guess, and the performer's own sentences stay."""
    found = make_receipt(
        plan=plan(1, 1), step_index=0, counted=None, our_instances=OURS,
        started_at=10.0, ended_at=9.0, extra=("Unclean.",),
    )  # fmt: skip
    assert (found.result, found.rebalances, found.seconds) == (ReceiptResult.UNVERIFIED, 0, 0.0)
    assert (found.longest_downtime_s, found.sentences[-1]) == (None, "Unclean.")
