"""A fleet changed as Dagster's acting job changes it, in this process."""

from dagster import DagsterInstance, ExecuteInProcessResult

from fleet.dagster import build_definitions
from fleet.dagster.asset_keys import CHANGE_JOB, name_of
from fleet.dagster.resources import load_declared_spec
from tests.support.workshop import Workshop


def ran(shop: Workshop) -> ExecuteInProcessResult:
    """The acting job, with the group as its partition."""
    spec = load_declared_spec({"FLEET_CONFIG": str(shop.config)})
    resource = {"config": {"config": str(shop.config), "home": str(shop.home)}}
    with DagsterInstance.ephemeral() as instance:
        return (
            build_definitions(spec)
            .resolve_job_def(CHANGE_JOB)
            .execute_in_process(
                instance=instance,
                partition_key=name_of(shop.group),
                run_config={"resources": {"fleet": resource}},
                raise_on_error=False,
            )
        )
