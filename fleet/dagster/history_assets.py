"""The tables of the history as assets: one run brings all of them up to date.

Problem: catching up is Spark's work, and a JVM inside a step would outlive its cancellation.
Choice: the step starts `fleet.dagster.history_process` through Pipes and waits; a terminated run
sends it SIGINT, upon which it lets go of Spark and ends, and the tables stay as their last manifest
says. The run reports rows of every table, what it found, and a plot of rebalances per hour. Where
`fleet history tail` is writing already the run only reports. Cost: a process start (1 s), and 7 s
where the home's Spark server does not run.

The schedule is off until somebody turns it on, or fleet.yaml names it (`dagster.schedules`): where
a tail runs, it is not needed.
"""

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DefaultScheduleStatus,
    FreshnessPolicy,
    PipesSubprocessClient,
    ScheduleDefinition,
    define_asset_job,
    in_process_executor,
    multi_asset,
)

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.pipes_messages import WholeLines
from fleet.dagster.resources import FleetResource

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

RECORD: Final = "record_history"
CRON: Final = "*/10 * * * *"
MAX_SECONDS: Final = 3600
_STOP_SECONDS: Final = 30.0
"""What an interrupted process may take to end: Spark's query and, where it started one, server."""
_FRESH: Final = FreshnessPolicy.time_window(
    fail_window=timedelta(minutes=40), warn_window=timedelta(minutes=25)
)
TABLES: Final = {
    "commits": ("Committed offsets of every group, a row per partition and interval.", ()),
    "events": ("Records of the coordinator other than commits, key and value kept.", ()),
    "rebalances": ("Every rebalance of every group, with its cause.", ("events", "commits")),
    "memberships": ("Members of every group over time, and what they own.", ("events",)),
    "lag": ("Lag in records and seconds, by group and partition.", ("commits",)),
}


def history_specs(spec: FleetSpec) -> list[AssetSpec]:
    """One asset per table."""
    cluster = spec.cluster.name
    return [
        AssetSpec(
            key=asset_keys.history_key(cluster, table),
            deps=[asset_keys.history_key(cluster, other) for other in needs],
            group_name="history",
            kinds={"parquet", "pyspark"},
            description=what,
            metadata={"cluster": cluster, "path": spec.history.path or "$FLEET_HOME/history"},
            freshness_policy=_FRESH,
        )
        for table, (what, needs) in TABLES.items()
    ]


def history_assets(spec: FleetSpec) -> AssetsDefinition:
    """All tables, made by one process."""

    @multi_asset(name="history", specs=history_specs(spec), op_tags={"fleet/part": "history"})
    def history(context: AssetExecutionContext, fleet: FleetResource) -> Iterator[Any]:
        done = pipes_client().run(
            context=context,
            command=[sys.executable, "-m", "fleet.dagster.history_process"],
            env=fleet.environment(),
        )
        yield from done.get_results()

    return history


def pipes_client() -> PipesSubprocessClient:
    """How the process is started and ended."""
    return PipesSubprocessClient(
        message_reader=WholeLines(), termination_timeout_seconds=_STOP_SECONDS
    )


def history_job(spec: FleetSpec) -> "UnresolvedAssetJobDefinition":
    """One run for all tables."""
    keys = [asset_keys.history_key(spec.cluster.name, table) for table in TABLES]
    return define_asset_job(
        RECORD,
        selection=AssetSelection.assets(*keys),
        executor_def=in_process_executor,
        tags={asset_keys.MAX_RUNTIME_TAG: str(MAX_SECONDS)},
        description="Bring the tables of the history up to date.",
    )


def history_schedule(spec: FleetSpec, job: "UnresolvedAssetJobDefinition") -> ScheduleDefinition:
    """Every ten minutes, once somebody turns it on, or where fleet.yaml says so."""
    runs = RECORD in spec.dagster.schedules
    return ScheduleDefinition(
        name=RECORD,
        job=job,
        cron_schedule=CRON,
        default_status=DefaultScheduleStatus.RUNNING if runs else DefaultScheduleStatus.STOPPED,
        description="Records the history; not needed where `fleet history tail` runs.",
    )
