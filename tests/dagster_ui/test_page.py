"""What a person sees in Dagster's page: a whole fleet, a rollout with its receipt, checks.

With FLEET_SCREENSHOTS naming a folder the pictures are kept there; docs/images holds some.
"""

import os
import time
from pathlib import Path

import pytest

from fleet.decide.names import slug
from tests.dagster_ui.conftest import GROUP, PLAIN

pytestmark = [
    pytest.mark.browser,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(420),
]

SLUG = slug("main", GROUP)
PLAN = f"main/plan/{SLUG}"
ROLLOUT = f"main/rollout/{SLUG}"
SMALLEST_PICTURE = 20_000
"""Bytes: a blank page of this size is some 5,000."""


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where pictures go."""
    return Path(os.environ.get("FLEET_SCREENSHOTS") or tmp_path)


def test_sensor_ticks_observe_through_the_live_daemon(room, browser, pictures):
    """The daemon stores the sensor's observations and check results of somebody else's group."""
    deadline = time.monotonic() + 90
    while not any("2 told of" in (tick["skipReason"] or "") for tick in room.ticks()):
        assert time.monotonic() < deadline, room.ticks()
        time.sleep(1)
    assert not [tick["error"] for tick in room.ticks() if tick["error"]]
    browser.resize(1400, 900)
    page = f"{room.url}/assets/main/groups/{slug('main', PLAIN)}"
    shown = browser.show(page, PLAIN, "Stable, 1 members", "lag (records)")
    assert "External Asset" in shown
    browser.show(f"{page}?view=checks", "rebalance_budget", "Passed")
    assert browser.screenshot(pictures / "dagster-group-checks.png") > SMALLEST_PICTURE


@pytest.mark.spark
def test_rollout_run_shows_its_receipt(room, browser, pictures):
    """Two runs started over GraphQL: workers come up, then roll; the page shows both receipts."""
    served = room
    first = served.launch(PLAN, ROLLOUT, config={})
    assert served.finished(first, timeout=180) == "SUCCESS", served.story(first)
    second = served.launch(
        PLAN,
        ROLLOUT,
        config={
            "ops": {key.replace("/", "__"): {"config": {"roll": True}} for key in (PLAN, ROLLOUT)}
        },
    )
    assert served.finished(second, timeout=180) == "SUCCESS", served.story(second)

    page = f"{served.url}/assets/{ROLLOUT}"
    browser.resize(1500, 1000)
    shown = browser.show(f"{page}?view=events", "recorded rebalances", "longest pause (s)", "equal")
    assert "Expected 0 rebalances, recorded 0: equal." in shown
    assert browser.screenshot(pictures / "dagster-rollout.png") > SMALLEST_PICTURE

    browser.resize(1400, 900)
    browser.show(f"{page}?view=checks", "receipt", "Passed", "Every step cost what its plan said.")
    assert browser.screenshot(pictures / "dagster-checks.png") > SMALLEST_PICTURE

    page = f"{served.url}/locations/fleet/asset-groups/team_orders"
    browser.show(page, SLUG, "Materialized", "1 / 1 Passed")
    assert browser.screenshot(pictures / "dagster-assets.png") > SMALLEST_PICTURE
