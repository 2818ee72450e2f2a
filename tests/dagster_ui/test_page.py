"""What a person sees in Dagster's page: a whole fleet, a rollout with its receipt, checks.

With FLEET_SCREENSHOTS naming a folder the pictures are kept there; docs/images holds some.
"""

import os
from pathlib import Path

import pytest

from fleet.slots import ChangeState
from tests.dagster_ui.conftest import GROUP, PLAIN
from tests.support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.broker, pytest.mark.slow]

SMALLEST_PICTURE = 20_000
"""Bytes: a blank page of this size is some 5,000."""


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where pictures go."""
    return Path(os.environ.get("FLEET_SCREENSHOTS") or tmp_path)


def test_sensor_ticks_observe_through_the_live_daemon(room, browser, pictures):
    """The daemon stores the sensor's observations and check results of somebody else's group."""

    def told() -> bool:
        return any("stored events of 2" in (tick["skipReason"] or "") for tick in room.ticks())

    until(told, "the sensor", progress=lambda: len(room.ticks()), every=0.5,
          picture=lambda: str(room.ticks()))  # fmt: skip
    assert not [tick["error"] for tick in room.ticks() if tick["error"]]
    browser.resize(1400, 900)
    page = f"{room.url}/assets/main/groups/{PLAIN}"
    shown = browser.show(page, PLAIN, "Stable, 1 member", "lag (records)")
    assert "External Asset" in shown
    browser.show(f"{page}?view=checks", "storm", "Passed")
    assert browser.screenshot(pictures / "dagster-group-checks.png") > SMALLEST_PICTURE


@pytest.mark.spark
def test_cancelled_run_leaves_a_change_that_the_next_run_finishes(stage, room):
    """Cancel ends the run at once; a plain run later picks the same plan up, at its expected
    cost.
    """
    first = room.launch(GROUP, cluster="main")
    until(lambda: stage.is_in(ChangeState.RUNNING), "the change to begin", every=0.5)
    plan = stage.change().plan.id
    room.cancel(first)
    assert room.finished(first) == "CANCELED"
    assert stage.is_in(ChangeState.RUNNING)

    second = room.launch(GROUP, cluster="main")
    assert room.finished(second) == "SUCCESS", room.story(second)
    assert f"continuing plan {plan}" in room.story(second)
    assert "Expected 1 rebalance, recorded 1: equal." in room.story(second)


@pytest.mark.spark
def test_rollout_run_shows_its_receipt(stage, room, browser, pictures):
    """A run started over GraphQL rolls the workers that the last test left; the page shows it."""
    if not stage.is_in(ChangeState.DONE):
        first = room.launch(GROUP, cluster="main")
        assert room.finished(first) == "SUCCESS", room.story(first)
    second = room.launch(GROUP, cluster="main", config={"roll": True})
    browser.resize(1500, 1000)
    until(
        lambda: "slots done" in room.story(second), "progress", every=0.5,
        picture=lambda: room.story(second),
    )  # fmt: skip
    browser.show(f"{room.url}/runs/{second}", "slots done", "records waiting")
    assert browser.screenshot(pictures / "dagster-live.png") > SMALLEST_PICTURE
    assert room.finished(second) == "SUCCESS", room.story(second)

    browser.resize(1500, 1000)
    page = f"{room.url}/assets/main/rollout?view=partitions&partition={GROUP}"
    shown = browser.show(page, "recorded rebalances", "longest downtime (s)", "equal")
    assert "Expected 0 rebalances, recorded 0: equal." in shown
    assert browser.screenshot(pictures / "dagster-rollout.png") > SMALLEST_PICTURE

    browser.resize(1400, 900)
    page = f"{room.url}/assets/main/groups/{GROUP}?view=checks&checkDetail=receipt"
    browser.show(page, "receipt", "Passed", "The last change succeeded")
    assert browser.screenshot(pictures / "dagster-checks.png") > SMALLEST_PICTURE

    page = f"{room.url}/locations/fleet/asset-groups/team_orders"
    browser.show(page, GROUP, "Passed")
    assert browser.screenshot(pictures / "dagster-assets.png") > SMALLEST_PICTURE


@pytest.mark.spark
def test_rolled_back_is_red_with_the_workers_error(stage, room, browser, pictures):
    """Bad code gets one slot and loses it: a failed run, a failed check, no materialisation."""
    code = stage.folder / "code" / "counting.py"
    good = code.read_text()
    code.write_text(good.replace("df.count()", 'raise ValueError("no such column: amount")'))
    run = room.launch(GROUP, cluster="main")
    assert room.finished(run) == "FAILURE", room.story(run)
    assert stage.is_in(ChangeState.ROLLED_BACK)
    code.write_text(good)
    browser.resize(1500, 1000)
    browser.show(f"{room.url}/runs/{run}", "rolled back", "no such column: amount")
    assert browser.screenshot(pictures / "dagster-failed-run.png") > SMALLEST_PICTURE
    page = f"{room.url}/assets/main/groups/{GROUP}?view=checks&checkDetail=receipt"
    browser.show(page, "receipt", "Failed", f"{GROUP}: rolled back", "no such column: amount")
    assert browser.screenshot(pictures / "dagster-rolled-back.png") > SMALLEST_PICTURE
    browser.show(f"{room.url}/assets/main/rollout?view=partitions&partition={GROUP}", "Failed")
    assert browser.screenshot(pictures / "dagster-partitions.png") > SMALLEST_PICTURE
