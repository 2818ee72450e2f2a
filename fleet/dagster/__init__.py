"""The Dagster integration: assets, checks, schedules and sensors of declared fleets."""

from fleet.dagster.asset_keys import group_key, history_key, plan_key, rollout_key, topic_key
from fleet.dagster.change_assets import (
    PlanConfig,
    RolloutConfig,
    build_change_assets,
    build_change_jobs,
    execute_rollout,
)
from fleet.dagster.component import FleetAssetProps, FleetComponent
from fleet.dagster.definitions import build_definitions, build_group_checks
from fleet.dagster.group_assets import (
    build_group_assets,
    build_topic_assets,
)
from fleet.dagster.history_assets import (
    build_history_assets,
    build_history_job,
    build_history_schedule,
)
from fleet.dagster.reconcile_schedule import (
    build_new_partitions_sensors,
    build_reconcile_schedules,
)
from fleet.dagster.resources import FleetResource
from fleet.dagster.scale_schedules import build_scale_schedules, scale_at
from fleet.dagster.sink_assets import build_sink_assets
from fleet.dagster.watch_sensor import build_watch_sensor

__all__ = [
    "FleetAssetProps",
    "FleetComponent",
    "FleetResource",
    "PlanConfig",
    "RolloutConfig",
    "build_change_assets",
    "build_change_jobs",
    "build_definitions",
    "build_group_assets",
    "build_group_checks",
    "build_history_assets",
    "build_history_job",
    "build_history_schedule",
    "build_new_partitions_sensors",
    "build_reconcile_schedules",
    "build_scale_schedules",
    "build_sink_assets",
    "build_topic_assets",
    "build_watch_sensor",
    "execute_rollout",
    "group_key",
    "history_key",
    "plan_key",
    "rollout_key",
    "scale_at",
    "topic_key",
]
