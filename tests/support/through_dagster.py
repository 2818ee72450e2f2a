"""A fleet changed as Dagster's acting job changes it, in this process."""

from dagster import DagsterInstance, ExecuteInProcessResult

from fleet.dagster import build_definitions
from fleet.dagster.asset_keys import CHANGE_JOB, definition_name, name_of
from fleet.dagster.resources import FleetResource
from tests.support.workshop import Workshop


def ran(shop: Workshop) -> ExecuteInProcessResult:
    """The acting job, with the group as its partition."""
    fleet = FleetResource(config=str(shop.config), home=str(shop.home))
    with DagsterInstance.ephemeral() as instance:
        return (
            build_definitions(fleet)
            .resolve_job_def(definition_name(fleet.spec.cluster.name, CHANGE_JOB))
            .execute_in_process(
                instance=instance,
                partition_key=name_of(shop.group),
                raise_on_error=False,
            )
        )
