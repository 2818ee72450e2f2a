"""A batch job that waits while a group is not well."""

import pytest
from dagster import (
    AssetSelection,
    DagsterInstance,
    Definitions,
    asset,
    define_asset_job,
    in_process_executor,
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
