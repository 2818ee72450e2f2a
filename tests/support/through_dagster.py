"""A fleet changed as Dagster's acting job changes it, in this process."""

from dagster import DagsterInstance, ExecuteInProcessResult

from assets.definitions import build
from fleet.dagster import asset_keys
from fleet.dagster.resources import declared
from tests.support.workshop import Workshop


def ran(shop: Workshop) -> ExecuteInProcessResult:
    """The acting job, of exactly the assets that a laptop's fleet has."""
    spec = declared({"FLEET_CONFIG": str(shop.config)})
    cluster, group = spec.cluster.name, shop.group
    resource = {"config": {"config": str(shop.config), "home": str(shop.home)}}
    with DagsterInstance.ephemeral() as instance:
        return (
            build(spec)
            .resolve_job_def("change_group")
            .execute_in_process(
                instance=instance,
                asset_selection=[
                    asset_keys.plan_key(cluster, group),
                    asset_keys.rollout_key(cluster, group),
                ],
                run_config={"resources": {"fleet": resource}},
                raise_on_error=False,
            )
        )
