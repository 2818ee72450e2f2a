"""Everything Dagster loads: `workspace.yaml` names this module.

One fleet.yaml, one cluster, one code location. A missing or wrong file is a ConfigError here,
whose sentence (file, line, key, what is allowed) the web page shows for the location: with
no fleets to show, an empty graph would only hide it. Correct the file, then reload the
location; groups that are new in the file need the same.
"""

from dagster import AssetSelection, Definitions, define_asset_job, in_process_executor

from assets import asset_keys
from assets.checks import group_checks
from assets.group_assets import group_assets
from assets.history import history_assets, history_job, history_schedule, pipes_client
from assets.reconcile_schedule import reconcile_schedule
from assets.resources import FleetResource, declared
from assets.storm_sensor import storm_sensor
from assets.watch_sensor import watch_sensor
from fleet.config.spec import FleetSpec


def build(spec: FleetSpec) -> Definitions:
    """The definitions of one cluster."""
    cluster = spec.cluster.name
    managed = [fleet.group for fleet in spec.fleets if fleet.worker is not None]
    acting = [asset_keys.plan_key(cluster, group) for group in managed]
    acting += [asset_keys.rollout_key(cluster, group) for group in managed]
    # One job for all groups: a run selects its own group's two assets.
    job = define_asset_job(
        "change_group",
        selection=AssetSelection.assets(*acting),
        executor_def=in_process_executor,
        description="Plan a group and carry the plan out: select the group's plan and rollout.",
    )
    recording = history_job(spec)
    return Definitions(
        assets=[*group_assets(spec), history_assets(spec)],
        asset_checks=[group_checks(spec, fleet) for fleet in spec.fleets],
        jobs=[*([job] if acting else []), recording],
        schedules=[
            *([reconcile_schedule(spec, job)] if acting else []),
            history_schedule(recording),
        ],
        sensors=[watch_sensor(spec), storm_sensor(spec)],
        resources={"fleet": FleetResource(), "pipes": pipes_client()},
        executor=in_process_executor,
    )


defs = build(declared())
