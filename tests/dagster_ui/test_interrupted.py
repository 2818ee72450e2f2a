"""Runs that end in the middle of a change: cancelled by a person, or by a power cut [31, 36]."""

import time
from collections.abc import Callable

import pytest

from fleet.decide.names import slug
from fleet.slots import ChangeState
from tests.dagster_ui.conftest import GROUP

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(420),
]

SLUG = slug("main", GROUP)
PLAN, ROLLOUT = f"main/plan/{SLUG}", f"main/rollout/{SLUG}"
ROLL = {"ops": {key.replace("/", "__"): {"config": {"roll": True}} for key in (PLAN, ROLLOUT)}}


def wait_until(true: Callable[[], bool], *, seconds: float) -> None:
    """Look again and again."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.2)


def in_state(stage, state: ChangeState) -> bool:
    """Whether the group's change is in this state."""
    change = stage.change()
    return change is not None and change.state is state


def test_cancelled_run_leaves_a_change_that_the_next_run_finishes(stage, room):
    """Cancel ends the run at once; a plain run later picks the same plan up, at its price."""
    first = room.launch(PLAN, ROLLOUT, config={})
    wait_until(lambda: in_state(stage, ChangeState.RUNNING), seconds=60)
    plan = stage.change().plan.id
    room.cancel(first)
    assert room.finished(first, timeout=60) == "CANCELED"
    assert in_state(stage, ChangeState.RUNNING)

    second = room.launch(PLAN, ROLLOUT, config={})
    assert room.finished(second, timeout=180) == "SUCCESS", room.story(second)
    assert f"picked up plan {plan}" in room.story(second)
    assert "Expected 1 rebalance, recorded 1: equal." in room.story(second)


def test_power_cut_in_a_roll_mends_itself(stage, room):
    """After a restart the sensor ends the dead run, and the schedule resumes its change."""
    run = room.launch(PLAN, ROLLOUT, config=ROLL)
    wait_until(lambda: in_state(stage, ChangeState.RUNNING), seconds=60)
    room.kill()
    assert in_state(stage, ChangeState.RUNNING)

    stage.write(mode="act")  # loaded so, the schedule runs by itself
    with stage.serve() as again:
        assert again.finished(run, timeout=120) == "FAILURE"
        assert "its process is gone" in again.story(run)
        wait_until(lambda: in_state(stage, ChangeState.DONE), seconds=180)
        (receipt,) = stage.change().receipts
        assert (receipt.ours, receipt.verdict.value) == (0, "equal")
