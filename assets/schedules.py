"""What runs by the clock: reconciling each minute, and recording the history."""

from collections.abc import Sequence

from dagster import ScheduleDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from fleet.config.spec import FleetSpec
from fleet.dagster.history_assets import history_schedule
from fleet.dagster.reconcile_schedule import reconcile_schedule


def schedules(
    spec: FleetSpec,
    changing: Sequence[UnresolvedAssetJobDefinition],
    recording: UnresolvedAssetJobDefinition,
) -> list[ScheduleDefinition]:
    """Reconciling where there is a job that acts; recording, off until somebody turns it on."""
    return [*(reconcile_schedule(spec, job) for job in changing), history_schedule(recording)]
