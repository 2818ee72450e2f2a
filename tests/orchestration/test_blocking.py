"""A batch job that waits while a group is not well."""

import time

import pytest
from confluent_kafka import Producer
from dagster import (
    AssetSelection,
    DagsterInstance,
    Definitions,
    asset,
    define_asset_job,
    in_process_executor,
    materialize,
)

from fleet.dagster import asset_keys, build_group_assets, build_group_checks

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("blocking", [set(), {asset_keys.STORM}])
def test_a_failed_check_blocks_what_is_behind_the_group(scene, blocking):
    """Only a check that is told to; the asset runs in the same job, after the check."""
    key = asset_keys.group_key("main", scene.plain)
    for _ in range(2):
        with scene.member(scene.plain):
            pass

    @asset(deps=[key])
    def report() -> None:
        """A team's own."""

    chosen = AssetSelection.checks_for_assets(key) | AssetSelection.assets(report)
    defs = Definitions(
        assets=[*build_group_assets(scene.resource), report],
        asset_checks=build_group_checks(scene.resource, blocking=blocking),
        jobs=[define_asset_job("nightly", selection=chosen, executor_def=in_process_executor)],
    )
    with DagsterInstance.ephemeral() as instance:
        done = defs.resolve_job_def("nightly").execute_in_process(
            instance=instance, raise_on_error=False
        )
    (storm,) = [e for e in done.get_asset_check_evaluations() if e.check_name == asset_keys.STORM]
    assert not storm.passed
    made = [event.asset_key for event in done.get_asset_materialization_events()]
    assert (report.key in made) is (not blocking)


@pytest.mark.parametrize(
    ("limit", "passed"),
    [
        pytest.param(None, True, id="max_lag of fleet.yaml"),
        pytest.param("1s", False, id="run config"),
        pytest.param("soon", None, id="no time"),
    ],
)
def test_a_run_of_the_checks_may_set_another_limit(scene, limit, passed):
    """As a batch job that needs fresher data than the alert does."""
    with scene.member(scene.plain):
        pass
    producer = Producer({"bootstrap.servers": scene.bootstrap})
    for _ in range(5):
        producer.produce(scene.topic, value="waits", partition=0)
    producer.flush(60)
    with scene.resource.open() as cycle:
        cycle.snapshot([scene.plain])  # an age is the time since a sample of the log's end
    time.sleep(2)
    key = asset_keys.group_key("main", scene.plain)
    with DagsterInstance.ephemeral() as instance:
        done = materialize(
            [*build_group_assets(scene.resource), *build_group_checks(scene.resource)],
            selection=AssetSelection.checks_for_assets(key),
            run_config={"ops": {"main_check_groups": {"config": {"max_lag": limit}}}},
            instance=instance,
            raise_on_error=False,
        )
        found = {each.check_name: each for each in done.get_asset_check_evaluations()}
        if passed is None:
            (failed,) = (e for e in done.all_events if e.is_step_failure)
            said = failed.step_failure_data.user_failure_data.description
            assert said.startswith("max_lag 'soon' is no time")
        else:
            assert found[asset_keys.FRESHNESS].passed is passed
