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
from fleet.dagster.asset_keys import actor
from fleet.dagster.group_assets import discovered_partitions
from fleet.dagster.reconcile_schedule import all_runs
from fleet.dagster.resources import FleetResource
from fleet.dagster.watch.cluster_tick import Looked, SensorMemory, StartedRun, due, events_of, look
from fleet.errors import FleetError, Unreachable
from fleet.slots import Change, ChangeState
from fleet.text import duration

# Which STARTED runs are dead: pure judgement over what the group's lease shows.
#
# Problem: after a power cut a run stays STARTED in Dagster's storage for ever; nothing of
# Dagster's own notices a local run worker that is gone with its code server [36]. Choice: an
# acting run shows life through its change's counter, which it raises every third of a lease. A run
# whose change stands still for a lease, or that has no running change for two minutes, is over.
# Times are counted in ticks as well as in seconds, of which a tick adds no more than ticks are
# apart: a machine that slept does not wake to a mass ending, and no setting of the clock ends or
# keeps a run. A tick whose own writes are refused begins the count anew: the run's would have been
# as well [38]. Cost: a dead run is seen after a minute or two, not at once; one that makes other
# assets too, before or after its change, is left to Dagster's `run_monitoring` and to people.


STILL_TICKS = 3
IDLE_TICKS = 6
IDLE_SECONDS = 120.0
"""A run plans, waits for a dead actor's lease, checks: with no change of its own that long."""
MARGIN = 5.0
LONGEST_TICK = 30.0
"""Seconds that one tick may add: they are 15 s apart, and what lies between is not watched."""

IDLE = "idle"


def mark_of(run_id: str, change: Change | None) -> str:
    """What the run shows of itself in the store now."""
    if change is None or change.actor != actor(run_id) or change.state is not ChangeState.RUNNING:
        return IDLE
    return f"{change.token}.{change.counter}"


def seen_again(
    known: StartedRun | None, mark: str, *, now: float, provable: bool = True
) -> StartedRun:
    """The memory of a run after one more tick. provable: whether a renewal would be stored."""
    if known is None or known.mark != mark or not provable:
        return StartedRun(mark=mark, still=0.0, ticks=1, at=now)
    passed = min(max(0.0, now - known.at), LONGEST_TICK)
    return StartedRun(mark=mark, still=known.still + passed, ticks=known.ticks + 1, at=now)


def why_dead(run: StartedRun, *, lease: float) -> str | None:
    """Why the run is over, in a sentence; None while it may be alive."""
    still = run.still
    if run.mark == IDLE:
        if run.ticks >= IDLE_TICKS and still >= max(IDLE_SECONDS, 3 * lease):
            return (
                f"no change of this run is being carried out for {duration(still)}: its process is "
                "gone; the next run of the group goes on from what Kafka shows"
            )
        return None
    if run.ticks >= STILL_TICKS and still >= lease + MARGIN:
        return (
            f"the group's lease was not renewed for {duration(still)} (lease {lease:g} s): its "
            "process is gone; the next run of the group resumes the change"
        )
    return None


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
