"""The factory: what fleet.yaml names in Kafka becomes external assets.

Topics and groups are made by Kafka and observed by the sensor; what is done for a group is
`fleet.dagster.change_assets`. A declared group has an asset of its own, with its owner, its mode
as a tag and three checks, because people look for it by name; groups that nobody declared share
one, with a partition each.
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


# Messages of a process that a step started, by a file: a line each, and none before it is whole.
#
# Problem: Dagster's own reader of such a file takes for a line whatever stands there, and a
# message of more than some KB is written in pieces: where it looks between two of them its thread
# ends, and what the process reported is lost, the rows of its tables and the run's plot. Choice:
# the same file and the same messages, read up to the last newline. Cost: some lines that Dagster
# will have itself.


_EVERY: Final = 0.05


class WholeLines(PipesMessageReader):
    """For `PipesSubprocessClient(message_reader=…)`."""

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[dict[str, Any]]:
        """Hand the messages over as they come; at the end all that were written are handed over."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "messages")
            path.touch()
            over = threading.Event()
            thread = threading.Thread(
                target=_hand_over, args=(path, handler, over), name="pipes-messages", daemon=True
            )
            thread.start()
            try:
                yield {"path": str(path)}
            finally:
                over.set()
                thread.join()

    def no_messages_debug_text(self) -> str:
        """For Dagster's own sentence."""
        return "Attempted to read messages from a temporary file."


def _hand_over(path: Path, handler: PipesMessageHandler, over: threading.Event) -> None:
    """Until it is over and all is read."""
    rest = b""
    with path.open("rb") as file:
        while True:
            last = over.is_set()
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                try:
                    handler.handle_message(json.loads(line))
                except Exception:  # noqa: BLE001 - told as Dagster tells it, and the next ones count
                    handler.report_pipes_framework_exception("a message", sys.exc_info())
            if last:
                return
            over.wait(_EVERY)


# The tables of the history as assets: one run brings all of them up to date.
#
# Problem: catching up is Spark's work, and a JVM inside a step would outlive its cancellation.
# Choice: the step starts `fleet.dagster.history_process` through Pipes and waits; a terminated run
# sends it SIGINT, upon which it lets go of Spark and ends, and the tables stay as their last
# state says. The run reports rows of every table, what it found, and a plot of rebalances per
# hour. Where `fleet history sync --follow` is writing already the run only reports. Cost: a
# process start (1 s), and 7 s where the home's Spark server does not run.
#
# The schedule is off until somebody turns it on, or fleet.yaml names it (`dagster.schedules`):
# where a tail runs, it is not needed.


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
        description="Records the history; not needed where `fleet history sync --follow` runs.",
    )


def topic_specs(spec: FleetSpec) -> list[AssetSpec]:
    """One external asset per topic or `^pattern` that any group names."""
    cluster = spec.cluster.name
    found = sorted({topic for fleet in spec.fleets for topic in fleet.topics})
    return [
        AssetSpec(
            key=asset_keys.topic_key(cluster, topic),
            group_name="topics",
            kinds={"kafka", "topic"},
            description=f"Kafka {'topics matching' if topic.startswith('^') else 'topic'} {topic}",
            metadata={"topic": topic, "cluster": cluster},
        )
        for topic in found
    ]


def group_spec(spec: FleetSpec, fleet: GroupSpec) -> AssetSpec:
    """The external asset of a declared group."""
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
        description=f"Consumer group {fleet.group}: state, members and lag, observed on change.",
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
    """Names (`asset_keys.name_of`) of the groups that exist and are not declared."""
    return DynamicPartitionsDefinition(name=f"{spec.cluster.name}_discovered_groups")


def discovered_spec(spec: FleetSpec) -> AssetSpec:
    """All other groups of the cluster: observed, never acted upon."""
    cluster = spec.cluster.name
    return AssetSpec(
        key=asset_keys.discovered_key(cluster),
        group_name="discovered",
        kinds={"kafka", "groups"},
        partitions_def=discovered_partitions(spec),
        description=f"Consumer groups of {cluster} that fleet.yaml does not name: only observed.",
        metadata={"cluster": cluster},
    )


def group_assets(spec: FleetSpec) -> list[AssetSpec]:
    """Every topic and group that fleet.yaml names, and one asset for all other groups."""
    named = [group_spec(spec, fleet) for fleet in spec.fleets]
    return [*topic_specs(spec), discovered_spec(spec), *named]
