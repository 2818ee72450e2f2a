"""A change's progress is on the page while the change goes, and tells what the store knows."""

from dataclasses import replace

import pytest
from dagster import AssetKey, DagsterInstance, StaticPartitionsDefinition, asset, materialize

from fleet.dagster.change_assets import report_progress
from fleet.manager.change_progress import change_progress
from fleet.slots import Phase, Slot, SlotTargets
from tests.support.waiting import until

pytestmark = pytest.mark.broker


def test_observations_come_while_the_change_goes(scene):
    """Before its end: the body of the step itself waits for them."""
    seen = []
    with scene.resource.open() as fleet, DagsterInstance.ephemeral() as instance:
        assert change_progress(fleet, scene.managed) is None
        plan = fleet.plan(scene.managed)
        fleet.store.begin_change(plan, actor="ann", started_at=fleet.clock.now())

        def observed(times: int) -> bool:
            records = instance.fetch_observations(AssetKey(["main", "rollout"]), limit=10).records
            seen[:] = [record.asset_observation for record in records]
            return len(seen) == times

        @asset(key=["main", "rollout"], partitions_def=StaticPartitionsDefinition([scene.managed]))
        def rollout(context):
            with report_progress(context, scene.resource, scene.managed):
                until(lambda: observed(1), "the first look")
                fleet.store.write_targets(SlotTargets(group=scene.managed, open=frozenset({0, 1})))
                free = Slot(group=scene.managed, number=0)
                slot = fleet.store.take(
                    free, worker="w", revision=plan.revision, spark_session=None
                )
                fleet.store.renew(replace(slot, phase=Phase.ACTIVE))
                until(lambda: observed(2), "a slot more")

        done = materialize([rollout], partition_key=scene.managed, instance=instance)
    assert done.success
    last, first = seen
    assert (first.partition, last.partition) == (scene.managed, scene.managed)
    assert [each.metadata["slots done"].value for each in (first, last)] == [0, 1]
    assert f"{scene.managed}: step 1 of 1 (open), 1 of 2 slots done" in last.description
