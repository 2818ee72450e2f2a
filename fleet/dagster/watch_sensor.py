"""Defines the sensor that observes all groups, reports changes, and ends dead runs.

One batched query serves the whole cluster. The sensor judges the lag status as `fleet status` does,
and reads a group's past only if records have waited. `fleet_storms` reports the storms
(fleet.dagster.storm_sensor). A tick takes 20 s at most; the next one starts with the groups that
remain. If the cluster does not answer, the tick is skipped with that sentence.
"""

import hashlib
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetObservation,
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

from fleet.config.spec import FleetSpec, GroupSpec
from fleet.dagster import asset_keys
from fleet.dagster.check_outcomes import CheckOutcome, lag_outcome, receipt_outcome
from fleet.dagster.group_assets import discovered_partitions
from fleet.dagster.reconcile_schedule import all_runs
from fleet.dagster.resources import FleetResource
from fleet.decide.lag_status import GroupLagStatus
from fleet.errors import Damaged, FleetError, SchemaTooNew, Unreachable
from fleet.lag.snapshot import Snapshot
from fleet.manager.lag_assessment import compute_lag_statuses, find_groups_in_doubt, lag_statuses
from fleet.manager.past import read_last_minutes
from fleet.model import GroupSnapshot, GroupState
from fleet.slots import Change, ChangeState
from fleet.text import duration, plural

if TYPE_CHECKING:
    from fleet.manager.cycle import Fleet


# The sensor's memory, and which groups get an event. Pure.
#
# Problem: 300 groups observed every 15 s are 1.7 million events a day, and storing 600 events takes
# 10-18 s [37]. Dagster never deletes an event, and a group's event with its checks takes 10 kB.
# Choice: a group gets an event if its state, members or lag status changed. A changed size of its
# lag counts once an hour at most, and a heartbeat follows once a day. A tick stores the events of
# 50 groups at most, oldest first. Dagster keeps the cursor in the row of every tick, so it has 14
# packed bytes a group: 19 kB for 1,000. Cost: after many changes an event may be some ticks late,
# an unchanged observation is up to a day old, and the cursor is not readable.


VERSION = 4
EVENTS_A_TICK = 50
HEARTBEAT_SECONDS = 86_400.0
"""Seconds after which an unchanged group gets an event."""
BAND_INTERVAL_SECONDS = 3600.0
"""Seconds between two events of a group if only the size of its lag changed tenfold."""
_GROUP = Struct(">4s4sbI")
"""Digest of the group id, then its last event: hard, band, at."""


def digest(*parts: object) -> str:
    """Returns eight hex digits, enough to tell the states of a group apart."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def lag_band(lag: int | None) -> int:
    """Returns 0 below 1,000 records, then one band per power of ten; -1 if the lag is unknown."""
    return -1 if lag is None else max(0, len(str(lag)) - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEvent:
    """The last event of a group."""

    hard: str
    """Digest of state, members with their partitions, whether lag is known, and lag status."""
    band: int
    """The size of its lag, see `lag_band`."""
    at: int
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """How long a STARTED run has been unchanged: `mark` for `still` seconds, in `ticks` ticks."""

    mark: str
    still: float
    ticks: int
    at: float
    """Wall time of the last tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorMemory:
    """The content of the sensor's cursor."""

    groups: Mapping[str, LastEvent] = field(default_factory=dict)
    """Digest of the group id → its last event."""
    runs: Mapping[str, StartedRun] = field(default_factory=dict)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "SensorMemory":
        """Reads a cursor; without one of this version, the sensor reports all groups again."""
        try:
            stored = json.loads(cursor or "{}")
        except ValueError:
            return cls()
        if not isinstance(stored, dict) or stored.get("v") != VERSION:
            return cls()
        return cls(
            groups={
                k.hex(): LastEvent(hard=hard.hex(), band=band, at=at)
                for k, hard, band, at in _GROUP.iter_unpack(b64decode(stored["g"]))
            },
            runs={
                k: StartedRun(mark=mark, still=still, ticks=ticks, at=at)
                for k, (mark, still, ticks, at) in stored["r"].items()
            },
        )

    def as_cursor(self) -> str:
        """Renders the cursor that Dagster keeps."""
        groups = b"".join(
            _GROUP.pack(bytes.fromhex(k), bytes.fromhex(e.hard), e.band, e.at)
            for k, e in self.groups.items()
        )
        stored = {
            "v": VERSION,
            "g": b64encode(groups).decode(),
            "r": {
                k: [r.mark, round(r.still, 1), r.ticks, round(r.at, 1)]
                for k, r in self.runs.items()
            },
        }
        return json.dumps(stored, separators=(",", ":"))

    def known(self, group: str) -> LastEvent | None:
        """Returns the last event of the group."""
        return self.groups.get(digest(group))

    def with_events(
        self, ticks: "Iterable[GroupTick]", *, now: float, alive: Collection[str]
    ) -> "SensorMemory":
        """Returns a memory with these events, without deleted groups."""
        kept = {digest(group) for group in alive}
        groups = {k: v for k, v in self.groups.items() if k in kept}
        groups |= {digest(tick.group): tick.as_event(now) for tick in ticks}
        return SensorMemory(groups=groups, runs=self.runs)


def due_groups(
    ticks: "Iterable[GroupTick]", memory: SensorMemory, *, now: float, limit: int = EVENTS_A_TICK
) -> "tuple[GroupTick, ...]":
    """Returns the groups that get an event in this tick: changes first, then the oldest events."""
    ranked: list[tuple[int, int, GroupTick]] = []
    for tick in ticks:
        known, event = memory.known(tick.group), tick.as_event(now)
        if known is None or known.hard != event.hard:
            ranked.append((0, known.at if known else 0, tick))
        elif (
            not 0
            <= now - known.at
            < (HEARTBEAT_SECONDS if known.band == event.band else BAND_INTERVAL_SECONDS)
        ):
            ranked.append((1, known.at, tick))
    ranked.sort(key=lambda entry: entry[:2])
    return tuple(tick for _, _, tick in ranked[:limit])


Event = AssetObservation | AssetCheckEvaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTick:
    """The state of one group in one tick."""

    state: GroupSnapshot
    fleet: GroupSpec | None = None
    """None: not declared."""
    lag: CheckOutcome | None = None
    change: Change | None = None
    unread: str = ""
    """Why its stored changes cannot be read."""

    @property
    def group(self) -> str:
        """Returns the group id."""
        return self.state.group

    def as_event(self, now: float) -> LastEvent:
        """Returns what the sensor remembers after it stores the event."""
        seen = self.state
        lag = self.lag and (self.lag.passed, self.lag.severity.value, self.lag.outcome)
        done = self.change and (self.change.plan.id, self.change.state.value)
        members = sorted(
            (m.member_id, m.instance_id or "", sorted(m.partitions)) for m in seen.members
        )
        return LastEvent(
            hard=digest(seen.exists, seen.state.value, members, seen.lag is None, lag, done),
            band=lag_band(seen.lag),
            at=int(now),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRefresh:
    """The state of all groups in one tick."""

    at: float
    spec: FleetSpec
    groups: tuple[GroupTick, ...]
    problems: tuple[str, ...]
    writable: bool = True
    """Whether the actors of changes could have renewed their leases [38]."""


def refresh_groups(cycle: "Fleet") -> WatchRefresh:
    """Takes a snapshot of the whole cluster and judges its groups."""
    snapshot = cycle.snapshot()
    known = {fleet.group for fleet in cycle.spec.fleets}
    keep_up = keeping_up(cycle, snapshot, known)
    declared = [
        declared_group(cycle, fleet, snapshot.groups.get(fleet.group), keep_up)
        for fleet in cycle.spec.fleets
    ]
    others = [
        GroupTick(state=state)
        for group, state in snapshot.groups.items()
        if group not in known and state.exists
    ]
    return WatchRefresh(
        at=snapshot.at,
        spec=cycle.spec,
        groups=(*declared, *others),
        problems=(*snapshot.problems, *(seen.unread for seen in declared if seen.unread)),
        writable=all(
            is_writable(cycle, seen.group)
            for seen in declared
            if seen.change is not None and seen.change.state is ChangeState.RUNNING
        ),
    )


def is_writable(cycle: "Fleet", group: str) -> bool:
    """Tries whether the store accepts a write of the group, as its actor would write."""
    try:
        cycle.store.beat(group)
    except FleetError:
        return False
    return True


def keeping_up(
    cycle: "Fleet", snapshot: Snapshot, groups: Collection[str]
) -> Mapping[str, GroupLagStatus]:
    """Judges these groups; reads the past if records have waited for long."""
    mine = snapshot.only(groups.__contains__)
    doubted = find_groups_in_doubt(mine, ())
    found = lag_statuses(mine.only(lambda group: group not in doubted))
    if not doubted:
        return found
    past = read_last_minutes(cycle, doubted)
    return found | compute_lag_statuses(cycle, mine.only(doubted.__contains__), past, doubted)[1]


def declared_group(
    cycle: "Fleet",
    fleet: GroupSpec,
    state: GroupSnapshot | None,
    keep_up: Mapping[str, GroupLagStatus],
) -> GroupTick:
    """Returns the state of a declared group, whether Kafka knows it or not."""
    state = state or missing_group(fleet.group)
    change, unread = None, ""
    try:
        change = cycle.change(fleet.group) if fleet.worker is not None else None
    except (Damaged, SchemaTooNew) as error:  # of this group only
        unread = str(error)
    return GroupTick(
        state=state,
        fleet=fleet,
        lag=lag_outcome(fleet, state, keep_up.get(fleet.group)),
        change=change,
        unread=unread,
    )


def missing_group(group: str) -> GroupSnapshot:
    """Returns the snapshot of a declared group that Kafka does not know."""
    return GroupSnapshot(
        group=group,
        exists=False,
        state=GroupState.DEAD,
        type="unknown",
        assignor=None,
        members=(),
        partitions=(),
    )


def observation(cluster: str, seen: GroupTick) -> AssetObservation:
    """Builds the observation of a group; Dagster plots its numbers over time."""
    state = seen.state
    parts = [state.state.value if state.exists else "does not exist"]
    parts.append(plural(len(state.members), "member"))
    metadata: dict[str, Any] = {
        "state": state.state.value,
        "type": state.type,
        "members": len(state.members),
        "partitions": len(state.partitions),
    }
    if state.assignor:
        metadata["assignor"] = state.assignor
    if state.lag is not None:
        metadata["lag (records)"] = state.lag
    if state.lag_seconds is not None:
        metadata["lag (s)"] = round(state.lag_seconds, 3)
    if seen.lag is None:  # else the sentence of the check contains it
        parts += _waiting(state)
    if seen.change is not None:
        metadata["last change"] = f"{seen.change.state.value}, by {seen.change.actor}"
    elif seen.unread:
        metadata["last change"] = seen.unread
    sentence = ", ".join(parts) + "."
    if seen.lag is not None:
        sentence += " " + seen.lag.sentence
    return group_observation(
        cluster, seen.group, sentence, declared=seen.fleet is not None, **metadata
    )


def group_observation(
    cluster: str, group: str, sentence: str, *, declared: bool, **metadata: Any
) -> AssetObservation:
    """Builds an observation of a group's asset, or of its partition of undeclared groups."""
    return AssetObservation(
        asset_key=asset_keys.group_key(cluster, group)
        if declared
        else asset_keys.discovered_key(cluster),
        partition=None if declared else asset_keys.name_of(group),
        description=sentence,
        metadata={"sentence": sentence, "group": group, **metadata},
    )


def _waiting(state: GroupSnapshot) -> Iterator[str]:
    if state.lag is not None:
        yield f"{state.lag:,} records waiting"
    if state.lag_seconds is not None:
        yield f"the oldest for {duration(state.lag_seconds)}"


def events_of(cluster: str, seen: GroupTick) -> Iterable[Event]:
    """Yields one observation, and for a declared group its checks."""
    yield observation(cluster, seen)
    key = asset_keys.group_key(cluster, seen.group)
    if seen.lag is not None:
        yield seen.lag.evaluation(asset_keys.LAG, key)
    if seen.change is not None and seen.change.ended_at is not None:
        yield receipt_outcome(seen.change).evaluation(asset_keys.RECEIPT, key)


# Which STARTED runs are dead, judged by the group's lease. Pure.
#
# Problem: after a power cut a run stays STARTED in Dagster's storage for ever. Dagster does not
# notice a local run worker that died with its code server [36]. Choice: a running change raises its
# counter every third of a lease. A run is dead if its change stands still for a lease, or if it has
# no running change for two minutes. Time counts in ticks as well as in seconds, and a tick adds at
# most the usual interval. So neither a machine that slept nor a changed clock ends runs. A tick
# whose own writes are refused starts the count again: the run's writes would be refused too [38].
# Cost: a dead run shows after one or two minutes. A run that makes other assets too is left to
# Dagster's `run_monitoring` and to users.


UNCHANGED_TICKS = 3
IDLE_TICKS = 6
IDLE_SECONDS = 120.0
"""Seconds for which a run may have no change: it plans, checks, waits for a dead actor's lease."""
LEASE_MARGIN_SECONDS = 5.0
LONGEST_TICK = 30.0
"""Most seconds that one tick adds; ticks are 15 s apart."""

IDLE = "idle"


def progress_mark(run_id: str, change: Change | None) -> str:
    """Returns the run's current progress mark in the store."""
    if (
        change is None
        or change.actor != asset_keys.actor(run_id)
        or change.state is not ChangeState.RUNNING
    ):
        return IDLE
    return f"{change.token}.{change.counter}"


def update_run(
    known: StartedRun | None, mark: str, *, now: float, provable: bool = True
) -> StartedRun:
    """Updates the memory of a run by one tick. provable: whether the store accepts renewals."""
    if known is None or known.mark != mark or not provable:
        return StartedRun(mark=mark, still=0.0, ticks=1, at=now)
    passed = min(max(0.0, now - known.at), LONGEST_TICK)
    return StartedRun(mark=mark, still=known.still + passed, ticks=known.ticks + 1, at=now)


def death_reason(run: StartedRun, *, lease: float) -> str | None:
    """Returns why the run is dead, in a sentence; None while it may be alive."""
    still = run.still
    if run.mark == IDLE:
        if run.ticks >= IDLE_TICKS and still >= max(IDLE_SECONDS, 3 * lease):
            return (
                f"this run has had no active change for {duration(still)}, so its process has "
                "died; the next run of the group continues from the state in Kafka"
            )
        return None
    if run.ticks >= UNCHANGED_TICKS and still >= lease + LEASE_MARGIN_SECONDS:
        return (
            f"this run has not renewed the group's lease for {duration(still)} (lease {lease:g} "
            "s), so its process has died; the next run of the group resumes the change"
        )
    return None


INTERVAL_SECONDS = 15
DEADLINE_SECONDS = 20.0
"""Seconds of a tick at most; Dagster's own limit is 60."""
PARTITIONS_A_TICK = 1_000
T = TypeVar("T")


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Runs the work in a thread and waits this long at most.

    The thread opens and closes its own Fleet, so that it may end late. Raises Unreachable after
    this time, and whatever the work raised.
    """
    done: dict[str, T] = {}
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done["result"] = work()
        except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
            failed.append(error)

    thread = threading.Thread(target=run, name="fleet-watch", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if "result" not in done:
        raise Unreachable(
            f"the cluster did not answer within {seconds:g} s; the next tick tries again"
        )
    return done["result"]


def end_dead_runs(
    instance: DagsterInstance, refresh: WatchRefresh, memory: SensorMemory
) -> tuple[dict[str, StartedRun], list[str]]:
    """Ends dead STARTED runs [36]; returns the memory of the others, and sentences."""
    by_name = {asset_keys.name_of(seen.group): seen for seen in refresh.groups if seen.fleet}
    kept: dict[str, StartedRun] = {}
    ended: list[str] = []
    for record in all_runs(instance, [DagsterRunStatus.STARTED]):
        run = record.dagster_run
        mine = by_name.get(asset_keys.group_of_run(run) or "")
        if mine is None or mine.fleet is None:
            continue
        before = memory.runs.get(run.run_id)
        if mine.unread:  # it may be alive: this shows once its changes can be read
            kept |= {} if before is None else {run.run_id: before}
            continue
        mark = progress_mark(run.run_id, mine.change)
        if mark == IDLE and asset_keys.makes_other_assets(run):
            continue  # its work on other assets does not show here
        known = update_run(before, mark, now=refresh.at, provable=refresh.writable)
        why = death_reason(known, lease=mine.fleet.runtime.lease)
        if why is None:
            kept[run.run_id] = known
            continue
        end_run(instance, record, why)
        ended.append(f"ended run {run.run_id}: {why}")
    return kept, ended


def end_run(instance: DagsterInstance, record: RunRecord, why: str) -> None:
    """Interrupts the run's process if it can be reached, then marks the run as failed.

    A process that wakes later finds that another actor has its lease, and stops [31].
    """
    run = record.dagster_run
    try:
        instance.run_launcher.terminate(run.run_id)
    except Exception as error:  # noqa: BLE001  Dagster raises many kinds; its server may be down
        instance.report_engine_event(f"interrupting the run failed ({type(error).__name__})", run)
    instance.report_run_failed(run, f"Fleet ended this run: {why}.")


def open_and_refresh(resource: FleetResource) -> WatchRefresh:
    """Opens a Fleet, refreshes and closes it in the calling thread."""
    with resource.open() as cycle:
        return refresh_groups(cycle)


def watch(context: SensorEvaluationContext, resource: FleetResource) -> SensorResult | SkipReason:
    """Handles one tick."""
    memory = SensorMemory.from_cursor(context.cursor)
    try:
        refresh = run_within(DEADLINE_SECONDS, lambda: open_and_refresh(resource))
    except FleetError as error:
        return SkipReason(str(error))
    runs, ended = end_dead_runs(context.instance, refresh, memory)
    seen = {s.group: s for s in refresh.groups}
    due = due_groups(refresh.groups, memory, now=refresh.at)
    cluster = refresh.spec.cluster.name
    events = [event for tick in due for event in events_of(cluster, tick)]
    after = replace(memory.with_events(due, now=refresh.at, alive=seen), runs=runs)
    for sentence in (*ended, *refresh.problems):
        context.log.warning(sentence)
    return SensorResult(
        asset_events=events,
        cursor=after.as_cursor(),
        dynamic_partitions_requests=partition_requests(context.instance, refresh),
        # The sensor requests no run, so Dagster calls every tick skipped and shows this.
        skip_reason=SkipReason(
            f"Checked {plural(len(seen), 'group')}, stored events of {len(due)}, "
            f"ended {plural(len(ended), 'dead run')}."
        ),
    )


def partition_requests(
    instance: DagsterInstance, refresh: WatchRefresh
) -> list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest]:
    """Adds and deletes partitions of `discovered_groups` as groups appear and disappear."""
    partitions = discovered_partitions(refresh.spec)
    known = set(instance.get_dynamic_partitions(str(partitions.name)))
    exist = {asset_keys.name_of(s.group) for s in refresh.groups if s.fleet is None}
    requests: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = []
    if new := sorted(exist - known)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_add_request(new))
    if deleted := sorted(known - exist)[:PARTITIONS_A_TICK]:
        requests.append(partitions.build_delete_request(deleted))
    return requests


def watch_sensor(spec: FleetSpec) -> SensorDefinition:
    """Defines the sensor; it runs by default, because it changes nothing in Kafka."""

    @sensor(
        name="fleet_watch",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
        description=(
            f"Observes all groups of {spec.cluster.name}: stores changes, evaluates checks, "
            "ends dead runs."
        ),
    )
    def fleet_watch(
        context: SensorEvaluationContext, fleet: FleetResource
    ) -> SensorResult | SkipReason:
        return watch(context, fleet)

    return fleet_watch
