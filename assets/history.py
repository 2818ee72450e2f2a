"""The history's tables as assets, and the job that brings them up to date."""

from dagster import AssetsDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from fleet.config.spec import FleetSpec
from fleet.dagster.history_assets import history_assets, history_job


def assets(spec: FleetSpec) -> list[AssetsDefinition]:
    """All tables, made by one process."""
    return [history_assets(spec)]


def job(spec: FleetSpec) -> UnresolvedAssetJobDefinition:
    """One run for all tables."""
    return history_job(spec)
