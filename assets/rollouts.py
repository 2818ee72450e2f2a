"""Plans and rollouts of the groups that have workers of ours, and the job that makes them."""

from dagster import AssetsDefinition, AssetSelection, define_asset_job, in_process_executor
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.group_assets import plan_asset, rollout_asset


def assets(spec: FleetSpec) -> list[AssetsDefinition]:
    """What would be done for each group now, and its last change."""
    managed = [fleet for fleet in spec.fleets if fleet.worker is not None]
    return [made(spec, fleet) for fleet in managed for made in (plan_asset, rollout_asset)]


def jobs(spec: FleetSpec) -> list[UnresolvedAssetJobDefinition]:
    """One job for all groups: a run selects its own group's two assets. None without workers."""
    cluster = spec.cluster.name
    managed = [fleet.group for fleet in spec.fleets if fleet.worker is not None]
    if not managed:
        return []
    acting = [asset_keys.plan_key(cluster, group) for group in managed]
    acting += [asset_keys.rollout_key(cluster, group) for group in managed]
    job = define_asset_job(
        "change_group",
        selection=AssetSelection.assets(*acting),
        executor_def=in_process_executor,
        description="Plan a group and carry the plan out: select the group's plan and rollout.",
    )
    return [job]
