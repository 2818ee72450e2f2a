"""Builds external assets for the topics and groups of fleet.yaml, and assets for the history.

Kafka makes topics and groups, and the sensor observes them; `fleet.dagster.change_assets` defines
plans and rollouts. People look for a declared group by name, so it has its own asset, with its
owner, its mode as a tag and three checks. Undeclared groups share one asset with a partition each.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetDep,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DefaultScheduleStatus,
    DynamicPartitionsDefinition,
    FreshnessPolicy,
    MetadataValue,
    PipesMessageHandler,
    PipesMessageReader,
    PipesSubprocessClient,
    ScheduleDefinition,
    define_asset_job,
    in_process_executor,
    multi_asset,
)

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.resources import FleetResource

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )


# Messages of a process that a step started: a file with one message a line.
#
# Problem: a process writes a message of several KB in pieces. If Dagster's own reader reads between
# two pieces, its thread fails, and the rows and plots that the process reported are lost. Choice:
# the same file and messages, read up to the last newline. Cost: code that Dagster should have.


_EVERY: Final = 0.05


class LineMessageReader(PipesMessageReader):
    """Reads complete lines of messages, for `PipesSubprocessClient(message_reader=…)`."""

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[dict[str, Any]]:
        """Forwards the messages as they come; at the end, all that were written."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "messages")
            path.touch()
            over = threading.Event()
            thread = threading.Thread(
                target=_forward_messages,
                args=(path, handler, over),
                name="pipes-messages",
                daemon=True,
            )
            thread.start()
            try:
                yield {"path": str(path)}
            finally:
                over.set()
                thread.join()

    def no_messages_debug_text(self) -> str:
        """Completes Dagster's own sentence."""
        return "Attempted to read messages from a temporary file."


def _forward_messages(path: Path, handler: PipesMessageHandler, over: threading.Event) -> None:
    """Forwards messages until `over` is set and the file is read."""
    rest = b""
    with path.open("rb") as file:
        while True:
            last = over.is_set()
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                try:
                    handler.handle_message(json.loads(line))
                except Exception:  # noqa: BLE001 - Dagster reports it, and the next ones count
                    handler.report_pipes_framework_exception("a message", sys.exc_info())
            if last:
                return
            over.wait(_EVERY)


# The history tables as assets: one run updates all of them.
#
# Problem: an update needs Spark, and a JVM in a step would outlive its cancellation. Choice: the
# step starts `fleet.dagster.history_process` through Pipes and waits. A terminated run sends it
# SIGINT; the process then stops Spark, and the tables keep their last state. The run reports the
# rows of every table and plots rebalances per hour. If `fleet history sync --follow` writes the
# tables, the run only reports. Cost: a process start (1 s), and 7 s if no Spark server runs yet.
#
# The schedule is off until you turn it on or fleet.yaml names it (`dagster.schedules`). It is not
# needed while `fleet history sync --follow` runs.


RECORD: Final = "record_history"
CRON: Final = "*/10 * * * *"
MAX_SECONDS: Final = 3600
_STOP_SECONDS: Final = 30.0
"""Seconds for an interrupted process to stop Spark's query and the server that it started."""
_FRESH: Final = FreshnessPolicy.time_window(
    fail_window=timedelta(minutes=40), warn_window=timedelta(minutes=25)
)
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


def history_assets(spec: FleetSpec) -> AssetsDefinition:
    """Defines the assets of all tables, which one process updates."""

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
    """Creates the client that starts and stops the process."""
    return PipesSubprocessClient(
        message_reader=LineMessageReader(), termination_timeout_seconds=_STOP_SECONDS
    )


def history_job(spec: FleetSpec) -> "UnresolvedAssetJobDefinition":
    """Defines the job that updates all tables in one run."""
    keys = [asset_keys.history_key(spec.cluster.name, table) for table in TABLES]
    return define_asset_job(
        RECORD,
        selection=AssetSelection.assets(*keys),
        executor_def=in_process_executor,
        tags={asset_keys.MAX_RUNTIME_TAG: str(MAX_SECONDS)},
        description="Update the tables of the history.",
    )


def history_schedule(spec: FleetSpec, job: "UnresolvedAssetJobDefinition") -> ScheduleDefinition:
    """Defines the schedule: every ten minutes, if it is turned on or named in fleet.yaml."""
    runs = RECORD in spec.dagster.schedules
    return ScheduleDefinition(
        name=RECORD,
        job=job,
        cron_schedule=CRON,
        default_status=DefaultScheduleStatus.RUNNING if runs else DefaultScheduleStatus.STOPPED,
        description="Updates the history; not needed while `fleet history sync --follow` runs.",
    )


def topic_specs(spec: FleetSpec) -> list[AssetSpec]:
    """Returns an external asset for each topic or `^pattern` that a group names."""
    cluster = spec.cluster.name
    found = sorted({topic for fleet in spec.fleets for topic in fleet.topics})
    return [
        AssetSpec(
            key=asset_keys.topic_key(cluster, topic),
            group_name="topics",
            kinds={"kafka", "topic"},
            description=f"Kafka {'topics matching' if topic.startswith('^') else 'topic'} {topic}.",
            metadata={"topic": topic, "cluster": cluster},
        )
        for topic in found
    ]


def group_spec(spec: FleetSpec, fleet: GroupSpec) -> AssetSpec:
    """Returns the external asset of a declared group."""
    cluster = spec.cluster.name
    acting = {"changes": MetadataValue.asset(asset_keys.rollout_key(cluster))}
    if fleet.worker is None:
        acting.clear()
    return AssetSpec(
        key=asset_keys.group_key(cluster, fleet.group),
        deps=[AssetDep(asset_keys.topic_key(cluster, topic)) for topic in fleet.topics],
        group_name=asset_keys.asset_group(fleet),
        kinds={"kafka", "group"},
        owners=asset_keys.owners(fleet),
        tags={asset_keys.MODE_TAG: spec.mode_of(fleet)},
        description=f"Consumer group {fleet.group}: state, members and lag, stored on change.",
        metadata={
            **acting,
            "group": fleet.group,
            "cluster": cluster,
            "mode": spec.mode_of(fleet),
            "owner": fleet.owner or "none",
            "topics": ", ".join(fleet.topics),
            **{f"label {key}": value for key, value in fleet.labels.items()},
        },
    )


def discovered_partitions(spec: FleetSpec) -> DynamicPartitionsDefinition:
    """Returns the partitions of undeclared groups, by name (`asset_keys.name_of`)."""
    return DynamicPartitionsDefinition(name=f"{spec.cluster.name}_discovered_groups")


def discovered_spec(spec: FleetSpec) -> AssetSpec:
    """Returns the asset of undeclared groups, which Fleet observes and never changes."""
    cluster = spec.cluster.name
    return AssetSpec(
        key=asset_keys.discovered_key(cluster),
        group_name="discovered",
        kinds={"kafka", "groups"},
        partitions_def=discovered_partitions(spec),
        description=f"Groups of {cluster} that fleet.yaml does not name; Fleet only observes them.",
        metadata={"cluster": cluster},
    )


def group_assets(spec: FleetSpec) -> list[AssetSpec]:
    """Returns the assets of all topics and groups in fleet.yaml, and one for other groups."""
    named = [group_spec(spec, fleet) for fleet in spec.fleets]
    return [*topic_specs(spec), discovered_spec(spec), *named]
