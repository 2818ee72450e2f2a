"""What a person sees in Dagster's page: a whole fleet, a rollout with its receipt, checks.

With FLEET_SCREENSHOTS naming a folder the pictures are kept there; docs/images holds some.
"""

import base64
import html
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from fleet.slots import ChangeState
from tests.dagster_ui.conftest import GROUP, OWN_ASSETS, PLAIN, TOPIC
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
    bad = 'raise ValueError("no such column: amount")'
    code.write_text(good.replace("    write_delta", f"    {bad}\n    write_delta"))
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


LAUNCHPAD = """\
ops:
  main__plan:
    config:
      wanted: 3
      pin: 2h
"""
BESIDE = """
<style>
body {{ margin: 0; display: flex; background: #fff; font-family: sans-serif }}
pre {{ font-size: 11px; line-height: 1.35; margin: 12px; width: 620px; white-space: pre-wrap }}
img {{ width: 960px; align-self: flex-start; border-left: 1px solid #ccc }}
b {{ color: #06c }}
</style>
<pre>{files}</pre><img src="data:image/png;base64,{picture}">
"""


@pytest.mark.spark
def test_data_goes_from_topic_to_downstream(stage, room, browser, pictures):
    """The sensor tells the version that the job's sink committed, and the graph shows the way."""

    def told() -> bool:
        query = '{ assetNodeOrError(assetKey: {path: ["lake", "orders"]}) { ... on AssetNode { '
        query += "assetMaterializations(limit: 1) { tags { key value } } } } }"
        return "data_version" in str(room.ask(query))

    until(told, "a version of the table", every=1.0, picture=lambda: str(room.ticks()))
    browser.resize(1500, 700)
    page = f"{room.url}/assets/revenue?view=lineage&lineageScope=upstream&lineageDepth=5"
    browser.show(page, "revenue", "Delta Lake", GROUP, TOPIC, "Never materialized")
    lineage = pictures / "dagster-lineage.png"
    assert browser.screenshot(lineage) > SMALLEST_PICTURE

    texts = {
        name: (stage.folder / "assets" / f"{name}.py").read_text()
        for name in ("fleets", "topics", "groups", "sinks")
    }
    head = texts["sinks"].partition("@asset")[0]
    texts["sinks"] = head[head.index("tables =") :] + "…\n" + OWN_ASSETS.partition("downstream")[0]
    files = "\n".join(
        f"<b>assets/{name}.py</b>\n{html.escape(text)}" for name, text in texts.items()
    )
    beside = BESIDE.format(files=files, picture=base64.b64encode(lineage.read_bytes()).decode())
    (pictures / "beside.html").write_text(beside)
    browser.resize(1640, 900)
    browser.open((pictures / "beside.html").as_uri())
    assert browser.screenshot(pictures / "dagster-project.png") > SMALLEST_PICTURE


@pytest.mark.spark
def test_launchpad_takes_a_size_and_how_long_to_keep_it(room, browser, pictures):
    """The run config of docs/how-to/dagster.md has no error there."""
    browser.resize(1400, 800)
    where = f"{room.url}/locations/fleet/jobs/main_change_group/playground/setup"
    browser.show(f"{where}?config={quote(LAUNCHPAD)}", "wanted", "pin", "No errors")
    assert browser.screenshot(pictures / "dagster-launchpad.png") > SMALLEST_PICTURE


@pytest.mark.spark
def test_a_late_group_blocks_what_is_behind_it(stage, room, browser, pictures):
    """A job whose run config allows less than `max_lag`: the team's asset does not run."""
    with stage.open() as fleet:
        fleet.apply(GROUP, wanted=0, actor="ann")  # records wait from now on
    shown: list[str] = []

    def late() -> bool:
        config = {"main_check_groups": {"config": {"max_lag": "5s"}}}
        run = room.launch_job("nightly", {"ops": config})
        shown[:] = [run]
        return room.finished(run) == "FAILURE"

    until(late, "records that wait", every=5.0, picture=lambda: room.story(shown[0]))
    assert "'freshness' on 'main/groups/orders-enrichment' did not pass" in room.story(shown[0])
    browser.resize(1500, 900)
    browser.show(f"{room.url}/runs/{shown[0]}", "Failure", "processed_orders", "freshness")
    assert browser.screenshot(pictures / "dagster-blocked.png") > SMALLEST_PICTURE
    assert "Dependencies for step processed_orders failed" in room.story(shown[0])
