"""The history tables as assets: one run updates all of them.

Problem: an update needs Spark, and a JVM in a step would outlive its cancellation. Choice: the step
runs `fleet history sync` and waits. A terminated run sends it SIGINT; the process then stops Spark,
and the tables keep their last state. The run reports the rows of every table and the last
rebalances. If `fleet history sync --follow` writes the tables, the run only reports. Cost: a
process start (1 s), and 7 s if no Spark server runs yet.

The schedule is off until you turn it on or fleet.yaml names it (`dagster.schedules`). It is not
needed while `fleet history sync --follow` runs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DefaultScheduleStatus,
    Failure,
    FreshnessPolicy,
    MaterializeResult,
    ScheduleDefinition,
    TableColumn,
    TableSchema,
    define_asset_job,
    in_process_executor,
    multi_asset,
)

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.change_metadata import table_of
from fleet.dagster.resources import FleetResource
from fleet.model.rebalances import Rebalance
from fleet.report.wording import cause_text, clock_text, duration_text, members_text

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

RECORD: Final = "record_history"
CRON: Final = "*/10 * * * *"
MAX_SECONDS: Final = 3600
_STOP_SECONDS: Final = 30.0
"""Seconds for an interrupted process to stop Spark's query and the server that it started."""
_FRESH: Final = FreshnessPolicy.time_window(
    fail_window=timedelta(minutes=40), warn_window=timedelta(minutes=25)
)
_HOURS: Final = 48
_LISTED: Final = 20
TABLES: Final = {
    "commits": ("Committed offsets of every group, a row per partition and interval.", ()),
    "events": ("Coordinator records other than commits, with their keys and values.", ()),
    "rebalances": ("Every rebalance of every group, with its cause.", ("events", "commits")),
    "memberships": ("Members of every group over time, with their partitions.", ("events",)),
    "lag": ("Lag in records and seconds, by group and partition.", ("commits",)),
}


def history_specs(spec: FleetSpec) -> list[AssetSpec]:
    """Returns an asset spec per table."""
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


def build_history_assets(fleet: FleetResource) -> AssetsDefinition:
    """Defines the assets of all tables, which one process updates.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        AssetsDefinition: A run starts Spark, or uses the server of `history.spark`.
    """
    cluster = fleet.spec.cluster.name

    @multi_asset(
        name=asset_keys.definition_name(cluster, "history"),
        specs=history_specs(fleet.spec),
        op_tags={"fleet/part": "history"},
    )
    def history(context: AssetExecutionContext) -> Iterator[MaterializeResult[None]]:
        began = time.time()
        done = run_history_command(fleet, "sync")
        if done is None:
            done = run_history_command(fleet, "status")
            if done is None or (done["at"] or 0.0) < began:
                raise Failure("`fleet history sync` failed: see the standard error of this run")
            context.log.info("another process writes the history: this run only reports its tables")
        for table in TABLES:
            key = asset_keys.history_key(cluster, table)
            yield MaterializeResult(asset_key=key, metadata=history_metadata(done, table))

    return history


def run_history_command(fleet: FleetResource, what: str) -> dict[str, Any] | None:
    """Runs `fleet history …`; returns its JSON, None if it failed. Stops it if the run is ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fleet", "history", what, "-o", "json"],
        env={**os.environ, **fleet.environment()},
        stdout=subprocess.PIPE,
    )
    try:
        told, _ = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        finally:
            process.kill()
        raise
    return json.loads(told) if process.returncode == 0 else None


def history_metadata(done: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Builds the metadata of one table, the most useful figures first."""
    from fleet.history import tables  # noqa: PLC0415  imports pyarrow

    held = done["tables"][table]
    columns = [TableColumn(each.name, str(each.type)) for each in tables.TABLES[table]]
    shown = {"dagster/row_count": held["rows"], "dagster/column_schema": TableSchema(columns)}
    if table == "rebalances":
        end = time.time()
        found = tables.Tables(done["path"]).rebalances(since=end - _HOURS * 3600, until=end)
        shown |= _last_rebalances(found, end=end)
    if "added" in done:
        shown |= {"rows added": done["added"][table], "took (s)": round(done["seconds"], 1)}
    return {
        **shown,
        "from": held["first_day"] or "none",
        "to": held["last_day"] or "none",
        "files": held["files"],
        "size (MB)": round(held["bytes"] / 1e6, 3),
        "path": done["path"],
    }


def _last_rebalances(found: Sequence[Rebalance], *, end: float) -> dict[str, Any]:
    causes = Counter(each.cause.value for each in found).most_common()
    return {
        "in the last hour": sum(each.ended_at >= end - 3600 for each in found),
        f"in {_HOURS} h": len(found),
        f"causes ({_HOURS} h)": ", ".join(f"{n} {cause}" for cause, n in causes) or "none",
        "latest": table_of(
            {
                "when (UTC)": clock_text(each.ended_at),
                "group": each.group,
                "no": each.number,
                "cause": cause_text(each),
                "who": members_text(each),
                "moved": len(each.moved),
                "took": duration_text(each),
            }
            for each in reversed(found[-_LISTED:])
        ),
    }


def build_history_job(fleet: FleetResource) -> "UnresolvedAssetJobDefinition":
    """Defines the job that updates all tables in one run.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        UnresolvedAssetJobDefinition: It runs in one process.
    """
    cluster = fleet.spec.cluster.name
    keys = [asset_keys.history_key(cluster, table) for table in TABLES]
    return define_asset_job(
        asset_keys.definition_name(cluster, RECORD),
        selection=AssetSelection.assets(*keys),
        executor_def=in_process_executor,
        tags={asset_keys.MAX_RUNTIME_TAG: str(MAX_SECONDS)},
        description="Update the tables of the history.",
    )


def build_history_schedule(fleet: FleetResource) -> ScheduleDefinition:
    """Defines the schedule: every ten minutes, if it is turned on or named in fleet.yaml.

    Args:
        fleet (FleetResource): The fleet.yaml.

    Returns:
        ScheduleDefinition: The schedule of `build_history_job`.
    """
    name = asset_keys.definition_name(fleet.spec.cluster.name, RECORD)
    runs = RECORD in fleet.spec.dagster.schedules
    return ScheduleDefinition(
        name=name,
        job_name=name,
        cron_schedule=CRON,
        default_status=DefaultScheduleStatus.RUNNING if runs else DefaultScheduleStatus.STOPPED,
        description="Updates the history; not needed while `fleet history sync --follow` runs.",
    )
