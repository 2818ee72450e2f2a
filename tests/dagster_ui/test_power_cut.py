"""A power cut in the middle of a roll: web server, daemon and run worker go at once [31, 36].

A long form (make faults): Dagster has to start twice.
"""

import pytest

from fleet.slots import ChangeState
from tests.dagster_ui.conftest import GROUP
from tests.support.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def test_power_cut_in_a_roll_mends_itself(stage, room):
    """After a restart the sensor ends the dead run, and the schedule resumes its change."""
    first = room.launch(GROUP, cluster="main")
    assert room.finished(first) == "SUCCESS", room.story(first)
    run = room.launch(GROUP, cluster="main", config={"roll": True})
    until(lambda: stage.is_in(ChangeState.RUNNING), "the roll to begin")
    room.kill()
    assert stage.is_in(ChangeState.RUNNING)

    stage.write(schedules="[reconcile]")  # loaded so, it runs by itself
    with stage.serve() as again:
        assert again.finished(run) == "FAILURE"
        assert "its process has died" in again.story(run)
        until(lambda: stage.is_in(ChangeState.DONE), "the change to be completed")
        (receipt,) = stage.change().receipts
        assert (receipt.rebalances, receipt.result.value) == (0, "equal")
