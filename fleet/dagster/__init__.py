"""The Dagster integration: assets, checks, schedules and sensors of declared fleets."""

from fleet.dagster.asset_keys import group_key, history_key, plan_key, rollout_key, topic_key
from fleet.dagster.change_assets import (
    PlanConfig,
    RolloutConfig,
    change_assets,
    change_jobs,
    execute_rollout,
)
from fleet.dagster.component import FleetAssetProps, FleetComponent
from fleet.dagster.definitions import build_definitions, group_checks
from fleet.dagster.group_assets import (
    group_assets,
    history_assets,
    history_job,
    history_schedule,
    topic_assets,
)
from fleet.dagster.reconcile_schedule import reconcile_schedules
from fleet.dagster.resources import FleetResource
from fleet.dagster.scale_schedules import scale_at, scale_schedules
from fleet.dagster.sink_assets import sink_assets
from fleet.dagster.storm_sensor import storm_sensor
from fleet.dagster.watch_sensor import watch_sensor

__all__ = [
    "FleetAssetProps",
    "FleetComponent",
    "FleetResource",
    "PlanConfig",
    "RolloutConfig",
    "build_definitions",
    "change_assets",
    "change_jobs",
    "execute_rollout",
    "group_assets",
    "group_checks",
    "group_key",
    "history_assets",
    "history_job",
    "history_key",
    "history_schedule",
    "plan_key",
    "reconcile_schedules",
    "rollout_key",
    "scale_at",
    "scale_schedules",
    "sink_assets",
    "storm_sensor",
    "topic_assets",
    "topic_key",
    "watch_sensor",
]
