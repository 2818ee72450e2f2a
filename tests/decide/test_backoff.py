"""When a change that failed is tried again."""

from dataclasses import replace

import pytest

from fleet.decide.refusals import aim_of, wait_after, wait_left
from fleet.model import StepKind
from fleet.slots import Change, ChangeState
from tests.support.plans import plan_of, step_of

ROLL = plan_of(step_of(StepKind.ROLL, [0]), id="a")
FAILED = Change(
    group="orders",
    plan=replace(ROLL, id="b"),
    state=ChangeState.ROLLED_BACK,
    actor="me",
    token=1,
    counter=1,
    step=0,
    started_at=900.0,
    ended_at=1000.0,
)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (1, 300), (2, 600), (3, 1200), (9, 3600)]
)
def test_failures_are_waited_out(failures: int, seconds: float) -> None:
    """The same aim is not tried every minute for ever."""
    assert wait_after(failures) == seconds


def test_aim_ignores_the_plans_id() -> None:
    """Plans of two ticks for the same thing have one aim; another count of slots has another."""
    assert aim_of(ROLL) == aim_of(FAILED.plan)
    assert aim_of(ROLL) != aim_of(replace(ROLL, wanted=3))
    assert aim_of(ROLL) != aim_of(plan_of(step_of(StepKind.LEAVE, [0])))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([], 0),
        ([FAILED], 290),
        ([FAILED, FAILED], 590),
        ([replace(FAILED, state=ChangeState.DONE), FAILED], 0),
        ([replace(FAILED, plan=replace(ROLL, wanted=7))], 0),
        ([replace(FAILED, ended_at=2000.0)], 0),  # the clock was set back
    ],
)
def test_only_failures_in_a_row_with_this_aim_count(changes: list[Change], left: float) -> None:
    """Ten seconds after the last."""
    assert wait_left(ROLL, changes, 1010.0) == left
