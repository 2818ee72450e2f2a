"""The one sensor: looks at all groups, tells what changed, ends runs that are dead.

One batched look serves the whole cluster; one sensor, since the ticks of all sensors fire
together. A tick works at most 20 s: what it did not reach comes first in the next one.
Where the cluster does not answer, the tick is skipped with that sentence; where the history's
tables do not, it goes on by the log and says so.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dagster import (
    AddDynamicPartitionsRequest,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    RunRecord,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from fleet.config.spec import FleetSpec
from fleet.dagster import asset_keys
from fleet.dagster.all_runs import all_runs
from fleet.dagster.group_assets import discovered_partitions
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch.cluster_tick import Looked, events_of, look
from fleet.dagster.watch.dead_runs import IDLE, mark_of, seen_again, why_dead
from fleet.dagster.watch.sensor_cursor import SensorMemory, StartedRun, due
from fleet.errors import FleetError, Unreachable

INTERVAL = 15
DEADLINE = 20.0
"""Seconds of a tick; Dagster's own limit is 60."""
PARTITIONS_A_TICK = 1_000
T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do the work in a thread of its own, but wait no longer than this.

    The thread opens and closes its own Fleet, so that a late end hurts nobody. Raises
    Unreachable where the time is up, and whatever the work raised.
    """
    done: dict[str, T] = {}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done["result"] = work()
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            failed.append(error)

    thread = threading.Thread(target=run, name="fleet-watch", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if "result" not in done:
        raise Unreachable(f"the look at the cluster took longer than {seconds:g} s; trying again")
    return done["result"]


def end_dead_runs(
    instance: DagsterInstance, looked: Looked, memory: SensorMemory
) -> tuple[dict[str, StartedRun], list[str]]:
    """End STARTED runs whose lease is over [36]; what to remember of the others, and sentences."""
    by_name = {asset_keys.name_of(seen.group): seen for seen in looked.groups if seen.fleet}
    kept: dict[str, StartedRun] = {}
    said: list[str] = []
    for record in all_runs(instance, [DagsterRunStatus.STARTED]):
        run = record.dagster_run
        mine = by_name.get(asset_keys.group_of_run(run) or "")
        if mine is None or mine.fleet is None:
            continue
        before = memory.runs.get(run.run_id)
        if mine.unread:  # it may live, and be seen again once that is mended
            kept |= {} if before is None else {run.run_id: before}
            continue
        mark = mark_of(run.run_id, mine.change)
        if mark == IDLE and asset_keys.does_more(run):
            continue  # what it does beside the group's change shows nowhere here
        known = seen_again(before, mark, now=looked.at, provable=looked.writable)
        why = why_dead(known, lease=mine.fleet.runtime.lease)
        if why is None:
            kept[run.run_id] = known
            continue
        end_run(instance, record, why)
        said.append(f"ended run {run.run_id}: {why}")
    return kept, said


def end_run(instance: DagsterInstance, record: RunRecord, why: str) -> None:
    """Interrupt the run's process if it can still be reached, then mark the run as failed.

    A process that hangs and wakes later finds its lease adopted and stops by itself [31].
    """
    run = record.dagster_run
    try:
        instance.run_launcher.terminate(run.run_id)
    except Exception as error:  # noqa: BLE001  Dagster raises many kinds; its server may be gone
        instance.report_engine_event(f"could not be interrupted ({type(error).__name__})", run)
    instance.report_run_failed(run, f"Fleet ended this run: {why}.")


def look_with(resource: FleetResource, memory: SensorMemory) -> Looked:
    """Open, look, close; all in the calling thread."""
    with resource.open() as cycle:
        return look(cycle, memory)


def watch(context: SensorEvaluationContext, resource: FleetResource) -> SensorResult | SkipReason:
    """One tick."""
    memory = SensorMemory.from_cursor(context.cursor)
    try:
        looked = within(DEADLINE, lambda: look_with(resource, memory))
    except FleetError as error:
        return SkipReason(str(error))
    runs, said = end_dead_runs(context.instance, looked, memory)
    seen = {s.group: s for s in looked.groups}
    telling = due((s.look for s in looked.groups), memory, now=looked.at)
    cluster = looked.spec.cluster.name
    events = [event for told in telling for event in events_of(cluster, seen[told.group])]
    after = replace(memory.told(telling, now=looked.at, alive=seen), runs=runs)
    for sentence in (*said, *looked.problems):
        context.log.warning(sentence)
    return SensorResult(
        asset_events=events,
        cursor=after.as_cursor(),
        dynamic_partitions_requests=partition_requests(context.instance, looked),
        # No run is ever asked for here, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(sentence_of(len(seen), len(telling), len(said), looked.unread)),
    )


def sentence_of(seen: int, told: int, ended: int, unread: str) -> str:
    """What the page shows of a tick."""
    counts = f"{seen} groups seen, {told} told of, {ended} runs ended."
    return f"{counts} Read from the log instead: {unread}." if unread else counts


def partition_requests(
    instance: DagsterInstance, looked: Looked
) -> list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest]:
    """Keep the partitions of `discovered_groups` equal to the groups that exist."""
    partitions = discovered_partitions(looked.spec)
    known = set(instance.get_dynamic_partitions(str(partitions.name)))
    exist = {asset_keys.name_of(s.group) for s in looked.groups if s.fleet is None}
    requests: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = []
    if new := sorted(exist - known)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_add_request(new))
    if gone := sorted(known - exist)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_delete_request(gone))
    return requests


def watch_sensor(spec: FleetSpec) -> SensorDefinition:
    """The sensor, running from the start: it changes nothing in Kafka."""

    @sensor(
        name="fleet_watch",
        minimum_interval_seconds=INTERVAL,
        default_status=DefaultSensorStatus.RUNNING,
        description=(
            f"Looks at all groups of {spec.cluster.name}: tells what changed, "
            "evaluates checks, ends runs whose lease is over."
        ),
    )
    def fleet_watch(
        context: SensorEvaluationContext, fleet: FleetResource
    ) -> SensorResult | SkipReason:
        return watch(context, fleet)

    return fleet_watch
