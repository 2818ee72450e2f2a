"""Storms in Dagster as the history's tables tell them: for every group, while they are fresh."""

import time
from dataclasses import replace

import pytest
from dagster import AssetCheckEvaluation, build_sensor_context, instance_for_test

from fleet.clock import ManualClock
from fleet.dagster import asset_keys
from fleet.dagster.storm_sensor import watch_storms
from fleet.history.tables import TablePlace, Writer, row_of
from tests.asking.worlds import rebalance

pytestmark = pytest.mark.broker
TIMES = 8


@pytest.fixture
def instance():
    """Dagster's storage in a temporary folder."""
    with instance_for_test() as made:
        yield made


def written(scene, *, ago=0.0, behind=0):
    """Tables in which two groups rebalanced every ten seconds, written so many seconds ago."""
    at = time.time() - ago
    place = TablePlace(scene.folder / "home" / "history")
    writer = Writer(place, cluster="main", clock=ManualClock(at=at), retention=1e6)
    rows = [
        row_of(
            replace(
                rebalance(number + 1, 0.0, group=group, joined=("worker-3",)),
                ended_at=at - 10.0 * number,
            )
        )
        for group in (scene.plain, scene.stranger)
        for number in range(TIMES)
    ]
    files = writer.write("rebalances", rows)
    writer.commit("batch", files=files, positions={0: 1}, behind=behind)


def storms(scene, instance):
    """What a tick of the storm sensor says."""
    context = build_sensor_context(instance=instance)
    return str(watch_storms(context, scene.resource).skip_reason.skip_message)


def check(scene, instance):
    """The check on storms of the declared group, as the sensor's first tick stores it."""
    made = watch_storms(build_sensor_context(instance=instance), scene.resource)
    key = asset_keys.group_key("main", scene.plain)
    (found,) = [
        event
        for event in made.asset_events
        if isinstance(event, AssetCheckEvaluation)
        and (event.asset_key, event.check_name) == (key, asset_keys.STORM)
    ]
    return found


def test_fresh_tables_tell_of_every_group(scene, instance):
    """Of strangers too, which the log is never read for."""
    written(scene)
    said = storms(scene, instance)
    assert f"{scene.plain}: storm" in said
    assert f"{scene.stranger}: storm" in said
    assert "worker-3 joins every 10 s" in said
    found = check(scene, instance)
    assert not found.passed
    assert found.metadata["rebalances"].value == TIMES


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"ago": 300.0}, id="old"),
        pytest.param({"behind": 1_000_000}, id="still-catching-up"),
    ],
)
def test_other_tables_are_not_asked(scene, instance, how):
    """The log is, and it holds no rebalance of the declared group."""
    written(scene, **how)
    assert storms(scene, instance) == "No group is in a storm."
    assert check(scene, instance).passed


def test_a_group_that_is_not_recorded_is_read_from_the_log(scene, instance):
    """Silence in the tables is no calm there."""
    written(scene)
    text = scene.config.read_text()
    scene.config.write_text(f"{text}history: {{groups: {{deny: ['{scene.plain}']}}}}\n")
    said = storms(scene, instance)
    assert f"{scene.plain}: storm" not in said
    assert f"{scene.stranger}: storm" in said
    assert check(scene, instance).metadata["rebalances"].value == 0
